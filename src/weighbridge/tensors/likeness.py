"""How rows of two models relate: by rounding, by a change of low rank, by a permutation, as a mixture.

Rows are F32 arrays of one shape, or of one height where it is stated. The callers decide which measure is large enough.
"""

from __future__ import annotations

from functools import cached_property
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import BF16, F16, F32, DType
from weighbridge.tensors import kernels

Rows = NDArray[np.float32]
F64 = NDArray[np.float64]

#: Explicit bits of the significand (IEEE 754; bfloat16 has F32's exponent).
_SIGNIFICAND: Final = MappingProxyType({F32: 23, F16: 10, BF16: 7})
_LEAST_EXPONENT: Final = MappingProxyType({F32: -126, F16: -14, BF16: -126})  # of a normal number
#: Rounding of a few products, sums or functions in F32, relative to the values: 2^-24 each. A factor of a layout costs
#: 2^-23 to and fro, a function 2^-22 (tensors/layouts.py).
ARITHMETIC: Final = 2.0**-21
#: Elements of a segment in which all values are multiples of one step: the smallest group of any block type.
SEGMENT: Final = 16
_MOST_STEPS: Final = 255  # of 8-bit codes
_INTEGER: Final = 0.01  # steps that a decoded value may be off: scales are exact, F32 rounds at 2^-24
_HALF: Final = 0.5 * (1 + 2.0**-10)
_WRONG: Final = 0.5  # of the values are off: the levels aren't multiples of a step
_DEPENDENT: Final = 1e6  # condition of the products of differences of norm 1
_LEVELS: Final = 16  # of a 4-bit type without steps (NF4, MXFP4): its values in a longer segment


class GridFit(NamedTuple):
    """`off`: values that another level would have represented better; `compared`: the number of values."""

    off: int
    compared: int


def cosine(a: Rows, b: Rows) -> float:
    """Returns the cosine of the angle between two arrays; 0 without a direction."""
    left, right = a.ravel().astype(np.float64), b.ravel().astype(np.float64)
    size = float(np.linalg.norm(left) * np.linalg.norm(right))
    return float(left @ right) / size if size else 0.0


def rounded(values: Rows | F64, dtype: DType) -> Rows:
    """Returns values rounded to a plain float type, as F32."""
    source = np.ascontiguousarray(values, np.float32)
    out = np.empty(source.size * dtype.size, np.uint8)
    kernels.cast(F32, dtype, source.view(np.uint8).ravel(), out)
    return kernels.widened(dtype, out).reshape(source.shape)


def rounding_energy(values: Rows, dtype: DType) -> float:
    """Returns the expected sum of squared errors of rounding to a float type: ulp^2 / 12 of each value."""
    bits = _SIGNIFICAND.get(dtype)
    if bits is None:
        return 0.0
    exponent = np.frexp(values[values != 0].astype(np.float64))[1] - 1
    return float((np.exp2(2.0 * (exponent - bits)) / 12).sum())


def half_ulp(values: Rows | F64, dtype: DType) -> F64:
    """Returns by how much rounding to a float type moved each value, at most."""
    wide = values.astype(np.float64)
    exponent = np.where(wide == 0, _LEAST_EXPONENT[dtype], np.frexp(wide)[1] - 1)
    moved: F64 = np.exp2(np.maximum(exponent, _LEAST_EXPONENT[dtype]) - _SIGNIFICAND[dtype] - 1.0)
    return moved


def unexplained(a: Rows | F64, b: Rows | F64, dtype: DType) -> int:
    """Returns the number of values that differ by more than rounding to `dtype` and arithmetic in F32 explain. Rounding
    never makes a number smaller than its power of two, so the smaller one decides how far it may go."""
    left, right = a.astype(np.float64), b.astype(np.float64)
    sizes = np.abs(left), np.abs(right)
    allowed = ARITHMETIC * max(float(sizes[0].max(initial=0)), float(sizes[1].max(initial=0)))
    bound = allowed if dtype is F32 else allowed + half_ulp(np.minimum(*sizes), dtype)
    return int((np.abs(left - right) > bound).sum())


class Slack(NamedTuple):
    """By how much scales, and offsets, were rounded after the codes had been computed, relative to the values."""

    scale: float = 0.0
    offset: float = 0.0


class Levels:
    """The levels of decoded values, inferred from the values: multiples of a step in each segment, or the values of a
    type with few levels."""

    def __init__(self, decoded: Rows) -> None:
        self.decoded = decoded

    @cached_property
    def segments(self) -> F64:
        return _segments(self.decoded, SEGMENT)

    @cached_property
    def steps(self) -> F64:
        """The step of each segment; 0 if none up to 8 bits explains its values."""
        decoded = self.segments
        low, extent = decoded.min(1), np.ptp(decoded, axis=1)
        steps = np.zeros(len(decoded))
        pending = np.flatnonzero(extent > 0)
        for count in range(1, _MOST_STEPS + 1):
            scaled = (decoded[pending] - low[pending, None]) * (count / extent[pending, None])
            result = (np.abs(scaled - np.rint(scaled)) < _INTEGER).all(1)
            steps[pending[result]] = extent[pending[result]] / count
            pending = pending[~result]
        return steps

    @cached_property
    def few(self) -> bool:
        """Whether all values of a segment of two blocks are values of a 4-bit type."""
        values = np.sort(_segments(self.decoded, 2 * SEGMENT), axis=1)
        return bool(len(values)) and int((np.diff(values, axis=1) > 0).sum(1).max()) < _LEVELS


