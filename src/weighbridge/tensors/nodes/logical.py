"""Properties of logical tensors, which may be quantized, and their values as floats or in another type."""

from __future__ import annotations

from typing import TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import F16, F32, DType, Kind
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.tensors import kernels
from weighbridge.tensors.nodes.base import Node, walk
from weighbridge.tensors.nodes.compute import Cast, CastReport, Decode, Encode
from weighbridge.tensors.nodes.elementwise import IntCast
from weighbridge.tensors.nodes.quantized import LogicalTensor, PackedSource, QuantizedTensor
from weighbridge.tensors.reference import legacy_blocks

#: A node stays a node; a quantized tensor stays one if its rows allow.
T = TypeVar("T", Node, LogicalTensor)


def packed_in(tensor: LogicalTensor) -> QuantizedTensor | None:
    """The quantized tensor itself, or the first one that this tensor is decoded from."""
    if isinstance(tensor, QuantizedTensor):
        return tensor
    return next((node.tensor for node in walk(tensor) if isinstance(node, PackedSource)), None)


def needs_decoding(tensor: LogicalTensor) -> bool:
    """Whether its values have to be decoded: packed, or a block type."""
    return isinstance(tensor, QuantizedTensor) or tensor.spec.dtype.kind is Kind.BLOCK


def is_plain(tensor: LogicalTensor) -> TypeGuard[Node]:
    """Whether it is stored in a plain type."""
    return isinstance(tensor, Node) and tensor.spec.dtype.plain


def is_floating(tensor: LogicalTensor) -> TypeGuard[Node]:
    """Whether it is stored in F32 or F16, the types of elementwise nodes."""
    return isinstance(tensor, Node) and tensor.spec.dtype in (F16, F32)


def is_stored_as(tensor: LogicalTensor, dtype: DType) -> TypeGuard[Node]:
    """Whether it has this type without being decoded."""
    return isinstance(tensor, Node) and tensor.spec.dtype is dtype


def stored_bytes(tensor: LogicalTensor) -> int:
    """Its size as stored, in bytes."""
    if isinstance(tensor, QuantizedTensor):
        return sum(member.spec.nbytes for member in tensor.members.values())
    return tensor.spec.nbytes


def storage_name(tensor: LogicalTensor) -> str:
    """The name of its packing or type."""
    return tensor.packing.name if isinstance(tensor, QuantizedTensor) else tensor.spec.dtype.name


def as_node(tensor: LogicalTensor, dtype: DType | None = None) -> Node:
    """`dtype` if given, else the stored type; F32 for a quantized tensor."""
    return (
        cast(tensor, dtype) if dtype is not None else tensor.decode() if isinstance(tensor, QuantizedTensor) else tensor
    )


def decode(node: LogicalTensor, reason: str = "") -> Node:
    """Decodes a quantized tensor or a block type to F32; a plain tensor is returned unchanged."""
    if isinstance(node, QuantizedTensor):
        return node.decode(reason)
    if node.spec.dtype.kind is Kind.BLOCK:
        if not kernels.decodes(node.spec.dtype) and node.spec.dtype not in legacy_blocks.DECODED:
            raise UnsupportedError(f"{node.spec.dtype} can't be decoded by this version")
        return Decode(node.spec.with_dtype(F32), node, reason)
    return node


def cast(
    node: LogicalTensor, dtype: DType, report: CastReport | None = None, importance: NDArray[np.float32] | None = None
) -> Node:
    """The tensor as `dtype`: unchanged if it has that type, through F32 where a block type is involved. `importance`
    is for the quantizer of a block type (see `Encode`)."""
    if isinstance(node, QuantizedTensor) or (node.spec.dtype is not dtype and node.spec.dtype.kind is Kind.BLOCK):
        return cast(decode(node), dtype, report, importance)
    if node.spec.dtype is dtype:
        return node
    if dtype.kind is Kind.BLOCK:
        if not kernels.encodes(dtype):
            raise UnsupportedError(f"{dtype} can't be written by this version")
        source = cast(node, F32)
        spec = source.spec.with_dtype(dtype)
        if spec.flat:
            raise UsageError(f"rows of {node.spec} aren't a multiple of the block size of {dtype}")
        return Encode(spec, source, report or CastReport(), importance)
    if node.spec.dtype.kind is dtype.kind is Kind.INT:
        return IntCast(node.spec.with_dtype(dtype), node)
    if not kernels.casts(node.spec.dtype, dtype):
        raise UnsupportedError(f"no cast from {node.spec.dtype} to {dtype}")
    return Cast(node.spec.with_dtype(dtype), node, report or CastReport())
