"""Core ML models (.mlmodel, in an .mlpackage): a protobuf message whose ML program names the blobs in weight.bin.

    Model           specificationVersion = 1, mlProgram = 502
    Program         functions = 2 {key = 1, Function = 2}
    Function        block_specializations = 3 {key = 1, Block = 2}
    Block           operations = 3
    Operation       type = 1, inputs = 2 {key = 1, Argument = 2}, outputs = 3, blocks = 4, attributes = 5 {key, Value}
    Argument        arguments = 1 {value = 2}
    Value           type = 2, blobFileValue = 5 {fileName = 1, offset = 2}
    TensorType      dataType = 1, dimensions = 3 {constant = 1 {size = 1}}

A constant is called as its output, a compressed one OUTPUT/INPUT: its values, scales and offsets are separate tensors.
Values in the message itself, which are small, aren't tensors. Reference: Model.proto and MIL.proto of coremltools 9.0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from weighbridge.base.dtypes import BY_NAME
from weighbridge.base.errors import UnsupportedError
from weighbridge.base.limits import DIMS, PROTOBUF_DEPTH
from weighbridge.containers.base import Index, Region, Rule, Severity
from weighbridge.containers.devices.coreml_weights import UNIT
from weighbridge.containers.frameworks.tensor_list import PACKED, TensorList
from weighbridge.containers.frameworks.tensor_list import RULES as COMMON
from weighbridge.containers.protobuf import BYTES, VARINT, Messages, ProtoField
from weighbridge.io.source import Source

NAME: Final = "coreml"
RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {**COMMON, "shape": Rule(Severity.WARNING, "a tensor whose shape isn't constant is left out")}
)
#: DataType of MIL -> type. 2 are texts.
DTYPES: Final[Mapping[int, str]] = MappingProxyType(
    {
        1: "BOOL", 10: "F16", 11: "F32", 12: "F64", 13: "BF16", 21: "I8", 22: "I16", 23: "I32", 24: "I64", 25: "I4",
        31: "U8", 32: "U16", 33: "U32", 34: "U64", 35: "U4", 36: "U2", 37: "U1", 38: "U6", 39: "U3", 40: "F8_E4M3",
        41: "F8_E5M2",
    }
)  # fmt: skip
_PROGRAM: Final = 502
_TEXT: Final = 4096
#: Message -> its fields that may have values, each with its message. `key`: the entry of a map has a name.
_INSIDE: Final[Mapping[str, Mapping[int, str]]] = MappingProxyType(
    {
        "model": {_PROGRAM: "program"},
        "program": {2: "function-entry"},
        "function-entry": {2: "function"},
        "function": {3: "block-entry"},
        "block-entry": {2: "block"},
        "block": {3: "operation"},
        "operation": {2: "input-entry", 4: "block", 5: "attribute-entry"},
        "input-entry": {2: "argument"},
        "argument": {1: "binding"},
        "binding": {2: "value"},
        "attribute-entry": {2: "value"},
    }
)
_FOLDER: Final = re.compile(r"@model_path/+")


class _Place(NamedTuple):
    """A message in bytes [start, end). `output`: the name of the operation's result; `key`: of the input."""

    message: str
    output: str
    key: str
    start: int
    end: int
    depth: int


def _values(reader: Messages) -> Iterator[_Place]:
    """The values of all operations, in the order of their bytes."""
    stack = [_Place("model", "", "", 0, reader.source.size, 0)]
    while stack:
        place = stack.pop()
        if place.message == "value":
            yield place
            continue
        if place.depth > PROTOBUF_DEPTH:
            raise UnsupportedError(f"{reader.source.name}: blocks are nested more than {PROTOBUF_DEPTH} deep")
        fields = [f for f in reader.fields(place.start, place.end) if f.kind == BYTES]
        texts = {f.number: f for f in reversed(fields)}
        output, key, inside = place.output, place.key, _INSIDE[place.message]
        if place.message == "operation" and 3 in texts:
            named = {f.number: f for f in reader.fields(texts[3].start, texts[3].end)}
            output = reader.text(named[1], _TEXT) if 1 in named and named[1].kind == BYTES else ""
        elif place.message.endswith("-entry") and 1 in texts:
            key = reader.text(texts[1], _TEXT)
        stack += [
            _Place(inside[f.number], output, key, f.start, f.end, place.depth + 1)
            for f in reversed(fields)
            if f.number in inside
        ]


