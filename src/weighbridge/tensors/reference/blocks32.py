"""ggml's blocks of 32 in numpy: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1. Bytes equal to llama.cpp's quantize_row_*_ref,
quantize_row_*_impl (with weights of the columns) and dequantize_row_* (ggml-quants.c, b11549, x86-64 build).
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from weighbridge.tensors.reference.codec import Codec, Parts, Unpacking, half_scales, pack, view
from weighbridge.tensors.reference.floats import (
    Array,
    Bytes,
    Floats,
    Lost,
    half,
    ignore_fp_warnings,
    int8,
    inverse,
    round_away,
    scale_loss,
    to_half,
    truncate,
)
from weighbridge.tensors.reference.kquants_encode import Q4_WEIGHTED, Q5_WEIGHTED, parts_of, weights_of
from weighbridge.tensors.reference.search import Ints, Ranges, Signed, extreme, first, search_ranges, search_signed

QK: Final = 32  # elements of a block
Q8_TOP: Final = 127  # codes of Q8_0 are -127..127
Q4_LOW: Final = -8  # codes of Q4_0 are -8..7: the element of largest magnitude becomes -8
Q4_ROUND: Final = 8.5  # the shift by 8 and the half that makes truncation a rounding
Q4_TOP: Final = 15  # the largest 4-bit code
Q4_1_ROUND: Final = 0.5
Q5_LOW: Final = -16
Q5_ROUND: Final = 16.5
Q5_TOP: Final = 31
NIBBLE: Final = 4
Q4_0_SEARCH: Final = Signed(32, 8)
Q5_0_SEARCH: Final = Signed(32, 16)


def nibbles(codes: Bytes) -> NDArray[np.int32]:
    """[blocks, 16] bytes -> [blocks, 32] codes: low nibbles are elements 0..15, high ones 16..31."""
    return np.concatenate([codes & 15, codes >> NIBBLE], axis=1).astype(np.int32)


def pack_nibbles(codes: NDArray[np.int32]) -> Bytes:
    """The inverse. C stores the low code unmasked; out-of-range codes (from NaN) reach the high nibble there too."""
    low, high = codes[:, : QK // 2], codes[:, QK // 2 :]
    return ((low | high << NIBBLE) & 255).astype(np.uint8)


def fifth_bits(words: NDArray[np.uint32]) -> NDArray[np.int32]:
    """[blocks] words -> [blocks, 32] bits, each worth 16: bit j belongs to element j."""
    codes = np.ascontiguousarray(words).view(np.uint8).reshape(-1, 4)
    return np.unpackbits(codes, axis=1, bitorder="little").astype(np.int32) << NIBBLE


def pack_fifth_bits(codes: NDArray[np.int32]) -> NDArray[np.uint32]:
    high = np.packbits((codes >> NIBBLE & 1).astype(np.uint8), axis=1, bitorder="little")
    return high.reshape(-1).view("<u4")


def pack_5bit(name: str, codes: NDArray[np.int32], **scales: NDArray[np.float16]) -> Bytes:
    return pack(name, **scales, qh=pack_fifth_bits(codes), qs=pack_nibbles(codes & Q4_TOP))


def running_max(a: Floats) -> Floats:
    """C's `amax = amax > a ? amax : a` over a block: a NaN is taken, then dropped at the next element."""
    best = np.zeros(len(a), np.float32)
    for column in a.T:
        best = np.where(best > column, best, column)
    return best


def scaled(codes: Array, d: Floats) -> Floats:
    with ignore_fp_warnings():
        out: Floats = codes.astype(np.float32) * d
    return out.reshape(-1)


def _with_minimum(codes: NDArray[np.integer], d: Floats, m: Floats) -> Floats:
    with ignore_fp_warnings():
        out: Floats = codes.astype(np.float32) * d + m
    return out.reshape(-1)


def parts_of_32(name: str) -> Callable[[Bytes], Parts]:
    """A function from blocks of 32 elements to their parts: `d`, `m` if the type has one, and a code per element."""

    def parts(src: Bytes) -> Parts:
        blocks = view(name, src)
        fields = blocks.dtype.names or ()
        codes = blocks["qs"] if blocks["qs"].dtype == np.int8 else nibbles(blocks["qs"])
        if "qh" in fields:
            codes = codes + fifth_bits(blocks["qh"])
        return {**{field: half(blocks[field]) for field in ("d", "m", "s") if field in fields}, "q": codes}

    return parts


