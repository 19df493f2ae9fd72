"""A tensor is rows of atoms, read lazily: the closed set of nodes and the smart constructors that build them.

A node has a `spec` and `read(lo, hi, out=None)`, the bytes of rows lo..hi. Nodes that *move* bytes (`Stored`, `Const`,
`Slice`, `Concat`, `Gather`, `Strided`) never look inside an atom, so one code serves f32 and 4-bit blocks, and a
quantized tensor passes through without requantizing. Nodes that *compute* (`Decode`, `Encode`, `Cast`, `Transpose`,
`Transcode`) work on whole slabs. `Packed` holds the several stored tensors of one logical one.

Each node says what it `needs` for rows lo..hi as runs of its sources' rows; from that the plan knows the memory of
every slab before anything runs (`scratch`). Users build nodes with the functions below the classes, which simplify: a
concat of neighbouring slices of one tensor is that tensor.

Laws (tests/property): read(a,c) = read(a,b) ++ read(b,c); the spec equals what is read; what `needs` names is
enough; undo(apply(t)) = t for every move.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import F32, DType, Kind
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.limits import SLAB
from weighbridge.base.spec import Spec
from weighbridge.io.source import Source
from weighbridge.tensors import kernels

Bytes = NDArray[np.uint8]


class Run(NamedTuple):
    """Rows [lo, hi) of a node."""

    node: Node
    lo: int
    hi: int


@dataclass(frozen=True, eq=False)
class Node(ABC):
    """One lazily read tensor. Nodes are immutable and safe to read from several threads."""

    spec: Spec
    #: True where the bytes of the sources go straight into `out`, so that reading costs no buffer of its own.
    direct: ClassVar[bool] = False
    #: True where a slab costs a pass over a whole source: slabs are then as large as the budget allows.
    stripes: ClassVar[bool] = False

    def read(self, lo: int, hi: int, out: Bytes | None = None) -> Bytes:
        """Bytes of rows lo..hi as uint8[(hi - lo) * row_bytes], into `out` where given (any alignment)."""
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
        """Fill `out`; bounds and size are already checked, and there is at least one byte."""

    @abstractmethod
    def needs(self, lo: int, hi: int) -> list[Run]:
        """The runs of the sources' rows that rows lo..hi come from; [] for a leaf."""

    def scratch(self, lo: int, hi: int) -> int:
        """Bytes that `read(lo, hi, out)` allocates beside `out`, at its peak."""
        runs = self.needs(lo, hi)
        below = max((r.node.scratch(r.lo, r.hi) for r in runs), default=0)
        return below + (0 if self.direct else sum((r.hi - r.lo) * r.node.spec.row_bytes for r in runs))

    @property
    def sources(self) -> tuple[Node, ...]:
        """The nodes right below."""
        return ()


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it, depth first."""
    yield node
    for below in node.sources:
        yield from walk(below)


# ------------------------------------------------------------------------------------------------ leaves


@dataclass(frozen=True, eq=False)
class Stored(Node):
    """Bytes of a source at `offset`, as they lie; `swap` where the file is big-endian."""

    source: Source
    offset: int
    swap: bool = False

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        self.source.readinto(self.offset + lo * self.spec.row_bytes, memoryview(out))
        if self.swap:
            kernels.byteswap(self.spec.dtype, out)

    def needs(self, lo: int, hi: int) -> list[Run]:
        return []


@dataclass(frozen=True, eq=False)
class Const(Node):
    """Bytes in memory."""

    data: bytes

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        width = self.spec.row_bytes
        out[:] = np.frombuffer(self.data, np.uint8, (hi - lo) * width, lo * width)

    def needs(self, lo: int, hi: int) -> list[Run]:
        return []


# ------------------------------------------------------------------------------------------------ moves


@dataclass(frozen=True, eq=False)
class Slice(Node):
    """A run of a source's atoms from `start` on, under a shape of its own (so reshape is a slice of everything)."""

    source: Node
    start: int
    direct: ClassVar[bool] = True

    def _window(self, lo: int, hi: int) -> tuple[int, int, int, int]:
        """Source rows a..b that hold our rows, and how many atoms to skip at their start and end."""
        mine, theirs = self.spec.row_atoms, self.source.spec.row_atoms
        first, last = self.start + lo * mine, self.start + hi * mine
        a, b = first // theirs, -(-last // theirs)
        return a, b, first - a * theirs, b * theirs - last

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        a, b, head, tail = self._window(lo, hi)
        if head == 0 and tail == 0:
            self.source.read(a, b, out)
        else:
            size = self.spec.dtype.size
            out[:] = self.source.read(a, b)[head * size : head * size + out.nbytes]

    def needs(self, lo: int, hi: int) -> list[Run]:
        a, b, _, _ = self._window(lo, hi)
        return [Run(self.source, a, b)]

    def scratch(self, lo: int, hi: int) -> int:
        a, b, head, tail = self._window(lo, hi)
        return self.source.scratch(a, b) + ((b - a) * self.source.spec.row_bytes if head or tail else 0)

    @property
    def sources(self) -> tuple[Node, ...]:
        return (self.source,)


