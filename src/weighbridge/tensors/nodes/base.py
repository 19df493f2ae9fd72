"""A tensor is rows of atoms, read lazily: the node, the leaves, and the nodes that move bytes.

A node has a `spec` and `read(lo, hi, out=None)`, the bytes of rows lo..hi. Nodes that *move* bytes (`Stored`, `Const`,
`Slice`, `Bitcast`, `Concat`, `Gather`, `Strided`) never look inside an atom, so one code serves f32 and 4-bit blocks,
and a quantized tensor passes through without requantizing. Those that compute are in `tensors/nodes/compute.py`.

Each node declares the rows of its sources that it `needs` for rows lo..hi. From that the plan computes the memory of
every slab before anything runs (`scratch`). The functions of `tensors/nodes/` build nodes and simplify.

Laws (tests/property): read(a,c) = read(a,b) ++ read(b,c); the bytes read have the spec; the rows in `needs` suffice;
undo(apply(t)) = t for every move.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import accumulate, chain, count, pairwise
from operator import ne
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeAlias

from weighbridge.base.dtypes import DType
from weighbridge.base.errors import UsageError
from weighbridge.base.limits import MIB
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Shape, Spec
from weighbridge.io.source import Source
from weighbridge.tensors import kernels, np
from weighbridge.tensors.scratch import scratch_buffers

if TYPE_CHECKING:
    from numpy.typing import NDArray

Bytes: TypeAlias = "NDArray[np.uint8]"


#: Bytes that a transpose or a view reads at a time. They and their part of the result fit in the second-level cache.
BAND = MIB // 8


class RowRange(NamedTuple):
    """Rows [lo, hi) of a node."""

    node: Node
    lo: int
    hi: int


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """One lazily read tensor. Nodes are immutable and safe to read from several threads. (Abstract only for the type
    checker: `ABCMeta` makes `isinstance` several times slower, and plans call it a million times.)"""

    spec: Spec
    #: Whether the sources' bytes are read directly into `out`, without a buffer.
    direct: ClassVar[bool] = False

    @property
    def shape(self) -> Shape:
        return self.spec.shape

    @property
    def dtype(self) -> DType:
        return self.spec.dtype

    @property
    def stripes(self) -> bool:
        """Whether a slab costs a pass over a whole source: slabs are then as large as the budget allows."""
        return False

    def read(self, lo: int, hi: int, out: Bytes | None = None) -> Bytes:
        """Bytes of rows lo..hi as U8 [(hi - lo) * row_bytes], read into `out` if given (any alignment)."""
        if not 0 <= lo <= hi <= self.spec.rows:
            raise UsageError(f"rows {lo}..{hi} of a tensor of {self.spec.rows} rows")
        size = (hi - lo) * self.spec.row_bytes
        if out is None:
            out = np.empty(size, np.uint8)
        elif out.nbytes != size:
            raise UsageError(f"a buffer of {out.nbytes} bytes for {size}")
        if size:
            self._read(lo, hi, out)
        return out

    def read_all(self) -> Bytes:
        return self.read(0, self.spec.rows)

    @abstractmethod
    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        """Fills `out`, which has at least one byte. Bounds and size are already checked."""

    def needs(self, lo: int, hi: int) -> list[RowRange]:
        """The runs of the sources' rows that rows lo..hi depend on; [] for a leaf, or without bytes."""
        return self._needs(lo, hi) if hi > lo and self.spec.row_bytes else []

    def scratch(self, lo: int, hi: int) -> int:
        """The most bytes that `read(lo, hi, out)` allocates in addition to `out`."""
        return self._scratch(lo, hi) if hi > lo and self.spec.row_bytes else 0

    def _needs(self, lo: int, hi: int) -> list[RowRange]:
        return []

    def _scratch(self, lo: int, hi: int) -> int:
        runs = self._needs(lo, hi)
        below = max((r.node.scratch(r.lo, r.hi) for r in runs), default=0)
        return below + (0 if self.direct else sum((r.hi - r.lo) * r.node.spec.row_bytes for r in runs))

    @property
    def sources(self) -> tuple[Node, ...]:
        """The nodes directly below."""
        return ()


@dataclass(frozen=True, eq=False, slots=True)
class UnaryNode(Node):
    """A node with one input. By default output row i depends on input row i only."""

    source: Node

    def _needs(self, lo: int, hi: int) -> list[RowRange]:
        return [RowRange(self.source, lo, hi)]

    @property
    def sources(self) -> tuple[Node, ...]:
        return (self.source,)