def _only(reader: Messages, place: ProtoField | _Place) -> dict[int, ProtoField]:
    """The last field of each number."""
    return {field.number: field for field in reader.fields(place.start, place.end)}


def parse(source: Source) -> Index:
    """The tensors in the order of the operations that create them."""
    reader, tensor_list = Messages(source), TensorList(NAME, source, RULES)
    model = _only(reader, _Place("model", "", "", 0, source.size, 0))
    if _PROGRAM not in model:
        raise UnsupportedError(
            f"{source.name}: a Core ML model without an ML program, which this version doesn't read",
            hint="convert its source with convert_to='mlprogram'",
        )
    for place in _values(reader):
        fields = _only(reader, place)
        if 5 in fields and fields[5].kind == BYTES:
            _add(reader, tensor_list, place, fields)
    version = model[1].value if 1 in model else None
    return tensor_list.index({}, version)


def _add(reader: Messages, tensor_list: TensorList, place: _Place, fields: dict[int, ProtoField]) -> None:
    """Adds the tensor of a value in a file."""
    name = place.output if place.key == "val" else f"{place.output}/{place.key}"
    blob = _only(reader, fields[5])
    file = _FOLDER.sub("", reader.text(blob[1], _TEXT), count=1) if 1 in blob and blob[1].kind == BYTES else ""
    record = blob[2].value if 2 in blob and blob[2].kind == VARINT else 0
    if record % UNIT or not record or not file:
        raise tensor_list.error("a value's blob has no place in a file", name, place.start, found=record)
    kind, shape = _type(reader, tensor_list, name, fields.get(2))
    if shape is None:
        tensor_list.finding("shape", "left out: its shape isn't constant", place.start, name)
        return
    dtype = DTYPES.get(kind)
    tensor_list.add(
        name, dtype, shape, record + UNIT, _size(dtype, shape), kind=f"number {kind} of DataType", file=file,
        at=place.start,
    )  # fmt: skip


def _type(
    reader: Messages, tensor_list: TensorList, name: str, field: ProtoField | None
) -> tuple[int, list[int] | None]:
    """The DataType and the shape of a ValueType; None for a shape that isn't constant."""
    types = _only(reader, field) if field is not None and field.kind == BYTES else {}
    if 1 not in types or types[1].kind != BYTES:
        raise tensor_list.error("a value in a file isn't a tensor", name, None if field is None else field.start)
    kind, shape = 0, list[int]()
    for part in reader.fields(types[1].start, types[1].end):
        if part.number == 1 and part.kind == VARINT:
            kind = part.value
        elif part.number == 3 and part.kind == BYTES:
            constant = _only(reader, part).get(1)
            if constant is None or constant.kind != BYTES:
                return kind, None
            size = _only(reader, constant).get(1)
            shape.append(size.value if size is not None else 0)
            if len(shape) > DIMS:
                raise tensor_list.error("the shape is impossible", name, part.start)
    return kind, shape


def _size(dtype: str | None, shape: list[int]) -> int:
    """The bytes of a tensor, which the message doesn't repeat; 0 for an unknown type."""
    if dtype is not None and dtype in PACKED:
        return -(-math.prod(shape) * PACKED[dtype] // 8)
    row = BY_NAME.get(dtype or "")
    return math.prod(shape) * row.size if row is not None else 0


def regions(source: Source) -> list[Region]:
    """The message: its data is in another file."""
    return [Region(0, source.size, "header", "message")] if source.size else []
