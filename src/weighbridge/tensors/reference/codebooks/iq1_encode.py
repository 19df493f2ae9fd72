"""Encoding IQ1_S and IQ1_M in plain numpy: bytes equal to llama.cpp's quantize_iq1_s and quantize_iq1_m (ggml-quants.c,
b11549, x86-64 build), with and without weights of the columns (IQ1_S only with). Blocks are described in
`iquants.py`, the native twin is `native/kernels/iq1_encode.cpp`.

The elements of a part, 32 or 16, are sorted; every way to cut them into three (-1, 0, 1) is tried with values shifted
up and down by an eighth, in IQ1_M up and down for each half. What of the best cut isn't in the codebook becomes a
neighbour (`lattice_neighbours.py`), and the scale is fitted again. Scales are rounded to three bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np

from weighbridge.tensors.reference.codebooks.iq23_encode import N, first_of, tiled
from weighbridge.tensors.reference.codebooks.iquants import IQ1_DELTA
from weighbridge.tensors.reference.codebooks.lattice_neighbours import Bools, Ints, into_codebook, neighbours
from weighbridge.tensors.reference.codec import pack
from weighbridge.tensors.reference.floats import (
    Bytes,
    Encoder,
    Floats,
    Lost,
    WeightedEncoder,
    ignore_fp_warnings,
    scale_loss,
    to_half,
)
from weighbridge.tensors.reference.search import in_order, nearest

IQ1_SCALE_TOP: Final = 7
IQ1_SCALE_STEPS: Final = 15  # the largest scale is the block's this many times
IQ1_S_NOTHING: Final = 1e-12  # a largest magnitude below this is zero
IQ1_M_NOTHING: Final = 1e-7
IQ1_S_FUDGE: Final = 1.125
IQ1_M_FUDGE: Final = 1.1125


class Cut(NamedTuple):
    """The best cut of each part [parts, 1]: elements of rank below `first` are -1, those from `second` on 1. `way`: 2
    if the first half is shifted down, plus 1 if the second is."""

    scale: Floats
    score: Floats
    first: Ints
    second: Ints
    way: Ints
    found: Bools


# One way to cut: sums whose ratio is the scale, first, second, way.
Tried = tuple[Floats, Floats, int, int, int]


class Parts(NamedTuple):
    """Parts [parts, size]: the points' indices, whether their values are shifted down [parts, size / 8], the scales
    [parts, 1], and the parts at which llama.cpp would abort."""

    points: Ints
    down: Bools
    scale: Floats
    lost: Bools


def values_of(down: Bools) -> Floats:
    """[..., 3]: the values of -1, 0 and 1."""
    delta = np.where(down, -np.float32(IQ1_DELTA), np.float32(IQ1_DELTA))
    out: Floats = np.array([-1, 0, 1], np.float32) + delta[..., None]
    return out


def _prefix(terms: Floats) -> Floats:
    """[parts, size + 1] sums of the first 0, 1, ... terms."""
    zero = np.zeros((len(terms), 1), np.float32)
    return np.concatenate([zero, np.add.accumulate(terms, axis=1, dtype=np.float32)], axis=1)


def _cuts(size: int) -> Iterator[tuple[int, int]]:
    return ((first, second) for first in range(size + 1) for second in range(first, size + 1))


def _whole_cuts(x: Floats, w: Floats, order: Ints) -> Iterator[Tried]:
    """IQ1_S: one shift for all."""
    sum_x, sum_w = (_prefix(np.take_along_axis(a, order, axis=1)) for a in (w * x, w))
    for first, second in _cuts(x.shape[1]):
        parts_x, parts_w = ((a[:, first], a[:, second] - a[:, first], a[:, -1] - a[:, second]) for a in (sum_x, sum_w))
        for way, q in zip((0, 3), values_of(np.array([False, True])), strict=True):
            qx = parts_x[0] * q[0] + parts_x[1] * q[1] + parts_x[2] * q[2]
            q2 = parts_w[0] * q[0] * q[0] + parts_w[1] * q[1] * q[1] + parts_w[2] * q[2] * q[2]
            yield qx[:, None], q2[:, None], first, second, way


def _half_cuts(x: Floats, w: Floats, order: Ints) -> Iterator[Tried]:
    """IQ1_M: a shift per half. A half's sums follow from its total, because the values differ by one in both
    directions."""
    half = np.arange(x.shape[1]) * 2 // x.shape[1]
    sums = []
    for h in (0, 1):
        terms = [np.where(half == h, a, np.float32(0)) for a in (w * x, w)]
        sums.append([_prefix(np.take_along_axis(a, order, axis=1)) for a in terms])
    for first, second in _cuts(x.shape[1]):
        qx, q2 = [], []
        for sum_x, sum_w in sums:
            for q in values_of(np.array([False, True])):
                qx.append(sum_x[:, -1] * q[2] - (sum_x[:, first] + sum_x[:, second]))
                low, high = q[0] * q[0] - q[1] * q[1], q[1] * q[1] - q[2] * q[2]
                q2.append(sum_w[:, -1] * q[2] * q[2] + sum_w[:, first] * low + sum_w[:, second] * high)
        for way in range(4):
            a, b = way // 2, 2 + way % 2
            yield (qx[a] + qx[b])[:, None], (q2[a] + q2[b])[:, None], first, second, way


def best_cut(tried: Iterator[Tried], parts: int) -> Cut:
    zero, lowest = np.zeros((parts, 1), np.int32), np.full((parts, 1), np.finfo(np.float32).min)
    best = Cut(np.zeros((parts, 1), np.float32), lowest, zero, zero, zero, zero != 0)
    for sum_qx, sum_q2, first, second, way in tried:
        better = (sum_q2 > 0) & (sum_qx * sum_qx > best.score * sum_q2)
        scale = sum_qx / sum_q2
        best = Cut(
            np.where(better, scale, best.scale),
            np.where(better, scale * sum_qx, best.score),
            np.where(better, np.int32(first), best.first),
            np.where(better, np.int32(second), best.second),
            np.where(better, np.int32(way), best.way),
            best.found | better,
        )
    return best


def encoded_parts(x: Floats, w: Floats, nothing: float) -> Parts:
    size = x.shape[1]
    order = np.argsort(x, axis=1, kind="stable").astype(np.int32)
    rank = np.argsort(order, axis=1, kind="stable")
    cuts = _whole_cuts if size == 32 else _half_cuts
    cut = best_cut(cuts(x, w, order), len(x))
    some = cut.found & ~(np.abs(x).max(axis=1, keepdims=True) < np.float32(nothing))
    minus, scale = cut.scale < 0, np.abs(cut.scale)
    codes = (rank >= cut.first).astype(np.int32) + (rank >= cut.second)
    codes = np.where(minus, np.int32(2) - codes, codes)
    way = np.where(minus, 3 - cut.way, cut.way)
    down = np.repeat(np.concatenate([way > 1, way % 2 == 1], axis=1), size // 16, axis=1)
    values = scale[:, :, None] * values_of(down)
    shape, eights = values.shape[:2], (-1, 8)
    groups = np.broadcast_to(some, shape).reshape(-1)
    number, outside, lost = into_codebook(
        "IQ1_S", codes.reshape(eights), groups, x.reshape(eights), w.reshape(eights), values.reshape(-1, 3)
    )
    points, outside, lost = number.reshape(shape), outside.reshape(shape), lost.reshape(shape)
    q = _values(points, down)
    sum_qx, sum_q2 = in_order(w * q * x), in_order(w * q * q)
    again = outside.any(axis=1, keepdims=True) & (sum_qx > 0) & (sum_q2 > 0)
    scale = np.where(again, sum_qx / sum_q2, scale)
    stops = (lost.any(axis=1, keepdims=True) | np.isnan(scale)) & some
    return Parts(points, down & some, np.where(some, scale, np.float32(0)), stops)


def _values(points: Ints, down: Bools) -> Floats:
    """The values of points [parts, n] as [parts, 8 n]."""
    ranks = neighbours("IQ1_S").ranks[points]
    return np.take_along_axis(values_of(down), ranks.astype(np.intp), axis=2).reshape(-1, 8 * points.shape[1])


def _weights(x: Floats, columns: Floats | None) -> Floats:
    if columns is None:
        return x * x
    return columns * np.sqrt(np.float32(2) * in_order(x * x) / np.float32(N) + x * x)


def _most(scales: Floats) -> Floats:
    most = np.zeros((len(scales), 1), np.float32)
    for column in scales.T[:, :, None]:
        most = np.where(most > column, most, column)
    return most


def _scale_codes(scales: Floats, most: Floats) -> Ints:
    inverse = np.float32(1) / (most / np.float32(IQ1_SCALE_STEPS))
    codes = np.clip(nearest(np.float32(0.5) * (inverse * scales - np.float32(1))), 0, IQ1_SCALE_TOP)
    return np.where(most != 0, codes, 0)


def weighted_iq1_s(rows: Floats, columns: Floats) -> tuple[Bytes, Lost]:
    x = rows.reshape(-1, N)
    with ignore_fp_warnings():
        w = _weights(x, tiled(columns, len(x)))
        encoded = encoded_parts(x.reshape(-1, 32), w.reshape(-1, 32), IQ1_S_NOTHING)
        scales, points = encoded.scale.reshape(-1, 8), encoded.points.reshape(-1, 8, 4)
        most = _most(scales)
        d = most / np.float32(IQ1_SCALE_STEPS) * np.float32(IQ1_S_FUDGE)
        d = np.where(most != 0, d, np.float32(0))  # it may be -0
        codes = _scale_codes(scales, most) | np.where(most != 0, encoded.down[:, 0].reshape(-1, 8) << 3, 0)
        upper = (points >> 8 << np.array([0, 3, 6, 9])).sum(axis=2) | codes << 12
        data = pack("IQ1_S", d=to_half(d), qs=points, qh=upper)
    return data, (*scale_loss(d), *first_of(encoded.lost.reshape(len(x), N // 32)))


def weighted_iq1_m(rows: Floats, columns: Floats | None) -> tuple[Bytes, Lost]:
    x = rows.reshape(-1, N)
    with ignore_fp_warnings():
        w = _weights(x, tiled(columns, len(x)))
        encoded = encoded_parts(x.reshape(-1, 16), w.reshape(-1, 16), IQ1_M_NOTHING)
        scales, points = encoded.scale.reshape(-1, 16), encoded.points.reshape(-1, 32)
        most = _most(scales)
        codes = _scale_codes(scales, most)
        q = _values(encoded.points, encoded.down) * (2 * codes + 1).astype(np.float32).reshape(-1, 1)
        q = q.reshape(len(x), N)
        sum_qx, sum_q2 = in_order(w * q * x), in_order(w * q * q)
        d = np.where(sum_q2 > 0, sum_qx / sum_q2, most / np.float32(IQ1_SCALE_STEPS)) * np.float32(IQ1_M_FUDGE)
        d = np.where(most != 0, d, np.float32(0))
        upper = points >> 8 | np.where(most != 0, encoded.down.reshape(-1, 32) << 3, 0)
        words = (codes.reshape(-1, 4, 4) << np.array([0, 3, 6, 9])).sum(axis=2)
        words = words | (to_half(d).view(np.uint16).astype(np.int32) >> np.array([0, 4, 8, 12]) & 15) << 12
        data = pack("IQ1_M", qs=points, qh=upper[:, ::2] | upper[:, 1::2] << 4, scales=words)
    return data, (*scale_loss(d), *first_of(encoded.lost.reshape(len(x), N // 16)))


WEIGHTED: Final[MappingProxyType[str, WeightedEncoder]] = MappingProxyType(
    {"IQ1_S": weighted_iq1_s, "IQ1_M": weighted_iq1_m}
)
ENCODE: Final[MappingProxyType[str, Encoder]] = MappingProxyType({"IQ1_M": lambda x: weighted_iq1_m(x, None)})
