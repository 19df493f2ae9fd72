"""Encoding Q2_K, Q4_K, Q5_K, Q6_K in plain numpy: bytes equal to llama.cpp's quantize_row_*_ref (ggml-quants.c, b11549,
x86-64 build), that is without an importance matrix. See `reference.py`; blocks are described in `reference_k.py`.

Every part of a block gets a scale and a minimum by a search over 16 or 21 grids (make_qkx2_quants), in Q6_K a scale
with a sign by a search over 19 (make_qx_quants). Then the parts' scales and minima are rounded to few bits, and the
codes made anew from what was rounded. Sums go in order, in f32.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weighbridge.tensors.reference import Bytes, Floats, Lost, extreme, half_bits, int8, quiet, scale_loss, widen

Ints = NDArray[np.int32]

N: Final = 256
ROUNDER: Final = 12582912.0  # 1.5 * 2^23: too large for fractions
Q2_SCALE_TOP: Final = 15
Q45_SCALE_TOP: Final = 63
Q6_ZERO: Final = 32  # codes are -32..31, stored with this added
Q6_SCALE_LOW: Final = -128
NOTHING: Final = 1e-15  # magnitudes below are zero (GROUP_MAX_EPS)


class Search(NamedTuple):
    """How the parts of a type are searched: `size` elements, codes up to `top`, grids (start + step / 10) finer than
    the plain one, and the error they are chosen by: weighted magnitude of differences, or their square."""

    size: int
    top: int
    start: float
    steps: int
    magnitude: bool


Q2_SEARCH: Final = Search(16, 3, -0.5, 15, True)
Q4_SEARCH: Final = Search(32, 15, -1.0, 20, False)
Q5_SEARCH: Final = Search(32, 31, -0.5, 15, False)


def nearest(x: Floats) -> Ints:
    """Round to nearest even by the bits of a float that is too large for fractions (nearest_int). Beyond 2^22 it is
    nonsense, and the same nonsense."""
    bits = (x + np.float32(ROUNDER)).astype(np.float32).view(np.int32)
    return (bits & np.int32(0x007FFFFF)) - np.int32(0x00400000)


def _in_order(terms: Floats) -> Floats:
    """The sum of each row [rows, 1], from the left."""
    sums: Floats = np.add.accumulate(terms, axis=1, dtype=np.float32)[:, -1:]
    return sums


def _codes(how: Search, x: Floats, scale: Floats, low: Floats) -> Ints:
    return np.clip(nearest(scale * (x - low)), 0, how.top)


def _error(how: Search, x: Floats, w: Floats, codes: Ints, scale: Floats, low: Floats) -> Floats:
    difference = scale * codes.astype(np.float32) + low - x
    return _in_order(w * (np.abs(difference) if how.magnitude else difference * difference))


def search(how: Search, x: Floats, w: Floats) -> tuple[Floats, Floats, Ints]:
    """(scale, minimum times -1, codes) of each part: the best of all grids (make_qkx2_quants)."""
    zero = np.float32(0)
    low, high = x[:, :1], x[:, :1]
    for column in x.T[1:, :, None]:
        low, high = np.where(column < low, column, low), np.where(column > high, column, high)
    sum_w, sum_x = _in_order(w), _in_order(w * x)
    low = np.where(low > 0, zero, low)
    flat, start = high == low, low
    plain = np.float32(how.top) / (high - low)
    scale, codes = np.float32(1) / plain, _codes(how, x, plain, low)
    best = _error(how, x, w, codes, scale, low)
    for step in range(how.steps + 1):
        finer = np.float32(how.start) + np.float32(0.1) * np.float32(step) + np.float32(how.top)
        tried = _codes(how, x, finer / (high - low), low)  # of the minimum found so far
        this_scale, this_low, solvable = _solve(x, w, tried, sum_w, sum_x)
        error = _error(how, x, w, tried, this_scale, this_low)
        better = solvable & (error < best)
        codes, best = np.where(better, tried, codes), np.where(better, error, best)
        scale, low = np.where(better, this_scale, scale), np.where(better, this_low, low)
    return np.where(flat, zero, scale), zero - np.where(flat, start, low), np.where(flat, 0, codes)


def _solve(x: Floats, w: Floats, codes: Ints, sum_w: Floats, sum_x: Floats) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """The scale and minimum of least square error for these codes; the minimum is not above zero."""
    levels = codes.astype(np.float32)
    weighted = w * levels
    sum_l, sum_l2, sum_xl = _in_order(weighted), _in_order(weighted * levels), _in_order(weighted * x)
    determinant = sum_w * sum_l2 - sum_l * sum_l
    scale = (sum_w * sum_xl - sum_x * sum_l) / determinant
    low = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
    above = low > 0
    return np.where(above, sum_xl / sum_l2, scale), np.where(above, np.float32(0), low), determinant > 0


def _recode(how: Search, x: Floats, scale: Floats, low: Floats, codes: Ints) -> Ints:
    """The codes once more, for the scale and minimum that were stored; a scale of zero leaves the search's."""
    return np.where(scale != 0, np.clip(nearest((x + low) / scale), 0, how.top), codes)


