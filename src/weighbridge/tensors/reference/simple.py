"""The codecs in plain numpy, written to be read: what the native kernels must equal bit for bit, and what runs where
they couldn't be built. Here: plain floats, ggml's simple blocks of 32, MLX; `reference_low`, `reference_k` and
`reference_iq` have ggml's other blocks, and `codecs` all of them in one table.

    BLOCKS[name].decode(bytes) -> float32     BLOCKS[name].encode(float32) -> bytes, lost
    cast(a, b, bytes) -> bytes, lost          affine_decode / affine_encode

All take and give 1-D arrays; bytes are uint8 and may be unaligned. `lost` is (overflow, underflow): finite values that
became Inf or NaN, non-zero ones that became zero; of a block type, of its f16 scales.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Array = NDArray[Any]
# (overflow, underflow), and the first refused block where there is one.
Lost = tuple[int, ...]
Decoder = Callable[[Bytes], Floats]
Encoder = Callable[[Floats], tuple[Bytes, Lost]]
# Rows [rows, columns] and a weight for each column (an importance matrix).
WeightedEncoder = Callable[[Floats, Floats], tuple[Bytes, Lost]]


@contextmanager
def quiet() -> Iterator[None]:
    """Inf and NaN are data here, not accidents."""
    with np.errstate(all="ignore"):
        yield


def _bits(x: Array) -> Array:
    return x.view({2: np.uint16, 4: np.uint32, 8: np.uint64, 1: np.uint8}[x.dtype.itemsize])


def _lost(source: Array, finite: Array, zero: Array) -> Lost:
    return int(np.sum(np.isfinite(source) & ~finite)), int(np.sum((source != 0) & zero))


# ------------------------------------------------------------------ plain floats

# numpy's and ml_dtypes' scalar types; ml_dtypes rounds to nearest even and goes to NaN or Inf beyond the largest.
SCALAR: Final = MappingProxyType(
    {
        "F32": np.dtype(np.float32),
        "F16": np.dtype(np.float16),
        "BF16": np.dtype(ml_dtypes.bfloat16),
        "F64": np.dtype(np.float64),
        "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
        "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
        "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
        "F8_E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
        "F8_E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
    }
)


def aligned(src: Bytes, dtype: np.dtype[Any]) -> Array:
    """The numbers in `src`, copied where they don't lie at an address that numpy can use."""
    address = src.__array_interface__["data"][0]
    return (src if address % dtype.itemsize == 0 else src.copy()).view(dtype)


def round_to_odd(x: NDArray[np.float64]) -> Floats:
    """f64 -> f32, inexact results to the neighbour with an odd last bit. Rounding that to any type at least two bits
    narrower gives the one correct rounding; rounding twice to nearest doesn't (Boldo and Melquiond 2005)."""
    with quiet():
        near = x.astype(np.float32)
        back = near.astype(np.float64)
    bits = near.view(np.uint32)
    wrong = (back != x) & ~np.isnan(x) & (bits & 1 == 0)
    step = np.where(np.abs(back) > np.abs(x), np.uint32(0xFFFFFFFF), np.uint32(1))  # one towards zero, or away
    return (bits + np.where(wrong, step, np.uint32(0))).view(np.float32)


def widen(name: str, src: Bytes) -> Floats:
    """Stored floats as f32. Exact but for f64, which is rounded once. A signalling f16 NaN becomes quiet."""
    values = aligned(src, SCALAR[name])
    with quiet():
        out: Floats = values.astype(np.float32)
    if name == "F16":
        out.view(np.uint32)[np.isnan(out)] |= np.uint32(0x00400000)
    return out


