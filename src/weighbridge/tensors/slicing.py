"""Numpy indexing of a node that reads no more than the leading axes require."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import EllipsisType
from typing import Any

from weighbridge.base.dtypes import Kind
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.tensors.nodes import Node, T, as_bytes, bitcast, concat, is_plain, reshape, slice_rows, strided
from weighbridge.tensors.nodes.base import Stored

Index = int | slice | EllipsisType


def narrow(node: T, key: Any) -> tuple[T, tuple[Index, ...]]:
    """A node of the rows that `key` needs, and the remaining index to apply to its array.

    Integers on leading axes and then one slice limit the rows read; the remaining indices apply to these rows.
    UsageError for indices that numpy would refuse, and for arrays and None, which are unsupported.
    """
    shape: tuple[int, ...] = node.spec.shape
    remaining: list[Index] = list(_full(key, shape))
    if node.spec.flat or not shape:
        return node, tuple(remaining)
    while len(shape) > 2 and isinstance(remaining[0], int):  # one of a stack
        step = math.prod(shape[1:-1])
        at = _wrap(remaining.pop(0), shape[0]) * step  # type: ignore[arg-type]
        node = slice_rows(node, at, shape[1:])
        shape = shape[1:]
    first = remaining[0]
    if len(shape) > 1 and isinstance(first, int):  # one row; numpy removes its axis
        return _rows(node, first, first + 1), (0, *remaining[1:])
    if isinstance(first, slice) and (len(shape) > 1 or node.spec.dtype.plain):
        picked = range(shape[0])[first]
        lo, hi = (min(picked), max(picked) + 1) if picked else (0, 0)
        node = _rows(node, lo, hi)
        remaining[0] = _shifted(picked, lo)
    return node, tuple(remaining)


def part(node: T, lo: int, hi: int) -> T:
    """Entries lo..hi of the first axis, without reading them. UsageError if they are out of range."""
    if not node.spec.shape or not 0 <= lo <= hi <= node.spec.shape[0]:
        raise UsageError(f"entries {lo}..{hi} of {node.spec}")
    return _rows(node, lo, hi)


def _rows(node: T, lo: int, hi: int) -> T:
    """Entries lo..hi of the first axis."""
    shape: tuple[int, ...] = node.spec.shape
    step = math.prod(shape[1:-1])
    return slice_rows(node, lo * step, (hi - lo, *shape[1:])) if (lo, hi) != (0, shape[0]) else reshape(node, shape)


def _shifted(picked: range, lo: int) -> slice:
    """The slice that selects the same entries once `lo` of them are removed."""
    if not picked:
        return slice(0, 0, 1)
    start, stop = picked.start - lo, picked.stop - lo
    return slice(start, None if stop < 0 else stop, picked.step)


def _full(key: Any, shape: tuple[int, ...]) -> tuple[Index, ...]:
    """One index per axis."""
    keys = key if isinstance(key, tuple) else (key,)
    for k in keys:
        if not isinstance(k, slice | EllipsisType) and (isinstance(k, bool) or not hasattr(k, "__index__")):
            raise UsageError(f"a tensor is indexed by integers, slices and ..., not {k!r}")
    keys = tuple(k if isinstance(k, slice | EllipsisType) else int(k.__index__()) for k in keys)
    if keys.count(...) > 1 or len(keys) - keys.count(...) > len(shape):
        raise UsageError(f"{len(keys)} indices for {len(shape)} axes")
    at = keys.index(...) if ... in keys else len(keys)
    missing = len(shape) - (len(keys) - keys.count(...))
    full = (*keys[:at], *[slice(None)] * missing, *keys[at + 1 :])
    return tuple(_wrap(k, n) if isinstance(k, int) else k for k, n in zip(full, shape, strict=True))


def _wrap(at: int, count: int) -> int:
    if not -count <= at < count:
        raise IndexError(f"index {at} is out of bounds for an axis of {count}")
    return at % count


def take(node: T, axis: int, runs: Sequence[tuple[int, int]]) -> T:
    """Entries lo..hi of one axis for each of `runs`, concatenated. The first axis can be cut in packed tensors too, the
    others in plain types and, between blocks, in stored block types. UnsupportedError otherwise."""
    joined: list[tuple[int, int]] = []
    for lo, hi in runs:  # adjacent runs become one
        if joined and joined[-1][1] == lo:
            joined[-1] = (joined[-1][0], hi)
        else:
            joined.append((lo, hi))
    return concat([_run(node, axis, lo, hi) for lo, hi in joined], axis)


def _run(node: T, axis: int, lo: int, hi: int) -> T:
    shape: tuple[int, ...] = node.spec.shape
    if not 0 <= axis < len(shape) or not 0 <= lo <= hi <= shape[axis]:
        raise UsageError(f"entries {lo}..{hi} of axis {axis} of {node.spec}")
    if (lo, hi) == (0, shape[axis]):
        return node
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    block = node.spec.dtype.block
    if outer == 1 and (axis < len(shape) - 1 or block == 1):
        lead: tuple[int, ...] = shape[:axis]
        rows = reshape(node, shape[axis:])
        return reshape(_rows(rows, lo, hi), (*lead, hi - lo, *shape[axis + 1 :]))
    between_blocks = axis < len(shape) - 1 or not (lo % block or hi % block)
    if (
        isinstance(node, Stored)
        and node.spec.dtype.kind is Kind.BLOCK
        and between_blocks
        and not (node.swap or node.spec.flat)
    ):
        return _run_of_blocks(node, axis, lo, hi)
    if not is_plain(node):
        raise UnsupportedError(
            f"{node.spec} is quantized: axis {axis} can't be cut", hint="decode it first: --dtype f16"
        )
    line = reshape(node, (node.spec.elements,))
    cut = strided(line, lo * inner, (outer, (hi - lo) * inner), (shape[axis] * inner, 1))
    return reshape(cut, (*shape[:axis], hi - lo, *shape[axis + 1 :]))


def _run_of_blocks(node: Stored, axis: int, lo: int, hi: int) -> Node:
    """As `_run`, for stored blocks as bytes: whole blocks on the last axis, whole rows of blocks on others."""
    shape, dtype = node.spec.shape, node.spec.dtype
    entries = dtype.block if axis == len(shape) - 1 else 1  # entries that take `inner` bytes
    inner = dtype.size if entries > 1 else math.prod(shape[axis + 1 : -1]) * node.spec.row_bytes
    line = reshape(as_bytes(node), (node.spec.nbytes,))
    width = (hi - lo) // entries * inner
    cut = strided(line, lo // entries * inner, (math.prod(shape[:axis]), width), (shape[axis] // entries * inner, 1))
    after = (*shape[:axis], hi - lo, *shape[axis + 1 :])
    rows = reshape(cut, (math.prod(after[:-1]), after[-1] // dtype.block * dtype.size))
    return reshape(bitcast(rows, dtype, after[-1]), after)