def _half(x: Floats) -> Floats:
    return widen("F16", half_bits(x).reshape(-1)).reshape(x.shape)


def _parts(how: Search, x: Floats) -> Floats:
    """NaN lose sign and payload: ggml lets payloads into the codes, by an order of operands that is the compiler's
    choice (llama-quantize refuses NaN)."""
    return np.where(np.isnan(x), np.float32(np.nan), x).astype(np.float32).reshape(-1, how.size)


def _largest(values: Floats) -> Floats:
    """Of each block [blocks, 1], at least 0; NaN never wins."""
    out: Floats = np.where(values > 0, values, np.float32(0)).max(axis=1, keepdims=True)
    return out


def _by_block(how: Search, values: Floats) -> Floats:
    return values.reshape(-1, N // how.size)


def encode_q2_k(x: Floats) -> tuple[Bytes, Lost]:
    """Weights are |x|; scales and minima have four bits."""
    how = Q2_SEARCH
    with quiet():
        parts = _parts(how, x)
        scales, minima, codes = search(how, parts, np.abs(parts))
        scales, minima = _by_block(how, scales), _by_block(how, minima)
        tops: Floats = np.concatenate([_largest(scales), _largest(minima)], axis=1)
        top = np.float32(Q2_SCALE_TOP)
        inverse: Floats = (top / tops).astype(np.float32)
        d: Floats = np.where(tops > 0, tops / top, np.float32(0)).astype(np.float32)
        scale = np.where(tops[:, :1] > 0, nearest(inverse[:, :1] * scales), 0)
        minimum = np.where(tops[:, 1:] > 0, nearest(inverse[:, 1:] * minima), 0)
        packed = (scale | minimum << 4) & 255
        factors = _half(d)
        by_scale = (factors[:, :1] * (packed & 15).astype(np.float32)).reshape(-1, 1)
        by_minimum = (factors[:, 1:] * (packed >> 4).astype(np.float32)).reshape(-1, 1)
        codes = _recode(how, parts, by_scale, by_minimum, codes).reshape(-1, 2, 4, 32)
    crumbs = (codes << np.array([0, 2, 4, 6])[:, None]).sum(axis=2).astype(np.uint8).reshape(-1, 64)
    halves = half_bits(d).reshape(-1, 4)
    return np.concatenate([packed.astype(np.uint8), crumbs, halves], axis=1).reshape(-1), scale_loss(d)


def _pack_q4_scales(scale: Ints, minimum: Ints) -> Bytes:
    """The way back of `reference_k._q4_scales`."""
    first = scale[:, :4] | scale[:, 4:] >> 4 << 6
    second = minimum[:, :4] | minimum[:, 4:] >> 4 << 6
    third = scale[:, 4:] & 15 | (minimum[:, 4:] & 15) << 4
    return np.concatenate([first, second, third], axis=1).astype(np.uint8)


def _encode_q45(how: Search, x: Floats) -> tuple[list[Bytes], Ints, Lost]:
    """[d, dmin, scales], codes [blocks, 256]. Weights are |x| and the root of the part's mean square; scales and minima
    have six bits."""
    with quiet():
        parts = _parts(how, x)
        weights = np.sqrt(_in_order(parts * parts) / np.float32(how.size)) + np.abs(parts)
        scales, minima, codes = search(how, parts, weights)
        scales, minima = _by_block(how, scales), _by_block(how, minima)
        tops: Floats = np.concatenate([_largest(scales), _largest(minima)], axis=1)
        top = np.float32(Q45_SCALE_TOP)
        inverse = np.where(tops > 0, top / tops, np.float32(0))
        # (uint8_t) of a code that may be negative, then at most 63
        scale = np.minimum(nearest(inverse[:, :1] * scales) & 255, Q45_SCALE_TOP)
        minimum = np.minimum(nearest(inverse[:, 1:] * minima) & 255, Q45_SCALE_TOP)
        d: Floats = (tops / top).astype(np.float32)
        factors = _half(d)
        by_scale = (factors[:, :1] * scale.astype(np.float32)).reshape(-1, 1)
        by_minimum = (factors[:, 1:] * minimum.astype(np.float32)).reshape(-1, 1)
        codes = _recode(how, parts, by_scale, by_minimum, codes).reshape(-1, N)
    return [half_bits(d).reshape(-1, 4), _pack_q4_scales(scale, minimum)], codes, scale_loss(d)


def _pair_nibbles(codes: Ints) -> Bytes:
    """[blocks, 256] codes -> [blocks, 128] bytes: 32 bytes are 64 elements, low nibbles first."""
    groups = codes.reshape(-1, 4, 2, 32) & 15
    return (groups[:, :, 0] | groups[:, :, 1] << 4).astype(np.uint8).reshape(-1, 128)


def encode_q4_k(x: Floats) -> tuple[Bytes, Lost]:
    head, codes, lost = _encode_q45(Q4_SEARCH, x)
    return np.concatenate([*head, _pair_nibbles(codes)], axis=1).reshape(-1), lost


def encode_q5_k(x: Floats) -> tuple[Bytes, Lost]:
    """Bit p of byte l of the fifth bits is for element l of part p."""
    head, codes, lost = _encode_q45(Q5_SEARCH, x)
    high = (codes.reshape(-1, 8, 32) >> 4 << np.arange(8)[:, None]).sum(axis=1).astype(np.uint8)
    return np.concatenate([*head, high, _pair_nibbles(codes)], axis=1).reshape(-1), lost


def _signed_codes(x: Floats) -> Ints:
    return np.clip(nearest(x), -Q6_ZERO, Q6_ZERO - 1)


def search_signed(x: Floats) -> tuple[Floats, Ints]:
    """(scale, codes) of parts of 16, weighted by their squares: the plain grid, then nine finer or coarser ones each
    way (make_qx_quants)."""
    top, w = extreme(x), x * x
    best = scale = np.zeros_like(top)
    codes = np.zeros(x.shape, np.int32)
    for k in (None, *range(-9, 0), *range(1, 10)):
        grid = np.float32(Q6_ZERO) + np.float32(0.1) * np.float32(k or 0)
        tried = _signed_codes(-grid / top * x)
        levels = tried.astype(np.float32)
        sum_lx, sum_l2 = _in_order(w * x * levels), _in_order(w * levels * levels)
        found = np.where(sum_l2 != 0, sum_lx / sum_l2, np.float32(0))
        better = np.array(True) if k is None else (sum_l2 > 0) & (sum_lx * sum_lx > best * sum_l2)
        codes, scale = np.where(better, tried, codes), np.where(better, found, scale)
        best = np.where(better, found * sum_lx, best)
    nothing = np.abs(top) < np.float32(NOTHING)
    return np.where(nothing, np.float32(0), scale), np.where(nothing, 0, codes + Q6_ZERO)


def encode_q6_k(x: Floats) -> tuple[Bytes, Lost]:
    """The part's scale of largest magnitude becomes -128. A block of nothing is zeros throughout."""
    with quiet():
        parts = np.where(np.isnan(x), np.float32(np.nan), x).astype(np.float32).reshape(-1, 16)
        found, codes = search_signed(parts)
        scales: Floats = found.reshape(-1, 16)
        top = extreme(scales)
        nothing = np.abs(top) < np.float32(NOTHING)
        inverse = np.float32(Q6_SCALE_LOW) / top
        d: Floats = np.where(nothing, np.float32(0), np.float32(1) / inverse).astype(np.float32)
        packed = np.where(nothing, 0, int8(np.minimum(nearest(inverse * scales), 127)))
        by = (_half(d) * packed.astype(np.float32)).reshape(-1, 1)
        codes = np.where(by != 0, _signed_codes(parts / by) + Q6_ZERO, codes).reshape(-1, N)
        codes = np.where(nothing, 0, codes)
    quarter = codes.reshape(-1, 2, 4, 32)
    low = ((quarter[:, :, :2] & 15) | (quarter[:, :, 2:] & 15) << 4).reshape(-1, 128)
    high = (quarter >> 4 << np.array([0, 2, 4, 6])[:, None]).sum(axis=2).reshape(-1, 64)
    columns = [low.astype(np.uint8), high.astype(np.uint8), packed.astype(np.int8).view(np.uint8), half_bits(d)]
    return np.concatenate(columns, axis=1).reshape(-1), scale_loss(d)