Q8_PARTS: Final = parts_of_32("Q8_0")
Q4_0_PARTS: Final = parts_of_32("Q4_0")
Q4_1_PARTS: Final = parts_of_32("Q4_1")
Q5_0_PARTS: Final = parts_of_32("Q5_0")
Q5_1_PARTS: Final = parts_of_32("Q5_1")


def decode_q8_0(src: Bytes) -> Floats:
    """x = d * q."""
    parts = Q8_PARTS(src)
    return scaled(parts["q"], parts["d"])


def encode_q8_0(x: Floats) -> tuple[Bytes, Lost]:
    """d = max |x| / 127, q = roundf(x / d); the division is by the unrounded d, stored is its f16."""
    rows = x.reshape(-1, QK)
    with ignore_fp_warnings():
        d = (running_max(np.abs(rows)) / np.float32(Q8_TOP)).reshape(-1, 1)
        q = round_away(rows * inverse(d))
    return pack("Q8_0", d=to_half(d), qs=q), scale_loss(d)


def decode_q4_0(src: Bytes) -> Floats:
    """x = d * (q - 8)."""
    parts = Q4_0_PARTS(src)
    return scaled(parts["q"] + Q4_LOW, parts["d"])


def encode_q4_0(x: Floats) -> tuple[Bytes, Lost]:
    """d = extreme / -8, q = min(15, trunc(x / d + 8.5))."""
    rows = x.reshape(-1, QK)
    with ignore_fp_warnings():
        d = extreme(rows) / np.float32(Q4_LOW)
        q = np.minimum(int8(truncate(rows * inverse(d) + np.float32(Q4_ROUND))), Q4_TOP)
    return pack("Q4_0", d=to_half(d), qs=pack_nibbles(q)), scale_loss(d)


def decode_q4_1(src: Bytes) -> Floats:
    """x = d * q + m."""
    parts = Q4_1_PARTS(src)
    return _with_minimum(parts["q"], parts["d"], parts["m"])


def _range(rows: Floats) -> tuple[Floats, Floats]:
    """Smallest and largest of each block. Comparisons start at +-FLT_MAX, so NaN and a whole block of Inf leave these
    there; of equals (zeros!) the first counts."""
    most, inf = np.finfo(np.float32).max, np.float32(np.inf)
    low = first(rows, np.argmin(np.where(np.isnan(rows), inf, rows), axis=1))
    high = first(rows, np.argmax(np.where(np.isnan(rows), -inf, rows), axis=1))
    return np.where(low < most, low, most), np.where(high > -most, high, -most)


def encode_q4_1(x: Floats) -> tuple[Bytes, Lost]:
    """m = min, d = (max - min) / 15, q = min(15, trunc((x - m) / d + 0.5))."""
    rows = x.reshape(-1, QK)
    with ignore_fp_warnings():
        low, high = _range(rows)
        d = (high - low) / np.float32(Q4_TOP)
        q = np.minimum(int8(truncate((rows - low) * inverse(d) + np.float32(Q4_1_ROUND))), Q4_TOP)
    lost = scale_loss(np.concatenate([d, low], axis=1))
    return pack("Q4_1", d=to_half(d), m=to_half(low), qs=pack_nibbles(q)), lost


def decode_q5_0(src: Bytes) -> Floats:
    """x = d * (q - 16)."""
    parts = Q5_0_PARTS(src)
    return scaled(parts["q"] + Q5_LOW, parts["d"])


def encode_q5_0(x: Floats) -> tuple[Bytes, Lost]:
    """d = extreme / -16, q = min(31, trunc(x / d + 16.5))."""
    rows = x.reshape(-1, QK)
    with ignore_fp_warnings():
        d = extreme(rows) / np.float32(Q5_LOW)
        q = np.minimum(int8(truncate(rows * inverse(d) + np.float32(Q5_ROUND))), Q5_TOP)
    return pack_5bit("Q5_0", q, d=to_half(d)), scale_loss(d)


