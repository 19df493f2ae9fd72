"""ONNX models: a protobuf message with a graph, whose initializers and constants are the tensors.

    ModelProto      graph = 7, training_info = 20, functions = 25
    GraphProto      node = 1, initializer = 5, sparse_initializer = 15
    NodeProto       output = 2, name = 3, op_type = 4, attribute = 5
    TensorProto     dims = 1, data_type = 2, name = 8, raw_data = 9 or numbers by type, external_data = 13

Tensors are read in place; numbers that are written as varints are decoded. A tensor of a node's attribute is called
NODE/ATTRIBUTE, that of a Constant as its output. External data is in files next to the model (`location`, `offset`,
`length`). Reference: onnx/onnx.proto and external_data_helper.py of onnx 1.23. No operator is run.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from weighbridge.base.dtypes import BY_NAME
from weighbridge.base.errors import UnsupportedError
from weighbridge.base.limits import DIMS, PROTOBUF_DEPTH
from weighbridge.base.spec import Spec
from weighbridge.containers.base import Index, Region, Rule, Severity
from weighbridge.containers.frameworks.tensor_list import PACKED, TensorList, framed
from weighbridge.containers.frameworks.tensor_list import RULES as COMMON
from weighbridge.containers.protobuf import VARINT, Messages, ProtoField, varint
from weighbridge.containers.rewritten import Replacement, tensor_parts
from weighbridge.io.source import Source

NAME: Final = "onnx"
RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {**COMMON, "external-key": Rule(Severity.INFO, "external data with a key that onnx doesn't define")}
)
#: TensorProto.DataType -> type. 8 are texts.
DTYPES: Final[Mapping[int, str]] = MappingProxyType(
    {
        1: "F32", 2: "U8", 3: "I8", 4: "U16", 5: "I16", 6: "I32", 7: "I64", 9: "BOOL", 10: "F16", 11: "F64", 12: "U32",
        13: "U64", 14: "C64", 15: "C128", 16: "BF16", 17: "F8_E4M3", 18: "F8_E4M3FNUZ", 19: "F8_E5M2",
        20: "F8_E5M2FNUZ", 21: "U4", 22: "I4", 23: "F4", 24: "F8_E8M0", 25: "U2", 26: "I2", 27: "F6_E2M3",
        28: "F6_E3M2",
    }
)  # fmt: skip
_STRING: Final = 8
# The fields of a TensorProto with its data: numbers by type, raw_data, external_data, data_location.
_DATA: Final = frozenset({4, 5, 7, 9, 10, 11, 13, 14})
#: The keys of external data.
EXTERNAL_KEYS: Final = frozenset({"location", "offset", "length", "checksum", "basepath"})
# For each message: the fields that are messages which may have tensors.
_INSIDE: Final[Mapping[str, Mapping[int, str]]] = MappingProxyType(
    {
        "model": {7: "graph", 20: "training", 25: "function"},
        "training": {1: "graph", 2: "graph"},
        "graph": {1: "node", 5: "tensor", 15: "sparse"},
        "function": {7: "node", 11: "attribute"},
        "node": {5: "attribute"},
        "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
        "sparse": {1: "tensor", 2: "tensor"},
    }
)
_TEXT: Final = 4096


class OnnxTensor(NamedTuple):
    """A TensorProto in bytes [start, end). `path`: the names of the node and the attribute around it; `around`: the
    bytes of the messages around it, the outermost first."""

    path: str
    start: int
    end: int
    around: tuple[tuple[int, int], ...]


class _Place(NamedTuple):
    message: str
    path: str
    start: int
    end: int
    around: tuple[tuple[int, int], ...]


def tensors(reader: Messages) -> Iterator[OnnxTensor]:
    """The tensors of a model in the order of their bytes, those of all graphs and nodes."""
    stack = [_Place("model", "", 0, reader.source.size, ())]
    while stack:
        place = stack.pop()
        if place.message == "tensor":
            yield OnnxTensor(place.path, place.start, place.end, place.around)
            continue
        if len(place.around) > PROTOBUF_DEPTH:
            raise UnsupportedError(f"{reader.source.name}: graphs are nested more than {PROTOBUF_DEPTH} deep")
        fields = [f for f in reader.fields(place.start, place.end) if f.kind != VARINT]
        path, inside = _path(reader, place, fields), _INSIDE[place.message]
        around = (*place.around, (place.start, place.end))
        stack += [
            _Place(inside[f.number], path, f.start, f.end, around) for f in reversed(fields) if f.number in inside
        ]


def _path(reader: Messages, place: _Place, fields: list[ProtoField]) -> str:
    """The path of the tensors in a message."""
    texts = {f.number: f for f in reversed(fields)}

    def text(number: int) -> str:
        return reader.text(texts[number], _TEXT) if number in texts else ""

    if place.message == "node":
        constant = text(4) == "Constant"
        name = text(2) if constant else text(3) or text(2) or text(4)
        return f"{place.path}{name}" if constant else f"{place.path}{name}/"
    if place.message == "attribute":  # that of a Constant is called as its output
        return f"{place.path}{text(1)}/" if not place.path or place.path.endswith("/") else place.path
    return place.path


class _Tensor:
    """The fields of a TensorProto."""

    def __init__(self, reader: Messages, place: OnnxTensor) -> None:
        self.shape: list[int] = []
        self.kind, self.name, self.external = 0, "", False
        self.raw: ProtoField | None = None
        self.numbers: dict[int, list[ProtoField]] = {}
        self.data: dict[str, str] = {}
        for f in reader.fields(place.start, place.end):
            if f.number == 1:
                self.shape += [n for n, _ in zip(reader.signed(f), range(DIMS + 1), strict=False)]
            elif f.number == 2 and f.kind == VARINT:
                self.kind = f.value
            elif f.number == 3:
                raise UnsupportedError(f"{reader.source.name}: a tensor is stored in segments")
            elif f.number == 8:
                self.name = reader.text(f, _TEXT)
            elif f.number == 9:
                self.raw = f
            elif f.number == 13:
                key, value = _property(reader, f)
                self.data[key] = value
            elif f.number == 14:
                self.external = f.value == 1
            elif f.number in (4, 5, 7, 10, 11):
                self.numbers.setdefault(f.number, []).append(f)


def _property(reader: Messages, field: ProtoField) -> tuple[str, str]:
    """A StringStringEntryProto: key = 1, value = 2."""
    texts = {f.number: reader.text(f, _TEXT) for f in reader.fields(field.start, field.end) if f.kind != VARINT}
    return texts.get(1, ""), texts.get(2, "")


def external_data(reader: Messages) -> Iterator[tuple[str, str]]:
    """Keys and values of the external data of all tensors."""
    for place in tensors(reader):
        yield from _Tensor(reader, place).data.items()


def parse(source: Source) -> Index:
    """The tensors of all graphs in file order; the model's producer and properties as metadata."""
    reader = Messages(source)
    tensor_list = TensorList(NAME, source, RULES)
    for _ in _named(tensor_list, reader):
        pass
    names = {2: "producer_name", 3: "producer_version", 4: "domain", 6: "doc_string"}
    metadata: dict[str, str] = {}
    version = None
    for f in reader.fields(0, source.size):
        if f.number == 1 and f.kind == VARINT:
            version = f.value
        elif f.number in names and f.kind != VARINT and f.end > f.start:
            metadata[names[f.number]] = reader.text(f, _TEXT)
        elif f.number == 14 and f.kind != VARINT:
            key, value = _property(reader, f)
            metadata[key] = value
    return tensor_list.index(metadata, version)


