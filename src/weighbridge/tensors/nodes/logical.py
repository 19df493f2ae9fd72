"""Properties of logical tensors, which may be quantized, and their values as floats or in another type."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeGuard, TypeVar

from weighbridge.base.dtypes import F16, F32, DType, Kind, swap_plan
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.tensors import kernels, np
from weighbridge.tensors.nodes.base import Concat, Gather, Node, Slice, Stored, Strided, walk
from weighbridge.tensors.nodes.compute import Cast, CastReport, Decode, Encode, SwapBytes, Transpose
from weighbridge.tensors.nodes.elementwise import IntCast
from weighbridge.tensors.nodes.quantized import LogicalTensor, PackedSource, QuantizedTensor
from weighbridge.tensors.reference import legacy_blocks

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: A node stays a node; a quantized tensor stays one if its rows allow.
T = TypeVar("T", Node, LogicalTensor)


def packed_in(tensor: LogicalTensor) -> QuantizedTensor | None:
    """The quantized tensor itself, or the first one that this tensor is decoded from."""
    if isinstance(tensor, QuantizedTensor):
        return tensor
    return next((node.tensor for node in walk(tensor) if isinstance(node, PackedSource)), None)


def needs_decoding(tensor: LogicalTensor) -> bool:
    """Whether its values have to be decoded: it is packed, or of a block type."""
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
    """The tensor as `dtype` if given, else in its stored type; F32 for a quantized tensor."""
    if dtype is not None:
        return cast(tensor, dtype)
    return tensor.decode() if isinstance(tensor, QuantizedTensor) else tensor


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
    """The tensor as `dtype`: unchanged if it has that type, through F32 if a block type is involved. `importance` is
    for the quantizer of a block type (see `Encode`). Computed values are rounded once, see `provisional`."""
    if isinstance(node, QuantizedTensor) or (node.spec.dtype is not dtype and node.spec.dtype.kind is Kind.BLOCK):
        return cast(decode(node), dtype, report, importance)
    if node.spec.dtype is dtype:
        return node
    if (unrounded := _unrounded(node)) is not node:
        return cast(unrounded, dtype, report, importance)
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


def swap_bytes(node: Node) -> Node:
    """The same values in the other byte order, which may be that of the file. UnsupportedError for a type whose byte
    order can't be changed."""
    swap_plan(node.spec.dtype)
    if isinstance(node, Stored) and node.swap:
        return replace(node, swap=False)
    return SwapBytes(node.spec, node)


def provisional(node: Node, dtype: DType) -> Node:
    """Computed F32 values, rounded to `dtype` unless a later cast rounds them to another type. So they are rounded
    once."""
    rounded = cast(node, dtype)
    return replace(rounded, provisional=True) if isinstance(rounded, Cast) else rounded


def _unrounded(node: Node) -> Node:
    """The tensor with its provisional casts undone, in F32; itself if there are none. Moves commute with casts."""
    match node:
        case Cast(provisional=True):
            return cast(node.source, F32)
        case Slice() | Gather() | Transpose() | Strided():
            below = _unrounded(node.source)
            return node if below is node.source else replace(node, spec=node.spec.with_dtype(F32), source=below)
        case Concat():
            parts = tuple(map(_unrounded, node.parts))
            if all(new is old for new, old in zip(parts, node.parts, strict=True)):
                return node
            return replace(node, spec=node.spec.with_dtype(F32), parts=tuple(cast(part, F32) for part in parts))
    return node
