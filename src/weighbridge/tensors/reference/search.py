"""The searches for scales that ggml's types share, in plain numpy (ggml-quants.c of llama.cpp b11549, x86-64 build).
Parts are rows [parts, size]; sums go in order, in f32. The native twin is `native/simd/search.hpp`.

    search_signed    make_qx_quants     a scale with a sign; codes around zero
    search_ranges    make_qkx2_quants, make_qkx3_quants    a scale and a minimum
    search_scale    make_qp_quants     a scale of numbers that aren't negative: the scales and minima themselves
    search_steps     make_q3_quants     a scale with a sign, code by code
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weighbridge.tensors.reference.floats import Floats, ignore_fp_warnings

Ints = NDArray[np.int32]
Bools = NDArray[np.bool_]

ROUNDER: Final = 12582912.0  # 1.5 * 2^23: too large for fractions
NOTHING: Final = 1e-15  # magnitudes below are zero (GROUP_MAX_EPS)
SIGNED_TRIES: Final = 9  # grids finer and coarser than the plain one
LADDER_TRIES: Final = 4
ROUNDS: Final = 5  # how often codes are refined one by one
BYTE: Final = 255  # codes of scales are kept in bytes


def first(rows: Floats, at: NDArray[np.intp]) -> Floats:
    """The element of every block that a search found. As in C, the first of equals (-0 and 0 are equal)."""
    return np.take_along_axis(rows, at[:, None], axis=1)


def extreme(rows: Floats) -> Floats:
    """The first element of largest magnitude, with its sign; NaN never wins."""
    with ignore_fp_warnings():
        best = first(rows, np.argmax(np.where(np.isnan(rows), np.float32(-1), np.abs(rows)), axis=1))
    return np.where(np.abs(best) > 0, best, np.float32(0)).astype(np.float32)


def nearest(x: Floats) -> Ints:
    """Round to nearest even by the bits of a float that is too large for fractions (nearest_int). Beyond 2^22 it is
    nonsense, and the same nonsense."""
    bits = (x + np.float32(ROUNDER)).astype(np.float32).view(np.int32)
    return (bits & np.int32(0x007FFFFF)) - np.int32(0x00400000)


def in_order(terms: Floats) -> Floats:
    """The sum of each row [rows, 1], from the left."""
    sums: Floats = np.add.accumulate(terms, axis=1, dtype=np.float32)[:, -1:]
    return sums


# ------------------------------------------------------------------ a scale with a sign


class Signed(NamedTuple):
    """Parts of `size` elements, codes -zero..zero - 1."""

    size: int
    zero: int


def signed_codes(search: Signed, x: Floats) -> Ints:
    return np.clip(nearest(x), -search.zero, search.zero - 1)


def search_signed(search: Signed, x: Floats, w: Floats) -> tuple[Floats, Ints]:
    """(scale [parts, 1], codes with `zero` added): the plain grid, then nine finer or coarser ones each way. Where all
    is nothing, scale and codes are 0."""
    top, wx = extreme(x), w * x
    best = scale = np.zeros_like(top)
    codes = np.zeros(x.shape, np.int32)
    for k in (None, *range(-SIGNED_TRIES, 0), *range(1, SIGNED_TRIES + 1)):
        grid = np.float32(search.zero) + np.float32(0.1) * np.float32(k or 0)
        tried = signed_codes(search, -grid / top * x)
        levels = tried.astype(np.float32)
        sum_lx, sum_l2 = in_order(wx * levels), in_order(w * levels * levels)
        fitted = np.where(sum_l2 != 0, sum_lx / sum_l2, np.float32(0))
        better = np.array(True) if k is None else (sum_l2 > 0) & (sum_lx * sum_lx > best * sum_l2)
        codes, scale = np.where(better, tried, codes), np.where(better, fitted, scale)
        best = np.where(better, fitted * sum_lx, best)
    nothing = np.abs(top) < np.float32(NOTHING)
    return np.where(nothing, np.float32(0), scale), np.where(nothing, 0, codes + np.int32(search.zero))


# ------------------------------------------------------------------ a scale and a minimum


class Ranges(NamedTuple):
    """Parts of `size` elements, codes up to `top`, grids (start + step * delta) finer than the plain one, and the error
    they are chosen by: weighted magnitude of differences, or their square. `bounded`: products are limited before they
    are rounded, so that nothing is nonsense (make_qkx3_quants)."""

    size: int
    top: int
    start: float
    delta: float
    steps: int
    magnitude: bool
    bounded: bool


def range_codes(search: Ranges, products: Floats) -> Ints:
    return np.clip(nearest(products), 0, search.top)


def _tried(search: Ranges, products: Floats) -> Ints:
    if search.bounded:
        top, zero = np.float32(search.top), np.float32(0)
        products = np.where(products > 0, np.where(products < top, products, top), zero)
    return range_codes(search, products)


def _error(search: Ranges, x: Floats, w: Floats, codes: Ints, scale: Floats, low: Floats) -> Floats:
    difference = scale * codes.astype(np.float32) + low - x
    return in_order(w * (np.abs(difference) if search.magnitude else difference * difference))


def search_ranges(search: Ranges, x: Floats, w: Floats) -> tuple[Floats, Floats, Ints]:
    """(scale, minimum times -1, codes) of each part: the best of all grids."""
    zero = np.float32(0)
    low, high = x[:, :1], x[:, :1]
    for column in x.T[1:, :, None]:
        low, high = np.where(column < low, column, low), np.where(column > high, column, high)
    sum_w, sum_x = in_order(w), in_order(w * x)
    low = np.where(low > 0, zero, low)
    flat, start = high == low, low
    plain = np.float32(search.top) / (high - low)
    scale, codes = np.float32(1) / plain, range_codes(search, plain * (x - low))
    best = _error(search, x, w, codes, scale, low)
    for step in range(search.steps + 1):
        grid = np.float32(search.start) + np.float32(search.delta) * np.float32(step) + np.float32(search.top)
        tried = _tried(search, grid / (high - low) * (x - low))  # of the minimum found so far
        this_scale, this_low, solvable = _solve(x, w, tried, sum_w, sum_x)
        error = _error(search, x, w, tried, this_scale, this_low)
        better = solvable & (error < best)
        codes, best = np.where(better, tried, codes), np.where(better, error, best)
        scale, low = np.where(better, this_scale, scale), np.where(better, this_low, low)
    return np.where(flat, zero, scale), -np.where(flat, start, low), np.where(flat, 0, codes)


def _solve(x: Floats, w: Floats, codes: Ints, sum_w: Floats, sum_x: Floats) -> tuple[Floats, Floats, Bools]:
    """The scale and minimum of least square error for these codes; the minimum is not above zero."""
    levels = codes.astype(np.float32)
    weighted = w * levels
    sum_l, sum_l2, sum_xl = in_order(weighted), in_order(weighted * levels), in_order(weighted * x)
    determinant = sum_w * sum_l2 - sum_l * sum_l
    scale = (sum_w * sum_xl - sum_x * sum_l) / determinant
    low = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
    above = low > 0
    return np.where(above, sum_xl / sum_l2, scale), np.where(above, np.float32(0), low), determinant > 0


# ------------------------------------------------------------------ code by code


class _Sums(NamedTuple):
    """Of w * x * code and of w * code * code, each [parts]."""

    lx: Floats
    l2: Floats


def _sums(wx: Floats, w: Floats, codes: Ints) -> _Sums:
    levels = codes.astype(np.float32)
    return _Sums(in_order(wx * levels)[:, 0], in_order(w * levels * levels)[:, 0])


def _ratio(sums: _Sums) -> Floats:
    out: Floats = np.where(sums.l2 > 0, sums.lx / sums.l2, np.float32(0))
    return out


def search_qp(top: int, x: Floats, w: Floats) -> tuple[Floats, Ints]:
    """(scale [parts, 1], codes up to `top` as the bytes they are kept in) of parts that aren't negative."""
    most = np.zeros(len(x), np.float32)
    for column in x.T:
        most = np.where(most > column, most, column)
    most = most[:, None]
    step = np.float32(top) / most
    least = _scale_error(x, w, np.float32(1) / step, nearest(step * x) & BYTE)
    for k in (*range(-LADDER_TRIES, 0), *range(1, LADDER_TRIES + 1)):
        tried = (np.float32(0.1) * np.float32(k) + np.float32(top)) / most
        error = _scale_error(x, w, np.float32(1) / tried, np.minimum(nearest(tried * x), top))
        better = error < least
        least, step = np.where(better, error, least), np.where(better, tried, step)
    codes = np.minimum(nearest(step * x), top)
    sums, codes = _sums(w * x, w, codes), codes & BYTE
    for _ in range(ROUNDS):
        for i in range(x.shape[1]):
            sums, codes[:, i] = _improve_code(top, x[:, i], w[:, i], codes[:, i], sums)
    nothing = most < np.float32(NOTHING)
    return np.where(nothing, np.float32(0), _ratio(sums)[:, None]), np.where(nothing, 0, codes)