def _named(tensor_list: TensorList, reader: Messages) -> Iterator[tuple[str, OnnxTensor]]:
    """Adds the tensors to the list. Yields the name that each has there."""
    for place in tensors(reader):
        count = len(tensor_list.entries)
        _add(tensor_list, reader, place, _Tensor(reader, place))
        if len(tensor_list.entries) > count:
            yield next(reversed(tensor_list.entries)), place


def _add(tensor_list: TensorList, reader: Messages, place: OnnxTensor, tensor: _Tensor) -> None:
    named = place.path if not place.path.endswith("/") and place.path else place.path + tensor.name
    name = named.rstrip("/") or "unnamed"
    if tensor.kind == _STRING:
        tensor_list.finding("texts", "left out: a tensor of strings", place.start, name)
        return
    dtype, shape, kind = DTYPES.get(tensor.kind), tensor.shape, f"number {tensor.kind} of TensorProto.DataType"
    if tensor.external:
        for key in sorted(tensor.data.keys() - EXTERNAL_KEYS):
            tensor_list.finding(
                "external-key", f"external data has the key {key[:40]!r}, which is ignored", place.start, name
            )
        spec = tensor_list.spec(name, dtype, shape, kind, place.start)
        if spec is not None:
            offset = _number(tensor_list, name, tensor, "offset", 0, place.start)
            length = _number(tensor_list, name, tensor, "length", spec.nbytes, place.start)
            tensor_list.add(
                name, dtype, shape, offset, length, kind=kind, at=place.start, file=tensor.data.get("location", "")
            )
        return
    if tensor.raw is not None:
        start, end = tensor.raw.start, tensor.raw.end
        tensor_list.add(name, dtype, shape, start, end - start, kind=kind, at=place.start)
    elif dtype is None:
        tensor_list.spec(name, dtype, shape, kind, place.start)
    elif dtype in _FIXED:
        fields = tensor.numbers.get(_FIXED[dtype], [])
        if len(fields) == 1:
            start, end = fields[0].start, fields[0].end
            tensor_list.add(name, dtype, shape, start, end - start, kind=kind, at=place.start)
        else:
            values = b"".join(reader.source.read(f.start, f.end - f.start) for f in fields)
            tensor_list.add_values(name, dtype, tuple(shape), values, place.start)
    else:
        width, decoded = 1 if dtype in PACKED else BY_NAME[dtype].word, bytearray()
        for f in tensor.numbers.get(_VARINTS[dtype], ()):
            for value in (f.value,) if f.kind == VARINT else reader.varints(f.start, f.end):
                decoded += struct.pack("<Q", value & ((1 << 8 * width) - 1))[:width]
        tensor_list.add_values(name, dtype, tuple(shape), bytes(decoded), place.start)


