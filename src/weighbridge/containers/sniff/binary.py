"""Recognisers of formats without a magic: pickles (opcode walk) and protobuf messages (field walk: ONNX, TensorFlow,
Core ML, SentencePiece). Both walk the first bytes only and run nothing.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from weighbridge.base.limits import SNIFF_FIELDS, SNIFF_OPCODES
from weighbridge.containers.formats import DISTRIBUTED
from weighbridge.containers.sniff.probe import Confidence, Hit, Probe
from weighbridge.unpickle.libraries.torch_legacy import MAGIC as TORCH_MAGIC
from weighbridge.unpickle.recognise import prefix

# ---- pickle ----

#: The class of a distributed checkpoint's `.metadata`, and so the first name in it.
DCP_METADATA: Final = "torch.distributed.checkpoint.metadata.Metadata"


def pickled(probe: Probe) -> Hit | None:
    """A pickle of any protocol. From protocol 2 on the first byte identifies it; 0 and 1 have no magic, so the
    opcodes must reach STOP with a value."""
    start = prefix(probe.head, SNIFF_OPCODES)
    if not start.steps or (start.broken and not (start.declared and start.names)):
        return None
    if start.declared is None:  # a value, then STOP at the end of the file or before another pickle (or tensors)
        after = probe.at(start.end, 1) if start.stopped else b""
        follows = not after or after in b"(]}cIL\x80K" or start.steps > 8
        if not (start.stopped and start.end >= 4 and follows):
            return None
    if start.declared is not None and start.steps < 2 < probe.size:
        return None
    detail: dict[str, Any] = {"protocol": start.protocol}
    if type(start.value) is int and start.value == TORCH_MAGIC:
        return Hit("torch-legacy", evidence=(f"pickle of torch's magic number {TORCH_MAGIC:#x}",), detail=detail)
    names = (f"names {', '.join(start.names[:3])}",) if start.names else ()
    evidence = (f"pickle opcodes, protocol {start.protocol}", *names)
    whole = start.stopped or probe.size > len(probe.head) or start.steps >= SNIFF_OPCODES
    damage = () if whole else ("truncated: no STOP opcode",)
    confidence: Confidence = "likely" if start.declared is None else "certain"
    detail["globals"] = list(start.names)
    if start.names[:1] == (DCP_METADATA,):
        return Hit(DISTRIBUTED, "", evidence, confidence, detail, damage)
    return Hit("pickle", f"protocol-{start.protocol}", evidence, confidence, detail, damage)


# ---- protobuf ----


class _Field(NamedTuple):
    number: int
    wire: int
    value: int  # the varint (wire 0) or the length (wire 2)
    at: int  # offset of the payload of wire type 2


class _Message(NamedTuple):
    fields: list[_Field]
    end: int  # end of the last field seen: beyond the message if that is truncated


def _message(probe: Probe, start: int, end: int) -> _Message | None:
    """The first top-level fields of a protobuf message; None if the bytes aren't one. Long payloads are skipped."""
    at = start
    out: list[_Field] = []
    while at < end and len(out) < SNIFF_FIELDS:
        key = _varint(probe, at)
        number, wire = (key[0] >> 3, key[0] & 7) if key else (0, 0)
        value = key and (_varint(probe, key[1]) if wire in (0, 2) else (0, key[1]))
        if value is None:  # near the end it is a number that is cut off (none is longer than 10 bytes)
            return _Message(out, end + 1) if out and at + 20 > end else None
        if number == 0 or wire not in _WIDTHS:
            return None
        field = _Field(number, wire, *value)
        out.append(field)
        at = field.at + (field.value if wire == 2 else _WIDTHS[wire])
    return _Message(out, at)


# Wire types in use, and the payload bytes that aren't a varint (0) or counted by one (2).
_WIDTHS: Final = {0: 0, 1: 8, 2: 0, 5: 4}


def _varint(probe: Probe, at: int) -> tuple[int, int] | None:
    value = 0
    for i, byte in enumerate(probe.at(at, 10)):
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value, at + i + 1
    return None


