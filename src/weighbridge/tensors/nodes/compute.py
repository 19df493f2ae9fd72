"""Nodes that compute on whole slabs: bit codes, block types, casts, low-rank changes, transposes. Nodes that compute
elements or rows independently are in elementwise.py."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from weighbridge.base.dtypes import BF16, F16
from weighbridge.base.errors import RefusedError, UsageError
from weighbridge.base.limits import MIB
from weighbridge.base.records import dataclass
from weighbridge.tensors import bits, kernels, np, refining
from weighbridge.tensors.nodes.base import BAND, Bytes, Node, RowRange, UnaryNode, borrow
from weighbridge.tensors.nodes.quantized import aligned_values
from weighbridge.tensors.reference import legacy_blocks

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Rows of the squares that the kernel of a transpose moves. A band has two rows of squares even if they are wide, up to
# eight times `BAND`: eight rows take three times as long.
_SIDE = 16
#: Memory for making a band of a source, if fewer rows take less.
_BAND_COST = 2 * MIB
#: Types that an encoder widens itself, exactly.
_WIDENED = frozenset((BF16, F16))


@dataclass(frozen=True, eq=False)
class UnpackBits(UnaryNode):
    """The integer codes packed in a tensor's words, one U8 each, row for row. `layout`: see `tensors/bits.py`."""

    layout: str
    bits: int

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        columns = self.spec.row_bytes
        with borrow(RowRange(self.source, lo, hi)) as (packed,):
            rows = packed.reshape(hi - lo, -1)
            out.reshape(hi - lo, columns)[:] = bits.unpack(self.layout, self.bits, rows, columns)

    def _scratch(self, lo: int, hi: int) -> int:
        return super()._scratch(lo, hi) + 2 * (hi - lo) * self.spec.row_bytes


@dataclass(frozen=True, eq=False)
class AwqByRows(UnaryNode):
    """AWQ's words, each of eight columns, as words of eight rows each: [rows, columns / 8] becomes [rows / 8, columns],
    which is GPTQ's arrangement. Codes of a byte each would take eight times the memory."""

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        with borrow(*self._needs(lo, hi)) as (words,):
            kernels.awq_by_rows(words.view(np.uint32).reshape(8 * (hi - lo), -1), out)

    def _needs(self, lo: int, hi: int) -> list[RowRange]:
        return [RowRange(self.source, 8 * lo, 8 * hi)]


@dataclass(frozen=True, eq=False)
class Decode(UnaryNode):
    """A block type decoded to F32. `reason`: why it had to be decoded, for the plan."""

    reason: str = ""

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        decode = legacy_blocks.decode if self.source.spec.dtype in legacy_blocks.DECODED else kernels.decode
        with aligned_values(out) as values, borrow(RowRange(self.source, lo, hi)) as (blocks,):
            decode(self.source.spec.dtype, blocks, values)


@dataclass(frozen=True, eq=False)
class WholeTensor(Node):
    """A number computed from all elements of several F32 tensors, F32 [1]. They are read once, in bands, each of which
    takes the memory of `copies`."""

    copies: ClassVar[int] = 2
    over: tuple[Node, ...]

    @cached_property
    @abstractmethod
    def value(self) -> np.float32:
        """The number."""

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
        """From each tensor's first band: the others are as large. Cached, because plans ask often."""
        first: dict[int, RowRange] = {}
        for run in self._bands():
            first.setdefault(id(run.node), run)
        return max(
            (self.copies * (b - a) * n.spec.row_bytes + n.scratch(a, b) for n, a, b in first.values()), default=0
        )

    @property
    def sources(self) -> tuple[Node, ...]:
        return self.over


@dataclass(frozen=True, eq=False)
class AbsMax(WholeTensor):
    """The largest magnitude."""

    @cached_property
    def value(self) -> np.float32:
        abs_max = np.float32(0)
        for run in self._bands():
            with borrow(run) as (data,):
                values = data.view(np.float32)
                abs_max = np.maximum(abs_max, np.abs(kernels.extremes(values, values.size, values.size)).max())
        return abs_max