@contextmanager
def borrow(*runs: RowRange) -> Iterator[tuple[Bytes, ...]]:
    """The bytes of each run, in reused memory: valid inside the block only."""
    with scratch_buffers(*((run.hi - run.lo) * run.node.spec.row_bytes for run in runs)) as buffers:
        for (node, lo, hi), buffer in zip(runs, buffers, strict=True):
            node.read(lo, hi, buffer)
        yield buffers


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it, depth first."""
    todo = [node]
    while todo:
        node = todo.pop()
        yield node
        if sources := node.sources:
            todo += reversed(sources)


# ------------------------------------------------------------------------------------------------ leaves


@dataclass(frozen=True, eq=False, slots=True)
class Stored(Node):
    """Bytes of a source at `offset`. `swap`: the file is big-endian."""

    source: Source
    offset: int
    swap: bool = False

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        self.source.readinto(self.offset + lo * self.spec.row_bytes, out.data)
        if self.swap:
            kernels.byteswap(self.spec.dtype, out)


@dataclass(frozen=True, eq=False, slots=True)
class Const(Node):
    """Bytes in memory."""

    data: bytes | memoryview

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        width = self.spec.row_bytes
        out[:] = np.frombuffer(self.data, np.uint8, (hi - lo) * width, lo * width)


# ------------------------------------------------------------------------------------------------ moves

_EXTREMES = 1024  # places of an order whose span is kept


@dataclass(frozen=True, eq=False, slots=True)
class Slice(UnaryNode):
    """A run of a source's atoms from `start` on, in any shape (so a reshape is a slice of everything)."""

    start: int
    direct: ClassVar[bool] = True

    def _window(self, lo: int, hi: int) -> tuple[int, int, int, int]:
        """Source rows a..b that contain rows lo..hi, and the numbers of atoms to skip at their start and end."""
        width, source_width = self.spec.row_atoms, self.source.spec.row_atoms
        first, last = self.start + lo * width, self.start + hi * width
        a, b = first // source_width, -(-last // source_width)
        return a, b, first - a * source_width, b * source_width - last

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        a, b, head, tail = self._window(lo, hi)
        if head == 0 and tail == 0:
            self.source.read(a, b, out)
        else:
            size = self.spec.dtype.size
            out[:] = self.source.read(a, b)[head * size : head * size + out.nbytes]

    def _needs(self, lo: int, hi: int) -> list[RowRange]:
        a, b, _, _ = self._window(lo, hi)
        return [RowRange(self.source, a, b)]

    def _scratch(self, lo: int, hi: int) -> int:
        a, b, head, tail = self._window(lo, hi)
        return self.source.scratch(a, b) + ((b - a) * self.source.spec.row_bytes if head or tail else 0)


@dataclass(frozen=True, eq=False)
class Bitcast(UnaryNode):
    """The same bytes, row for row, under another type."""

    direct: ClassVar[bool] = True

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        self.source.read(lo, hi, out)


