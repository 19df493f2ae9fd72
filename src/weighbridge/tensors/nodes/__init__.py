"""How nodes are built: functions that check, and simplify as they build. A concat of neighbouring slices of one tensor
is that tensor, a slice of a stored tensor is a stored tensor, two gathers are one; so what reaches the output
unchanged is seen to be a copy.

Moves on a `QuantizedTensor` tensor are spread over its members. A move that isn't aligned with the packing's rows,
or a join of parts whose parameters differ, becomes a `Decode` with its reason, which the plan lists as a loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import F16, F32, U8, DType, Kind
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.spec import Spec
from weighbridge.tensors import functions, kernels
from weighbridge.tensors.nodes.base import Bitcast, Concat, Const, Gather, Node, RowRange, Slice, Stored, Strided, walk
from weighbridge.tensors.nodes.compute import (
    AbsMax,
    Cast,
    CastReport,
    Decode,
    Encode,
    GlobalScalePacker,
    LowRank,
    PackedMember,
    PackedMemberWithGlobal,
    Packer,
    Packing,
    QuantizedTensor,
    Spreading,
    Transcode,
    Transpose,
    UnpackBits,
    UpgradeBlocks,
)
from weighbridge.tensors.nodes.elementwise import Elementwise, NormalizeRows, RescaleRows, Scaled, Shift
from weighbridge.tensors.reference import legacy_blocks as old_blocks

__all__ = [
    "AbsMax",
    "Bitcast",
    "Cast",
    "CastReport",
    "Concat",
    "Const",
    "Decode",
    "Elementwise",
    "Encode",
    "Gather",
    "GlobalScalePacker",
    "LowRank",
    "Node",
    "NormalizeRows",
    "PackedMember",
    "PackedMemberWithGlobal",
    "Packer",
    "Packing",
    "QuantizedTensor",
    "RescaleRows",
    "RowRange",
    "Scaled",
    "Shift",
    "Slice",
    "Stored",
    "Strided",
    "Transcode",
    "Transpose",
    "UnpackBits",
    "UpgradeBlocks",
    "applied",
    "as_bytes",
    "cast",
    "codes",
    "concat",
    "const",
    "decode",
    "flat_range",
    "gather",
    "lengthened",
    "low_rank",
    "made",
    "made_with",
    "peak",
    "reshape",
    "retyped",
    "scaled",
    "shift",
    "slice_rows",
    "stack",
    "strided",
    "transcode",
    "transpose",
    "unit",
    "walk",
    "zeros",
]  # fmt: skip


def const(array: NDArray[Any], dtype: DType) -> Const:
    """A numpy array as a node; its bytes are taken as `dtype`'s."""
    return Const(Spec(array.shape, dtype), np.ascontiguousarray(array).tobytes())


def zeros(shape: Sequence[int], dtype: DType) -> Node:
    """A tensor of a plain type that is zero throughout, of one stored atom."""
    return strided(Const(Spec((1,), dtype), bytes(dtype.size)), 0, shape, [0] * len(shape))


def reshape(node: Node, shape: Sequence[int]) -> Node:
    """The same atoms under another shape."""
    shape = tuple(shape)
    if shape == node.spec.shape:
        return node
    if math.prod(shape) != node.spec.elements:
        raise UsageError(f"{node.spec} has not the elements of shape {list(shape)}")
    if isinstance(node, QuantizedTensor):
        if shape[-1:] != node.spec.shape[-1:]:
            return reshape(decode(node, "its rows are cut anew"), shape)
        return replace(node, spec=node.spec.with_shape(*shape))
    if isinstance(node, Stored | Const):
        return replace(node, spec=node.spec.with_shape(*shape))
    if isinstance(node, Slice):
        return _slice(node.source, node.start, node.spec.with_shape(*shape))
    return _slice(node, 0, node.spec.with_shape(*shape))


def _slice(source: Node, start: int, spec: Spec) -> Node:
    if isinstance(source, Slice):  # a slice of a slice is one slice
        return _slice(source.source, source.start + start, spec)
    if isinstance(source, Stored):
        return replace(source, spec=spec, offset=source.offset + start * spec.dtype.size)
    if start == 0 and spec == source.spec:
        return source
    return Slice(spec, source, start)


