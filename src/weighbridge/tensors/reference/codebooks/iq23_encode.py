"""Encoding IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S in plain numpy: bytes equal to llama.cpp's quantize_iq2_* and
quantize_iq3_* (ggml-quants.c, b11549, x86-64 build), with and without weights of the columns.
Blocks are described in `iquants.py`, the native twin is `native/kernels/iq23_encode.cpp`.

A part of a block, 16 or 32 elements, is searched on grids around the one on which its largest magnitude is the largest
coordinate: magnitudes are rounded to the lattice, and what isn't in the codebook becomes a neighbour
(`lattice_neighbours.py`). A weighted least-squares fit decides. Then the points are sought once more for the scale that
was found, and the parts' scales are rounded to four bits. Sums go in order, in f32.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

import numpy as np

from weighbridge.tensors.reference.codebooks.lattice_neighbours import Bools, Ints, into_codebook, neighbours
from weighbridge.tensors.reference.codec import pack
from weighbridge.tensors.reference.floats import (
    Array,
    Bytes,
    Encoder,
    Floats,
    Lost,
    WeightedEncoder,
    ignore_fp_warnings,
    scale_loss,
    to_half,
)
from weighbridge.tensors.reference.search import in_order, nearest, search_qp

N: Final = 256
SCALE_TOP: Final = 15  # of a part's four bits
SCALE_STEPS: Final = 31  # the largest scale is the block's this many times
LADDER_TOP: Final = 4
Fields = dict[str, Array]  # of blocks, by name


class SearchOptions(NamedTuple):
    """How a type is searched."""

    part: int  # elements that share a scale
    point: int  # coordinates of a point
    largest: int  # value of the largest coordinate; values are the odd numbers
    tries: int  # grids on each side of the plain one
    step: float  # from one to the next
    even: bool  # signs of eight are flipped at the cheapest element so that minuses are even
    again: Literal["all", "all if any", "outside"]  # who is sought once more: if any wasn't in the codebook, or those
    nothing: float  # a largest magnitude below this is zero (0: only zero is)
    mean: float  # times the mean square, for weights of importance
    flat: float  # without importance the weights are flat * mean square + square
    fudge: float  # on the block's scale


SEARCHES: Final = MappingProxyType(
    {
        "IQ2_XXS": SearchOptions(32, 8, 5, 6, 0.1, True, "all", 1e-15, 1, 0, 1),
        "IQ2_XS": SearchOptions(16, 8, 5, 9, 0.1, True, "outside", 1e-15, 1, 0, 1),
        "IQ2_S": SearchOptions(16, 8, 5, 9, 0.1, False, "outside", 1e-8, 2, 0.25, 0.9875),
        "IQ3_XXS": SearchOptions(32, 4, 15, 15, 0.2, True, "outside", 1e-8, 2, 0, 1.0125),
        "IQ3_S": SearchOptions(32, 4, 15, 9, 0.2, False, "all if any", 0, 2, 0, 1.033),
    }
)


class GridMatch(NamedTuple):
    """The encoded blocks: points' indices [blocks, N / point], signs of eight elements [blocks, 32], four-bit scales
    [blocks, parts], the blocks' scales and whether they have one [blocks, 1], parts without anything to search, and
    the first block at which llama.cpp aborts."""

    points: Ints
    signs: Ints
    codes: Ints
    d: Floats
    some: Bools
    empty: Bools
    refused: tuple[int, ...]

    @property
    def lost(self) -> Lost:
        return (*scale_loss(self.d), *self.refused)


def tiled(columns: Floats | None, blocks: int) -> Floats | None:
    """The weights of each block of rows."""
    return None if columns is None else np.tile(columns.reshape(-1, N), (blocks * N // columns.size, 1))


def first_of(lost: Bools) -> tuple[int, ...]:
    """The first of the blocks [blocks, parts] that lost something."""
    at = np.flatnonzero(lost.any(axis=1))
    return (int(at[0]),) if at.size else ()


def weights_of(search: SearchOptions, x: Floats, columns: Floats | None) -> Floats:
    """[blocks, N]: importance times the root of square and mean square, or flat * mean + square."""
    squares = in_order(x * x)
    if columns is None:
        return np.float32(search.flat) * (np.float32(2) * squares / np.float32(N)) + x * x if search.flat else x * x
    return columns * np.sqrt(np.float32(search.mean) * squares / np.float32(N) + x * x)


def _folded(search: SearchOptions, x: Floats, w: Floats) -> tuple[Floats, Ints]:
    """Magnitudes of eight elements [n, 8], and their signs [n]: seven if the eighth is implied."""
    minus, rows = ~(x >= 0), np.arange(len(x))
    if search.even:
        cost, cheapest = w * x * x, np.zeros(len(x), np.intp)
        for i in range(1, 8):
            cheapest = np.where(cost[:, i] < cost[rows, cheapest], i, cheapest)
        x = np.where(minus, -x, x)
        odd = minus.sum(axis=1) % 2 == 1
        x[rows[odd], cheapest[odd]] *= np.float32(-1)
        minus[rows[odd], cheapest[odd]] ^= True
        minus[:, 7] = False
    else:
        x = np.where(minus, -x, x)
    return x, np.packbits(minus, axis=1, bitorder="little")[:, 0].astype(np.int32)


class _Search:
    """Encodes parts [parts, part] of magnitudes under weights."""

    def __init__(self, name: str, x: Floats, w: Floats) -> None:
        self.name, self.options, self.x, self.w = name, SEARCHES[name], x, w
        most = x[:, :1]
        for column in x.T[1:, :, None]:
            most = np.where(most > column, most, column)
        self.some = ~(most < np.float32(self.options.nothing) if self.options.nothing else most == 0)
        self.lost = np.zeros_like(self.some)
        self.scale, self.span = most / np.float32(self.options.largest), most
        if self.options.again == "all":
            self.scale, _ = search_qp(LADDER_TOP, x, w)
            self.span = self.scale * np.float32(3)
            self.some = self.some & ~(self.span <= 0)
        self.best = np.zeros_like(most)
        shape = (len(x), self.options.part // self.options.point)
        self.points = np.zeros(shape, np.int32)
        self.outside = np.full(shape, self.options.again != "outside")

    def find(self, scale: Floats, inverse: Floats, active: Bools) -> tuple[Ints, Bools]:
        """Points on the grid of `scale`, and which of them needed a search."""
        top = self.options.largest // 2
        ranks = np.clip(nearest(np.float32(0.5) * (inverse * self.x - np.float32(1))), 0, top)
        groups = self.points.shape[1]
        values = np.repeat(scale * (2 * np.arange(top + 1) + 1).astype(np.float32), groups, axis=0)
        x, root = (a.reshape(-1, self.options.point) for a in (self.x, np.sqrt(self.w)))
        ranks = ranks.reshape(-1, self.options.point)
        number, outside, lost = into_codebook(self.name, ranks, active.reshape(-1), x, root, values)
        self.lost = self.lost | lost.reshape(-1, groups).any(axis=1, keepdims=True)
        return number.reshape(-1, groups), outside.reshape(-1, groups)

    def fit(self, points: Ints) -> tuple[Floats, Floats]:
        """Sums whose ratio is the scale of least square error."""
        q = (2 * neighbours(self.name).ranks[points] + 1).reshape(self.x.shape).astype(np.float32)
        return in_order(self.w * self.x * q), in_order(self.w * q * q)

    def run(self) -> None:
        whole = np.broadcast_to(self.some, self.points.shape)
        for k in range(-self.options.tries, self.options.tries + 1):
            inverse = (np.float32(self.options.largest) + np.float32(k) * np.float32(self.options.step)) / self.span
            tried, had = self.find(np.float32(1) / inverse, inverse, whole)
            sum_qx, sum_q2 = self.fit(tried)
            better = (sum_q2 > 0) & (sum_qx * sum_qx > self.best * sum_q2)
            self.scale = np.where(better, sum_qx / sum_q2, self.scale)
            self.best = np.where(better, self.scale * sum_qx, self.best)
            self.points, self.outside = np.where(better, tried, self.points), np.where(better, had, self.outside)
        self.once_more()

    def once_more(self) -> None:
        """The points of the scale that was found, and a scale for these."""
        again = self.outside.any(axis=1, keepdims=True) | (self.options.again == "all")
        again = again & self.some & (self.scale > 0)
        retried = again & (self.outside | (self.options.again != "outside"))
        points, _ = self.find(self.scale, np.float32(1) / self.scale, retried)
        self.points = np.where(retried, points, self.points)
        sum_qx, sum_q2 = self.fit(self.points)
        self.scale = np.where(again & (sum_q2 > 0), sum_qx / sum_q2, self.scale)


def _encoded(name: str, x: Floats, columns: Floats | None) -> GridMatch:
    options, x = SEARCHES[name], x.reshape(-1, N)
    w = weights_of(options, x, tiled(columns, len(x)))
    folded, signs = _folded(options, x.reshape(-1, 8), w.reshape(-1, 8))
    search = _Search(name, folded.reshape(-1, options.part), w.reshape(-1, options.part))
    search.run()
    minus, parts = search.scale < 0, N // options.part
    scale = np.where(search.some, np.abs(search.scale), np.float32(0)).reshape(-1, parts)
    lost = ((search.lost | np.isnan(search.scale)) & search.some).reshape(-1, parts)
    flipped = signs.reshape(-1, options.part // 8) ^ np.where(minus, 127 if options.even else 255, 0)
    most = np.zeros((len(x), 1), np.float32)
    for column in scale.T[:, :, None]:
        most = np.where(most > column, most, column)
    d = most / np.float32(SCALE_STEPS)
    codes = np.clip(nearest(np.float32(0.5) * (np.float32(1) / d * scale - np.float32(1))), 0, SCALE_TOP)
    return GridMatch(
        np.where(search.some, search.points, 0).reshape(-1, N // options.point),
        np.where(search.some, flipped, 0).reshape(-1, N // 8),
        np.where(most != 0, codes, 0),
        np.where(most != 0, d * np.float32(options.fudge), np.float32(0)),  # `most` may be -0
        most != 0,
        ~search.some.reshape(-1, parts),
        first_of(lost),
    )


def _nibbles(codes: Ints) -> Ints:
    return codes[:, ::2] | codes[:, 1::2] << 4


def _upper(points: Ints, bits: int) -> Ints:
    """The code bits above the lowest eight, `bits` per code, lowest first."""
    parts = (points >> 8).reshape(len(points), points.shape[1] * bits // 8, 8 // bits)
    out: Ints = (parts << np.arange(0, 8, bits)).sum(axis=2)
    return out


def _signs_and_scales(match: GridMatch) -> Array:
    """A u32 for each run [blocks, 8]: four times seven signs and a scale."""
    signs = (match.signs.reshape(-1, 8, 4).astype(np.int64) << np.array([0, 7, 14, 21])).sum(axis=2)
    words: Array = ((signs | match.codes.astype(np.int64) << 28) * match.some).astype("<u4")
    return words


def _iq2_xxs(match: GridMatch) -> Fields:
    points = (match.points * match.some).astype(np.uint8).reshape(-1, 8, 4)
    words = _signs_and_scales(match).view(np.uint8).reshape(-1, 8, 4)
    return {"qs": np.concatenate([points, words], axis=2)}


def _iq2_xs(match: GridMatch) -> Fields:
    return {"qs": (match.points | match.signs << 9) * match.some, "scales": _nibbles(match.codes)}


def _iq2_s(match: GridMatch) -> Fields:
    return {"qs": match.points, "signs": match.signs, "qh": _upper(match.points, 2), "scales": _nibbles(match.codes)}


def _iq3_xxs(match: GridMatch) -> Fields:
    return {"qs": match.points * match.some, "signs": _signs_and_scales(match)}


def skip_empty_runs(values: Ints, empty: Bools) -> Ints:
    """quantize_iq3_s skips a run of zeros without advancing in its codes' low bits and signs: those of later runs
    take the empty run's place (upper bits and scales don't), so what was written decodes to other values."""
    order = np.argsort(empty, axis=1, kind="stable")
    runs = values.reshape(*empty.shape, values.shape[1] // empty.shape[1])
    return np.take_along_axis(runs, order[:, :, None], axis=1).reshape(values.shape)


def _iq3_s(match: GridMatch) -> Fields:
    low, signs = (skip_empty_runs(values, match.empty) for values in (match.points & 255, match.signs))
    return {"qs": low, "qh": _upper(match.points, 1), "signs": signs, "scales": _nibbles(match.codes)}


def weighted(name: str, fields: Callable[[GridMatch], Fields]) -> WeightedEncoder:
    def encode(rows: Floats, columns: Floats | None) -> tuple[Bytes, Lost]:
        with ignore_fp_warnings():
            match = _encoded(name, rows, columns)
            return pack(name, d=to_half(match.d), **fields(match)), match.lost

    return encode


def _plain(encode: WeightedEncoder) -> Encoder:
    return lambda x: encode(x, None)  # type: ignore[arg-type]


WEIGHTED: Final = MappingProxyType(
    {
        "IQ2_XXS": weighted("IQ2_XXS", _iq2_xxs),
        "IQ2_XS": weighted("IQ2_XS", _iq2_xs),
        "IQ2_S": weighted("IQ2_S", _iq2_s),
        "IQ3_XXS": weighted("IQ3_XXS", _iq3_xxs),
        "IQ3_S": weighted("IQ3_S", _iq3_s),
    }
)
ENCODE: Final = MappingProxyType({name: _plain(WEIGHTED[name]) for name in ("IQ2_S", "IQ3_XXS", "IQ3_S")})
