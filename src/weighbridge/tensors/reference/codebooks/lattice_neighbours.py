"""The neighbours of each point of a codebook's lattice. Encoders round to the lattice, and replace points outside the
codebook by a neighbour in it. The rule is llama.cpp's (iq2xs_init_impl and iq3xs_init_impl in ggml-quants.c):
those at the smallest distance, at the second smallest, and so on, for the type's number of distances (`DISTANCES`).
"""

from __future__ import annotations

from functools import cache
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weighbridge.tensors.reference.codebooks.grids import LATTICES, grid
from weighbridge.tensors.reference.floats import Floats

Ints = NDArray[np.int32]
Bools = NDArray[np.bool_]

DISTANCES: Final = MappingProxyType({"IQ2_XXS": 2, "IQ2_XS": 2, "IQ2_S": 1, "IQ1_S": 3, "IQ3_XXS": 2, "IQ3_S": 3})


class Neighbours(NamedTuple):
    """`ranks` [size, dimensions] of the codebook's coordinates among the values. For each of the lattice's points (rank
    i counts base ** i) its number in the codebook or -1, and which of `listed` are its neighbours: `count` from
    `start`, the nearest first, of equals the first in the codebook."""

    ranks: Ints
    number: Ints
    start: Ints
    counts: Ints
    listed: Ints


@cache
def neighbours(name: str) -> Neighbours:
    lattice = LATTICES[name]
    base, dimensions = len(lattice.values), lattice.dimensions
    ranks = np.searchsorted(lattice.values, grid(name)).astype(np.int32)
    points = np.arange(base**dimensions)[:, None] // base ** np.arange(dimensions) % base
    squares = sum((points[:, i, None] - ranks[:, i]).astype(np.int16) ** 2 for i in range(dimensions))
    assert isinstance(squares, np.ndarray)
    seen = np.zeros((len(points), int(squares.max()) + 1), bool)
    np.put_along_axis(seen, squares, True, axis=1)
    farthest = np.argmax(np.cumsum(seen, axis=1) == DISTANCES[name], axis=1)
    row, listed = np.nonzero(squares <= farthest[:, None])
    order = np.lexsort((listed, squares[row, listed], row))
    count = np.bincount(row, minlength=len(points))
    number = np.where(squares.min(axis=1) == 0, np.argmin(squares, axis=1), -1)
    start = np.cumsum(count) - count
    return Neighbours(ranks, *(a.astype(np.int32) for a in (number, start, count, listed[order])))


def into_codebook(
    name: str, ranks: Ints, active: Bools, x: Floats, w: Floats, values: Floats
) -> tuple[Ints, Bools, Bools]:
    """Points [n, dimensions], rounded from x to the lattice, as indices in the codebook. A point outside the codebook
    gets the first neighbour with the least sum of w * (value - x)^2. Also returns which points were outside, and which
    had no finite sum (there llama.cpp stops). Points that aren't `active` get 0. `values` [n, base]: the values of the
    ranks."""
    near = neighbours(name)
    place = ranks @ len(LATTICES[name].values) ** np.arange(ranks.shape[1])
    number = np.where(active, near.number[place], 0)
    outside = number < 0
    at = np.flatnonzero(outside)
    if not at.size:
        return number, outside, np.zeros_like(outside)
    count = near.counts[place[at]]
    first = np.cumsum(count) - count
    owner = np.repeat(at, count)
    listed = near.listed[np.repeat(near.start[place[at]] - first, count) + np.arange(len(owner))]
    sums = np.zeros(len(owner), np.float32)
    for i, rank in enumerate(near.ranks[listed].T):
        difference = values[owner, rank] - x[owner, i]
        sums = sums + w[owner, i] * difference * difference
    sums = np.where(sums < np.finfo(np.float32).max, sums, np.float32(np.inf))
    least = np.minimum.reduceat(sums, first)
    best = np.flatnonzero(sums == np.repeat(least, count))
    number[at] = listed[best[np.searchsorted(best, first)]]
    lost = np.zeros_like(outside)
    lost[at] = least == np.inf
    return number, outside, lost
