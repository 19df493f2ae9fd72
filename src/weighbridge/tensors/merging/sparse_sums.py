"""Sums of sparse changes: whether each element of a model is that of a base plus those changes of other models that
survived there, as TIES, DARE, DELLA and breadcrumbs leave them.

All arrays are F64 of one length: `change`, the difference of the model from the base; `changes`, those of its possible
sources; `tolerance`, by how much rounding may have moved an element. A source's change is multiplied by one factor in
a whole matrix. Where several survive they are added, or averaged with weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
Mask = NDArray[np.bool_]

#: Changes below this multiple of the tolerance don't determine their factor.
_CLEAR: Final = 2.0


class Peak(NamedTuple):
    """The factor that explains the most elements, their number, and the number that chance would explain."""

    factor: float
    explained: int
    chance: int


class SparseFit(NamedTuple):
    """How a model follows from its sources. `changed`: elements that differ from the base; `off`: those that no set of
    survivors explains; `dropped`: elements that no source changed although all have a change there; `partial`: those
    that the sum of all sources doesn't explain; `chance`: by source, the elements that stay unexplained if its changes
    are in another order."""

    factors: tuple[float, ...]
    weights: tuple[float, ...]
    elements: int
    changed: int
    off: int
    dropped: int
    partial: int
    chance: tuple[int, ...]


def find_peak(change: F64, source: F64, tolerance: F64) -> Peak:
    """Returns the factor of a source by which the most elements of a change follow from only the source. Rounding is
    bounded, so all elements that do follow allow the true factor."""
    clear = np.abs(change) > tolerance
    factor, count = _most_covered([_intervals(change, source, tolerance, clear)])
    _, chance = _most_covered([_intervals(change, _moved(source), tolerance, clear)])
    return Peak(factor, count, chance)


def _moved(values: F64) -> F64:
    """Returns values in another order, which have nothing to do with their places."""
    return np.roll(values, len(values) // 2)


def _intervals(change: F64, source: F64, tolerance: F64, used: Mask) -> F64:
    """Returns the intervals of factors that explain each element, as rows of lower and upper ends."""
    used = used & (np.abs(source) > _CLEAR * tolerance)
    ends = np.stack([(change - tolerance)[used] / source[used], (change + tolerance)[used] / source[used]])
    return np.sort(ends, axis=0)


def _most_covered(intervals: Sequence[F64]) -> tuple[float, int]:
    """Returns a point that the most intervals contain, and their number."""
    ends = np.concatenate(intervals, axis=1)
    count = ends.shape[1]
    if not count:
        return 0.0, 0
    flat = ends.ravel()
    order = np.argsort(flat, kind="stable")
    cover = np.cumsum(np.where(order < count, 1, -1))
    at = int(cover.argmax())
    return float(flat[order[at]] + flat[order[min(at + 1, len(flat) - 1)]]) / 2, int(cover[at])


def fit_sparse(change: F64, changes: Sequence[F64], tolerance: F64, factors: Sequence[float]) -> SparseFit:
    """Returns how a change follows from sources whose survivors are added or averaged, whichever explains more.
    `factors`: those of the single sources."""
    ways = [fit_added(change, changes, tolerance, factors)]
    if len(changes) > 1:
        scaled = [factor * source for factor, source in zip(factors, changes, strict=True)]
        ways.append((tuple(factors), shares(change, scaled, tolerance)))
    left = [(_unexplained(change, _scaled(way[0], changes), tolerance, way[1]), way) for way in ways]
    off, (chosen, weights) = min(left, key=lambda row: int(row[0].sum()))
    scaled = _scaled(chosen, changes)
    chance = []
    for n, row in enumerate(scaled):
        moved = [*scaled[:n], _moved(row), *scaled[n + 1 :]]
        chance.append(int(_unexplained(change, moved, tolerance, weights).sum()))
    lively = np.logical_and.reduce([np.abs(row) > _CLEAR * tolerance for row in scaled])
    still = np.abs(change) <= tolerance
    *_, whole = _sums(scaled, weights)
    partial = np.abs(change - whole) > tolerance
    counts = len(change), int((~still).sum()), int(off.sum()), int((still & lively).sum()), int(partial.sum())
    return SparseFit(chosen, weights, *counts, tuple(chance))


def _scaled(factors: Sequence[float], changes: Sequence[F64]) -> list[F64]:
    return [factor * source for factor, source in zip(factors, changes, strict=True)]


def fit_added(
    change: F64, changes: Sequence[F64], tolerance: F64, factors: Sequence[float]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns the factors of sources whose survivors are added, each from all elements that the others leave open."""
    result = list(factors)
    for n in range(len(result)) if len(result) > 1 else ():
        others = [result[i] * changes[i] for i in range(len(result)) if i != n]
        left = _unexplained(change, others, tolerance, ())
        targets = [change, *(change - value for value in _sums(others, ()))]
        result[n] = _most_covered([_intervals(target, changes[n], tolerance, left) for target in targets])[0]
    return tuple(result), ()


def shares(change: F64, scaled: Sequence[F64], tolerance: F64) -> tuple[float, ...]:
    """Returns the weights with which survivors are averaged: of each source relative to the first, by the elements that
    no single source explains."""
    left = _unexplained(change, scaled, tolerance, None)
    weights = [1.0]
    for source in scaled[1:]:
        share, _ = _most_covered([_intervals(change - scaled[0], source - scaled[0], tolerance, left)])
        share = min(max(share, 1e-3), 1 - 1e-3)
        weights.append(share / (1 - share))
    return tuple(weights)


def _unexplained(change: F64, scaled: Sequence[F64], tolerance: F64, weights: Sequence[float] | None) -> Mask:
    """Whether an element is none of the sums of survivors. `weights`: of averages; () for sums; None for single
    survivors only."""
    left = np.abs(change) > tolerance
    for value in scaled if weights is None else _sums(scaled, weights):
        left &= np.abs(change - value) > tolerance
    return left


def _sums(scaled: Sequence[F64], weights: Sequence[float]) -> Iterator[F64]:
    """Yields the sums, or with `weights` the averages, of all sets of sources."""
    for size in range(1, len(scaled) + 1):
        for chosen in combinations(range(len(scaled)), size):
            parts = [scaled[n] for n in chosen]
            if weights:
                whole = sum(weights[n] for n in chosen)
                parts = [weights[n] / whole * part for n, part in zip(chosen, parts, strict=True)]
            yield np.add.reduce(parts)
