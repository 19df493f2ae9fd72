"""Encoding Q2_K, Q3_K, Q4_K, Q5_K, Q6_K in plain numpy: bytes equal to llama.cpp's quantize_row_*_ref and, with weights
of the columns (an importance matrix), quantize_row_*_impl (ggml-quants.c, b11549, x86-64 build).
Blocks are described in `kquants.py`.

Every part of a block gets a scale and a minimum, or a scale with a sign, by a search (`search.py`). Then the
parts' scales and minima are rounded to few bits (with weights by a second search), and the codes are recomputed from
the rounded ones.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from weighbridge.tensors.reference.codec import pack
from weighbridge.tensors.reference.floats import (
    Array,
    Bytes,
    Floats,
    Lost,
    half,
    ignore_fp_warnings,
    int8,
    scale_loss,
    to_half,
)
from weighbridge.tensors.reference.search import (
    NOTHING,
    Ints,
    Ranges,
    Signed,
    extreme,
    in_order,
    nearest,
    range_codes,
    search_qp,
    search_ranges,
    search_signed,
    search_steps,
    signed_codes,
)

N: Final = 256
Q2_SCALE_TOP: Final = 15
Q45_SCALE_TOP: Final = 63
Q3_SCALE_LOW: Final = -32
Q6_SCALE_LOW: Final = -128
Q2_MEAN: Final = 1.0  # the mean square of a block counts so often in the weights of its elements
Q345_MEAN: Final = 2.0

Q2_SEARCH: Final = Ranges(16, 3, -0.5, 0.1, 15, True, False)
Q4_SEARCH: Final = Ranges(32, 15, -1.0, 0.1, 20, False, False)
Q5_SEARCH: Final = Ranges(32, 31, -0.5, 0.1, 15, False, False)
Q2_WEIGHTED: Final = Ranges(16, 3, -0.9, 0.05, 36, False, True)
Q4_WEIGHTED: Final = Ranges(32, 15, -0.9, 0.05, 36, False, True)
Q5_WEIGHTED: Final = Ranges(32, 31, -0.9, 0.05, 36, False, True)
Q3_SEARCH: Final = Signed(16, 4)
Q6_SEARCH: Final = Signed(16, 32)
Q3_SCALES: Final = Signed(16, 32)


def _half(x: Floats) -> Floats:
    return half(to_half(x)).reshape(x.shape)


def parts_of(size: int, x: Floats) -> Floats:
    # NaN lose sign and payload: ggml lets payloads into the codes, by an order of operands that is the compiler's
    # choice (llama-quantize refuses NaN).
    return np.where(np.isnan(x), np.float32(np.nan), x).astype(np.float32).reshape(-1, size)


def _largest(values: Floats) -> Floats:
    """Of each block [blocks, 1], at least 0; NaN never wins."""
    out: Floats = np.where(values > 0, values, np.float32(0)).max(axis=1, keepdims=True)
    return out


def weights_of(rows: Floats, columns: Floats, run: int, factor: float) -> Floats:
    """Of each element: its column's weight, times the root of its square and the mean square of its `run` elements."""
    runs = parts_of(run, rows)
    means = np.float32(factor) * in_order(runs * runs) / np.float32(run)
    spread: Floats = np.sqrt(means + runs * runs).reshape(rows.shape)
    return (columns * spread).astype(np.float32)


# ------------------------------------------------------------------ a scale and a minimum: Q2_K, Q4_K, Q5_K

_Scales = tuple[Floats, Ints, Ints]  # [d, dmin] of blocks, codes of the parts' scales and minima