def slice_rows(node: Node, start: int, shape: Sequence[int]) -> Node:
    """The tensor of `shape` that begins at row `start` of `node`. Shares the source: nothing is copied."""
    spec = node.spec.with_shape(*shape)
    if start < 0 or start + spec.rows > node.spec.rows or (len(shape) > 1 and spec.row_atoms != node.spec.row_atoms):
        raise UsageError(f"{spec} does not lie in {node.spec} at row {start}")
    if spec.rows == node.spec.rows:
        return reshape(node, shape)
    if isinstance(node, QuantizedTensor):
        return _slice_packed(node, start, spec)
    return _slice(node, start * node.spec.row_atoms, spec)


def _slice_packed(node: QuantizedTensor, start: int, spec: Spec) -> Node:
    if start % node.unit or spec.rows % node.unit:
        return slice_rows(decode(node, f"rows are cut inside a block of {node.unit}"), start, spec.shape)
    members = {}
    for name, member in node.members.items():
        k = node.packing.row_map[name]
        if k:
            member = slice_rows(_matrix(member), start // k, (spec.rows // k, _columns(member)))
        members[name] = member
    return replace(node, spec=spec, members=members)


def _columns(node: Node) -> int:
    """Elements of one row."""
    return node.spec.row_atoms * node.spec.dtype.block


def _matrix(node: Node) -> Node:
    """The node as rows x elements, so that members of any rank move alike."""
    return reshape(node, (node.spec.rows, _columns(node)))


def flat_range(node: Node, start: int, shape: Sequence[int]) -> Node:
    """The tensor of `shape` that begins at element `start` of a tensor seen as one line (a ZeRO group's partition)."""
    block = node.spec.dtype.block
    spec = node.spec.with_shape(*shape)
    if start % block or start < 0 or start + spec.elements > node.spec.elements:
        raise UsageError(f"{spec} does not lie in {node.spec} at element {start}")
    return _slice(node, start // block, spec)


def concat(parts: Sequence[Node], axis: int = 0) -> Node:
    """Parts joined on `axis`. UsageError where dtypes or the other dimensions differ."""
    first = parts[0].spec
    axis = axis % max(len(first.shape), 1)
    for p in (p for p in parts[1:] if p.spec.dtype is not first.dtype or p.spec.shape != first.shape):
        same = p.spec.shape[:axis] + p.spec.shape[axis + 1 :] == first.shape[:axis] + first.shape[axis + 1 :]
        if p.spec.dtype != first.dtype or len(p.spec.shape) != len(first.shape) or not same:
            raise UsageError(f"{first} and {p.spec} can't be joined on axis {axis}")
    if len(parts) == 1:
        return parts[0]
    shape = (*first.shape[:axis], sum(p.spec.shape[axis] for p in parts), *first.shape[axis + 1 :])
    if any(isinstance(p, QuantizedTensor) for p in parts):
        return _concat_packed(parts, axis, shape)
    if any(spec.flat for spec in {p.spec for p in parts}):
        raise UnsupportedError("tensors whose rows aren't whole atoms can't be joined")
    whole = _rejoin(parts, shape) if math.prod(shape[:axis]) == 1 else None
    return whole or Concat(Spec(shape, first.dtype), tuple(parts), axis)


def _rejoin(parts: Sequence[Node], shape: tuple[int, ...]) -> Node | None:
    """Neighbouring cuts of one tensor, put side by side again, are one cut of it."""
    spec = Spec(shape, parts[0].spec.dtype)
    if all(isinstance(p, Slice) for p in parts):
        cuts = [(p.source, p.start) for p in parts if isinstance(p, Slice)]
        if all(b[0] is a[0] and b[1] == a[1] + p.spec.atoms for a, b, p in zip(cuts, cuts[1:], parts, strict=False)):
            return _slice(*cuts[0], spec)
    if all(isinstance(p, Stored) for p in parts):
        at = [(p.source, p.offset, p.swap) for p in parts if isinstance(p, Stored)]
        if all(
            (b[0], b[1], b[2]) == (a[0], a[1] + p.spec.nbytes, a[2]) for a, b, p in zip(at, at[1:], parts, strict=False)
        ):
            return Stored(spec, *at[0])
    return None


def _concat_packed(parts: Sequence[Node], axis: int, shape: tuple[int, ...]) -> Node:
    packed = _spread([p for p in parts if isinstance(p, QuantizedTensor)])
    why = None
    if len(packed) < len(parts):
        why = "only some of the joined parts are quantized"
    elif any(p.packing != packed[0].packing or p.spec.rows % p.unit for p in packed):
        why = "the joined parts are quantized with different parameters"
    elif math.prod(shape[:axis]) != 1 or (axis == len(shape) - 1 and len(shape) > 1):
        why = f"the parts are joined on axis {axis}, inside a block"
    elif any(
        not k and packed[0].members[m] is not p.members[m] for p in packed for m, k in packed[0].packing.row_map.items()
    ):
        why = "a parameter is shared by all rows of a part, and differs between the parts"
    if why is not None:
        return concat([decode(p, why) if isinstance(p, QuantizedTensor) else cast(p, F32) for p in parts], axis)
    head = packed[0]
    members = {
        m: concat([_matrix(p.members[m]) for p in packed]) if head.packing.row_map[m] else node
        for m, node in head.members.items()
    }
    return replace(head, spec=head.spec.with_shape(*shape), members=members)


def _spread(packed: Sequence[QuantizedTensor]) -> Sequence[QuantizedTensor]:
    """Parts that share parameters among all their rows as ones that have them for each run of rows, where the packing
    has that and the parts differ by it."""
    shared = [m for m, k in packed[0].packing.row_map.items() if not k]
    if all(p.members.get(m) is packed[0].members[m] for p in packed for m in shared):
        return packed
    ways = [p.packing.spread(p.spec.rows) if isinstance(p.packing, Spreading) else p.packing for p in packed]
    if any(new is p.packing for new, p in zip(ways, packed, strict=True)):
        return packed
    return [
        replace(p, packing=new, members={m: reshape(x, (1, x.spec.elements)) if m in shared else x
                                         for m, x in p.members.items()})
        for new, p in zip(ways, packed, strict=True)
    ]  # fmt: skip


def stack(parts: Sequence[Node]) -> Node:
    """Tensors of one shape on a new leading axis (experts)."""
    shape = parts[0].spec.shape
    return concat([reshape(p, (1, *p.spec.shape)) for p in parts]) if len(parts) > 1 else reshape(parts[0], (1, *shape))


def gather(node: Node, order: NDArray[np.int64]) -> Node:
    """Rows in the order given; two gathers in a row are one, and one that changes nothing is none."""
    order = np.ascontiguousarray(order, np.int64)
    if len(order) != node.spec.rows or (len(order) and not (order.min() >= 0 and order.max() < node.spec.rows)):
        raise UsageError(f"an order of {len(order)} rows for {node.spec}")
    if np.array_equal(order, np.arange(len(order))):
        return node
    if node.spec.flat:
        raise UnsupportedError(f"{node.spec}: rows that aren't whole atoms can't be moved")
    if isinstance(node, Gather):
        return gather(node.source, node.order[order])
    if isinstance(node, QuantizedTensor):
        return _gather_packed(node, order)
    return Gather(node.spec, node, order)


def _gather_packed(node: QuantizedTensor, order: NDArray[np.int64]) -> Node:
    groups = order.reshape(-1, node.unit) if len(order) % node.unit == 0 else order[:0].reshape(0, 1)
    whole = len(groups) and (groups[:, 0] % node.unit == 0).all() and (np.diff(groups, axis=1) == 1).all()
    if not whole:
        return gather(decode(node, f"rows are moved inside a block of {node.unit}"), order)
    members = {}
    for name, member in node.members.items():
        k = node.packing.row_map[name]
        members[name] = gather(_matrix(member), order[::k] // k) if k else member
    return replace(node, members=members)


def transpose(node: Node) -> Node:
    """The last two axes swapped. A quantized tensor is decoded first: its blocks run along the other axis."""
    if len(node.spec.shape) < 2:
        raise UsageError(f"{node.spec} has no two axes to swap")
    if isinstance(node, Transpose):
        return node.source
    if isinstance(node, QuantizedTensor) or not node.spec.dtype.plain:
        return transpose(decode(node, "its matrix is transposed"))
    *lead, height, width = node.spec.shape
    spec = node.spec.with_shape(*lead, width, height)
    return reshape(node, spec.shape) if 1 in (height, width) else Transpose(spec, node)


def strided(node: Node, start: int, shape: Sequence[int], strides: Sequence[int]) -> Node:
    """A strided view of a one-dimensional plain tensor; a contiguous one becomes a slice."""
    shape, strides = tuple(shape), tuple(strides)
    if len(node.spec.shape) != 1 or not node.spec.dtype.plain or len(shape) != len(strides):
        raise UsageError(f"strides {list(strides)} of {node.spec}")
    spec = node.spec.with_shape(*shape)
    ends = [(n - 1) * s for n, s in zip(shape, strides, strict=True)] if spec.elements else []
    low, high = start + sum(min(e, 0) for e in ends), start + sum(max(e, 0) for e in ends)
    if spec.elements and not 0 <= low <= high < node.spec.elements:
        raise UsageError(f"a strided view reaches atom {low if low < 0 else high} of {node.spec}")
    contiguous = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    if all(n == 1 or s == c for n, s, c in zip(shape, strides, contiguous, strict=True)):
        return _slice(node, start if spec.elements else 0, spec)
    return Strided(spec, node, start, strides)


def codes(node: Node, layout: str, bits: int, columns: int) -> Node:
    """The integer codes in the words of a tensor as U8[..., columns]. UsageError where they aren't in a row."""
    shape = (*node.spec.shape[:-1], columns)
    if bits * columns > 8 * node.spec.row_bytes or len(shape) < 2:
        raise UsageError(f"{node.spec} has no {columns} codes of {bits} bits a row")
    return UnpackBits(Spec(shape, U8), node, layout, bits)


def repack(node: Node) -> Node:
    """A tensor of an old block type in today's blocks. UnsupportedError where there are none of the kind."""
    today = old_blocks.today(node.spec.dtype)
    if today is None:
        raise UnsupportedError(f"{node.spec.dtype} has no block type of today")
    return UpgradeBlocks(node.spec.with_dtype(today), node)


def decode(node: Node, reason: str = "") -> Node:
    """Values as F32 of a packed tensor or a block type; a plain tensor is returned as it is."""
    if isinstance(node, QuantizedTensor):
        return Decode(node.spec.with_dtype(F32), node, reason)
    if node.spec.dtype.kind is Kind.BLOCK:
        if not kernels.decodes(node.spec.dtype) and node.spec.dtype not in old_blocks.DECODED:
            raise UnsupportedError(f"{node.spec.dtype} can't be decoded by this version")
        return Decode(node.spec.with_dtype(F32), node, reason)
    return node


def cast(
    node: Node, dtype: DType, report: CastReport | None = None, importance: NDArray[np.float32] | None = None
) -> Node:
    """The tensor as `dtype`: untouched where it is that already, through F32 where a block type is involved.
    `importance` is for the quantizer of a block type (see `Encode`)."""
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
            raise UsageError(f"rows of {node.spec} are not whole blocks of {dtype}")
        return Encode(spec, source, report or CastReport(), importance)
    if not kernels.casts(node.spec.dtype, dtype):
        raise UnsupportedError(f"no cast from {node.spec.dtype} to {dtype}")
    return Cast(node.spec.with_dtype(dtype), node, report or CastReport())


def made(node: Node, maker: Packer, block: int = 1) -> dict[str, PackedMember]:
    """The stored tensors that `maker` makes of a logical one, by their names behind the module's (`block`: see
    Made)."""
    return {part: PackedMember(spec, node, maker, part, block) for part, spec in maker.specs(node.spec).items()}


def made_with(node: Node, maker: GlobalScalePacker, given: Node) -> dict[str, PackedMemberWithGlobal]:
    """The same by a maker that is given something of the whole tensor."""
    return {
        part: PackedMemberWithGlobal(spec, node, maker, part, given=given)
        for part, spec in maker.specs(node.spec).items()
    }


def peak(nodes: Sequence[Node]) -> AbsMax:
    """The largest magnitude in tensors, F32 [1]."""
    return AbsMax(Spec((1,), F32), tuple(cast(node, F32) for node in nodes))


def transcode(node: QuantizedTensor, dtype: DType) -> Transcode:
    """The packed tensor in block type `dtype` with the same parameters (see `Packing.transcode`)."""
    return Transcode(node.spec.with_dtype(dtype), node)


def retyped(node: Node, dtype: DType, columns: int) -> Node:
    """The same bytes of a stored tensor taken as rows of `columns` elements of another type (words of packed floats).
    UsageError where a row's bytes are others."""
    spec = Spec((*node.spec.shape[:-1], columns), dtype)
    if spec.nbytes != node.spec.nbytes or spec.row_bytes != node.spec.row_bytes:
        raise UsageError(f"{node.spec} has not the bytes of {spec}")
    return replace(node, spec=spec) if _plain_bytes(node) else Bitcast(spec, node)


def as_bytes(node: Node) -> Node:
    """A stored tensor's bytes as U8 [bytes, 1], whatever its type."""
    spec = Spec((node.spec.nbytes, 1), U8)
    if not _plain_bytes(node):
        raise UsageError(f"{node.spec} can't be taken as bytes")
    return replace(node, spec=spec)


def _plain_bytes(node: Node) -> bool:
    return isinstance(node, Const) or (isinstance(node, Stored) and not node.swap)


def shift(node: Node, by: float) -> Node:
    """Every element plus `by`, in F16 where it is that already, else in F32: as torch adds, and the reference converter
    keeps no other float type while it works."""
    if isinstance(node, Shift) and node.by == -by:
        return node.source
    return Shift(node.spec, node, by) if node.spec.dtype in (F16, F32) else shift(cast(node, F32, CastReport()), by)


def scaled(node: Node, by: float, *, over: bool = False) -> Node:
    """Every element times `by`, or divided by it (`over`): in F16 where it is that already, else in F32, as torch does
    it. One that undoes the other is none, and so is a 1."""
    if by == 1:
        return node
    if isinstance(node, Scaled) and (node.by, node.over) == (by, not over):
        return node.source
    if isinstance(node, QuantizedTensor) or node.spec.dtype.kind is Kind.BLOCK:
        return scaled(decode(node, "its elements are multiplied by a number"), by, over=over)
    if node.spec.dtype in (F16, F32):
        return Scaled(node.spec, node, by, over)
    return scaled(cast(node, F32, CastReport()), by, over=over)


def low_rank(node: Node, a: Node, b: Node, scale: float) -> Node:
    """A tensor [..., rows, columns] plus `scale` times b [..., rows, rank] @ a [..., rank, columns], in F32. UsageError
    where the shapes don't fit."""
    *lead, rows, columns = node.spec.shape
    rank = b.spec.shape[-1]
    if a.spec.shape != (*lead, rank, columns) or b.spec.shape != (*lead, rows, rank) or not rank:
        raise UsageError(f"{b.spec} times {a.spec} is no change of {node.spec}")
    node, a, b = (cast(part, F32) for part in (node, a, b))
    if not lead:
        return LowRank(node.spec, node, a, b, scale)
    each = []
    for n in range(math.prod(lead)):
        part = slice_rows(node, n * rows, (rows, columns))
        own = slice_rows(a, n * rank, (rank, columns)), slice_rows(b, n * rows, (rows, rank))
        each.append(LowRank(part.spec, part, *own, scale))
    return reshape(concat(each), node.spec.shape)


def unit(node: Node) -> Node:
    """Every row over its length, in F32."""
    if node.spec.dtype is F32 and not isinstance(node, QuantizedTensor):
        return NormalizeRows(node.spec, node)
    return unit(cast(node, F32, CastReport()))


def lengthened(node: Node, lengths: Node) -> RescaleRows:
    """A matrix whose rows are made as long (Euclidean) as `lengths` [rows, 1] says, in F32. UsageError where the shapes
    don't fit."""
    node, lengths = cast(node, F32), cast(lengths, F32)
    if lengths.spec.shape != (node.spec.rows, 1):
        raise UsageError(f"lengths {lengths.spec} for the rows of {node.spec}")
    return RescaleRows(node.spec, node, lengths)


def applied(node: Node, function: str) -> Node:
    """A function of `tensors/functions.py` of every element, in F32; a function and its inverse are none."""
    if isinstance(node, Elementwise) and functions.FUNCTIONS[function][1] == node.function:
        return node.source
    if node.spec.dtype is F32 and not isinstance(node, QuantizedTensor):
        return Elementwise(node.spec, node, function)
    return applied(cast(node, F32, CastReport()), function)
