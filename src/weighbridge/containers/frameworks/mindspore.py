"""MindSpore checkpoints (.ckpt): a protobuf message of named tensors.

    Checkpoint    value = 1
    Value         tag = 1, tensor = 2; or maptensor = 3
    TensorProto   dims = 1, tensor_type = 2 ("Float32"), tensor_content = 3

A large tensor is several values with one tag, whose contents follow each other. Tensors are read in place. Reference:
checkpoint.proto of MindSpore 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import DIMS
from weighbridge.containers.base import Index, Region, Rule, Severity
from weighbridge.containers.frameworks.pieces import Pieces
from weighbridge.containers.frameworks.tensor_list import RULES as COMMON
from weighbridge.containers.frameworks.tensor_list import TensorList, framed
from weighbridge.containers.protobuf import BYTES, Messages, ProtoField
from weighbridge.containers.sniff.probe import Hit, Probe
from weighbridge.io.source import Source

NAME: Final = "mindspore"
RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {**COMMON, "map": Rule(Severity.WARNING, "a MapTensor (a hash table of rows) is left out")}
)
#: Words of tensor_type, which a number of bits follows -> those of types.
_KINDS: Final = (
    ("Float", "F", (16, 32, 64)), ("BFloat", "BF", (16,)), ("Int", "I", (8, 16, 32, 64)), ("Complex", "C", (64, 128)),
    ("UInt", "U", (8, 16, 32, 64)), ("Uint", "U", (8, 16, 32, 64)),
)  # fmt: skip
#: tensor_type -> type.
DTYPES: Final[Mapping[str, str]] = MappingProxyType(
    {f"{word}{bits}": f"{short}{bits}" for word, short, sizes in _KINDS for bits in sizes}
    | {"Bool": "BOOL", "Float8E4M3FN": "F8_E4M3", "Float8E5M2": "F8_E5M2"}
)
_TEXT: Final = 4096


class _Tensor(NamedTuple):
    """A TensorProto of a value at byte `at`."""

    at: int
    dims: tuple[int, ...]
    kind: str
    start: int
    end: int


def recognise(probe: Probe) -> Hit | None:
    """A message that begins with a value: a tag, and a tensor with dimensions and the name of a type."""
    if probe.head[:1] != b"\x0a":
        return None
    try:
        reader = Messages(probe.source)
        value = next(reader.fields(0, probe.size))
        kind = _tensor(reader, value)[1].kind if value.number == 1 and value.kind == BYTES else ""
    except (FormatError, UnsupportedError, StopIteration):
        return None
    return Hit(NAME, evidence=(f"protobuf Checkpoint of MindSpore, first tensor {kind}",)) if kind in DTYPES else None


def _tensor(reader: Messages, value: ProtoField) -> tuple[str, _Tensor]:
    """The tag of a value, and its tensor."""
    fields = {field.number: field for field in reader.fields(value.start, value.end)}
    tag, tensor = fields.get(1), fields.get(2)
    if tag is None or tag.kind != BYTES or tensor is None or tensor.kind != BYTES:
        raise reader.error("a value has no tag or no tensor", value.start)
    dims: list[int] = []
    kind, start, end = "", 0, 0
    for field in reader.fields(tensor.start, tensor.end):
        if field.number == 1:
            dims += reader.signed(field)
        elif field.number == 2 and field.kind == BYTES:
            kind = reader.text(field, _TEXT)
        elif field.number == 3 and field.kind == BYTES:
            start, end = field.start, field.end
        if len(dims) > DIMS:
            raise reader.error("the shape is impossible", value.start)
    return reader.text(tag, _TEXT), _Tensor(value.start, tuple(dims), kind, start, end)


def parse(source: Source) -> Index:
    """The tensors in the order of their first values."""
    tensor_list = TensorList(NAME, source, RULES)
    for name, pieces in _values(tensor_list, Messages(source)).items():
        first = pieces[0]
        if any((piece.dims, piece.kind) != (first.dims, first.kind) for piece in pieces):
            raise tensor_list.error("the pieces of a tensor have different shapes or types", name, pieces[1].at)
        spans = [(piece.start, piece.end - piece.start) for piece in pieces]
        size = sum(length for _, length in spans)
        joined = len(pieces) > 1
        number = tensor_list.add_source(Pieces(source, spans, name)) if joined else 0
        tensor_list.add(
            name, DTYPES.get(first.kind), first.dims, 0 if joined else first.start, size, kind=first.kind[:40],
            at=first.at, number=number,
        )  # fmt: skip
    return tensor_list.index({}, None)


def _values(tensor_list: TensorList, reader: Messages) -> dict[str, list[_Tensor]]:
    """The values of each tag, in their order."""
    values: dict[str, list[_Tensor]] = {}
    for value in reader.fields(0, reader.source.size):
        if value.number != 1 or value.kind != BYTES:
            raise reader.error("no value of a MindSpore checkpoint", value.start)
        inner = {field.number: field for field in reader.fields(value.start, value.end)}
        if 3 in inner and 2 not in inner:
            name = reader.text(inner[1], _TEXT) if 1 in inner else ""
            tensor_list.finding("map", "left out: a MapTensor", value.start, name)
            continue
        name, tensor = _tensor(reader, value)
        values.setdefault(name, []).append(tensor)
    return values


def regions(source: Source) -> list[Region]:
    """Every byte of the file, named."""
    return framed(source, parse, "fields of the message, pieces of tensors")
