"""Counts all values of a tensor by bit pattern: one pass, then every statistic is arithmetic on 65,536 numbers.

counts = ValueCounts("BF16")
for slab in slabs: counts.add(slab)
counts.moments(), counts.quantiles([0.5]), counts.histogram(edges)

F16 and BF16 are counted exactly. Other types are decoded and counted as F32 by the upper half of the bits, with the sum
of each pattern's lower halves: so count, sum, mean and extremes are exact, and other statistics (quantiles, a bin's
edge) are off by at most 2^-8 of a value. Plain types of 32 and 64 bits also have `WideSums`, so that their moments and
extremes don't depend on the counters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import BF16, F16, F32, DType
from weighbridge.base.errors import UsageError
from weighbridge.tensors import kernels
from weighbridge.tensors.reference import patterns
from weighbridge.tensors.reference.floats import Bytes, ignore_fp_warnings, widen

_LOW: Final = np.uint64((1 << patterns.COUNT_SHIFT) - 1)
_SHIFT: Final = np.uint64(patterns.COUNT_SHIFT)
_SIGN: Final = 0x8000
F64 = NDArray[np.float64]


class Moments(NamedTuple):
    """Moments of the finite values; None without any. `std` divides by n, not n - 1. `kurtosis` is the fourth central
    moment over the square of the second (3 for a normal distribution; None for a constant)."""

    mean: float | None
    std: float | None
    kurtosis: float | None
    rms: float | None


class WideSums:
    """Statistics in F64, slab by slab. Mean and squared deviation are merged precisely (Chan et al.)."""

    def __init__(self) -> None:
        self.nan = self.inf = self.zeros = self.finite = 0
        self.low, self.high = math.inf, -math.inf
        self.mean = self.deviation = 0.0

    def add(self, values: F64) -> None:
        good = values if np.isfinite(values).all() else values[np.isfinite(values)]
        self.nan += int(np.isnan(values).sum())
        self.inf += int(np.isinf(values).sum())
        self.zeros += values.size - int(np.count_nonzero(values))
        if good.size:
            self.low, self.high = min(self.low, float(good.min())), max(self.high, float(good.max()))
            mean = float(good.mean())
            with ignore_fp_warnings():  # squares may overflow
                centred = good - mean
                deviation = float(centred @ centred)
            total, delta = self.finite + good.size, mean - self.mean
            self.mean += delta * good.size / total
            self.deviation += deviation + delta * delta * self.finite * good.size / total
            self.finite = total

    def moments(self, kurtosis: float | None) -> Moments:
        if not self.finite:
            return Moments(None, None, None, None)
        variance = self.deviation / self.finite
        return Moments(self.mean, math.sqrt(variance), kurtosis, math.sqrt(variance + self.mean * self.mean))


class ValueCounts:
    """Counters of values of one type: F16, BF16 or F32. UsageError for other types."""

    def __init__(self, dtype: DType) -> None:
        if dtype not in (F16, BF16, F32):
            raise UsageError(f"{dtype} values are counted as F32")
        self.dtype = dtype
        self.exact = is_half(dtype)
        self.wide: WideSums | None = None  # for values of a plain type of 32 or 64 bits
        self._own_counts = np.zeros(patterns.PATTERNS, np.uint64)
        self._own_low = np.zeros(patterns.PATTERNS, np.uint64)
        self._pending = 0  # values in the counters
        self._counters = np.zeros(patterns.PATTERNS, np.uint64)
        self._extremes: list[float] = []  # of each piece

    def add(self, data: Bytes) -> None:
        """Counts the values in stored bytes."""
        step = patterns.MOST * self.dtype.size
        for at in range(0, data.nbytes, step):
            piece = data[at : at + step]
            count = piece.nbytes // self.dtype.size
            if self._pending + count > patterns.MOST:
                self._flush()
            kernels.count_patterns(self.dtype, piece, self._counters)
            self._pending += count
            if not self.exact:
                stats = kernels.stats(self.dtype, piece)
                self._extremes += [x for x in (stats.minimum, stats.maximum) if x is not None]

    def _flush(self) -> None:
        """Empties the counters before one of them is full."""
        self._own_counts += self._counters >> _SHIFT
        self._own_low += self._counters & _LOW
        self._counters[:] = 0
        self._pending = 0
        self.__dict__.pop("_finite", None)

    @property
    def _counts(self) -> NDArray[np.uint64]:
        if self._pending:
            self._flush()
        return self._own_counts

    @property
    def _low(self) -> NDArray[np.uint64]:
        if self._pending:
            self._flush()
        return self._own_low

    @property
    def total(self) -> int:
        return int(self._counts.sum())

    @property
    def nan(self) -> int:
        if self.wide is not None:
            return self.wide.nan
        if not self.exact:
            return int(self._counts[patterns.NAN])
        return int(self._counts[np.isnan(self._bases)].sum())

    @property
    def inf(self) -> int:
        if self.wide is not None:
            return self.wide.inf
        return int(self._counts[np.isinf(self._bases)].sum()) if self.exact else self._at(patterns.INFINITY)

    @property
    def zeros(self) -> int:
        """Zeros of either sign."""
        if self.wide is not None:
            return self.wide.zeros
        return self._at(0)

    @property
    def negative_zeros(self) -> int:
        return int(self._counts[_SIGN])

    @property
    def subnormals(self) -> int:
        """Subnormals of the counted type: F16, BF16 or F32."""
        bits = np.arange(patterns.PATTERNS) & 0x7FFF
        exponent = 0x7C00 if self.dtype.name == "F16" else patterns.INFINITY
        tiny = 0 if self.exact else self._at(patterns.TINY)
        return int(self._counts[(bits & exponent == 0) & (bits != 0)].sum()) + tiny

    def _at(self, pattern: int) -> int:
        """The count of a pattern with either sign."""
        return int(self._counts[pattern] + self._counts[pattern | _SIGN])

    @cached_property
    def _bases(self) -> F64:
        """The value of each pattern; for F32 the value whose lower half is zero."""
        bits = np.arange(patterns.PATTERNS, dtype=np.uint16)
        name = self.dtype.name if self.exact else "BF16"
        with ignore_fp_warnings():  # of NaNs
            return widen(name, bits.view(np.uint8)).astype(np.float64)

    @property
    def finite(self) -> tuple[F64, NDArray[np.int64]]:
        """(values, counts) of the finite values, ascending. An F32 pattern counts at the mean of its values."""
        if self._pending:
            self._flush()
        return self._finite

    @cached_property
    def _finite(self) -> tuple[F64, NDArray[np.int64]]:
        used = np.flatnonzero(self._counts)
        with ignore_fp_warnings():
            values = self._bases[used] if self.exact else self._centres(used)
        kept = np.isfinite(values)
        order = np.argsort(values[kept], kind="stable")
        return values[kept][order], self._counts[used][kept][order].astype(np.int64)

    def _centres(self, used: NDArray[np.intp]) -> F64:
        """The mean of the values of each used pattern: they are equally spaced, by the pattern's exponent."""
        bases = used.astype(np.uint32) << 16
        tiny = (used & 0x7FFF) == patterns.TINY
        bases[tiny] &= np.uint32(_SIGN << 16)
        low = self._low[used] / self._counts[used]
        steps = (bases | np.uint32(1)).view(np.float32).astype(np.float64) - bases.view(np.float32)
        values: F64 = bases.view(np.float32).astype(np.float64) + steps * low
        return values

    def moments(self) -> Moments:
        counted = moments([self])
        return counted if self.wide is None else self.wide.moments(counted.kurtosis)

    @property
    def extremes(self) -> tuple[float, float] | None:
        """Smallest and largest finite value; None without any."""
        if self.wide is not None:
            return (self.wide.low + 0.0, self.wide.high + 0.0) if self.wide.finite else None
        values = self.finite[0] if self.exact else self._extremes
        return (float(min(values)) + 0.0, float(max(values)) + 0.0) if len(values) else None

    def quantiles(self, shares: Sequence[float]) -> tuple[float, ...]:
        """For each share, the smallest value with at least that share of values at or below it (numpy's method
        `inverted_cdf`); () without any."""
        values, counts = self.finite
        if not values.size:
            return ()
        sums = np.cumsum(counts)
        ranks = np.ceil(np.array(shares) * sums[-1]).clip(1)
        return tuple(float(v) + 0.0 for v in values[np.searchsorted(sums, ranks)])

    def histogram(self, edges: F64) -> NDArray[np.int64]:
        """How many finite values are in each bin [edges[i], edges[i + 1]), the last one closed."""
        values, counts = self.finite
        if self.wide is not None and values.size:  # a value rounded to F32 may be beyond the extremes
            values = values.clip(self.wide.low, self.wide.high)
        return np.histogram(values, edges, weights=counts)[0].astype(np.int64)

    def magnitudes(self) -> dict[int, int]:
        """How many finite values that aren't zero have each exponent of two: 2^e <= |x| < 2^(e + 1)."""
        values, counts = self.finite
        kept = values != 0
        exponents = np.frexp(values[kept])[1] - 1
        return {int(e): int(counts[kept][exponents == e].sum()) for e in np.unique(exponents)}


def moments(pool: Sequence[ValueCounts]) -> Moments:
    """The moments of all values of several tensors together."""
    values = np.concatenate([counts.finite[0] for counts in pool]) if pool else np.empty(0)
    weights = np.concatenate([counts.finite[1] for counts in pool]) if pool else np.empty(0, np.int64)
    n = int(weights.sum())
    if not n:
        return Moments(None, None, None, None)
    mean = float(values @ weights) / n
    centred = values - mean
    variance = float(centred**2 @ weights) / n
    with ignore_fp_warnings():
        fourth = float(centred**4 @ weights) / n
    kurtosis = fourth / variance**2 if variance**2 else None
    return Moments(mean, math.sqrt(variance), kurtosis, math.sqrt(float(values**2 @ weights) / n))


def is_half(dtype: DType) -> bool:
    """Whether values of this type count at their own bits."""
    return dtype.name in patterns.HALVES
