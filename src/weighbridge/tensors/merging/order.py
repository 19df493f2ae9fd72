"""The largest elements of tensors that are read in pieces, exactly: histograms of the upper and the lower 16 bits of
their F32 patterns, which order non-negative numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weighbridge.tensors.merging.base import F32Array

_BINS: Final = 1 << 16


class Cutoff(NamedTuple):
    """Separates the largest elements from the others: greater than `value`, or equal to it at an index up to `last`.
    So of equal elements the first count as larger."""

    value: float
    last: int

    def mask(self, values: F32Array, first: int) -> NDArray[np.bool_]:
        """Which of `values` are among the largest; `first`: the index of the first of them."""
        above: NDArray[np.bool_] = values > self.value
        equal = np.flatnonzero(values == self.value)
        above.reshape(-1)[equal[equal + first <= self.last]] = True
        return above


#: Non-negative F32 arrays and the index of their first element; one array for each cut-off, in any shape.
Pieces = Callable[[], Iterator[tuple[int, Sequence[F32Array]]]]


def cutoffs(pieces: Pieces, counts: Sequence[int]) -> tuple[Cutoff, ...]:
    """Returns the cut-off of the `counts[i]` largest elements of the i-th sequence of arrays."""
    searches = [_Search(count) for count in counts]
    for narrow in (_Search.upper, _Search.lower, _Search.place):
        for first, arrays in pieces():
            for search, array in zip(searches, arrays, strict=True):
                narrow(search, first, array.reshape(-1))
        for search in searches:
            search.decide()
    return tuple(search.cutoff for search in searches)


class _Search:
    """Finds one cut-off in three passes: the upper half of its bits, the lower half, and the last equal element."""

    def __init__(self, count: int) -> None:
        self._left = count  # of the elements within the range that is already known
        self._known: list[int] = []
        self._histogram = np.zeros(_BINS, np.int64)
        self._last = -1

    @property
    def cutoff(self) -> Cutoff:
        if not self._known:
            return Cutoff(np.inf, -1)
        bits = np.uint32(self._known[0] << 16 | self._known[1])
        return Cutoff(float(bits.view(np.float32)), self._last)

    def upper(self, first: int, values: F32Array) -> None:
        self._histogram += np.bincount(values.view(np.uint32) >> 16, minlength=_BINS)

    def lower(self, first: int, values: F32Array) -> None:
        if self._known:
            bits = values.view(np.uint32)
            within = bits[bits >> 16 == self._known[0]] & 0xFFFF
            self._histogram += np.bincount(within, minlength=_BINS)

    def place(self, first: int, values: F32Array) -> None:
        if self._known and self._left > 0:
            equal = np.flatnonzero(values == np.float32(self.cutoff.value))
            if len(taken := equal[: self._left]):
                self._last = first + int(taken[-1])
            self._left -= len(taken)

    def decide(self) -> None:
        """Chooses the bin of the cut-off."""
        if len(self._known) == 2 or self._left <= 0:
            return
        from_top = self._histogram[::-1].cumsum()
        place = int(np.searchsorted(from_top, self._left))
        if place == _BINS:  # fewer elements than wanted: all
            place = _BINS - 1
        bin_ = _BINS - 1 - place
        self._left -= int(from_top[place] - self._histogram[bin_])
        self._known.append(bin_)
        self._histogram = np.zeros(_BINS, np.int64)