@dataclass(frozen=True, eq=False)
class Mean(WholeTensor):
    """The mean, or that of the magnitudes, from a sum in F64."""

    copies: ClassVar[int] = 3
    magnitudes: bool = False

    @cached_property
    def value(self) -> np.float32:
        total, count = 0.0, sum(node.spec.elements for node in self.over)
        for run in self._bands():
            with borrow(run) as (data,):
                values = data.view(np.float32)
                total += float((np.abs(values) if self.magnitudes else values).sum(dtype=np.float64))
        return np.float32(total / max(count, 1))


@dataclass
class CastReport:
    """Losses of casts, summed over slabs and threads. `name`: the tensor, for errors."""

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
    """Blocks from before GGUF as current blocks with the same values; 32-bit scales are rounded to 16 bits."""

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        with borrow(RowRange(self.source, lo, hi)) as (blocks,):
            legacy_blocks.repack(self.source.spec.dtype, blocks, out)


@dataclass(frozen=True, eq=False)
class SwapBytes(UnaryNode):
    """The same values in the other byte order. UnsupportedError for a type without byte order (IQ2_XXS)."""

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        self.source.read(lo, hi, out)
        kernels.byteswap(self.spec.dtype, out)


@dataclass(frozen=True, eq=False)
class Cast(UnaryNode):
    """A cast to a plain type, rounded to nearest even; `report` counts overflows and underflows. `provisional`: a later
    cast to another type replaces this one, so that values are rounded once."""

    report: CastReport = field(default_factory=CastReport)
    provisional: bool = False

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        with borrow(RowRange(self.source, lo, hi)) as (values,):
            counts = kernels.cast(self.source.spec.dtype, self.spec.dtype, values, out)
        self.report.add(counts.overflow, counts.underflow)


