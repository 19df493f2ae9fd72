"""Chooses one type for each tensor so that the errors sum up to the least within a number of bytes.

1. Greedy: every tensor starts at its smallest type and is upgraded along its lower convex hull, in the order of error
   removed per byte. Upgrades that no longer fit are skipped.
2. Exact: the choices of more and more tensors are kept as (bytes, error), except those that can't become better than
   the best so far. The bound is Lagrange's, with the error per byte of the first upgrade that didn't fit. If too many
   remain, those with the best bounds are kept, and the result may be a little above the optimum.

Source: H. Kellerer, U. Pferschy, D. Pisinger, "Knapsack Problems", chapter 11 (multiple-choice knapsack).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from weighbridge.base.dtypes import DType
from weighbridge.base.errors import RefusedError
from weighbridge.base.records import dataclass
from weighbridge.tensors import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Choices that are kept at once.
_KEPT: Final = 1 << 14


class Offer(NamedTuple):
    """A candidate type of a tensor: bytes of the whole tensor, and the expected error."""

    dtype: DType
    nbytes: int
    error: float


@dataclass(frozen=True)
class Allocation:
    """The chosen types, their total bytes, and the sum of the errors."""

    types: Mapping[str, DType]
    nbytes: int
    error: float


def hull(offers: Iterable[Offer]) -> list[Offer]:
    """The lower convex hull of error over bytes, from the smallest offer on."""
    kept: list[Offer] = []
    for offer in sorted(offers, key=lambda o: (o.nbytes, o.error)):
        if kept and offer.error >= kept[-1].error:
            continue
        while len(kept) > 1 and _gain(kept[-1], offer) >= _gain(kept[-2], kept[-1]):
            kept.pop()
        kept.append(offer)
    return kept


def _gain(a: Offer, b: Offer) -> float:
    """Error that an upgrade from `a` to `b` removes per byte."""
    return (a.error - b.error) / (b.nbytes - a.nbytes)


def allocate(offers: Mapping[str, Sequence[Offer]], room: int) -> Allocation:
    """Chooses a type for each tensor within `room` bytes. Raises RefusedError if the smallest types don't fit."""
    greedy, price = _greedy(offers, room)
    return greedy if price is None else _exact(offers, room, greedy, price)


def _greedy(offers: Mapping[str, Sequence[Offer]], room: int) -> tuple[Allocation, float | None]:
    """The choice, and the error per byte of the first upgrade that didn't fit."""
    hulls = {name: hull(candidates) for name, candidates in offers.items()}
    at = dict.fromkeys(hulls, 0)
    used = sum(steps[0].nbytes for steps in hulls.values())
    if used > room:
        raise RefusedError(
            f"the tensors need at least {used:,} bytes, but only {max(room, 0):,} are available",
            hint="choose a larger size, or pass an importance matrix, which allows smaller types",
        )
    order = {name: i for i, name in enumerate(hulls)}
    steps = [(-_gain(*h[:2]), order[n], n) for n, h in hulls.items() if len(h) > 1]
    heapq.heapify(steps)
    price = None
    while steps:
        gain, place, name = heapq.heappop(steps)
        now, then = hulls[name][at[name] : at[name] + 2]
        if used + then.nbytes - now.nbytes > room:
            price = -gain if price is None else price
            continue
        used += then.nbytes - now.nbytes
        at[name] += 1
        if at[name] + 1 < len(hulls[name]):
            heapq.heappush(steps, (-_gain(*hulls[name][at[name] : at[name] + 2]), place, name))
    return _allocation({name: hulls[name][i] for name, i in at.items()}), price


def _allocation(chosen: Mapping[str, Offer]) -> Allocation:
    rows = chosen.values()
    return Allocation({n: o.dtype for n, o in chosen.items()}, sum(o.nbytes for o in rows), sum(o.error for o in rows))


def _exact(offers: Mapping[str, Sequence[Offer]], room: int, best: Allocation, price: float) -> Allocation:
    """A choice that is better than `best`, or `best`. `price`: error per byte."""
    rows = [sorted(candidates, key=lambda o: o.nbytes) for candidates in offers.values()]
    sizes = [np.array([o.nbytes for o in row], np.int64) for row in rows]
    errors = [np.array([o.error for o in row]) for row in rows]
    least = _after([int(s.min()) for s in sizes])
    relaxed = _after([float((e + price * s).min()) for s, e in zip(sizes, errors, strict=True)])
    used, lost = np.zeros(1, np.int64), np.zeros(1)
    steps: list[tuple[NDArray[np.intp], NDArray[np.intp]]] = []
    for number, (size, error) in enumerate(zip(sizes, errors, strict=True)):
        all_used, all_lost = np.add.outer(used, size).ravel(), np.add.outer(lost, error).ravel()
        bound = all_lost + relaxed[number] - price * (room - all_used)
        kept = np.flatnonzero((all_used + least[number] <= room) & (bound < best.error))
        kept = kept[np.lexsort((all_lost[kept], all_used[kept]))]
        falls = np.minimum.accumulate(np.concatenate([[np.inf], all_lost[kept]]))
        kept = kept[all_lost[kept] < falls[:-1]]
        if len(kept) > _KEPT:
            kept = np.sort(kept[np.argsort(bound[kept], kind="stable")[:_KEPT]])
        if not len(kept):
            return best
        steps.append(np.divmod(kept, len(size)))
        used, lost = all_used[kept], all_lost[kept]
    at = int(np.argmin(lost))
    if lost[at] >= best.error:  # a bound below it isn't a choice below it
        return best
    chosen = {}
    for name, row, (before, option) in zip(reversed([*offers]), reversed(rows), reversed(steps), strict=True):
        chosen[name] = row[int(option[at])]
        at = int(before[at])
    return _allocation({name: chosen[name] for name in offers})


def _after(values: Sequence[float]) -> list[float]:
    """For each value, the sum of those after it."""
    return [*np.cumsum(values[::-1], dtype=type(values[0]))[::-1][1:].tolist(), 0]