def narrow(name: str, x: Floats) -> Array:
    """f32 as the stored type, nearest even. NaN in f16 and bf16: sign and top of the payload kept, made quiet (IEEE
    754 6.2.3, as the hardware's conversions and ggml do); in the 8-bit ones as ml_dtypes writes it."""
    with quiet():
        out: Array = x.astype(SCALAR[name])
    nan, bits = np.isnan(x), x.view(np.uint32)
    if name == "F16":
        payload = (bits >> 13) & np.uint32(0x03FF)
        _bits(out)[nan] = ((bits >> 16 & np.uint32(0x8000)) | np.uint32(0x7E00) | payload)[nan]
    elif name == "BF16":
        _bits(out)[nan] = ((bits >> 16) | np.uint32(0x0040))[nan]
    return out


def narrowing_loss(source: Array, out: Array) -> Lost:
    """What a cast from `source` to `out` lost."""
    with quiet():
        wide = out if out.dtype == np.float64 else out.astype(np.float32)
        return _lost(source, np.isfinite(wide), wide == 0)


def cast(source: str, target: str, src: Bytes) -> tuple[Bytes, Lost]:
    """Bytes of one float type as bytes of another, each value rounded once; the same type is copied bit for bit."""
    if source == target:
        return src.copy(), (0, 0)
    values = aligned(src, SCALAR[source])
    if target == "F64":
        with quiet():
            return widen(source, src).astype(np.float64).view(np.uint8), (0, 0)
    middle = round_to_odd(values) if source == "F64" and target != "F32" else widen(source, src)
    out = middle if target == "F32" else narrow(target, middle)
    original = values if source == "F64" else middle
    return out.view(np.uint8), narrowing_loss(original, out)


def plain_decoder(name: str) -> Decoder:
    return lambda src: widen(name, src)


def plain_encoder(name: str) -> Encoder:
    return lambda x: cast("F32", name, x.view(np.uint8))


# ------------------------------------------------------------------ ggml blocks of 32
#
# Bytes equal to llama.cpp's quantize_row_*_ref and dequantize_row_* (ggml-quants.c, b11549, x86-64 build).

QK: Final = 32  # elements in a block
Q8_TOP: Final = 127  # codes of Q8_0 are -127..127
Q4_LOW: Final = -8  # codes of Q4_0 are -8..7: the element of largest magnitude becomes -8
Q4_ROUND: Final = 8.5  # the shift by 8 and the half that makes truncation a rounding
Q4_TOP: Final = 15  # the largest 4-bit code
Q4_1_ROUND: Final = 0.5
Q5_LOW: Final = -16
Q5_ROUND: Final = 16.5
Q5_TOP: Final = 31
NIBBLE: Final = 4


def half(columns: Bytes) -> Floats:
    """An f16 column of a block matrix as f32 [blocks, 1]."""
    return widen("F16", np.ascontiguousarray(columns).reshape(-1)).reshape(-1, 1)


def half_bits(x: Floats) -> Bytes:
    """f16 scales [blocks, 1] as bytes [blocks, 2]; every NaN is 0x7E00 and the sign (ggml_compute_fp32_to_fp16)."""
    h = narrow("F16", x).view(np.uint16)
    h = np.where(np.isnan(x), h & np.uint16(0x8000) | np.uint16(0x7E00), h)
    return h.astype(np.uint16).view(np.uint8).reshape(-1, 2)


def scale_loss(scales: Floats) -> Lost:
    return narrowing_loss(scales, narrow("F16", scales))


def truncate(x: Floats) -> NDArray[np.int32]:
    """float -> int32 as x86 does it: towards zero; NaN and what doesn't fit are INT_MIN (C leaves them undefined)."""
    with quiet():
        return np.where(np.abs(x) < np.float32(2**31), x, np.float32(-(2**31))).astype(np.int32)


def round_away(x: Floats) -> NDArray[np.int32]:
    """roundf: halves away from zero. The largest float below 0.5 is added, so that 0.49999997 stays below 1."""
    with quiet():
        return truncate(x + np.copysign(np.nextafter(np.float32(0.5), np.float32(0)), x))


def inverse(d: Floats) -> Floats:
    """1 / d, or 0 where d is 0."""
    with quiet():
        return np.where(d != 0, np.float32(1) / d, np.float32(0)).astype(np.float32)