def _scale_error(x: Floats, w: Floats, scale: Floats, codes: Ints) -> Floats:
    difference = x - scale * codes.astype(np.float32)
    return in_order(w * difference * difference)


def _improve_code(top: int, x: Floats, w: Floats, code: Ints, sums: _Sums) -> tuple[_Sums, Ints]:
    without = _without(x, w, code, sums)
    tried = np.minimum(nearest(x * without.l2 / without.lx), top)
    having = _having(x, w, tried, without)
    better = (without.lx > 0) & (without.l2 > 0) & (tried != code) & _better(having, sums)
    return _chosen(better, having, sums), np.where(better, tried & BYTE, code)


def search_steps(search: Signed, x: Floats) -> tuple[Floats, Ints]:
    """(scale [parts, 1], codes with `zero` added) of parts weighted by their squares."""
    top, w = extreme(x), x * x
    codes = signed_codes(search, np.float32(-search.zero) / top * x)
    sums = _sums(w * x, w, codes)
    for _ in range(ROUNDS):
        for i in range(x.shape[1]):
            column, weight, code = x[:, i], w[:, i], codes[:, i]
            without = _without(column, weight, code, sums)
            tried = signed_codes(search, column * without.l2 / without.lx)
            having = _having(column, weight, tried, without)
            better = (without.lx > 0) & (tried != code) & (having.l2 > 0) & _better(having, sums)
            sums, codes[:, i] = _chosen(better, having, sums), np.where(better, tried, code)
    nothing = np.abs(top) < np.float32(NOTHING)
    scale = np.where(nothing, np.float32(0), _ratio(sums)[:, None])
    return scale, np.where(nothing, 0, codes + np.int32(search.zero))


def _without(x: Floats, w: Floats, code: Ints, sums: _Sums) -> _Sums:
    """The sums without one element."""
    level = code.astype(np.float32)
    return _Sums(sums.lx - w * x * level, sums.l2 - w * level * level)


def _having(x: Floats, w: Floats, code: Ints, sums: _Sums) -> _Sums:
    """The sums with one more element."""
    level = code.astype(np.float32)
    return _Sums(sums.lx + w * x * level, sums.l2 + w * level * level)


def _better(new: _Sums, old: _Sums) -> Bools:
    better: Bools = new.lx * new.lx * old.l2 > old.lx * old.lx * new.l2
    return better


def _chosen(better: Bools, new: _Sums, old: _Sums) -> _Sums:
    return _Sums(np.where(better, new.lx, old.lx), np.where(better, new.l2, old.l2))