def _search(search: Ranges, parts: Floats, weights: Floats, top: int) -> tuple[_Scales, Ints]:
    scales, minima, codes = search_ranges(search, parts, weights)
    scales, minima = scales.reshape(-1, N // search.size), minima.reshape(-1, N // search.size)
    sums = in_order(weights).reshape(scales.shape)
    if search.bounded:
        (d, scale), (dmin, minimum) = search_qp(top, scales, sums), search_qp(top, minima, sums)
        return (np.concatenate([d, dmin], axis=1), scale, minimum), codes
    tops: Floats = np.concatenate([_largest(scales), _largest(minima)], axis=1)
    finer = np.where(tops > 0, (np.float32(top) / tops).astype(np.float32), np.float32(0))
    scale = np.where(tops[:, :1] > 0, nearest(finer[:, :1] * scales), 0)
    minimum = np.where(tops[:, 1:] > 0, nearest(finer[:, 1:] * minima), 0)
    d = np.where(tops > 0, tops / np.float32(top), np.float32(0)).astype(np.float32)
    return (d, scale, minimum), codes


def _recode(search: Ranges, parts: Floats, codes: Ints, d: Floats, scale: Array, minimum: Array) -> Ints:
    """The codes once more, for the scales and minima that were stored; a scale of zero leaves the search's."""
    factors = _half(d)
    by_scale = (factors[:, :1] * scale.astype(np.float32)).reshape(-1, 1)
    by_minimum = (factors[:, 1:] * minimum.astype(np.float32)).reshape(-1, 1)
    return np.where(by_scale != 0, range_codes(search, (parts + by_minimum) / by_scale), codes)


def _pack_two_bits(codes: Ints) -> Bytes:
    """256 codes of two bits in 64 bytes: byte l of a half of 128 has elements l, l + 32, l + 64, l + 96."""
    quarters = codes.reshape(-1, 2, 4, 32) << np.array([0, 2, 4, 6])[:, None]
    packed: Bytes = np.bitwise_or.reduce(quarters, axis=2).astype(np.uint8).reshape(-1, 64)
    return packed


def _q2_k(search: Ranges, parts: Floats, weights: Floats) -> tuple[Bytes, Lost]:
    """Scales and minima have four bits."""
    (d, scale, minimum), codes = _search(search, parts, weights, Q2_SCALE_TOP)
    packed = (scale | minimum << 4) & 255
    codes = _recode(search, parts, codes, d, packed & 15, packed >> 4)
    data = pack("Q2_K", scales=packed, qs=_pack_two_bits(codes), **_pair(d))
    return data, scale_loss(d)


def encode_q2_k(x: Floats) -> tuple[Bytes, Lost]:
    """Weights are |x|."""
    with ignore_fp_warnings():
        parts = parts_of(Q2_SEARCH.size, x)
        return _q2_k(Q2_SEARCH, parts, np.abs(parts))


def weighted_q2_k(rows: Floats, columns: Floats) -> tuple[Bytes, Lost]:
    with ignore_fp_warnings():
        weights = weights_of(rows, columns, N, Q2_MEAN).reshape(-1, Q2_WEIGHTED.size)
        return _q2_k(Q2_WEIGHTED, parts_of(Q2_WEIGHTED.size, rows), weights)


def unpack_q4_scales(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Eight scales and minima. Bytes 0..3 and 4..7 hold the first four of each in six bits; bytes 8..11 low parts of
    the others as nibbles, with their upper two bits on top of the first eight bytes."""
    first, second, nibble = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, nibble & 15 | first >> 6 << 4], axis=1)
    minima = np.concatenate([second & 63, nibble >> 4 | second >> 6 << 4], axis=1)
    return scales, minima


def _pair(d: Floats) -> dict[str, Array]:
    """The fields of [blocks, 2] scales."""
    stored = to_half(d)
    return {"d": stored[:, 0], "dmin": stored[:, 1]}


def _q45(search: Ranges, parts: Floats, weights: Floats) -> tuple[dict[str, Array], Ints, Lost]:
    """The fields d, dmin and scales; codes [blocks, 256]. Scales and minima have six bits."""
    (d, scale, minimum), codes = _search(search, parts, weights, Q45_SCALE_TOP)
    if search is not Q4_WEIGHTED:  # which trusts its own; (uint8_t) of a code that may be negative, then at most 63
        scale, minimum = np.minimum(scale & 255, Q45_SCALE_TOP), np.minimum(minimum & 255, Q45_SCALE_TOP)
    # The inverse of `unpack_q4_scales`; ORs into whole bytes, as C does, in range or not.
    first = scale[:, :4] | scale[:, 4:] >> 4 << 6
    second = minimum[:, :4] | minimum[:, 4:] >> 4 << 6
    third = scale[:, 4:] & 15 | (minimum[:, 4:] & 15) << 4
    packed = np.concatenate([first, second, third], axis=1).astype(np.uint8)
    codes = _recode(search, parts, codes, d, *unpack_q4_scales(packed)).reshape(-1, N)
    return {**_pair(d), "scales": packed}, codes, scale_loss(d)


def _unweighted(search: Ranges, x: Floats) -> tuple[Floats, Floats]:
    """Parts and their weights without an importance matrix: |x| and the root of the part's mean square."""
    parts = parts_of(search.size, x)
    return parts, np.sqrt(in_order(parts * parts) / np.float32(search.size)) + np.abs(parts)


def _weighted(search: Ranges, rows: Floats, columns: Floats) -> tuple[Floats, Floats]:
    return parts_of(search.size, rows), weights_of(rows, columns, N, Q345_MEAN).reshape(-1, search.size)


def _pair_nibbles(codes: Ints) -> Bytes:
    """[blocks, 256] codes -> [blocks, 128] bytes: 32 bytes are 64 elements, low nibbles first."""
    groups = codes.reshape(-1, 4, 2, 32) & 15
    return (groups[:, :, 0] | groups[:, :, 1] << 4).astype(np.uint8).reshape(-1, 128)


def _q4_k(search: Ranges, parts: Floats, weights: Floats) -> tuple[Bytes, Lost]:
    head, codes, lost = _q45(search, parts, weights)
    return pack("Q4_K", **head, qs=_pair_nibbles(codes)), lost


def encode_q4_k(x: Floats) -> tuple[Bytes, Lost]:
    with ignore_fp_warnings():
        return _q4_k(Q4_SEARCH, *_unweighted(Q4_SEARCH, x))


def weighted_q4_k(rows: Floats, columns: Floats) -> tuple[Bytes, Lost]:
    with ignore_fp_warnings():
        return _q4_k(Q4_WEIGHTED, *_weighted(Q4_WEIGHTED, rows, columns))


def _q5_k(search: Ranges, parts: Floats, weights: Floats) -> tuple[Bytes, Lost]:
    """Bit p of byte l of the fifth bits is for element l of part p."""
    head, codes, lost = _q45(search, parts, weights)
    high = (codes.reshape(-1, 8, 32) >> 4 << np.arange(8)[:, None]).sum(axis=1)
    return pack("Q5_K", **head, qh=high, qs=_pair_nibbles(codes)), lost


def encode_q5_k(x: Floats) -> tuple[Bytes, Lost]:
    with ignore_fp_warnings():
        return _q5_k(Q5_SEARCH, *_unweighted(Q5_SEARCH, x))


def weighted_q5_k(rows: Floats, columns: Floats) -> tuple[Bytes, Lost]:
    with ignore_fp_warnings():
        return _q5_k(Q5_WEIGHTED, *_weighted(Q5_WEIGHTED, rows, columns))


# ------------------------------------------------------------------ a scale with a sign: Q3_K, Q6_K


def _recode_signed(search: Signed, parts: Floats, codes: Ints, d: Floats, scale: Ints) -> Ints:
    """The codes [blocks, 256] once more, for the scales that were stored; a scale of zero leaves the search's."""
    by = (_half(d) * scale.astype(np.float32)).reshape(-1, 1)
    return np.where(by != 0, signed_codes(search, parts / by) + search.zero, codes).reshape(-1, N)


def _q3_k(parts: Floats, codes: Ints, d: Floats, scale: Ints) -> tuple[Bytes, Lost]:
    """Six-bit scales: the low four bits of j and j + 8 in one byte, the upper two of every fourth scale in another."""
    low = scale[:, :8] & 15 | (scale[:, 8:] & 15) << 4
    high = (scale.reshape(-1, 4, 4) >> 4 << np.array([0, 2, 4, 6])[:, None]).sum(axis=1)
    codes = _recode_signed(Q3_SEARCH, parts, codes, d, scale + Q3_SCALE_LOW)
    mask = (codes.reshape(-1, 8, 32) >> 2 << np.arange(8)[:, None]).sum(axis=1)
    scales = np.concatenate([low, high], axis=1)
    return pack("Q3_K", hmask=mask, qs=_pack_two_bits(codes & 3), scales=scales, d=to_half(d)), scale_loss(d)


def encode_q3_k(x: Floats) -> tuple[Bytes, Lost]:
    """The part's scale of largest magnitude becomes -32."""
    with ignore_fp_warnings():
        parts = parts_of(Q3_SEARCH.size, x)
        raw_scales, codes = search_steps(Q3_SEARCH, parts)
        scales: Floats = raw_scales.reshape(-1, 16)
        top = extreme(scales)
        inverse = np.float32(Q3_SCALE_LOW) / top
        d: Floats = np.where(top != 0, np.float32(1) / inverse, np.float32(0)).astype(np.float32)
        limited = np.clip(int8(nearest(inverse * scales)), Q3_SCALE_LOW, -Q3_SCALE_LOW - 1)
        return _q3_k(parts, codes, d, np.where(top != 0, limited - Q3_SCALE_LOW, 0))


def weighted_q3_k(rows: Floats, columns: Floats) -> tuple[Bytes, Lost]:
    with ignore_fp_warnings():
        parts = parts_of(Q3_SEARCH.size, rows)
        weights = weights_of(rows, columns, N, Q345_MEAN).reshape(-1, Q3_SEARCH.size)
        raw_scales, codes = search_signed(Q3_SEARCH, parts, weights)
        d, scale = search_signed(Q3_SCALES, raw_scales.reshape(-1, 16), in_order(weights).reshape(-1, 16))
        return _q3_k(parts, codes, d, scale)


def encode_q6_k(x: Floats) -> tuple[Bytes, Lost]:
    """Weights are squares."""
    with ignore_fp_warnings():
        parts = parts_of(Q6_SEARCH.size, x)
        return _q6_k(parts, parts * parts)


def weighted_q6_k(rows: Floats, columns: Floats) -> tuple[Bytes, Lost]:
    """The weights are those of the columns."""
    with ignore_fp_warnings():
        weights: Floats = np.broadcast_to(columns, rows.shape).reshape(-1, Q6_SEARCH.size)
        return _q6_k(parts_of(Q6_SEARCH.size, rows), weights)


def _q6_k(parts: Floats, weights: Floats) -> tuple[Bytes, Lost]:
    """The part's scale of largest magnitude becomes -128. An all-zero block stays zero."""
    raw_scales, codes = search_signed(Q6_SEARCH, parts, weights)
    scales: Floats = raw_scales.reshape(-1, 16)
    top = extreme(scales)
    nothing = np.abs(top) < np.float32(NOTHING)
    inverse = np.float32(Q6_SCALE_LOW) / top
    d: Floats = np.where(nothing, np.float32(0), np.float32(1) / inverse).astype(np.float32)
    packed = np.where(nothing, 0, int8(np.minimum(nearest(inverse * scales), 127)))
    codes = np.where(nothing, 0, _recode_signed(Q6_SEARCH, parts, codes, d, packed))
    quarter = codes.reshape(-1, 2, 4, 32)
    low = ((quarter[:, :, :2] & 15) | (quarter[:, :, 2:] & 15) << 4).reshape(-1, 128)
    high = (quarter >> 4 << np.array([0, 2, 4, 6])[:, None]).sum(axis=2).reshape(-1, 64)
    return pack("Q6_K", ql=low, qh=high, scales=packed, d=to_half(d)), scale_loss(d)