# onnx.proto ModelProto: ir_version, producer_name, producer_version, domain, model_version, doc_string, graph,
# opset_import, metadata_props, training_info, functions, configuration.
_ONNX: Final = {1: 0, 2: 2, 3: 2, 4: 2, 5: 0, 6: 2, 7: 2, 8: 2, 14: 2, 20: 2, 25: 2, 26: 2}


def protobuf(probe: Probe) -> Hit | None:
    """The model formats that are protobuf messages, distinguished by their fields and wire types."""
    if not probe.head or probe.head[0] not in b"\x08\x0a":
        return None
    message = _message(probe, 0, probe.size)
    if message is None:
        return None
    fields = message.fields
    cut = f"truncated: its last field ends at byte {message.end:,} or later, the file at {probe.size:,}"
    damage = (cut,) if message.end > probe.size else ()
    kinds = {(f.number, f.wire) for f in fields}
    for test in (_onnx, _coreml, _saved_model, _sentencepiece):
        hit = test(probe, fields, kinds)
        if hit:
            return Hit(hit.format, hit.variant, hit.evidence, hit.confidence, hit.detail, damage)
    return None


_Kinds = set[tuple[int, int]]


def _onnx(probe: Probe, fields: list[_Field], kinds: _Kinds) -> Hit | None:
    if not {(1, 0), (7, 2)} <= kinds or any(_ONNX.get(n) != w for n, w in kinds) or not fields[0].value <= 64:
        return None
    evidence = (f"protobuf ModelProto of ONNX: ir_version {fields[0].value}, graph",)
    producer = next((probe.at(f.at, min(f.value, 64)).decode("utf-8", "replace") for f in fields if f.number == 2), "")
    return Hit("onnx", "", evidence, "likely", {"ir_version": fields[0].value, "producer": producer})


def _coreml(probe: Probe, fields: list[_Field], kinds: _Kinds) -> Hit | None:
    # coremltools Model.proto: specificationVersion 1, description 2, isUpdatable 10, then one model type of 200..3000
    types = {n for n, _ in kinds} - {1, 2, 10}
    if not {(1, 0), (2, 2)} <= kinds or not types or not all(200 <= n <= 3000 for n in types):
        return None
    evidence = (f"protobuf Model of Core ML: specification version {fields[0].value}",)
    return Hit("coreml", "mlmodel", evidence, "likely", {"specification": fields[0].value})


def _saved_model(probe: Probe, fields: list[_Field], kinds: _Kinds) -> Hit | None:
    # saved_model.proto: saved_model_schema_version = 1, meta_graphs = 2 (whose first field is meta_info_def, a message)
    if kinds != {(1, 0), (2, 2)} or fields[0].value != 1 or probe.at(fields[1].at, 1) != b"\x0a":
        return None
    return Hit("tf-savedmodel", evidence=("protobuf SavedModel: schema version 1, meta graphs",), confidence="likely")


def _sentencepiece(probe: Probe, fields: list[_Field], kinds: _Kinds) -> Hit | None:
    # sentencepiece_model.proto ModelProto: pieces = 1 {piece = 1, score = 2 float, type = 3}, trainer_spec = 2 ...
    pieces = [f for f in fields if f.number == 1 and f.wire == 2]
    if not pieces or any(w != 2 or n > 5 for n, w in kinds):
        return None
    inner: list[list[_Field]] = []
    for piece in pieces[:8]:
        end = piece.at + piece.value
        message = _message(probe, piece.at, end) if piece.value <= 4096 else None
        inner.append(message.fields if message and message.end == end else [])
    if not all({(1, 2), (2, 5)} <= {(f.number, f.wire) for f in some} and some[0].number == 1 for some in inner):
        return None
    word = probe.at(inner[0][0].at, min(inner[0][0].value, 32)).decode("utf-8", "replace")
    evidence = (f"protobuf ModelProto of SentencePiece, first piece {word!r}",)
    return Hit("sentencepiece", evidence=evidence, confidence="likely")
