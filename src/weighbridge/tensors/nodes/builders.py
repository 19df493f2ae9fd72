"""Nodes that compute: elements, rows, codes, stored tensors of a packing. The functions check and simplify."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weighbridge.base.dtypes import F32, U8, DType
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.spec import Spec
from weighbridge.tensors import functions
from weighbridge.tensors.nodes.base import Node
from weighbridge.tensors.nodes.compute import AbsMax, CastReport, LowRank, UnpackBits, UpgradeBlocks
from weighbridge.tensors.nodes.elementwise import Elementwise, NormalizeRows, Product, RescaleRows, Scaled, Shift
from weighbridge.tensors.nodes.logical import T, cast, decode, is_floating, needs_decoding
from weighbridge.tensors.nodes.moves import concat, reshape, slice_rows
from weighbridge.tensors.nodes.packed import GlobalScalePacker, PackedMember, PackedMemberWithGlobal, Packer
from weighbridge.tensors.nodes.quantized import LogicalTensor, QuantizedTensor, Transcode
from weighbridge.tensors.reference import legacy_blocks


def codes(node: Node, layout: str, bits: int, columns: int) -> Node:
    """The integer codes in the words of a tensor as U8[..., columns]. UsageError where they aren't in a row."""
    shape = (*node.spec.shape[:-1], columns)
    if bits * columns > 8 * node.spec.row_bytes or len(shape) < 2:
        raise UsageError(f"{node.spec} has no {columns} codes of {bits} bits a row")
    return UnpackBits(Spec(shape, U8), node, layout, bits)


def upgrade_blocks(node: Node) -> Node:
    """A tensor of an old block type in today's blocks. UnsupportedError where there are none of the kind."""
    current_type = legacy_blocks.current_type(node.spec.dtype)
    if current_type is None:
        raise UnsupportedError(f"{node.spec.dtype} has no block type of today")
    return UpgradeBlocks(node.spec.with_dtype(current_type), node)


def pack(node: Node, packer: Packer, block: int = 1) -> dict[str, PackedMember]:
    """The stored tensors that `packer` makes of a logical one, by name suffix. `block`: see `PackedMember`."""
    return {part: PackedMember(spec, node, packer, part, block) for part, spec in packer.specs(node.spec).items()}


def pack_with_global(node: Node, packer: GlobalScalePacker, given: Node) -> dict[str, PackedMemberWithGlobal]:
    """As `pack`, for a packer with a global scale."""
    return {
        part: PackedMemberWithGlobal(spec, node, packer, part, given=given)
        for part, spec in packer.specs(node.spec).items()
    }


def abs_max(nodes: Sequence[LogicalTensor]) -> AbsMax:
    """The largest magnitude in tensors, F32 [1]."""
    return AbsMax(Spec((1,), F32), tuple(cast(node, F32) for node in nodes))


def transcode(node: QuantizedTensor, dtype: DType) -> Transcode:
    """The packed tensor in block type `dtype` with the same parameters (see `Packing.transcode`)."""
    return Transcode(node.spec.with_dtype(dtype), node)


def shift(node: LogicalTensor, by: float) -> Node:
    """Every element plus `by`, in F16 where it is that already, else in F32: as torch adds, and the reference converter
    keeps no other float type while it works."""
    if isinstance(node, Shift) and node.by == -by:
        return node.source
    if is_floating(node):
        return Shift(node.spec, node, by)
    return shift(cast(node, F32, CastReport()), by)


def scaled(node: T, by: float, *, over: bool = False) -> T:
    """Every element times `by`, or divided by it (`over`): in F16 where it is that already, else in F32, as torch does
    it. One that undoes the other is none, and so is a 1."""
    if by == 1:
        return node
    if isinstance(node, Scaled) and (node.by, node.over) == (by, not over):
        return node.source
    if needs_decoding(node):
        return scaled(decode(node, "its elements are multiplied by a number"), by, over=over)
    if is_floating(node):
        return Scaled(node.spec, node, by, over)
    return scaled(cast(node, F32, CastReport()), by, over=over)


def product(node: LogicalTensor, other: LogicalTensor) -> Product:
    """Every element times that of another tensor, in F32. UsageError where the shapes differ."""
    if node.spec.shape != other.spec.shape:
        raise UsageError(f"{node.spec} can't be multiplied by {other.spec}, element by element")
    node, other = cast(node, F32, CastReport()), cast(other, F32, CastReport())
    return Product(node.spec, node, other)


def low_rank(node: LogicalTensor, a: Node, b: Node, scale: float) -> Node:
    """A tensor [..., rows, columns] plus `scale` times b [..., rows, rank] @ a [..., rank, columns], in F32. UsageError
    where the shapes don't fit."""
    *lead, rows, columns = node.spec.shape
    rank = b.spec.shape[-1]
    if a.spec.shape != (*lead, rank, columns) or b.spec.shape != (*lead, rows, rank) or not rank:
        raise UsageError(f"{b.spec} times {a.spec} is no change of {node.spec}")
    node, a, b = cast(node, F32), cast(a, F32), cast(b, F32)
    if not lead:
        return LowRank(node.spec, node, a, b, scale)
    each = []
    for n in range(math.prod(lead)):
        part = slice_rows(node, n * rows, (rows, columns))
        own = slice_rows(a, n * rank, (rank, columns)), slice_rows(b, n * rows, (rows, rank))
        each.append(LowRank(part.spec, part, *own, scale))
    return reshape(concat(each), node.spec.shape)


def normalize_rows(node: LogicalTensor) -> Node:
    """Every row over its length, in F32."""
    if node.spec.dtype is F32 and not isinstance(node, QuantizedTensor):
        return NormalizeRows(node.spec, node)
    return normalize_rows(cast(node, F32, CastReport()))


def rescale_rows(node: LogicalTensor, lengths: LogicalTensor) -> RescaleRows:
    """A matrix whose rows are made as long (Euclidean) as `lengths` [rows, 1] says, in F32. UsageError where the shapes
    don't fit."""
    node, lengths = cast(node, F32), cast(lengths, F32)
    if lengths.spec.shape != (node.spec.rows, 1):
        raise UsageError(f"lengths {lengths.spec} for the rows of {node.spec}")
    return RescaleRows(node.spec, node, lengths)


def apply_function(node: LogicalTensor, function: str) -> Node:
    """A function of `tensors/functions.py` of every element, in F32; a function and its inverse are none."""
    if isinstance(node, Elementwise) and functions.FUNCTIONS[function][1] == node.function:
        return node.source
    if node.spec.dtype is F32 and not isinstance(node, QuantizedTensor):
        return Elementwise(node.spec, node, function)
    return apply_function(cast(node, F32, CastReport()), function)