def fit_of_grid(source: Rows, levels: Levels, slack: Slack) -> GridFit | None:
    """Returns how well decoded values fit the values that they may have been rounded from; None if no levels are
    visible."""
    steps = fit_of_steps(source, levels, slack)
    if steps is not None and steps.off <= _WRONG * steps.compared:
        return steps
    return fit_of_levels(source, levels, slack) if levels.few else steps


def _segments(rows: Rows, length: int) -> F64:
    width = rows.shape[-1] // length * length
    return rows[..., :width].reshape(-1, length).astype(np.float64)


def fit_of_steps(source: Rows, levels: Levels, slack: Slack) -> GridFit | None:
    true, decoded, steps = _segments(source, SEGMENT), levels.segments, levels.steps
    has_step = steps > 0
    if not len(steps) or has_step.sum() * 2 < len(steps):
        return None
    low, high = decoded.min(1, keepdims=True), decoded.max(1, keepdims=True)
    error, tolerance = true - decoded, _HALF * steps[:, None] + _tolerated(decoded, slack)
    clipped = ((decoded == low) & (error < 0)) | ((decoded == high) & (error > 0))
    off = (np.abs(error) > tolerance) & ~clipped & has_step[:, None]
    return GridFit(int(off.sum()), int(has_step.sum()) * SEGMENT)


def fit_of_levels(source: Rows, levels: Levels, slack: Slack) -> GridFit:
    true, decoded = (_segments(rows, 2 * SEGMENT) for rows in (source, levels.decoded))
    error = np.abs(true - decoded)
    nearest = np.abs(true[:, :, None] - decoded[:, None, :]).min(2)
    off = error > nearest * (1 + 2.0**-10) + _tolerated(decoded, slack)
    return GridFit(int(off.sum()), error.size)


def _tolerated(decoded: F64, slack: Slack) -> F64:
    tolerated: F64 = slack.scale * np.abs(decoded) + slack.offset * np.ptp(decoded, axis=1)[:, None]
    return tolerated


class Spectrum(NamedTuple):
    """Singular values of a difference, largest first, and what rounding alone would make of them: the largest, and the
    sum of squares."""

    values: F64
    edge: float
    noise: float


def spectrum(difference: F64, noise: float) -> Spectrum:
    """Returns the spectrum of a difference in which rounding has the energy `noise`."""
    n, m = difference.shape
    squares = np.linalg.eigvalsh(difference @ difference.T if n <= m else difference.T @ difference)[::-1]
    values = np.sqrt(np.maximum(squares, 0))
    floor = float(values[0]) * 1e-6 if len(values) else 0.0  # of F64, after squaring
    return Spectrum(values, max(np.sqrt(noise / (n * m)) * (np.sqrt(n) + np.sqrt(m)), floor), noise)


def share_of_permuted(a: Rows, b: Rows) -> float:
    """Returns the share of equal values after each row was sorted: 1 if columns were only permuted."""
    return float(np.mean(np.sort(a, axis=1) == np.sort(b, axis=1)))


def share_kept(small: Rows, large: Rows) -> float:
    """Returns the share of values of narrow rows that are found in wide rows, in order: 1 if columns were removed."""
    result = 0
    for narrow, wide in zip(small.tolist(), large.tolist(), strict=True):
        residual = iter(wide)
        result += sum(any(value == second for second in residual) for value in narrow)
    return result / small.size if small.size else 0.0


class Mixture(NamedTuple):
    """The weights of sources, whose sum is 1, the energy of the rest, and that of the difference to the nearest
    source."""

    weights: tuple[float, ...]
    residual: float
    nearest: float


def products(points: list[F64]) -> F64:
    """Returns the scalar products of the differences of points to the first."""
    differences = np.stack([point - points[0] for point in points])
    return differences @ differences.T


def mixture(gram: F64, target: int, sources: tuple[int, ...]) -> Mixture | None:
    """Returns the affine combination of sources nearest to a target; None if they are linearly dependent. `gram`: the
    `products` of all points."""
    base, peers = sources[0], np.array(sources[1:])

    def shifted(i: NDArray[np.int64], j: NDArray[np.int64]) -> F64:
        moved: F64 = gram[np.ix_(i, j)] - gram[i, base][:, None] - gram[base, j][None] + gram[base, base]
        return moved

    inner, goal = shifted(peers, peers), np.array([target])
    size = np.sqrt(np.maximum(np.diag(inner), 0))
    if not (size > 0).all() or np.linalg.cond(inner / np.outer(size, size)) > _DEPENDENT:
        return None
    towards = shifted(peers, goal)[:, 0]
    result = np.linalg.solve(inner, towards)
    residual = max(float(shifted(goal, goal)[0, 0] - result @ towards), 0.0)
    nearest = min(float(gram[i, i] - 2 * gram[i, target] + gram[target, target]) for i in sources)
    return Mixture((float(1 - result.sum()), *map(float, result)), residual, nearest)
