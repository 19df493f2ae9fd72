"""Builds nodes that compute elements, rows, codes and the stored tensors of a packing. Checks and simplifies."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weighbridge.base.dtypes import F32, I64, U8, DType, Kind
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.base.spec import Spec
from weighbridge.tensors import functions
from weighbridge.tensors.nodes.base import Node
from weighbridge.tensors.nodes.compute import (
    AbsMax,
    AwqByRows,
    CastReport,
    Decode,
    LowRank,
    Mean,
    UnpackBits,
    UpgradeBlocks,
)
from weighbridge.tensors.nodes.elementwise import (
    AddPosition,
    Centered,
    DivideRows,
    Elementwise,
    NormalizeRows,
    Pairwise,
    RescaleRows,
    RoundTernary,
    Scaled,
    Shift,
    SpreadTernary,
)
from weighbridge.tensors.nodes.logical import T, cast, decode, is_floating, needs_decoding
from weighbridge.tensors.nodes.moves import concat, reshape, slice_rows
from weighbridge.tensors.nodes.packed import GlobalScalePacker, PackedMember, PackedMemberWithGlobal, Packer
from weighbridge.tensors.nodes.quantized import DecodePacked, LogicalTensor, QuantizedTensor, Transcode
from weighbridge.tensors.reference import legacy_blocks

_NUMBER = Spec((1,), F32)
_MULTIPLIED = "its elements are multiplied by a number"


def codes(node: Node, layout: str, bits: int, columns: int) -> Node:
    """The integer codes in the words of a tensor, as U8 [..., columns]. UsageError if a row is too short for them."""
    shape = (*node.spec.shape[:-1], columns)
    if bits * columns > 8 * node.spec.row_bytes or len(shape) < 2:
        raise UsageError(f"{node.spec} has no {columns} codes of {bits} bits a row")
    return UnpackBits(Spec(shape, U8), node, layout, bits)


def upgrade_blocks(node: Node) -> Node:
    """A tensor of an old block type in current blocks. UnsupportedError for a type without a successor."""
    current_type = legacy_blocks.current_type(node.spec.dtype)
    if current_type is None:
        raise UnsupportedError(f"{node.spec.dtype} has no current block type")
    return UpgradeBlocks(node.spec.with_dtype(current_type), node)


def pack(node: Node, packer: Packer, block: int = 1) -> dict[str, PackedMember]:
    """The stored tensors that `packer` makes of a logical one, by name suffix. `block`: see `PackedMember`."""
    return {part: PackedMember(spec, node, packer, part, block) for part, spec in packer.specs(node.spec).items()}


def pack_with_global(
    node: Node, packer: GlobalScalePacker, global_scale: Node, block: int = 1
) -> dict[str, PackedMemberWithGlobal]:
    """As `pack`, for a packer with a global scale."""
    return {
        part: PackedMemberWithGlobal(spec, node, packer, part, block, global_scale=global_scale)
        for part, spec in packer.specs(node.spec).items()
    }


def abs_max(nodes: Sequence[LogicalTensor]) -> AbsMax:
    """The largest magnitude in all tensors, F32 [1]."""
    return AbsMax(_NUMBER, tuple(cast(node, F32) for node in nodes))


def transcode(node: QuantizedTensor, dtype: DType) -> Transcode:
    """The packed tensor in block type `dtype` with the same parameters (see `Packing.transcode`)."""
    return Transcode(node.spec.with_dtype(dtype), node)


def shift(node: LogicalTensor, by: float) -> Node:
    """Every element plus `by`, in F16 for an F16 tensor, else in F32: like torch and the reference converter."""
    if isinstance(node, Shift) and node.by == -by:
        return node.source
    if is_floating(node):
        return Shift(node.spec, node, by)
    return shift(cast(node, F32, CastReport()), by)


def add_position(node: LogicalTensor, sign: int = 1) -> Node:
    """Every integer of a vector plus its position, or minus it (`sign` -1), in I64. FormatError for other tensors."""
    if isinstance(node, QuantizedTensor) or len(node.spec.shape) != 1 or node.spec.dtype.kind is not Kind.INT:
        raise FormatError("is not a vector of integers", expected="I64 [n]", found=str(node.spec))
    if isinstance(node, AddPosition) and node.sign == -sign:
        return node.source
    return AddPosition(node.spec.with_dtype(I64), cast(node, I64), sign)


def scaled(node: T, by: float, *, over: bool = False) -> T:
    """Every element times `by`, or divided by it (`over`), in F16 for an F16 tensor, else in F32, like torch. A factor
    of 1 and a factor that undoes the previous one add no node, so a quantized tensor stays quantized."""
    if by == 1:
        return node
    if isinstance(node, Scaled) and (node.by, node.over) == (by, not over):
        source: LogicalTensor = node.source
        if isinstance(source, Decode | DecodePacked) and source.reason == _MULTIPLIED:
            source = source.source if isinstance(source, Decode) else source.tensor
        return source  # type: ignore[return-value]
    if needs_decoding(node):
        return scaled(decode(node, _MULTIPLIED), by, over=over)
    if is_floating(node):
        return Scaled(node.spec, node, by, over)
    return scaled(cast(node, F32, CastReport()), by, over=over)


def centered(node: LogicalTensor) -> Centered:
    """Every element minus the mean of all, in F32."""
    node = cast(node, F32, CastReport())
    return Centered(node.spec, node, Mean(_NUMBER, (node,)))


def round_ternary(node: T) -> T:
    """Every element rounded to -m, 0 or m, the mean magnitude of all, in F16 for an F16 tensor, else in F32."""
    if not is_floating(node):
        return round_ternary(cast(node, F32, CastReport()))
    return RoundTernary(node.spec, node, Mean(_NUMBER, (cast(node, F32),), magnitudes=True))


def spread_ternary(node: T) -> T:
    """A tensor of three values, larger, so that `round_ternary` returns it."""
    if not is_floating(node):
        return spread_ternary(cast(node, F32, CastReport()))
    over = (cast(node, F32),)
    return SpreadTernary(node.spec, node, Mean(_NUMBER, over, magnitudes=True), AbsMax(_NUMBER, over))


def pairwise(node: LogicalTensor, other: LogicalTensor, operation: str) -> Pairwise:
    """An operation of `functions.PAIRS` on two tensors, element by element, in F32. UsageError if the shapes differ."""
    if node.spec.shape != other.spec.shape:
        raise UsageError(f"{node.spec} and {other.spec} have different shapes")
    node, other = cast(node, F32, CastReport()), cast(other, F32, CastReport())
    return Pairwise(node.spec, node, other, operation)


def low_rank(node: LogicalTensor, a: Node, b: Node, scale: float) -> Node:
    """A tensor [..., rows, columns] plus `scale` times b [..., rows, rank] @ a [..., rank, columns], in F32. UsageError
    if the shapes don't fit."""
    *lead, rows, columns = node.spec.shape
    rank = b.spec.shape[-1]
    if a.spec.shape != (*lead, rank, columns) or b.spec.shape != (*lead, rows, rank) or not rank:
        raise UsageError(f"{b.spec} times {a.spec} doesn't fit {node.spec}")
    node, a, b = cast(node, F32), cast(a, F32), cast(b, F32)
    if not lead:
        return LowRank(node.spec, node, a, b, scale)
    matrices = []
    for n in range(math.prod(lead)):
        part = slice_rows(node, n * rows, (rows, columns))
        pair = slice_rows(a, n * rank, (rank, columns)), slice_rows(b, n * rows, (rows, rank))
        matrices.append(LowRank(part.spec, part, *pair, scale))
    return reshape(concat(matrices), node.spec.shape)


