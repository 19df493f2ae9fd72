"""The nodes that compute, on whole slabs: `UnpackBits`, `Decode`, `Transcode`, `PackedMember`, `AbsMax`, `Cast`,
`Encode`, `LowRank`, `Transpose`; and `QuantizedTensor`, which holds the several stored tensors of one logical one.
Those that compute each element by itself are in elementwise.py."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, final, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import F32, DType
from weighbridge.base.errors import RefusedError, UsageError
from weighbridge.base.limits import MIB
from weighbridge.base.spec import Spec
from weighbridge.tensors import bits, kernels
from weighbridge.tensors.nodes.base import BAND, Bytes, Node, RowRange, UnaryNode, held
from weighbridge.tensors.reference import legacy_blocks as old_blocks
from weighbridge.tensors.scratch import lent

#: What making a band of a source may take, where fewer rows take less.
_BAND_COST = 2 * MIB


class Packing(Protocol):
    """How several stored tensors make one logical one. They are made in `packings/`; equal ones compare equal."""

    @property
    def name(self) -> str: ...

    @property
    def row_map(self) -> Mapping[str, int]:
        """Logical rows to one row of a member; 0: the member is shared by all rows."""

    def decode(self, spec: Spec, parts: Mapping[str, Bytes], lo: int, hi: int, out: NDArray[np.float32]) -> None:
        """Values of rows lo..hi of `spec` from the members' bytes. `parts[m]` starts at row lo // row_map[m]."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """Members that are rounded where they aren't exact in a block type."""

    @property
    def blocks(self) -> tuple[DType, ...]:
        """Block types with room for its codes, smallest first: what `transcode` can be asked for."""

    def inexact(self, members: Mapping[str, Node], dtype: DType) -> str:
        """Why `dtype` does not hold the very same values; empty where it does. Reads parameters, never codes."""

    def transcode(self, spec: Spec, dtype: DType, parts: Mapping[str, Bytes], out: Bytes) -> None:
        """The same codes in one of `blocks`; scales are rounded to its type where they aren't exact in it."""


@runtime_checkable
class Spreading(Packing, Protocol):
    """A packing with parameters that all rows share, which also has them for runs of rows."""

    def spread(self, rows: int) -> Packing:
        """The same with what all rows share told for each run of `rows` rows; itself where nothing is shared."""


