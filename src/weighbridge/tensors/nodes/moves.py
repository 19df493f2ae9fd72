"""Moves: nodes that rearrange or reshape the bytes of their sources.

A move of a quantized tensor moves its members. A move that isn't aligned with the packing's rows, or a join of parts
with different parameters, becomes a `DecodePacked` with a reason, which the plan lists as a loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

from weighbridge.base.dtypes import F32, U8, DType
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.spec import Spec, in_c_order
from weighbridge.tensors import np
from weighbridge.tensors.nodes.base import Bitcast, Concat, Const, Gather, Node, RowOrder, Slice, Stored, Strided
from weighbridge.tensors.nodes.compute import Transpose
from weighbridge.tensors.nodes.logical import T, cast, decode
from weighbridge.tensors.nodes.quantized import LogicalTensor, QuantizedTensor, Spreading

if TYPE_CHECKING:
    from numpy.typing import NDArray


def const(array: NDArray[Any], dtype: DType) -> Const:
    """A numpy array as a node; its bytes are interpreted as `dtype`."""
    return Const(Spec(array.shape, dtype), np.ascontiguousarray(array).tobytes())


def zeros(shape: Sequence[int], dtype: DType) -> Node:
    """A tensor of zeros of a plain type, stored as one atom."""
    return strided(Const(Spec((1,), dtype), bytes(dtype.size)), 0, shape, [0] * len(shape))


def reshape(node: T, shape: Sequence[int]) -> T:
    """The same atoms in another shape."""
    shape = tuple(shape)
    if shape == node.spec.shape:
        return node
    if math.prod(shape) != node.spec.elements:
        raise UsageError(f"{node.spec} doesn't have the elements of shape {list(shape)}")
    if isinstance(node, QuantizedTensor):
        if shape[-1:] != node.spec.shape[-1:]:
            return reshape(node.decode("its rows are split differently"), shape)
        return QuantizedTensor(node.spec.with_shape(*shape), node.packing, node.members)
    if isinstance(node, Stored):
        return Stored(node.spec.with_shape(*shape), node.source, node.offset, node.swap)
    if isinstance(node, Const):
        return replace(node, spec=node.spec.with_shape(*shape))
    if isinstance(node, Slice):
        return _slice(node.source, node.start, node.spec.with_shape(*shape))
    return _slice(node, 0, node.spec.with_shape(*shape))


def _slice(source: Node, start: int, spec: Spec) -> Node:
    if isinstance(source, Slice):  # a slice of a slice is one slice
        return _slice(source.source, source.start + start, spec)
    if isinstance(source, Stored):
        return Stored(spec, source.source, source.offset + start * spec.dtype.size, source.swap)
    if start == 0 and spec == source.spec:
        return source
    return Slice(spec, source, start)


def slice_rows(node: T, start: int, shape: Sequence[int]) -> T:
    """The tensor of `shape` that begins at row `start` of `node`. It shares the source without a copy."""
    spec = node.spec.with_shape(*shape)
    if start < 0 or start + spec.rows > node.spec.rows or (len(shape) > 1 and spec.row_atoms != node.spec.row_atoms):
        raise UsageError(f"{spec} doesn't fit into {node.spec} at row {start}")
    if spec.rows == node.spec.rows:
        return reshape(node, shape)
    if isinstance(node, QuantizedTensor):
        return _slice_packed(node, start, spec)
    return _slice(node, start * node.spec.row_atoms, spec)


def _slice_packed(node: QuantizedTensor, start: int, spec: Spec) -> LogicalTensor:
    block, row_map = node.block_rows, node.packing.row_map
    if start % block or spec.rows % block:
        return slice_rows(node.decode(f"rows are cut inside a block of {block}"), start, spec.shape)
    members = {}
    for name, member in node.members.items():
        if k := row_map[name]:
            width = member.spec.row_atoms
            shape = member.spec.with_shape(spec.rows // k, width * member.spec.dtype.block)
            member = _slice(member, start // k * width, shape)
        members[name] = member
    return QuantizedTensor(spec, node.packing, members)


def _matrix(node: Node) -> Node:
    """The node as [rows, elements], so that members of any rank move alike."""
    return reshape(node, (node.spec.rows, node.spec.row_atoms * node.spec.dtype.block))


def flat_range(node: Node, start: int, shape: Sequence[int]) -> Node:
    """The tensor of `shape` that begins at element `start` of a flattened tensor (a ZeRO group's partition)."""
    block = node.spec.dtype.block
    spec = node.spec.with_shape(*shape)
    if start % block or start < 0 or start + spec.elements > node.spec.elements:
        raise UsageError(f"{spec} isn't inside {node.spec} at element {start}")
    return _slice(node, start // block, spec)


@overload
def concat(parts: Sequence[Node], axis: int = 0) -> Node: ...
@overload
def concat(parts: Sequence[LogicalTensor], axis: int = 0) -> LogicalTensor: ...
def concat(parts: Sequence[LogicalTensor], axis: int = 0) -> LogicalTensor:
    """The parts concatenated along `axis`. UsageError if dtypes or the other dimensions differ."""
    first = parts[0].spec
    axis = axis % max(len(first.shape), 1)
    for p in (p for p in parts[1:] if p.spec.dtype is not first.dtype or p.spec.shape != first.shape):
        same = p.spec.shape[:axis] + p.spec.shape[axis + 1 :] == first.shape[:axis] + first.shape[axis + 1 :]
        if p.spec.dtype != first.dtype or len(p.spec.shape) != len(first.shape) or not same:
            raise UsageError(f"{first} and {p.spec} can't be joined on axis {axis}")
    if len(parts) == 1:
        return parts[0]
    shape = (*first.shape[:axis], sum(p.spec.shape[axis] for p in parts), *first.shape[axis + 1 :])
    nodes = [p for p in parts if isinstance(p, Node)]
    if len(nodes) < len(parts):
        return _concat_packed(parts, axis, shape)
    if any(spec.flat for spec in {p.spec for p in parts}):
        raise UnsupportedError("tensors whose rows aren't whole atoms can't be joined")
    whole = _rejoin(nodes, shape) if math.prod(shape[:axis]) == 1 else None
    return whole or Concat(Spec(shape, first.dtype), tuple(nodes), axis)


def _rejoin(parts: Sequence[Node], shape: tuple[int, ...]) -> Node | None:
    """Adjacent slices of one tensor as one slice; None if they aren't adjacent."""
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


def _concat_packed(parts: Sequence[LogicalTensor], axis: int, shape: tuple[int, ...]) -> LogicalTensor:
    packed = _spread([p for p in parts if isinstance(p, QuantizedTensor)])
    head, reason = packed[0], None
    if len(packed) < len(parts):
        reason = "only some of the joined parts are quantized"
    elif not all(
        (p.packing is head.packing or p.packing == head.packing) and p.spec.rows % head.block_rows == 0 for p in packed
    ):
        reason = "the joined parts are quantized with different parameters"
    elif math.prod(shape[:axis]) != 1 or (axis == len(shape) - 1 and len(shape) > 1):
        reason = f"the parts are joined on axis {axis}, inside a block"
    elif any(not k and head.members[m] is not p.members[m] for p in packed for m, k in head.packing.row_map.items()):
        reason = "a parameter is shared by all rows of a part, and differs between the parts"
    if reason is not None:
        return concat([p.decode(reason) if isinstance(p, QuantizedTensor) else cast(p, F32) for p in parts], axis)
    members = {
        m: concat([_matrix(p.members[m]) for p in packed]) if head.packing.row_map[m] else node
        for m, node in head.members.items()
    }
    return replace(head, spec=head.spec.with_shape(*shape), members=members)


def _spread(packed: Sequence[QuantizedTensor]) -> Sequence[QuantizedTensor]:
    """Parts whose row-shared parameters differ, with these parameters stored per run of rows, if their packings support
    that. Other parts are returned unchanged."""
    shared = [m for m, k in packed[0].packing.row_map.items() if not k]
    if all(p.members.get(m) is packed[0].members[m] for p in packed for m in shared):
        return packed
    packings = [p.packing.spread(p.spec.rows) if isinstance(p.packing, Spreading) else p.packing for p in packed]
    if any(new is p.packing for new, p in zip(packings, packed, strict=True)):
        return packed
    return [
        replace(p, packing=new, members={m: reshape(x, (1, x.spec.elements)) if m in shared else x
                                         for m, x in p.members.items()})
        for new, p in zip(packings, packed, strict=True)
    ]  # fmt: skip


def stack(parts: Sequence[T]) -> T:
    """Tensors of one shape stacked on a new leading axis (experts)."""
    shape: tuple[int, ...] = (1, *parts[0].spec.shape)
    return reshape(
        parts[0] if len(parts) == 1 else concat([reshape(p, shape) for p in parts]), (len(parts), *shape[1:])
    )


def gather(node: T, order: RowOrder | Iterable[int]) -> T:
    """Rows in the given order. Two successive gathers become one; an identity order is dropped."""
    if not isinstance(order, RowOrder):
        order = RowOrder(order)
    if len(order.rows) != node.spec.rows or not order.inside:
        raise UsageError(f"an order of {len(order.rows)} rows for {node.spec}")
    if not order.changes:
        return node
    if node.spec.flat:
        raise UnsupportedError(f"{node.spec}: rows that aren't whole atoms can't be moved")
    if isinstance(node, Gather):
        return gather(node.source, [node.order.rows[row] for row in order.rows])
    if isinstance(node, QuantizedTensor):
        return _gather_packed(node, order)
    return Gather(node.spec, node, order)


def _gather_packed(node: QuantizedTensor, order: RowOrder) -> LogicalTensor:
    if not len(order.rows) or order.blocks(node.block_rows) is None:
        return gather(node.decode(f"rows are moved inside a block of {node.block_rows}"), order)
    members = {}
    for name, member in node.members.items():
        k = node.packing.row_map[name]
        blocks = order.blocks(k) if k else None
        members[name] = gather(_matrix(member), blocks) if blocks else member
    return replace(node, members=members)


def transpose(node: LogicalTensor) -> Node:
    """The last two axes swapped. A quantized tensor is decoded first, since its blocks run along the other axis."""
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
    """A strided view of a one-dimensional plain tensor; a contiguous view becomes a slice."""
    shape, strides = tuple(shape), tuple(strides)
    if len(node.spec.shape) != 1 or not node.spec.dtype.plain or len(shape) != len(strides):
        raise UsageError(f"strides {list(strides)} of {node.spec}")
    spec = node.spec.with_shape(*shape)
    ends = [(n - 1) * s for n, s in zip(shape, strides, strict=True)] if spec.elements else []
    low, high = start + sum(min(e, 0) for e in ends), start + sum(max(e, 0) for e in ends)
    if spec.elements and not 0 <= low <= high < node.spec.elements:
        raise UsageError(f"a strided view reaches atom {low if low < 0 else high} of {node.spec}")
    if in_c_order(shape, strides):
        return _slice(node, start if spec.elements else 0, spec)
    return Strided(spec, node, start, strides)


def bitcast(node: Node, dtype: DType, columns: int) -> Node:
    """The bytes of a stored tensor as rows of `columns` elements of type `dtype` (words of packed floats). UsageError
    if a row's size would change."""
    spec = Spec((*node.spec.shape[:-1], columns), dtype)
    if spec.nbytes != node.spec.nbytes or spec.row_bytes != node.spec.row_bytes:
        raise UsageError(f"{node.spec} doesn't have the bytes of {spec}")
    return replace(node, spec=spec) if _plain_bytes(node) else Bitcast(spec, node)


def as_bytes(node: Node) -> Node:
    """A stored tensor's bytes as U8 [bytes, 1], whatever its type."""
    spec = Spec((node.spec.nbytes, 1), U8)
    if not _plain_bytes(node):
        raise UsageError(f"{node.spec} can't be taken as bytes")
    return replace(node, spec=spec)


def _plain_bytes(node: Node) -> bool:
    return isinstance(node, Const) or (isinstance(node, Stored) and not node.swap)
