"""Recognisers of formats without a magic: pickles (opcode walk) and protobuf messages (field walk: ONNX, TensorFlow,
Core ML, SentencePiece). Both walk the first bytes only and run nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from weighbridge.base.limits import SNIFF_FIELDS, SNIFF_OPCODES
from weighbridge.containers.sniff.probe import Hit, Probe

# ---- pickle ----

# Argument of each opcode: a number = that many bytes, "n" = one line, "nn" = two lines, "1" "4" "8" = that many bytes
# of length and so much data (pickle protocol 5, CPython Lib/pickletools.py).
_ARGUMENT: Final[dict[int, int | str]] = {
    **dict.fromkeys(b"(.012]})etablsduoNQR\x81\x85\x86\x87\x88\x89\x8f\x90\x91\x92\x93\x94\x97\x98", 0),
    **dict.fromkeys(b"Khq\x80\x82", 1), **dict.fromkeys(b"M\x83", 2), **dict.fromkeys(b"Jjr\x84", 4),
    **dict.fromkeys(b"G\x95", 8),
    **dict.fromkeys(b"IFSLVPgp", "n"), **dict.fromkeys(b"ci", "nn"),
    **dict.fromkeys(b"UC\x8a\x8c", "1"), **dict.fromkeys(b"TXB\x8b", "4"), **dict.fromkeys(b"\x8d\x8e\x96", "8"),
}  # fmt: skip
_LENGTHS: Final = {"1": "<B", "4": "<I", "8": "<Q"}
#: torch.serialization.MAGIC_NUMBER, little-endian as LONG1 stores it
_TORCH_MAGIC: Final = bytes.fromhex("6cfc9c46f9206aa85019")


class _Op(NamedTuple):
    code: int
    argument: bytes
    end: int


def _ops(data: bytes) -> Iterator[_Op | None]:
    """Opcodes with their arguments; None at the first byte that is none. Ends silently where the data is cut."""
    at = 0
    for _ in range(SNIFF_OPCODES):
        if at >= len(data):
            return
        code, form = data[at], _ARGUMENT.get(data[at])
        end = None if form is None else _argument_end(data, at + 1, form)
        if form is None:
            yield None
            return
        if end is None or end > len(data):
            return
        yield _Op(code, data[at + 1 : end], end)
        if code == 0x2E:  # STOP
            return
        at = end


def _argument_end(data: bytes, at: int, form: int | str) -> int | None:
    """Where an argument ends; None where the data is cut before its length."""
    if isinstance(form, int):
        return at + form
    if form[0] == "n":
        for _ in form:
            at = data.find(b"\n", at) + 1
            if at == 0:
                return None
        return at
    code = _LENGTHS[form]
    width = struct.calcsize(code)
    if at + width > len(data):
        return None
    return at + width + int(struct.unpack_from(code, data, at)[0])


def pickled(probe: Probe) -> Hit | None:
    """A pickle of any protocol. 2 and later say so in their first byte; 0 and 1 have no magic, so the walk must reach
    STOP with something on the stack."""
    ops = list(_ops(probe.head))
    if not ops or ops[-1] is None:
        return None
    walked = [op for op in ops if op is not None]
    said = walked[0].argument[0] if walked[0].code == 0x80 else None
    stopped = walked[-1].code == 0x2E
    if said is None and not (stopped and _plausible(walked, probe)):
        return None
    if said is not None and (said > 5 or (len(walked) < 2 and probe.size > 2)):
        return None
    return _pickle_hit(walked, said, stopped, probe)


def _plausible(walked: list[_Op], probe: Probe) -> bool:
    """A protocol 0/1 pickle: a value then STOP, at the end of the file or with another pickle (or tensors) behind."""
    values = [op for op in walked if op.code in b"(]})KMJIFLSVUTXcGN\x8a\x8c"]
    rest = probe.at(walked[-1].end, 1)
    longest = walked[-1].end >= 4 and values and walked[0].code not in b".01]0" + b"eabsu"
    return bool(longest) and (not rest or rest in b"(]}cIL\x80K" or len(walked) > 8)


def _pickle_hit(walked: list[_Op], said: int | None, stopped: bool, probe: Probe) -> Hit:
    number = next((op.argument[1:] for op in walked if op.code == 0x8A), b"")
    text = next((op.argument for op in walked if op.code in b"IL"), b"")
    protocol = said if said is not None else int(any(op.code in b"KMJUTXhq]})" for op in walked))
    if number == _TORCH_MAGIC or text.rstrip(b"L\n") == str(int.from_bytes(_TORCH_MAGIC, "little")).encode():
        return Hit(
            "torch-legacy",
            evidence=("pickle of torch's magic number 0x1950a86a20f9469cfc6c",),
            detail={"protocol": protocol},
        )
    called = _globals(walked)
    evidence = (f"pickle opcodes, protocol {protocol}",) + ((f"names {', '.join(called[:3])}",) if called else ())
    damage = (
        ()
        if stopped or probe.size > len(probe.head) or len(walked) >= SNIFF_OPCODES
        else ("truncated: no STOP opcode",)
    )
    detail = {"protocol": protocol, "globals": called}
    return Hit("pickle", f"protocol-{protocol}", evidence, "certain" if said is not None else "likely", detail, damage)


def _globals(walked: list[_Op]) -> list[str]:
    """Names that the pickle would import, as far as seen: GLOBAL and the two strings before STACK_GLOBAL."""
    out: dict[str, None] = {}
    strings: list[str] = []
    for op in walked:
        if op.code in b"ci":
            out[op.argument.decode("utf-8", "replace").strip().replace("\n", ".")] = None
        elif op.code in b"\x8cXV":
            strings.append(op.argument[{0x8C: 1, 0x58: 4}.get(op.code, 0) :].decode("utf-8", "replace").strip())
        elif op.code == 0x93 and len(strings) > 1:
            out[".".join(strings[-2:])] = None
    return list(out)[:16]


# ---- protobuf ----


class _Field(NamedTuple):
    number: int
    wire: int
    value: int  # the varint (wire 0) or the length (wire 2)
    at: int  # where the payload of wire 2 starts


class _Message(NamedTuple):
    fields: list[_Field]
    end: int  # where the last field seen ends: behind the message where that is cut


def _message(probe: Probe, start: int, end: int) -> _Message | None:
    """Top-level fields of a protobuf message, None where the bytes are none. Long payloads are stepped over; a message
    with many fields is judged by the first."""
    at = start
    out: list[_Field] = []
    while at < end and len(out) < SNIFF_FIELDS:
        found = _field(probe, at)
        if found is None:  # a cut number, if so few bytes are left (no number is longer than 10)
            return _Message(out, end + 1) if out and at + 20 > end else None
        if found.number == 0 or found.wire not in _WIDTHS:
            return None
        out.append(found)
        at = found.at + (found.value if found.wire == 2 else _WIDTHS[found.wire])
    return _Message(out, at)


# Wire types in use, and the bytes behind their key that are not a varint (0) or counted by one (2).
_WIDTHS: Final = {0: 0, 1: 8, 2: 0, 5: 4}


def _field(probe: Probe, at: int) -> _Field | None:
    key = _varint(probe, at)
    if key is None:
        return None
    number, wire = key[0] >> 3, key[0] & 7
    value = _varint(probe, key[1]) if wire in (0, 2) else (0, key[1])
    return None if value is None else _Field(number, wire, *value)


def _fields(probe: Probe, part: _Field) -> list[_Field]:
    """The fields of a message inside another; none where it isn't one, or is longer than any that is looked into."""
    found = _message(probe, part.at, part.at + part.value) if part.value <= 4096 else None
    return found.fields if found and found.end == part.at + part.value else []


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
    """The model formats that are protobuf messages, told apart by which fields they have, of which wire type."""
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
    words = f"protobuf ModelProto of ONNX: ir_version {fields[0].value}, graph"
    producer = next((probe.at(f.at, min(f.value, 64)).decode("utf-8", "replace") for f in fields if f.number == 2), "")
    return Hit("onnx", "", (words,), "likely", {"ir_version": fields[0].value, "producer": producer})


def _coreml(probe: Probe, fields: list[_Field], kinds: _Kinds) -> Hit | None:
    # coremltools Model.proto: specificationVersion 1, description 2, isUpdatable 10, then one model type of 200..3000
    types = {n for n, _ in kinds} - {1, 2, 10}
    if not {(1, 0), (2, 2)} <= kinds or not types or not all(200 <= n <= 3000 for n in types):
        return None
    words = f"protobuf Model of Core ML: specification version {fields[0].value}"
    return Hit("coreml", "mlmodel", (words,), "likely", {"specification": fields[0].value})


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
    inner = [_fields(probe, piece) for piece in pieces[:8]]
    if not all({(1, 2), (2, 5)} <= {(f.number, f.wire) for f in one} and one[0].number == 1 for one in inner):
        return None
    word = probe.at(inner[0][0].at, min(inner[0][0].value, 32)).decode("utf-8", "replace")
    evidence = (f"protobuf ModelProto of SentencePiece, first piece {word!r}",)
    return Hit("sentencepiece", evidence=evidence, confidence="likely")