def awq_by_rows(node: Node) -> Node:
    """AWQ's words of eight columns as words of eight rows; of a multiple of eight rows."""
    rows, words = node.spec.shape
    return AwqByRows(node.spec.with_shape(rows // 8, words * 8), node)


def normalize_rows(node: LogicalTensor) -> Node:
    """Every row divided by its length, in F32."""
    if node.spec.dtype is F32 and not isinstance(node, QuantizedTensor):
        return NormalizeRows(node.spec, node)
    return normalize_rows(cast(node, F32, CastReport()))


def divide_rows(node: LogicalTensor, numbers: LogicalTensor, least: float) -> DivideRows:
    """A matrix with each row divided by its number in a vector, at least `least`, in F32. UsageError if the shapes
    don't fit."""
    node, numbers = cast(node, F32, CastReport()), cast(numbers, F32, CastReport())
    if numbers.spec.shape != (node.spec.rows,):
        raise UsageError(f"numbers {numbers.spec} for the rows of {node.spec}")
    return DivideRows(node.spec, node, reshape(numbers, (node.spec.rows, 1)), least)


def rescale_rows(node: LogicalTensor, lengths: LogicalTensor) -> RescaleRows:
    """A matrix with rows scaled to the Euclidean `lengths` [rows, 1], in F32. UsageError if the shapes don't fit."""
    node, lengths = cast(node, F32), cast(lengths, F32)
    if lengths.spec.shape != (node.spec.rows, 1):
        raise UsageError(f"lengths {lengths.spec} for the rows of {node.spec}")
    return RescaleRows(node.spec, node, lengths)


def apply_function(node: LogicalTensor, function: str) -> Node:
    """Applies a function of `tensors/functions.py` to every element, in F32. A function and its inverse cancel."""
    if isinstance(node, Elementwise) and functions.FUNCTIONS[function][1] == node.function:
        return node.source
    if node.spec.dtype is F32 and not isinstance(node, QuantizedTensor):
        return Elementwise(node.spec, node, function)
    return apply_function(cast(node, F32, CastReport()), function)