@dataclass(frozen=True, eq=False)
class Concat(Node):
    """Parts concatenated along an axis: on the last axis between atoms, on others as whole rows."""

    parts: tuple[Node, ...]
    axis: int
    direct: ClassVar[bool] = True

    @property
    def _last(self) -> bool:
        return self.axis == len(self.spec.shape) - 1 and len(self.spec.shape) > 1

    def _segments(self, lo: int, hi: int) -> Iterator[RowRange]:
        """The runs of the parts' rows that form rows lo..hi (not for the last axis)."""
        starts = self._starts
        for block in range(lo // starts[-1], -(-hi // starts[-1])):
            base = block * starts[-1]
            for i in range(max(bisect_right(starts, lo - base) - 1, 0), len(self.parts)):
                at, height = base + starts[i], starts[i + 1] - starts[i]
                if at >= hi:
                    break
                a, b = max(lo, at), min(hi, at + height)
                if a < b:
                    yield RowRange(self.parts[i], block * height + a - at, block * height + b - at)

    @cached_property
    def _starts(self) -> tuple[int, ...]:
        """The first row of each part in a block of the outer axes, and the block's number of rows."""
        outer = math.prod(self.spec.shape[: self.axis])
        return (0, *accumulate(p.spec.rows // outer for p in self.parts))

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        if self._last:
            rows, at = out.reshape(hi - lo, -1), 0
            for part in self.parts:
                width = part.spec.row_bytes
                rows[:, at : at + width] = part.read(lo, hi).reshape(hi - lo, width)
                at += width
            return
        at = 0
        for part, a, b in self._segments(lo, hi):
            size = (b - a) * part.spec.row_bytes
            part.read(a, b, out[at : at + size])
            at += size

    def _needs(self, lo: int, hi: int) -> list[RowRange]:
        return [RowRange(p, lo, hi) for p in self.parts] if self._last else list(self._segments(lo, hi))

    def _scratch(self, lo: int, hi: int) -> int:
        runs = self.needs(lo, hi)
        extra = max(((r.hi - r.lo) * r.node.spec.row_bytes for r in runs), default=0) if self._last else 0
        return extra + max((r.node.scratch(r.lo, r.hi) for r in runs), default=0)

    @property
    def sources(self) -> tuple[Node, ...]:
        return self.parts


class RowOrder:
    """An order of rows, I64 [rows]: row i is row `rows[i]`. Created and checked once for all layers and experts."""

    def __init__(self, rows: Iterable[int]) -> None:
        self.rows = rows if isinstance(rows, array) else array("q", rows)
        self._blocks: dict[int, RowOrder | None] = {1: self}

    def span(self, lo: int, hi: int) -> tuple[int, int]:
        """The least range of the source that has the rows of places [lo, hi): [first, end). (0, 0) of no place."""
        if hi - lo < 2 * _EXTREMES:
            places = self.rows[lo:hi]
            return (min(places), max(places) + 1) if places else (0, 0)
        first, last = -(-lo // _EXTREMES), hi // _EXTREMES
        ends = (self.span(lo, first * _EXTREMES), self.span(last * _EXTREMES, hi))
        spans = [*self._spans[first:last], *(span for span in ends if span != (0, 0))]
        return min(low for low, _ in spans), max(high for _, high in spans)

    @cached_property
    def _spans(self) -> list[tuple[int, int]]:
        """The spans of every `_EXTREMES` places: a plan asks for many long runs of few orders."""
        return [self.span(at, at + _EXTREMES) for at in range(0, len(self.rows), _EXTREMES)]

    @cached_property
    def inside(self) -> bool:
        """Whether all entries are rows of a tensor with that many rows."""
        low, high = self.span(0, len(self.rows))
        return low >= 0 and high <= len(self.rows)

    @cached_property
    def changes(self) -> bool:
        """Whether any row moves."""
        return any(map(ne, self.rows, count()))

    def blocks(self, height: int) -> RowOrder | None:
        """The order of blocks of rows; None if the blocks don't stay whole."""
        if height not in self._blocks:
            firsts = self.rows[::height]
            blocks = chain.from_iterable(range(first, first + height) for first in firsts)
            whole = 0 < len(self.rows) == len(firsts) * height and not any(map(ne, self.rows, blocks))
            whole = whole and not any(first % height for first in firsts)
            self._blocks[height] = RowOrder(first // height for first in firsts) if whole else None
        return self._blocks[height]


@dataclass(frozen=True, eq=False)
class Gather(UnaryNode):
    """Rows of a source in a different order: row i is the source's row `order.rows[i]`."""

    order: RowOrder

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        width, (first, end) = self.spec.row_bytes, self.order.span(lo, hi)
        rows, want = out.reshape(hi - lo, width), self.order.rows[lo:hi]
        if _dense(first, end, hi - lo):
            block = self.source.read(first, end)
            kernels.gather_rows(block, np.frombuffer(want, np.int64) - first, width, out)
            return
        for a, b in _consecutive(want):
            self.source.read(want[a], want[a] + b - a, rows[a:b].reshape(-1))

    def _needs(self, lo: int, hi: int) -> list[RowRange]:
        first, end = self.order.span(lo, hi)
        if _dense(first, end, hi - lo):
            return [RowRange(self.source, first, end)]
        want = self.order.rows[lo:hi]
        return [RowRange(self.source, want[a], want[a] + b - a) for a, b in _consecutive(want)]

    def _scratch(self, lo: int, hi: int) -> int:
        first, end = self.order.span(lo, hi)
        span = (end - first) * self.spec.row_bytes if _dense(first, end, hi - lo) else 0
        return span + max((r.node.scratch(r.lo, r.hi) for r in self.needs(lo, hi)), default=0)


def _dense(first: int, end: int, count: int) -> bool:
    """Whether one read of the whole span costs little more than the rows themselves."""
    return end - first <= 2 * count


def _consecutive(order: array[int]) -> Iterator[tuple[int, int]]:
    """Index ranges [a, b) over which `order` counts up by one."""
    breaks = [i for i, (a, b) in enumerate(pairwise(order), 1) if b - a != 1]
    yield from pairwise([0, *breaks, len(order)])


@dataclass(frozen=True, eq=False)
class Strided(UnaryNode):
    """A strided view of a one-dimensional source: (i, j, ...) is its atom start + i*strides[0] + j*strides[1] + ...

    Strides count atoms, as in torch, and may be zero (expanded) or negative.
    """

    start: int
    strides: tuple[int, ...]

    @property
    def stripes(self) -> bool:
        """If the first axis doesn't have the widest stride, each slab's rows are all over the source."""
        steps = [abs(s) for n, s in zip(self.spec.shape, self.strides, strict=True) if n > 1]
        return bool(steps) and steps[0] < max(steps)

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        size, width = self.spec.dtype.size, self.spec.row_atoms
        atoms = out.view(f"V{size}")
        shape, steps = self.spec.shape, self.strides
        lead, inner = (shape, ()) if len(shape) < 2 else (shape[:-1], shape[-1:])
        done = 0
        for first, counts in _boxes(lo, hi, lead):
            start = self.start + sum(i * s for i, s in zip(first, steps, strict=False))
            count = math.prod(counts) * width
            self._box(start, (*counts, *inner), atoms[done : done + count].reshape(*counts, *inner))
            done += count

    def _box(self, start: int, counts: tuple[int, ...], out: NDArray[np.void]) -> None:
        """Reads a box of elements in bands of the source, cut along the axis with the widest stride until it fits."""
        size, steps = self.spec.dtype.size, self.strides
        ends = [(n - 1) * s for n, s in zip(counts, steps, strict=True)]
        low, high = start + sum(min(e, 0) for e in ends), start + sum(max(e, 0) for e in ends) + 1
        if (high - low) * size <= BAND or max(counts, default=1) == 1:
            band = self.source.read(low, high).view(out.dtype)[start - low :]
            out[...] = np.lib.stride_tricks.as_strided(band, counts, [s * band.itemsize for s in steps])
            return
        axis = max((i for i, n in enumerate(counts) if n > 1), key=lambda i: abs(steps[i]))
        width = high - low - abs(ends[axis])  # of one step along the axis
        step = max(1, (BAND // size - width) // max(abs(steps[axis]), 1) + 1)
        step = min(step, counts[axis] - 1)
        for i in range(0, counts[axis], step):
            part = (*counts[:axis], min(step, counts[axis] - i), *counts[axis + 1 :])
            index = (*(slice(None) for _ in range(axis)), slice(i, i + step))
            self._box(start + i * steps[axis], part, out[index])

    def _needs(self, lo: int, hi: int) -> list[RowRange]:
        """Computed from the corners, without an index array."""
        width = self.spec.row_atoms
        shape, steps = self.spec.shape or (1,), self.strides or (0,)
        first, last = (np.unravel_index(i, shape) for i in (lo * width, hi * width - 1))
        low = high = self.start
        free = False  # once a leading index differs, the following ones cover their whole range
        for n, step, a, b in zip(shape, steps, first, last, strict=True):
            span = (0, n - 1) if free else (int(a), int(b))
            free = free or int(a) != int(b)
            low, high = low + min(s * step for s in span), high + max(s * step for s in span)
        return [RowRange(self.source, low, high + 1)]

    def _scratch(self, lo: int, hi: int) -> int:
        (run,) = self._needs(lo, hi)
        atoms = min(run.hi - run.lo, max(BAND // self.spec.dtype.size, 1))
        return atoms * self.spec.dtype.size + self.source.scratch(run.lo, run.lo + atoms)


def _boxes(lo: int, hi: int, shape: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Elements lo..hi of an array as boxes in order: the first index and the extent along each axis."""
    if not shape:
        yield (), ()
        return
    inner = math.prod(shape[1:])
    (a, from_), (b, to) = divmod(lo, inner), divmod(hi, inner)
    if a == b:
        yield from (((a, *first), (1, *counts)) for first, counts in _boxes(from_, to, shape[1:]))
        return
    if from_:
        yield from (((a, *first), (1, *counts)) for first, counts in _boxes(from_, inner, shape[1:]))
        a += 1
    if a < b:
        yield (a, *(0 for _ in shape[1:])), (b - a, *shape[1:])
    if to:
        yield from (((b, *first), (1, *counts)) for first, counts in _boxes(0, to, shape[1:]))