@final
@dataclass(frozen=True, eq=False)
class QuantizedTensor:
    """One logical tensor (`spec`; its dtype is the one it decodes to) in several stored `members`. It has no bytes of
    its own, so it is no node: rows move in its members, everything else needs `decode`."""

    spec: Spec
    packing: Packing
    members: Mapping[str, Node]

    @property
    def unit(self) -> int:
        """Rows between which the packing can be cut."""
        return math.lcm(*(k for k in self.packing.row_map.values() if k))

    def runs(self, lo: int, hi: int) -> dict[str, RowRange]:
        out = {}
        for name, node in self.members.items():
            k = self.packing.row_map[name]
            out[name] = RowRange(node, lo // k, -(-hi // k)) if k else RowRange(node, 0, node.spec.rows)
        return out

    @contextmanager
    def borrow(self, lo: int, hi: int) -> Iterator[dict[str, Bytes]]:
        """The members' bytes of rows lo..hi, valid inside the block."""
        runs = self.runs(lo, hi)
        with held(*runs.values()) as parts:
            yield dict(zip(runs, parts, strict=True))

    def decode(self, reason: str = "") -> DecodePacked:
        """Its values in F32. `reason`: why it has to be decoded, for the plan."""
        return DecodePacked(self.spec.with_dtype(F32), self, reason)


#: A tensor of a model: stored as it is, or in several stored tensors that are packed.
LogicalTensor = Node | QuantizedTensor


@dataclass(frozen=True, eq=False)
class PackedSource(Node):
    """A node over a quantized tensor."""

    tensor: QuantizedTensor

    def _needs(self, lo: int, hi: int) -> list[RowRange]:
        return list(self.tensor.runs(lo, hi).values())

    @property
    def sources(self) -> tuple[Node, ...]:
        return tuple(self.tensor.members.values())


@dataclass(frozen=True, eq=False)
class DecodePacked(PackedSource):
    """Values in F32 of a quantized tensor. `reason`: why it had to be decoded, for the plan."""

    reason: str = ""

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        with _aligned(out) as values, self.tensor.borrow(lo, hi) as parts:
            self.tensor.packing.decode(self.spec, parts, lo, hi, values)


@contextmanager
def _aligned(out: Bytes) -> Iterator[NDArray[np.float32]]:
    """`out` as F32 values, which are copied there at the end where it isn't aligned."""
    aligned = out.ctypes.data % 4 == 0
    values = out.view(np.float32) if aligned else np.empty(out.nbytes // 4, np.float32)
    yield values
    if not aligned:
        out[:] = values.view(np.uint8)


@dataclass(frozen=True, eq=False)
class UnpackBits(UnaryNode):
    """The integer codes packed in a tensor's words, one U8 each; row for row. `layout`: see `tensors/bits.py`."""

    layout: str
    bits: int

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        columns = self.spec.row_bytes
        with held(RowRange(self.source, lo, hi)) as (words,):
            rows = words.reshape(hi - lo, -1)
            out.reshape(hi - lo, columns)[:] = bits.unpack(self.layout, self.bits, rows, columns)

    def _scratch(self, lo: int, hi: int) -> int:
        return super()._scratch(lo, hi) + 2 * (hi - lo) * self.spec.row_bytes


@dataclass(frozen=True, eq=False)
class Decode(UnaryNode):
    """Values in F32 of a block type. `reason`: why it had to be decoded, for the plan."""

    reason: str = ""

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        decode = old_blocks.decode if self.source.spec.dtype in old_blocks.DECODED else kernels.decode
        with _aligned(out) as values, held(RowRange(self.source, lo, hi)) as (blocks,):
            decode(self.source.spec.dtype, blocks, values)


@dataclass(frozen=True, eq=False)
class Transcode(PackedSource):
    """A quantized tensor in a block type with the same parameters: exact, nothing is requantized."""

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        with self.tensor.borrow(lo, hi) as parts:
            self.tensor.packing.transcode(self.tensor.spec, self.spec.dtype, parts, out)


class Packer(Protocol):
    """How a logical tensor becomes several stored ones. They are made in `packings/`."""

    @property
    def quantizes(self) -> bool:
        """True where values change: they are rounded to codes."""

    def specs(self, source: Spec) -> Mapping[str, Spec]:
        """The stored tensors by their names behind the module's, of a logical one of `source`."""

    def make(self, source: Bytes, outs: Mapping[str, Bytes]) -> None:
        """Some rows of those of them that are asked for, from the same rows of the logical tensor (F32, or a block
        type)."""


@dataclass(frozen=True, eq=False)
class PackedMember(UnaryNode):
    """One of the stored tensors that `maker` makes of a logical one, row for row. `block`: the rows of the logical one
    that share a parameter; a part then has a row for each, or one for so many."""

    maker: Packer
    part: str
    block: int = 1

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        make([self], lo, hi, [out])

    def fill(self, source: Bytes, outs: Mapping[str, Bytes]) -> None:
        """Parts from the bytes of the same rows of the source."""
        self.maker.make(source, outs)

    @property
    def tall(self) -> bool:
        """Whether it has one row for several of the source."""
        return self.spec.rows != self.source.spec.rows

    def span(self, lo: int, hi: int) -> RowRange:
        """The rows of the source that rows lo..hi depend on, in whole blocks."""
        k = self.block
        a, b = (lo * k, hi * k) if self.tall else (lo // k * k, -(-hi // k) * k)
        return RowRange(self.source, a, min(b, self.source.spec.rows))

    def _needs(self, lo: int, hi: int) -> list[RowRange]:
        return [self.span(lo, hi)]

    def _scratch(self, lo: int, hi: int) -> int:
        run = self.span(lo, hi)
        return super()._scratch(lo, hi) + 2 * (run.hi - run.lo) * self.source.spec.row_bytes


def make(parts: Sequence[PackedMember], lo: int, hi: int, outs: Sequence[Bytes]) -> None:
    """Rows lo..hi of several parts of one tensor, which is read once for all of them; parts of one height."""
    first, run = parts[0], parts[0].span(lo, hi)
    with held(run) as (source,):
        if first.tall or (run.lo, run.hi) == (lo, hi):
            first.fill(source, {p.part: out for p, out in zip(parts, outs, strict=True)})
            return
        with lent(*((run.hi - run.lo) * p.spec.row_bytes for p in parts)) as wholes:
            first.fill(source, {p.part: whole for p, whole in zip(parts, wholes, strict=True)})
            for part, whole, out in zip(parts, wholes, outs, strict=True):
                out[:] = whole[(lo - run.lo) * part.spec.row_bytes :][: out.nbytes]


class GlobalScalePacker(Packer, Protocol):
    """A maker whose parts also depend on something of the whole tensor."""

    def make_with(self, source: Bytes, given: Bytes, outs: Mapping[str, Bytes]) -> None:
        """As `make`, with the bytes of that."""


@dataclass(frozen=True, eq=False)
class PackedMemberWithGlobal(PackedMember):
    """As `PackedMember`, by a maker that is `given` something of the whole tensor: a small one."""

    maker: GlobalScalePacker
    given: Node = field(kw_only=True)

    def fill(self, source: Bytes, outs: Mapping[str, Bytes]) -> None:
        self.maker.make_with(source, self.given.read_all(), outs)

    def _scratch(self, lo: int, hi: int) -> int:
        return super()._scratch(lo, hi) + self.given.spec.nbytes + self.given.scratch(0, self.given.spec.rows)

    @property
    def sources(self) -> tuple[Node, ...]:
        return (self.source, self.given)


@dataclass(frozen=True, eq=False)
class AbsMax(Node):
    """The largest magnitude in several F32 tensors, F32 [1]. They are read in bands, once."""

    over: tuple[Node, ...]

    @cached_property
    def value(self) -> np.float32:
        peak = np.float32(0)
        for run in self._bands():
            with held(run) as (data,):
                values = data.view(np.float32)
                peak = np.maximum(peak, np.abs(kernels.extremes(values, values.size, values.size)).max())
        return peak

    def _bands(self) -> Iterator[RowRange]:
        for node in (node for node in self.over if node.spec.elements):
            step = max(1, MIB // max(node.spec.row_bytes, 1))
            for lo in range(0, node.spec.rows, step):
                yield RowRange(node, lo, min(lo + step, node.spec.rows))

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        out[:] = np.array([self.value], np.float32).view(np.uint8)

    def _scratch(self, lo: int, hi: int) -> int:
        return self._cost

    @cached_property
    def _cost(self) -> int:
        """Of the first band of each tensor: the others are as large, and a plan asks often."""
        first: dict[int, RowRange] = {}
        for run in self._bands():
            first.setdefault(id(run.node), run)
        return max((2 * (b - a) * n.spec.row_bytes + n.scratch(a, b) for n, a, b in first.values()), default=0)

    @property
    def sources(self) -> tuple[Node, ...]:
        return self.over


@dataclass
class CastReport:
    """What casts lost, added up over slabs and threads. `name`: of the tensor, for errors."""

    name: str = ""
    overflow: int = 0
    underflow: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, overflow: int, underflow: int) -> None:
        with self._lock:
            self.overflow += overflow
            self.underflow += underflow


@dataclass(frozen=True, eq=False)
class UpgradeBlocks(UnaryNode):
    """Blocks of before GGUF as today's of the same numbers; scales of 32 bits are rounded to 16."""

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        with held(RowRange(self.source, lo, hi)) as (blocks,):
            old_blocks.repack(self.source.spec.dtype, blocks, out)


@dataclass(frozen=True, eq=False)
class Cast(UnaryNode):
    """Another plain number type, rounded to nearest even; what over- or underflows is counted in `report`."""

    report: CastReport = field(default_factory=CastReport)

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        with held(RowRange(self.source, lo, hi)) as (values,):
            counts = kernels.cast(self.source.spec.dtype, self.spec.dtype, values, out)
        self.report.add(counts.overflow, counts.underflow)


@dataclass(frozen=True, eq=False)
class Encode(UnaryNode):
    """F32 rows quantized to a block type, byte for byte as the reference does. RefusedError for what the reference
    refuses too: values that aren't finite, and scales that f16 can't hold.
    `importance`: f32 weights of the columns [groups, columns], each for as many rows as the others (an expert's)."""

    report: CastReport = field(default_factory=CastReport)
    importance: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        if self.importance is not None:
            groups, columns = self.importance.shape
            if not groups or columns != self.spec.shape[-1] or self.spec.rows % groups:
                raise UsageError(f"an importance matrix of {groups} x {columns} weights doesn't fit {self.spec}")
            if kernels.nonfinite(self.importance.reshape(-1)):
                raise UsageError(f"the importance matrix of {self._name} has weights that aren't finite")

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        with held(RowRange(self.source, lo, hi)) as (data,):
            self._encode(lo, hi, data.view(np.float32).reshape(hi - lo, -1), out)

    def _encode(self, lo: int, hi: int, values: NDArray[np.float32], out: Bytes) -> None:
        width = self.spec.row_bytes
        if kernels.nonfinite(values.reshape(-1)):
            raise self._refusal(lo, values, "has values that aren't finite (NaN or Inf)", _not_finite)
        for a, b, weights in self._groups(lo, hi):
            piece = out[(a - lo) * width : (b - lo) * width]
            try:
                counts = kernels.encode(self.spec.dtype, values[a - lo : b - lo].reshape(-1), piece, weights)
            except kernels.RefusedBlock as refused:
                row, block = divmod(refused.block, self.spec.shape[-1] // self.spec.dtype.block)
                raise self._refused(a + row, f"{refused.reason} from column {block * self.spec.dtype.block}") from None
            self.report.add(counts.overflow, counts.underflow)
        if self._broken(out):
            reason = f"has values too large for a scale of {self.spec.dtype}"
            raise self._refusal(lo, out.reshape(hi - lo, -1), reason, self._broken)

    @property
    def _name(self) -> str:
        return self.report.name or "a tensor"

    def _broken(self, data: Bytes) -> bool:
        """Scales that are NaN or Inf (what ggml_validate_row_data rejects)."""
        found = kernels.stats(self.spec.dtype, data)
        return bool(found.nan or found.inf)

    def _refusal(self, lo: int, rows: NDArray[Any], reason: str, bad: Callable[[NDArray[Any]], bool]) -> RefusedError:
        return self._refused(lo + next(i for i, row in enumerate(rows) if bad(row)), reason)

    def _refused(self, row: int, reason: str) -> RefusedError:
        return RefusedError(
            f"{self._name}: row {row} {reason}, so it can't be quantized to {self.spec.dtype}",
            hint="keep this tensor as BF16 or F32, or repair the checkpoint (wb scan tells what stands in it)",
        )

    def _groups(self, lo: int, hi: int) -> Iterator[tuple[int, int, NDArray[np.float32] | None]]:
        """Row ranges that share weights, and these."""
        if self.importance is None:
            yield lo, hi, None
            return
        each = self.spec.rows // len(self.importance)
        for group in range(lo // each, -(-hi // each)):
            yield max(lo, group * each), min(hi, (group + 1) * each), self.importance[group]


def _not_finite(row: NDArray[Any]) -> bool:
    return kernels.nonfinite(row) > 0


@dataclass(frozen=True, eq=False)
class LowRank(UnaryNode):
    """An F32 matrix plus `scale` times b @ a, in F32: `a` [rank, columns] is read whole, `b` [rows, rank] by rows.
    Added up rank by rank, so that a row's bits don't depend on which rows are read with it (a library's product's
    do)."""

    a: Node
    b: Node
    scale: float

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        with held(*self._needs(lo, hi)) as (weight, b, a):
            left, right = b.view(np.float32).reshape(hi - lo, -1), a.view(np.float32).reshape(self.a.spec.shape)
            change = left[:, :1] * right[0]
            term = np.empty_like(change)
            for k in range(1, len(right)):
                change += np.multiply(left[:, k : k + 1], right[k], out=term)
            change *= np.float32(self.scale)
            change += weight.view(np.float32).reshape(change.shape)
            out[:] = change.reshape(-1).view(np.uint8)

    def _needs(self, lo: int, hi: int) -> list[RowRange]:
        return [RowRange(self.source, lo, hi), RowRange(self.b, lo, hi), RowRange(self.a, 0, self.a.spec.rows)]

    def _scratch(self, lo: int, hi: int) -> int:
        return super()._scratch(lo, hi) + 2 * (hi - lo) * self.spec.row_bytes

    @property
    def sources(self) -> tuple[Node, ...]:
        return (self.source, self.a, self.b)


@dataclass(frozen=True, eq=False)
class Transpose(UnaryNode):
    """The last two axes swapped (plain types only). Rows lo..hi are a column stripe of the source, which is read whole
    in bands for each stripe: the plan makes stripes as large as its budget allows and tells the passes."""

    @property
    def stripes(self) -> bool:
        return True

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        height, width = self.source.spec.shape[-2:]
        size = self.spec.dtype.size
        stripe = out.view(f"V{size}").reshape(hi - lo, height)
        at = lo
        while at < hi:  # one matrix of a stack at a time
            matrix, column = divmod(at, width)
            count = min(width - column, hi - at)
            for a, b in self._bands(height):
                with held(RowRange(self.source, matrix * height + a, matrix * height + b)) as (data,):
                    band = data.view(f"V{size}").reshape(b - a, width)
                    stripe[at - lo : at - lo + count, a:b] = band[:, column : column + count].T
            at += count

    def _bands(self, height: int) -> Iterator[tuple[int, int]]:
        for a in range(0, height, self._step):
            yield a, min(a + self._step, height)

    @cached_property
    def _step(self) -> int:
        """Rows of the source at a time: a band's worth, and fewer where that takes less memory to make them."""
        height, width = self.source.spec.shape[-2:]
        rows = max(1, min(height, BAND // max(width * self.spec.dtype.size, 1)))
        cost = self.source.scratch(0, rows)
        while rows > 1 and cost > _BAND_COST:
            half = -(-rows // 2)
            less = self.source.scratch(0, half)
            if 4 * less > 3 * cost:  # what it is made of comes in blocks of rows
                break
            rows, cost = half, less
        return rows

    def _needs(self, lo: int, hi: int) -> list[RowRange]:
        height, width = self.source.spec.shape[-2:]
        return [RowRange(self.source, lo // width * height, -(-hi // width) * height)]

    def _scratch(self, lo: int, hi: int) -> int:
        height, width = self.source.spec.shape[-2:]
        a, b = next(self._bands(height))
        start = lo // width * height
        return (b - a) * self.source.spec.row_bytes + self.source.scratch(start, start + b - a)