@dataclass(frozen=True, eq=False)
class Encode(UnaryNode):
    """F32 rows quantized to a block type, with the reference's bytes. RefusedError for values that the reference
    refuses too: non-finite ones, and scales beyond F16. `importance`: F32 [groups, columns], weights of the columns;
    each group is for an equal number of rows (an expert's). `best`: blocks with less error than the reference's."""

    report: CastReport = field(default_factory=CastReport)
    importance: NDArray[np.float32] | None = None
    best: bool = False

    def __post_init__(self) -> None:
        if self.importance is not None:
            groups, columns = self.importance.shape
            if not groups or columns != self.spec.shape[-1] or self.spec.rows % groups:
                raise UsageError(f"an importance matrix of {groups} x {columns} weights doesn't fit {self.spec}")
            if kernels.nonfinite(self.importance.reshape(-1)):
                raise UsageError(f"the importance matrix of {self._name} has weights that aren't finite")

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        if self.importance is None and not self.best:
            with borrow(*self._needs(lo, hi)) as (stored,):
                counts = kernels.encode_finite(self._stored.spec.dtype, self.spec.dtype, stored, out)
            if counts is not None:
                self.report.add(counts.overflow, counts.underflow)
                return
        self._encode_rows(lo, hi, out)

    def _needs(self, lo: int, hi: int) -> list[RowRange]:
        return [RowRange(self._stored, lo, hi)]

    @cached_property
    def _stored(self) -> Node:
        """The source, or the narrower tensor that is widened to it: then F32 is made in the kernel's tiles only."""
        plain = self.importance is None and not self.best
        if plain and isinstance(self.source, Cast) and self.source.source.spec.dtype in _WIDENED:
            return self.source.source
        return self.source

    def _encode_rows(self, lo: int, hi: int, out: Bytes) -> None:
        """Encodes by rows, with weights and refinement, and reports invalid values."""
        width = self.spec.row_bytes
        with borrow(RowRange(self.source, lo, hi)) as (data,):
            values = data.view(np.float32).reshape(hi - lo, -1)
            if kernels.nonfinite(values.reshape(-1)):
                reason = "has values that aren't finite (NaN or Inf)"
                raise self._refusal(lo, values, reason, lambda row: kernels.nonfinite(row) > 0)
            for a, b, weights in self._groups(lo, hi):
                piece = out[(a - lo) * width : (b - lo) * width]
                try:
                    counts = kernels.encode(self.spec.dtype, values[a - lo : b - lo].reshape(-1), piece, weights)
                except kernels.RefusedBlock as refused:
                    row, block = divmod(refused.block, self.spec.shape[-1] // self.spec.dtype.block)
                    reason = f"{refused.reason} from column {block * self.spec.dtype.block}"
                    raise self._refused(a + row, reason) from None
                self.report.add(counts.overflow, counts.underflow)
                if self.best and refining.refines(self.spec.dtype):
                    refining.refine(self.spec.dtype, values[a - lo : b - lo], piece, weights)
        if self._broken(out):
            reason = f"has values too large for a scale of {self.spec.dtype}"
            raise self._refusal(lo, out.reshape(hi - lo, -1), reason, self._broken)

    @property
    def _name(self) -> str:
        return self.report.name or "a tensor"

    def _broken(self, data: Bytes) -> bool:
        """Whether scales are NaN or Inf (which ggml_validate_row_data rejects)."""
        stats = kernels.stats(self.spec.dtype, data)
        return bool(stats.nan or stats.inf)

    def _refusal(self, lo: int, rows: NDArray[Any], reason: str, bad: Callable[[NDArray[Any]], bool]) -> RefusedError:
        return self._refused(lo + next(i for i, row in enumerate(rows) if bad(row)), reason)

    def _refused(self, row: int, reason: str) -> RefusedError:
        return RefusedError(
            f"{self._name}: row {row} {reason}, so it can't be quantized to {self.spec.dtype}",
            hint="keep this tensor as BF16 or F32, or repair the checkpoint (wb verify --values lists the values)",
        )

    def _groups(self, lo: int, hi: int) -> Iterator[tuple[int, int, NDArray[np.float32] | None]]:
        """Row ranges that share weights, with the weights."""
        if self.importance is None:
            yield lo, hi, None
            return
        height = self.spec.rows // len(self.importance)
        for group in range(lo // height, -(-hi // height)):
            yield max(lo, group * height), min(hi, (group + 1) * height), self.importance[group]


@dataclass(frozen=True, eq=False)
class LowRank(UnaryNode):
    """An F32 matrix plus `scale` times b @ a, in F32: `a` [rank, columns] is read whole, `b` [rows, rank] by rows."""

    a: Node
    b: Node
    scale: float

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        with borrow(*self._needs(lo, hi)) as (weight, b, a):
            out[:] = weight
            rows, left = (each.view(np.float32).reshape(hi - lo, -1) for each in (out, b))
            kernels.add_low_rank(rows, left, a.view(np.float32).reshape(self.a.spec.shape), self.scale)

    def _needs(self, lo: int, hi: int) -> list[RowRange]:
        return [RowRange(self.source, lo, hi), RowRange(self.b, lo, hi), RowRange(self.a, 0, self.a.spec.rows)]

    def _scratch(self, lo: int, hi: int) -> int:
        return super()._scratch(lo, hi) + 2 * (hi - lo) * self.spec.row_bytes

    @property
    def sources(self) -> tuple[Node, ...]:
        return (self.source, self.a, self.b)


@dataclass(frozen=True, eq=False)
class Transpose(UnaryNode):
    """The last two axes swapped (plain types only). Rows lo..hi are a column stripe of the source, which is read
    whole in bands for each stripe: the plan makes stripes as large as the budget allows and reports the passes."""

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
                with borrow(RowRange(self.source, matrix * height + a, matrix * height + b)) as (data,):
                    band = data.view(f"V{size}").reshape(b - a, width)
                    kernels.transpose(band[:, column : column + count], stripe[at - lo : at - lo + count, a:b])
            at += count

    def _bands(self, height: int) -> Iterator[tuple[int, int]]:
        for a in range(0, height, self._step):
            yield a, min(a + self._step, height)

    @cached_property
    def _step(self) -> int:
        """Rows of the source per band, fewer if that takes less memory."""
        height, width = self.source.spec.shape[-2:]
        row_bytes = max(width * self.spec.dtype.size, 1)
        rows = max(BAND // row_bytes, min(2 * _SIDE, 8 * BAND // row_bytes))
        rows = max(1, min(height, rows // _SIDE * _SIDE or rows))
        cost = self.source.scratch(0, rows)
        while rows > 1 and cost > _BAND_COST:
            half = -(-rows // 2)
            less = self.source.scratch(0, half)
            if 4 * less > 3 * cost:  # the source is read in blocks of rows
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