def _number(tensor_list: TensorList, name: str, tensor: _Tensor, key: str, default: int, at: int) -> int:
    text = tensor.data.get(key, "")
    if text and not (text.isascii() and text.isdigit() and len(text) < 20):
        raise tensor_list.error(f"the {key} of external data is no number", name, at, found=repr(text[:40]))
    return int(text) if text else default


# Type -> the field of its fixed-width numbers (float_data, double_data), stored as in memory.
_FIXED: Final = MappingProxyType({"F32": 4, "C64": 4, "F64": 10, "C128": 10})
# Type -> the field of its varints, and its bytes.
_VARINTS: Final = MappingProxyType(
    {**{name: 5 for name in ("I32", "I16", "I8", "U16", "U8", "BOOL", "F16", "BF16", "F8_E4M3", "F8_E4M3FNUZ",
                             "F8_E5M2", "F8_E5M2FNUZ", "F8_E8M0", "F4", "F6_E2M3", "F6_E3M2", *PACKED)},
     "I64": 7, "U32": 11, "U64": 11}
)  # fmt: skip


def regions(source: Source) -> list[Region]:
    """Every byte of the file, named."""
    return framed(source, parse, "fields of the ONNX model")


# ---- writing --------------------------------------------------------------------------------------------------


def parts(index: Index, recoded: Collection[str] = ()) -> list[Replacement]:
    """The places of the tensors in the model's file. Those of `recoded`, which are numbers there, become raw data, so
    the lengths of the messages around them change."""
    reader = Messages(index.files[0])
    changed: list[Replacement] = []
    grown: dict[tuple[int, int], int] = {}
    around: dict[tuple[int, int], tuple[int, int] | None] = {}
    for name, place in _named(TensorList(NAME, reader.source, RULES), reader):
        if name in recoded:
            part = _recoded(reader, place, name, index[name].spec)
            changed.append(part)
            chain = (*place.around, (place.start, place.end))
            around |= zip(chain, (None, *chain), strict=False)
            grown[chain[-1]] = part.growth
    for message in sorted(around, reverse=True):  # the inner ones first
        if (outer := around[message]) is not None:
            size = message[1] - message[0] + grown[message]
            part = Replacement(reader.length_before(*message), message[0], (varint(size),))
            changed.append(part)
            grown[outer] = grown.get(outer, 0) + grown[message] + part.growth
    return [*tensor_parts(entry for entry in index if not entry.file), *changed]


def _recoded(reader: Messages, place: OnnxTensor, name: str, spec: Spec) -> Replacement:
    """A TensorProto whose numbers become raw data. Its other fields are kept."""
    kept, at = b"", place.start
    for f in reader.fields(place.start, place.end):
        if f.number not in _DATA:
            kept += reader.source.read(at, f.end - at)
        at = f.end
    return Replacement(place.start, place.end, (kept + b"\x4a" + varint(spec.nbytes), (name, spec)))