def decode_q5_1(src: Bytes) -> Floats:
    """x = d * q + m."""
    parts = Q5_1_PARTS(src)
    return _with_minimum(parts["q"], parts["d"], parts["m"])


def encode_q5_1(x: Floats) -> tuple[Bytes, Lost]:
    """m = min, d = (max - min) / 31, q = the low five bits of trunc((x - m) / d + 0.5): q isn't clamped."""
    rows = x.reshape(-1, QK)
    with ignore_fp_warnings():
        low, high = _range(rows)
        d = (high - low) / np.float32(Q5_TOP)
        q = truncate((rows - low) * inverse(d) + np.float32(Q4_1_ROUND))
    lost = scale_loss(np.concatenate([d, low], axis=1))
    return pack_5bit("Q5_1", q, d=to_half(d), m=to_half(low)), lost


# ------------------------------------------------------------------ with weights of the columns


def _row_weights(rows: Floats, columns: Floats) -> Floats:
    """The mean square is that of the whole row."""
    return weights_of(rows, columns, rows.shape[1], 1.0).reshape(-1, QK)


def _weighted_signed(search: Signed, rows: Floats, columns: Floats) -> tuple[Floats, Ints]:
    with ignore_fp_warnings():
        return search_signed(search, parts_of(QK, rows), _row_weights(rows, columns))


def weighted_q4_0(rows: Floats, columns: Floats) -> tuple[Bytes, Lost]:
    d, q = _weighted_signed(Q4_0_SEARCH, rows, columns)
    return pack("Q4_0", d=to_half(d), qs=pack_nibbles(q)), scale_loss(d)


def weighted_q5_0(rows: Floats, columns: Floats) -> tuple[Bytes, Lost]:
    d, q = _weighted_signed(Q5_0_SEARCH, rows, columns)
    return pack_5bit("Q5_0", q, d=to_half(d)), scale_loss(d)


def _weighted_range(search: Ranges, rows: Floats, columns: Floats) -> tuple[NDArray[np.float16], Ints, Lost]:
    """d and m as F16 [blocks, 2], codes, and the losses of the scales."""
    with ignore_fp_warnings():
        scale, least, codes = search_ranges(search, parts_of(QK, rows), _row_weights(rows, columns))
    scales = np.concatenate([scale, -least], axis=1)
    return to_half(scales), codes, scale_loss(scales)


def weighted_q4_1(rows: Floats, columns: Floats) -> tuple[Bytes, Lost]:
    scales, q, lost = _weighted_range(Q4_WEIGHTED, rows, columns)
    return pack("Q4_1", d=scales[:, 0], m=scales[:, 1], qs=pack_nibbles(q)), lost


def weighted_q5_1(rows: Floats, columns: Floats) -> tuple[Bytes, Lost]:
    scales, q, lost = _weighted_range(Q5_WEIGHTED, rows, columns)
    return pack_5bit("Q5_1", q, d=scales[:, 0], m=scales[:, 1]), lost


CODECS: Final = MappingProxyType(
    {
        "Q8_0": Codec(half_scales("Q8_0", "d"), decode_q8_0, encode_q8_0, unpacking=Unpacking("d * q", Q8_PARTS)),
        "Q4_0": Codec(
            half_scales("Q4_0", "d"), decode_q4_0, encode_q4_0, weighted_q4_0, Unpacking("d * (q - 8)", Q4_0_PARTS)
        ),
        "Q4_1": Codec(
            half_scales("Q4_1", "d", "m"), decode_q4_1, encode_q4_1, weighted_q4_1, Unpacking("d * q + m", Q4_1_PARTS)
        ),
        "Q5_0": Codec(
            half_scales("Q5_0", "d"), decode_q5_0, encode_q5_0, weighted_q5_0, Unpacking("d * (q - 16)", Q5_0_PARTS)
        ),
        "Q5_1": Codec(
            half_scales("Q5_1", "d", "m"), decode_q5_1, encode_q5_1, weighted_q5_1, Unpacking("d * q + m", Q5_1_PARTS)
        ),
    }
)