def nibbles(codes: Bytes) -> NDArray[np.int32]:
    """[blocks, 16] bytes -> [blocks, 32] codes: low nibbles are elements 0..15, high ones 16..31."""
    return np.concatenate([codes & 15, codes >> NIBBLE], axis=1).astype(np.int32)


def pack_nibbles(codes: NDArray[np.int32]) -> Bytes:
    """The way back. C stores the low code unmasked; out-of-range codes (from NaN) reach the high nibble there too."""
    low, high = codes[:, : QK // 2], codes[:, QK // 2 :]
    return ((low | high << NIBBLE) & 255).astype(np.uint8)


def int8(x: NDArray[np.int32]) -> NDArray[np.int32]:
    """The C cast (int8_t): the low byte, sign extended."""
    return x.astype(np.int8).astype(np.int32)


def decode_q8_0(src: Bytes) -> Floats:
    """[d f16 | 32 x int8]: x = d * q."""
    block = src.reshape(-1, 34)
    with quiet():
        out: Floats = block[:, 2:].view(np.int8).astype(np.float32) * half(block[:, :2])
    return out.reshape(-1)


def encode_q8_0(x: Floats) -> tuple[Bytes, Lost]:
    """d = max |x| / 127, q = roundf(x / d); the division is by the unrounded d, stored is its f16."""
    rows = x.reshape(-1, QK)
    with quiet():
        d = (running_max(np.abs(rows)) / np.float32(Q8_TOP)).reshape(-1, 1)
        q = round_away(rows * inverse(d)) & 255
    return np.concatenate([half_bits(d), q.astype(np.uint8)], axis=1).reshape(-1), scale_loss(d)


def running_max(a: Floats) -> Floats:
    """C's `amax = amax > a ? amax : a` over a block: a NaN is taken, and dropped again at the next element."""
    best = np.zeros(len(a), np.float32)
    for column in a.T:
        best = np.where(best > column, best, column)
    return best


def decode_q4_0(src: Bytes) -> Floats:
    """[d f16 | 16 bytes of two nibbles]: x = d * (q - 8)."""
    block = src.reshape(-1, 18)
    with quiet():
        out: Floats = (nibbles(block[:, 2:]) + Q4_LOW).astype(np.float32) * half(block[:, :2])
    return out.reshape(-1)


def first(rows: Floats, at: NDArray[np.intp]) -> Floats:
    """The element of every block that a search found. As in C, the first of equals (-0 and 0 are equal)."""
    return np.take_along_axis(rows, at[:, None], axis=1)


def extreme(rows: Floats) -> Floats:
    """The first element of largest magnitude, with its sign; NaN never wins."""
    with quiet():
        best = first(rows, np.argmax(np.where(np.isnan(rows), np.float32(-1), np.abs(rows)), axis=1))
    return np.where(np.abs(best) > 0, best, np.float32(0)).astype(np.float32)


def encode_q4_0(x: Floats) -> tuple[Bytes, Lost]:
    """d = extreme / -8, q = min(15, trunc(x / d + 8.5))."""
    rows = x.reshape(-1, QK)
    with quiet():
        d = extreme(rows) / np.float32(Q4_LOW)
        q = np.minimum(int8(truncate(rows * inverse(d) + np.float32(Q4_ROUND))), Q4_TOP)
    return np.concatenate([half_bits(d), pack_nibbles(q)], axis=1).reshape(-1), scale_loss(d)


def decode_q4_1(src: Bytes) -> Floats:
    """[d f16 | m f16 | 16 bytes of two nibbles]: x = d * q + m."""
    block = src.reshape(-1, 20)
    with quiet():
        out: Floats = nibbles(block[:, 4:]).astype(np.float32) * half(block[:, :2]) + half(block[:, 2:4])
    return out.reshape(-1)


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
    with quiet():
        low, high = _range(rows)
        d = (high - low) / np.float32(Q4_TOP)
        q = np.minimum(int8(truncate((rows - low) * inverse(d) + np.float32(Q4_1_ROUND))), Q4_TOP)
    scales = np.concatenate([d, low], axis=1)
    return np.concatenate([half_bits(d), half_bits(low), pack_nibbles(q)], axis=1).reshape(-1), scale_loss(scales)


def fifth_bits(codes: Bytes) -> NDArray[np.int32]:
    """[blocks, 4] bytes -> [blocks, 32] bits, each worth 16: bit j belongs to element j."""
    return np.unpackbits(codes, axis=1, bitorder="little").astype(np.int32) << NIBBLE


def pack_5bit(codes: NDArray[np.int32]) -> Bytes:
    high = np.packbits((codes >> NIBBLE & 1).astype(np.uint8), axis=1, bitorder="little")
    return np.concatenate([high, pack_nibbles(codes & Q4_TOP)], axis=1)


def decode_q5_0(src: Bytes) -> Floats:
    """[d f16 | 32 fifth bits | 16 bytes of two nibbles]: x = d * (q - 16)."""
    block = src.reshape(-1, 22)
    codes = nibbles(block[:, 6:]) + fifth_bits(block[:, 2:6]) + Q5_LOW
    with quiet():
        out: Floats = codes.astype(np.float32) * half(block[:, :2])
    return out.reshape(-1)


def encode_q5_0(x: Floats) -> tuple[Bytes, Lost]:
    """d = extreme / -16, q = min(31, trunc(x / d + 16.5))."""
    rows = x.reshape(-1, QK)
    with quiet():
        d = extreme(rows) / np.float32(Q5_LOW)
        q = np.minimum(int8(truncate(rows * inverse(d) + np.float32(Q5_ROUND))), Q5_TOP)
    return np.concatenate([half_bits(d), pack_5bit(q)], axis=1).reshape(-1), scale_loss(d)


def decode_q5_1(src: Bytes) -> Floats:
    """[d f16 | m f16 | 32 fifth bits | 16 bytes of two nibbles]: x = d * q + m."""
    block = src.reshape(-1, 24)
    codes = nibbles(block[:, 8:]) + fifth_bits(block[:, 4:8])
    with quiet():
        out: Floats = codes.astype(np.float32) * half(block[:, :2]) + half(block[:, 2:4])
    return out.reshape(-1)


def encode_q5_1(x: Floats) -> tuple[Bytes, Lost]:
    """m = min, d = (max - min) / 31, q = the low five bits of trunc((x - m) / d + 0.5): here nothing limits q."""
    rows = x.reshape(-1, QK)
    with quiet():
        low, high = _range(rows)
        d = (high - low) / np.float32(Q5_TOP)
        q = truncate((rows - low) * inverse(d) + np.float32(Q4_1_ROUND))
    scales = np.concatenate([d, low], axis=1)
    return np.concatenate([half_bits(d), half_bits(low), pack_5bit(q)], axis=1).reshape(-1), scale_loss(scales)


class Block(NamedTuple):
    """A block type: its elements and bytes, its scales as f32, and the ways (None: there is none). `weighted` is None
    where an importance matrix means nothing to a type, `encode` where it can't be written without one."""

    elements: int
    size: int
    scales: Decoder
    decode: Decoder
    encode: Encoder | None
    weighted: WeightedEncoder | None = None


def half_scales(size: int, *at: int) -> Decoder:
    """The f16 scales at these places of a block, block by block."""
    columns = np.array([place + k for place in at for k in (0, 1)])
    return lambda src: widen("F16", np.ascontiguousarray(src.reshape(-1, size)[:, columns]).reshape(-1))


BLOCKS: Final = MappingProxyType(
    {
        "Q8_0": Block(QK, 34, half_scales(34, 0), decode_q8_0, encode_q8_0),
        "Q4_0": Block(QK, 18, half_scales(18, 0), decode_q4_0, encode_q4_0),
        "Q4_1": Block(QK, 20, half_scales(20, 0, 2), decode_q4_1, encode_q4_1),
        "Q5_0": Block(QK, 22, half_scales(22, 0), decode_q5_0, encode_q5_0),
        "Q5_1": Block(QK, 24, half_scales(24, 0, 2), decode_q5_1, encode_q5_1),
    }
)


# ------------------------------------------------------------------ MLX affine
#
# Codes are one little-endian bit stream along the last axis (mlx/backend/cpu/quantized.cpp).

AFFINE_BITS: Final = (2, 3, 4, 5, 6, 8)
AFFINE_GROUPS: Final = (32, 64, 128)
AFFINE_EPS: Final = 1e-7  # the least scale


def unpack_codes(bits: int, src: Bytes) -> Bytes:
    """Codes of `bits` bits from a little-endian bit stream: element i has bits [i * bits, i * bits + bits)."""
    stream = np.unpackbits(src, bitorder="little").reshape(-1, bits)
    codes: Bytes = (stream << np.arange(bits, dtype=np.uint8)).sum(axis=1, dtype=np.uint8)
    return codes


def pack_codes(bits: int, codes: Bytes) -> Bytes:
    """The way back; the number of codes is a multiple of 8."""
    stream = (codes[:, None] >> np.arange(bits, dtype=np.uint8)) & 1
    return np.packbits(stream, bitorder="little")


def affine_decode(
    bits: int, group: int, dtype: str, codes: Bytes, scales: Bytes, offsets: Bytes, zeros: bool = False
) -> Floats:
    """code * scale + bias, or (code - zero) * scale, in f32, one rounding a step. (The libraries compute in the type of
    the scales.)"""
    values = unpack_codes(bits, codes).reshape(-1, group).astype(np.float32)
    scale = widen(dtype, scales)[:, None]
    with quiet():
        if zeros:
            out: Floats = (values - offsets.astype(np.float32)[:, None]) * scale
        else:
            out = values * scale + widen(dtype, offsets)[:, None]
    return out.reshape(-1)


def ordered_decode(codes: Bytes, scales: Floats, zeros: Bytes, index: NDArray[np.int32], rows: int) -> Floats:
    """(code - zero) * scale, column i of group index[i]."""
    out = codes.reshape(rows, -1)[:, : index.size].astype(np.float32)
    with quiet():
        out -= zeros.reshape(rows, -1)[:, index]
        out *= scales.reshape(rows, -1)[:, index]
    return out.reshape(-1)


def table_decode(table: Floats, group: int, codes: Bytes, scales: Floats, high_first: bool) -> Floats:
    """table[code] * scale; two codes a byte."""
    nibbles_ = (codes >> NIBBLE, codes & 15) if high_first else (codes & 15, codes >> NIBBLE)
    with quiet():
        out: Floats = table[np.stack(nibbles_, axis=1).reshape(-1, group)] * scales[:, None]
    return out.reshape(-1)


def affine_encode(bits: int, group: int, dtype: str, x: Floats) -> tuple[Bytes, Bytes, Bytes]:
    """(weight, scales, biases) as MLX's CPU kernel 0.32 makes them; GPU kernels round ties otherwise. Scale and bias
    are stored in `dtype`; the codes come from them before that rounding."""
    rows, top, eps = x.reshape(-1, group), np.float32(2**bits - 1), np.float32(AFFINE_EPS)
    with quiet():
        high, low = np.fmax.reduce(rows, axis=1, keepdims=True), np.fmin.reduce(rows, axis=1, keepdims=True)
        negative = np.abs(low) > np.abs(high)
        scale = np.maximum((high - low) / top, eps)
        scale = np.where(negative, scale, -scale)
        edge = np.where(negative, low, high)  # the end of larger magnitude is represented exactly
        steps = np.rint(edge / scale)
        scale = np.where(steps != 0, edge / steps, scale)
        bias = np.where(steps != 0, edge, np.float32(0))
        codes = np.clip(np.rint((rows - bias) / scale), 0, top).astype(np.uint8)
    scales, biases = narrow(dtype, scale.reshape(-1)), narrow(dtype, bias.reshape(-1))
    return pack_codes(bits, codes.reshape(-1)), scales.view(np.uint8), biases.view(np.uint8)
