"""TensorFlow Lite (LiteRT) models: a FlatBuffer whose buffers are the weights.

    Model      subgraphs = 2, description = 3, buffers = 4
    SubGraph   tensors = 0, name = 4
    Tensor     shape = 0, type = 1, buffer = 2, name = 3, quantization = 4, sparsity = 6
    Buffer     data = 0; or offset = 1 and size = 2 of bytes after the FlatBuffer, in files of more than 2 GB

Tensors with a buffer are weights, and read in place. The scales and zero points of quantized ones are the tensors
NAME.scale and NAME.zero_point (value = scale * (number - zero point), along one axis). Reference: schema.fbs of LiteRT
2.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from weighbridge.base.errors import UnsupportedError
from weighbridge.base.limits import DIMS, FLATBUFFER_TENSORS
from weighbridge.containers.base import Index, Region, Rule, Severity
from weighbridge.containers.flatbuffer import FlatBuffer, FlatTable, Vector
from weighbridge.containers.frameworks.tensor_list import RULES as COMMON
from weighbridge.containers.frameworks.tensor_list import TensorList, framed
from weighbridge.io.source import Source

NAME: Final = "tflite"
RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {**COMMON, "sparse": Rule(Severity.WARNING, "a sparse tensor is left out")}
)
#: TensorType -> type. The others: 5 texts, 13 and 14 resources and variants, which have no data.
DTYPES: Final[Mapping[int, str]] = MappingProxyType(
    {
        0: "F32", 1: "F16", 2: "I32", 3: "U8", 4: "I64", 6: "BOOL", 7: "I16", 8: "C64", 9: "I8", 10: "F64", 11: "C128",
        12: "U64", 15: "U32", 16: "U16", 17: "I4", 18: "BF16", 19: "I2", 20: "U4", 21: "F8_E4M3", 22: "F8_E5M2",
    }
)  # fmt: skip
_STRING: Final = 5
_REGIONS: Final = (Region(0, 4, "offset", "root table"), Region(4, 8, "magic", "TFL3"))


def parse(source: Source) -> Index:
    """The tensors with data, in the order of the subgraphs."""
    tensor_list, model = TensorList(NAME, source, RULES), FlatBuffer(source).root()
    buffers, subgraphs = model.vector(4), model.vector(2)
    count = 0
    for number in range(subgraphs.length if subgraphs and buffers else 0):
        assert subgraphs is not None
        graph = subgraphs.table(number)
        tensors = graph.vector(0)
        for place in range(tensors.length if tensors else 0):
            assert tensors is not None
            assert buffers is not None
            count += 1
            if count > FLATBUFFER_TENSORS:
                raise UnsupportedError(f"{source.name} has more than {FLATBUFFER_TENSORS:,} tensors")
            _add(tensor_list, tensors.table(place), buffers, f"{number}/" if subgraphs.length > 1 else "")
    metadata = {"description": text} if (text := model.text(3)) else {}
    return tensor_list.index(metadata, model.number(0, "I"))


def _add(tensor_list: TensorList, tensor: FlatTable, buffers: Vector, prefix: str) -> None:
    number = tensor.number(2, "I")
    if not number:
        return  # an activation
    name = prefix + (tensor.text(3) or f"buffer_{number}")
    if number >= buffers.length:
        raise tensor_list.error(
            "a tensor's buffer doesn't exist", name, tensor.at, expected=buffers.length, found=number
        )
    buffer = buffers.table(number)
    data = buffer.vector(0, 1)
    outside = buffer.number(1, "Q"), buffer.number(2, "Q")
    if data is not None and data.length:
        place = data.start, data.length
    elif outside[0] > 1 and outside[1]:
        place = outside
    else:
        return
    kind = tensor.number(1, "b")
    if kind == _STRING:
        tensor_list.finding("texts", "left out: texts", tensor.at, name)
        return
    if tensor.place(6) is not None:
        tensor_list.finding("sparse", "left out: only some of its numbers are stored", tensor.at, name)
        return
    dims = tensor.vector(0)
    if dims is not None and dims.length > DIMS:
        raise tensor_list.error("the shape is impossible", name, tensor.at, found=f"{dims.length} dimensions")
    shape = dims.numbers("i") if dims is not None else []
    tensor_list.add(name, DTYPES.get(kind), shape, *place, kind=f"number {kind} of TensorType", at=tensor.at)
    quantization = tensor.table(4)
    if quantization is not None:
        for field, suffix, dtype, width in ((2, "scale", "F32", 4), (3, "zero_point", "I64", 8)):
            values = quantization.vector(field, width)
            if values is not None and values.length:
                size = values.length * width
                tensor_list.add(
                    f"{name}.{suffix}", dtype, (values.length,), values.start, size, kind=dtype, at=tensor.at
                )


def regions(source: Source) -> list[Region]:
    """Every byte of the file, named."""
    return framed(source, parse, "tables of the FlatBuffer", _REGIONS)