@dataclass(frozen=True, eq=False)
class Concat(Node):
    """Parts side by side on an axis. On the last axis the cut lies between atoms; elsewhere whole rows follow."""

    parts: tuple[Node, ...]
    axis: int
    direct: ClassVar[bool] = True

    @property
    def _last(self) -> bool:
        return self.axis == len(self.spec.shape) - 1 and len(self.spec.shape) > 1

    def _segments(self, lo: int, hi: int) -> Iterator[Run]:
        """The runs of the parts' rows that follow each other in our rows lo..hi (not for the last axis)."""
        outer = math.prod(self.spec.shape[: self.axis])
        heights = [p.spec.rows // outer for p in self.parts]
        period = sum(heights)
        for block in range(lo // period, -(-hi // period)) if period else ():
            at = block * period
            for part, height in zip(self.parts, heights, strict=True):
                a, b = max(lo, at), min(hi, at + height)
                if a < b:
                    yield Run(part, block * height + a - at, block * height + b - at)
                at += height

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

    def needs(self, lo: int, hi: int) -> list[Run]:
        return [Run(p, lo, hi) for p in self.parts] if self._last else list(self._segments(lo, hi))

    def scratch(self, lo: int, hi: int) -> int:
        runs = self.needs(lo, hi)
        extra = max(((r.hi - r.lo) * r.node.spec.row_bytes for r in runs), default=0) if self._last else 0
        return extra + max((r.node.scratch(r.lo, r.hi) for r in runs), default=0)

    @property
    def sources(self) -> tuple[Node, ...]:
        return self.parts


@dataclass(frozen=True, eq=False)
class Gather(Node):
    """Rows of a source in another order: row i is the source's row `order[i]`."""

    source: Node
    order: NDArray[np.int64]

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        width = self.spec.row_bytes
        rows, want = out.reshape(hi - lo, width), self.order[lo:hi]
        if self._dense(want):
            first = int(want.min())
            block = self.source.read(first, int(want.max()) + 1)
            kernels.gather_rows(block, want - first, width, out)
            return
        for a, b in _consecutive(want):
            start = int(want[a])
            self.source.read(start, start + b - a, rows[a:b].reshape(-1))

    @staticmethod
    def _dense(want: NDArray[np.int64]) -> bool:
        """True where one read of the whole span costs little more than the rows themselves."""
        return int(want.max()) - int(want.min()) < 2 * len(want)

    def needs(self, lo: int, hi: int) -> list[Run]:
        want = self.order[lo:hi]
        if not len(want):
            return []
        if self._dense(want):
            return [Run(self.source, int(want.min()), int(want.max()) + 1)]
        return [Run(self.source, int(want[a]), int(want[a]) + b - a) for a, b in _consecutive(want)]

    def scratch(self, lo: int, hi: int) -> int:
        want, runs = self.order[lo:hi], self.needs(lo, hi)
        span = sum((r.hi - r.lo) * self.spec.row_bytes for r in runs) if len(want) and self._dense(want) else 0
        return span + max((r.node.scratch(r.lo, r.hi) for r in runs), default=0)

    @property
    def sources(self) -> tuple[Node, ...]:
        return (self.source,)


def _consecutive(order: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Index ranges [a, b) over which `order` counts up by one."""
    breaks = np.flatnonzero(np.diff(order) != 1) + 1
    edges = [0, *breaks.tolist(), len(order)]
    yield from zip(edges, edges[1:], strict=False)


@dataclass(frozen=True, eq=False)
class Strided(Node):
    """A strided view of a one-dimensional source: element (i, j, ...) is its atom start + i*strides[0] + j*strides[1] ...

    Strides count atoms and may be zero (expanded) or negative. As torch storages lie.
    """

    source: Node
    start: int
    strides: tuple[int, ...]

    def _atoms(self, lo: int, hi: int) -> NDArray[np.int64]:
        """For each atom of rows lo..hi the atom of the source it is."""
        width = self.spec.row_atoms
        index = np.unravel_index(np.arange(lo * width, hi * width), self.spec.shape or (1,))
        steps = self.strides or (0,)
        return self.start + sum((i * s for i, s in zip(index, steps, strict=True)), np.zeros((), np.int64))

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        want = self._atoms(lo, hi)
        first = int(want.min())
        block = self.source.read(first, int(want.max()) + 1)
        kernels.gather_rows(block, want - first, self.spec.dtype.size, out)

    def needs(self, lo: int, hi: int) -> list[Run]:
        """From the corners alone: no index array is built to ask."""
        if lo == hi or not self.spec.atoms:
            return []
        width = self.spec.row_atoms
        shape, steps = self.spec.shape or (1,), self.strides or (0,)
        first, last = (np.unravel_index(i, shape) for i in (lo * width, hi * width - 1))
        low = high = self.start
        free = False  # once a leading index differs, the ones behind it run over their whole range
        for n, step, a, b in zip(shape, steps, first, last, strict=True):
            span = (0, n - 1) if free else (int(a), int(b))
            free = free or int(a) != int(b)
            low, high = low + min(s * step for s in span), high + max(s * step for s in span)
        return [Run(self.source, low, high + 1)]

    def scratch(self, lo: int, hi: int) -> int:
        return super().scratch(lo, hi) + 16 * (hi - lo) * self.spec.row_atoms * (len(self.spec.shape) + 2)

    @property
    def sources(self) -> tuple[Node, ...]:
        return (self.source,)


# ------------------------------------------------------------------------------------------------ packed tensors


class Packing(Protocol):
    """How several stored tensors make one logical one. Implementations live in `packings/`; equal ones compare equal."""

    name: str
    #: logical rows to one row of a member; 0: the member is shared by all rows
    row_map: Mapping[str, int]

    def decode(self, spec: Spec, parts: Mapping[str, Bytes], lo: int, hi: int, out: NDArray[np.float32]) -> None:
        """Values of rows lo..hi of `spec` from the members' bytes. `parts[m]` starts at row lo // row_map[m]."""

    def transcode(self, spec: Spec, dtype: DType, parts: Mapping[str, Bytes], out: Bytes) -> None:
        """The same parameters in another block type, bit for bit; only where the planner's probe said it is exact."""


@dataclass(frozen=True, eq=False)
class Packed(Node):
    """One logical tensor (`spec`, its dtype the one it decodes to) held in several stored `members`."""

    packing: Packing
    members: Mapping[str, Node]

    @property
    def unit(self) -> int:
        """Rows between which the packing can be cut."""
        return math.lcm(*(k for k in self.packing.row_map.values() if k))

    def runs(self, lo: int, hi: int) -> dict[str, Run]:
        out = {}
        for name, node in self.members.items():
            k = self.packing.row_map[name]
            out[name] = Run(node, lo // k, -(-hi // k)) if k else Run(node, 0, node.spec.rows)
        return out

    def needs(self, lo: int, hi: int) -> list[Run]:
        return list(self.runs(lo, hi).values())

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        raise UsageError(f"a {self.packing.name} tensor has no plain bytes; decode it first")

    @property
    def sources(self) -> tuple[Node, ...]:
        return tuple(self.members.values())


@dataclass(frozen=True, eq=False)
class Decode(Node):
    """Values in F32 of a block type or a packed tensor. `reason`: why a quantized tensor had to be opened, for the plan."""

    source: Node
    reason: str = ""

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        values = out.view(np.float32) if out.ctypes.data % 4 == 0 else np.empty(out.nbytes // 4, np.float32)
        if isinstance(self.source, Packed):
            parts = {name: r.node.read(r.lo, r.hi) for name, r in self.source.runs(lo, hi).items()}
            self.source.packing.decode(self.spec, parts, lo, hi, values)
        else:
            kernels.decode(self.source.spec.dtype, self.source.read(lo, hi), values)
        if values.base is not out and values.ctypes.data != out.ctypes.data:
            out[:] = values.view(np.uint8)

    def needs(self, lo: int, hi: int) -> list[Run]:
        return self.source.needs(lo, hi) if isinstance(self.source, Packed) else [Run(self.source, lo, hi)]

    @property
    def sources(self) -> tuple[Node, ...]:
        return (self.source,)


@dataclass(frozen=True, eq=False)
class Transcode(Node):
    """A packed tensor in a block type with the same parameters: exact, nothing is requantized."""

    source: Packed

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        parts = {name: r.node.read(r.lo, r.hi) for name, r in self.source.runs(lo, hi).items()}
        self.source.packing.transcode(self.source.spec, self.spec.dtype, parts, out)

    def needs(self, lo: int, hi: int) -> list[Run]:
        return self.source.needs(lo, hi)

    @property
    def sources(self) -> tuple[Node, ...]:
        return (self.source,)


# ------------------------------------------------------------------------------------------------ computation


@dataclass
class CastReport:
    """What casts lost, added up over slabs and threads."""

    overflow: int = 0
    underflow: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, overflow: int, underflow: int) -> None:
        with self._lock:
            self.overflow += overflow
            self.underflow += underflow


@dataclass(frozen=True, eq=False)
class Cast(Node):
    """Another plain number type, rounded to nearest even; what over- or underflows is counted in `report`."""

    source: Node
    report: CastReport = field(default_factory=CastReport)

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        counts = kernels.cast(self.source.spec.dtype, self.spec.dtype, self.source.read(lo, hi), out)
        self.report.add(counts.overflow, counts.underflow)

    def needs(self, lo: int, hi: int) -> list[Run]:
        return [Run(self.source, lo, hi)]

    @property
    def sources(self) -> tuple[Node, ...]:
        return (self.source,)


@dataclass(frozen=True, eq=False)
class Encode(Node):
    """F32 rows quantized to a block type, byte for byte as the reference does."""

    source: Node

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        kernels.encode(self.spec.dtype, self.source.read(lo, hi).view(np.float32), out)

    def needs(self, lo: int, hi: int) -> list[Run]:
        return [Run(self.source, lo, hi)]

    @property
    def sources(self) -> tuple[Node, ...]:
        return (self.source,)


@dataclass(frozen=True, eq=False)
class Transpose(Node):
    """The last two axes swapped (plain types only). Rows lo..hi are a column stripe of the source, which is read whole
    in bands for each stripe: the plan makes stripes as large as its budget allows and tells the passes."""

    source: Node
    stripes: ClassVar[bool] = True

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        height, width = self.source.spec.shape[-2:]
        size = self.spec.dtype.size
        stripe = out.view(f"V{size}").reshape(hi - lo, height)
        at = lo
        while at < hi:  # one matrix of a stack at a time
            matrix, column = divmod(at, width)
            count = min(width - column, hi - at)
            for a, b in self._bands(height, width * size):
                band = self.source.read(matrix * height + a, matrix * height + b).view(f"V{size}").reshape(b - a, width)
                stripe[at - lo : at - lo + count, a:b] = band[:, column : column + count].T
            at += count

    @staticmethod
    def _bands(height: int, row_bytes: int) -> Iterator[tuple[int, int]]:
        step = max(1, SLAB // max(row_bytes, 1))
        for a in range(0, height, step):
            yield a, min(a + step, height)

    def needs(self, lo: int, hi: int) -> list[Run]:
        height, width = self.source.spec.shape[-2:]
        return [Run(self.source, lo // width * height, -(-hi // width) * height)] if lo < hi else []

    def scratch(self, lo: int, hi: int) -> int:
        if lo == hi:
            return 0
        height, width = self.source.spec.shape[-2:]
        a, b = next(self._bands(height, width * self.spec.dtype.size))
        start = lo // width * height
        return (b - a) * self.source.spec.row_bytes + self.source.scratch(start, start + b - a)

    @property
    def sources(self) -> tuple[Node, ...]:
        return (self.source,)


# ------------------------------------------------------------------------------------------------ smart constructors


def const(array: NDArray[Any], dtype: DType) -> Const:
    """A numpy array as a node; its bytes are taken as `dtype`'s."""
    return Const(Spec(array.shape, dtype), np.ascontiguousarray(array).tobytes())


def reshape(node: Node, shape: Sequence[int]) -> Node:
    """The same atoms under another shape."""
    shape = tuple(shape)
    if shape == node.spec.shape:
        return node
    if math.prod(shape) != node.spec.elements:
        raise UsageError(f"{node.spec} has not the elements of shape {list(shape)}")
    if isinstance(node, Packed):
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
    if isinstance(node, Packed):
        return _slice_packed(node, start, spec)
    return _slice(node, start * node.spec.row_atoms, spec)


def _slice_packed(node: Packed, start: int, spec: Spec) -> Node:
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
    for p in parts[1:]:
        same = p.spec.shape[:axis] + p.spec.shape[axis + 1 :] == first.shape[:axis] + first.shape[axis + 1 :]
        if p.spec.dtype != first.dtype or len(p.spec.shape) != len(first.shape) or not same:
            raise UsageError(f"{first} and {p.spec} can't be joined on axis {axis}")
    if len(parts) == 1:
        return parts[0]
    shape = (*first.shape[:axis], sum(p.spec.shape[axis] for p in parts), *first.shape[axis + 1 :])
    if any(isinstance(p, Packed) for p in parts):
        return _concat_packed(parts, axis, shape)
    if any(p.spec.flat for p in parts):
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
            (b[0], b[1], b[2]) == (a[0], a[1] + p.spec.nbytes, a[2])
            for a, b, p in zip(at, at[1:], parts, strict=False)
        ):
            return Stored(spec, *at[0])
    return None


def _concat_packed(parts: Sequence[Node], axis: int, shape: tuple[int, ...]) -> Node:
    packed = [p for p in parts if isinstance(p, Packed)]
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
        return concat([decode(p, why) if isinstance(p, Packed) else cast(p, F32) for p in parts], axis)
    head = packed[0]
    members = {
        m: concat([_matrix(p.members[m]) for p in packed]) if head.packing.row_map[m] else node
        for m, node in head.members.items()
    }
    return replace(head, spec=head.spec.with_shape(*shape), members=members)


def stack(parts: Sequence[Node]) -> Node:
    """Tensors of one shape on a new leading axis (experts)."""
    shape = parts[0].spec.shape
    return concat([reshape(p, (1, *p.spec.shape)) for p in parts]) if len(parts) > 1 else reshape(parts[0], (1, *shape))


def gather(node: Node, order: NDArray[np.int64]) -> Node:
    """Rows in the order given; two gathers in a row are one, and one that changes nothing is none."""
    order = np.ascontiguousarray(order, np.int64)
    if len(order) != node.spec.rows or (len(order) and not (0 <= order.min() and order.max() < node.spec.rows)):
        raise UsageError(f"an order of {len(order)} rows for {node.spec}")
    if np.array_equal(order, np.arange(len(order))):
        return node
    if node.spec.flat:
        raise UnsupportedError(f"{node.spec}: rows that aren't whole atoms can't be moved")
    if isinstance(node, Gather):
        return gather(node.source, node.order[order])
    if isinstance(node, Packed):
        return _gather_packed(node, order)
    return Gather(node.spec, node, order)


def _gather_packed(node: Packed, order: NDArray[np.int64]) -> Node:
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
    if isinstance(node, Packed) or not node.spec.dtype.plain:
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


def decode(node: Node, reason: str = "") -> Node:
    """Values as F32 of a packed tensor or a block type; a plain tensor is returned as it is."""
    if isinstance(node, Packed):
        return Decode(node.spec.with_dtype(F32), node, reason)
    if node.spec.dtype.kind is Kind.BLOCK:
        if not kernels.decodes(node.spec.dtype):
            raise UnsupportedError(f"{node.spec.dtype} can't be decoded by this version")
        return Decode(node.spec.with_dtype(F32), node, reason)
    return node


def cast(node: Node, dtype: DType, report: CastReport | None = None) -> Node:
    """The tensor as `dtype`: untouched where it is that already, through F32 where a block type is involved."""
    if isinstance(node, Packed) or (node.spec.dtype is not dtype and node.spec.dtype.kind is Kind.BLOCK):
        return cast(decode(node), dtype, report)
    if node.spec.dtype is dtype:
        return node
    if dtype.kind is Kind.BLOCK:
        if not kernels.encodes(dtype):
            raise UnsupportedError(f"{dtype} can't be written by this version")
        source = cast(node, F32, report)
        spec = source.spec.with_dtype(dtype)
        if spec.flat:
            raise UsageError(f"rows of {node.spec} are not whole blocks of {dtype}")
        return Encode(spec, source)
    if not kernels.casts(node.spec.dtype, dtype):
        raise UnsupportedError(f"no cast from {node.spec.dtype} to {dtype}")
    return Cast(node.spec.with_dtype(dtype), node, report or CastReport())


def transcode(node: Packed, dtype: DType) -> Transcode:
    """The packed tensor in block type `dtype` with the same parameters (see `Packing.transcode`)."""
    return Transcode(node.spec.with_dtype(dtype), node)
