"""ggml's blocks of tables and of few bits in plain numpy: IQ4_NL, MXFP4, NVFP4, Q1_0, Q2_0, TQ1_0, TQ2_0. Bytes equal
to llama.cpp's (ggml-quants.c, b11549, x86-64 build).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from weighbridge.tensors.reference.blocks32 import QK, nibbles, pack_nibbles, running_max, scaled
from weighbridge.tensors.reference.codec import Codec, Parts, Unpacking, half_scales, pack, view
from weighbridge.tensors.reference.floats import (
    Array,
    Bytes,
    Floats,
    Lost,
    half,
    ignore_fp_warnings,
    inverse,
    round_away,
    scale_loss,
    to_half,
    truncate,
    widen,
)

# Elements of a block.
Q1_0_N: Final = 128
Q2_0_N: Final = 64
TQ_N: Final = 256

# IQ4_NL and IQ4_XS (ggml-common.h, kvalues_iq4nl; by Iwan Kawrakow, MIT).
IQ4_VALUES: Final = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
# Twice the values of FP4 E2M1 (OCP MX). ggml's table is of integers: code 8 is 0 and not -0.
FP4_VALUES: Final = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
FP4_TOP: Final = 6  # the largest value of FP4
MXFP4_BIAS: Final = 125  # 127, less the exponent of FP4's largest value
UE4M3_TOP: Final = 0x7E  # 448
UE4M3_SPAN: Final = 0x77  # codes up to here come from rounding; larger values all get the largest code
TQ1_PARTS: Final = ((32, 5), (16, 5), (4, 4))  # (bytes, base-3 digits in each) of a TQ1_0 block


def look_up(values: tuple[int, ...], codes: Array) -> Floats:
    out: Floats = np.array(values, np.float32)[codes]
    return out


def two_bit_codes(codes: Bytes) -> NDArray[np.int32]:
    """[..., bytes] -> [..., 4, bytes] codes of two bits, lowest first."""
    return (codes[..., None, :] >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3).astype(np.int32)


def _iq4_nl_parts(src: Bytes) -> Parts:
    blocks = view("IQ4_NL", src)
    return {"d": half(blocks["d"]), "table": np.array(IQ4_VALUES), "q": nibbles(blocks["qs"])}


def decode_iq4_nl(src: Bytes) -> Floats:
    """x = d * IQ4_VALUES[q]."""
    parts = _iq4_nl_parts(src)
    return scaled(look_up(IQ4_VALUES, parts["q"]), parts["d"])


def magnitude(rows: Floats) -> Floats:
    """The largest magnitude of each block [blocks, 1]; NaN never wins."""
    out: Floats = np.where(np.isnan(rows), np.float32(0), np.abs(rows)).max(axis=1, keepdims=True)
    return out


def nearest_fp4(rows: Floats, d: Floats) -> NDArray[np.int32]:
    """The code nearest to each element under the scale d; the first among equals, and 0 for NaN (best_index_mxfp4)."""
    best, least = np.zeros(rows.shape, np.int32), np.full(rows.shape, np.inf, np.float32)
    with ignore_fp_warnings():
        for code, value in enumerate(FP4_VALUES):
            error = np.abs(np.float32(value) * d - rows)
            best, least = np.where(error < least, code, best), np.where(error < least, error, least)
    return best.astype(np.int32)


def _half_e8m0(e: Bytes) -> Floats:
    """2^(e - 128): the scale is halved since FP4_VALUES are doubled. 255, a NaN in OCP MX, is 2^127, as in ggml."""
    bits = np.where(e < 2, np.uint32(0x00200000) << e.astype(np.uint32), (e.astype(np.uint32) - np.uint32(1)) << 23)
    return bits.astype(np.uint32).view(np.float32)


def _mxfp4_parts(src: Bytes) -> Parts:
    blocks = view("MXFP4", src)
    return {"e": blocks["e"][:, None], "table": np.array(FP4_VALUES), "q": nibbles(blocks["qs"])}


def decode_mxfp4(src: Bytes) -> Floats:
    """x = 2^(e - 128) * FP4_VALUES[q]."""
    parts = _mxfp4_parts(src)
    return scaled(look_up(FP4_VALUES, parts["q"]), _half_e8m0(parts["e"]))


def floor_log2(x: Floats) -> NDArray[np.int32]:
    """floorf(log2f(x)) of finite x > 0: log2f is the rounded logarithm, so the last few floats below a power of two
    have that of the power. (The rounding of f64's log2 is the same for these.)"""
    return np.floor(np.log2(x.astype(np.float64)).astype(np.float32)).astype(np.int32)


def encode_mxfp4(x: Floats) -> tuple[Bytes, Lost]:
    """e = (uint8_t)(floor(log2(max |x|)) - 2 + 127), q the nearest. With C's cast on x86-64, tiny blocks wrap around
    to scales far too large (counted as underflow), and Inf gives 0."""
    rows = x.reshape(-1, QK)
    amax = magnitude(rows)
    finite = (amax > 0) & np.isfinite(amax)
    wide = np.where(finite, floor_log2(np.where(finite, amax, np.float32(1))) + MXFP4_BIAS, 0)
    e = (wide & 255).astype(np.uint8)
    codes = pack_nibbles(nearest_fp4(rows, _half_e8m0(e)))
    return pack("MXFP4", e=e, qs=codes), (0, int((wide < 0).sum()))


def _mxfp4_scales(src: Bytes) -> Floats:
    """The scales by OCP MX: 255 is NaN. No quantizer writes it, so it is worth reporting."""
    return widen("F8_E8M0", np.ascontiguousarray(view("MXFP4", src)["e"]))


def _half_ue4m3(code: Bytes) -> Floats:
    """Half of an E4M3 scale. ggml reads 0x7F as 0 and drops the sign, so that 0xFF is 480 (ggml_ue4m3_to_fp32)."""
    value = widen("F8_E4M3", code & np.uint8(0x7F)) * np.float32(0.5)
    value[code == 0x7F], value[code == 0xFF] = 0, 240
    return value


def _nvfp4_parts(src: Bytes) -> Parts:
    blocks = view("NVFP4", src)
    codes = blocks["qs"].reshape(-1, 4, 8)
    scales = _half_ue4m3(blocks["d"].reshape(-1)).reshape(-1, 4) * np.float32(2)
    q = np.concatenate([codes & 15, codes >> 4], axis=2).reshape(-1, 64)
    return {"scale": scales, "table": np.array(FP4_VALUES), "q": q}


def decode_nvfp4(src: Bytes) -> Floats:
    """By parts of 16: x = scale / 2 * FP4_VALUES[q]."""
    parts = _nvfp4_parts(src)
    values = look_up(FP4_VALUES, parts["q"]).reshape(-1, 16)
    scales: Floats = parts["scale"].reshape(-1, 1)
    return scaled(values, scales / np.float32(2))


def _narrow_ue4m3(x: Floats) -> Bytes:
    """f32 >= 0 to E4M3 as ggml_fp32_to_ue4m3: the first bit that is dropped rounds up; from 248 on all is 448."""
    bits = x.view(np.uint32).astype(np.int64)
    exponent = (bits >> 23) - 120
    denormal = np.minimum(truncate(x * np.float32(512) + np.float32(0.5)), 7)
    normal = (exponent << 3) + (bits >> 20 & 7) + (bits >> 19 & 1)
    normal = np.where(normal > UE4M3_SPAN, UE4M3_TOP, normal)
    return np.where(exponent > 0, normal, denormal).astype(np.uint8)


def encode_nvfp4(x: Floats) -> tuple[Bytes, Lost]:
    """Per 16 elements: scale = max |x| / 6 as E4M3, q the nearest. A scale that becomes zero counts as underflow."""
    parts = x.reshape(-1, 16)
    with ignore_fp_warnings():
        ideal = magnitude(parts) / np.float32(FP4_TOP)
        scale = _narrow_ue4m3(ideal)
    codes = nearest_fp4(parts, _half_ue4m3(scale))
    packed = codes[:, :8] | codes[:, 8:] << 4
    return pack("NVFP4", d=scale, qs=packed), (0, int(((scale == 0) & (ideal != 0)).sum()))


def _nvfp4_scales(src: Bytes) -> Floats:
    """The scales as E4M3: 127 is NaN. No quantizer writes it, so it is worth reporting."""
    return widen("F8_E4M3", view("NVFP4", src)["d"].reshape(-1) & np.uint8(0x7F))


def _q1_0_parts(src: Bytes) -> Parts:
    """Bits, lowest first."""
    blocks = view("Q1_0", src)
    return {"d": half(blocks["d"]), "q": np.unpackbits(blocks["qs"], axis=1, bitorder="little")}


def decode_q1_0(src: Bytes) -> Floats:
    """x = d or -d (of a NaN the sign flips too)."""
    parts = _q1_0_parts(src)
    return np.where(parts["q"], parts["d"], -parts["d"]).astype(np.float32).reshape(-1)


def encode_q1_0(x: Floats) -> tuple[Bytes, Lost]:
    """d = the mean magnitude, summed in order; bit = x >= 0."""
    rows = x.reshape(-1, Q1_0_N)
    with ignore_fp_warnings():
        sums: Floats = np.add.accumulate(np.abs(rows), axis=1, dtype=np.float32)
        d: Floats = sums[:, -1:] / np.float32(Q1_0_N)
    bits = np.packbits(rows >= 0, axis=1, bitorder="little")
    return pack("Q1_0", d=to_half(d), qs=bits), scale_loss(d)


def _q2_0_parts(src: Bytes) -> Parts:
    """Two bits each, lowest first."""
    blocks = view("Q2_0", src)
    return {"d": half(blocks["d"]), "q": two_bit_codes(blocks["qs"]).swapaxes(1, 2).reshape(-1, Q2_0_N)}


def _decode_ternary(parts: Parts) -> Floats:
    return scaled(parts["q"] - 1, parts["d"])


def decode_q2_0(src: Bytes) -> Floats:
    """x = d * (q - 1)."""
    return _decode_ternary(_q2_0_parts(src))


def encode_q2_0(x: Floats) -> tuple[Bytes, Lost]:
    """d = max |x|, q = roundf(x / d) + 1, at least 0: code 3 is never written. NaN gives 0."""
    rows = x.reshape(-1, Q2_0_N)
    d = magnitude(rows)
    with ignore_fp_warnings():
        q = np.maximum(round_away(rows * inverse(d)) + 1, 0).reshape(-1, Q2_0_N // 4, 4)
    codes = (q << np.array([0, 2, 4, 6])).sum(axis=2)
    return pack("Q2_0", d=to_half(d), qs=codes), scale_loss(d)


def _trits(rows: Floats) -> tuple[Floats, NDArray[np.int32]]:
    """(d, codes): d = max |x| (C's MAX: a NaN is taken, and dropped at the next element), -1, 0, 1 -> 0, 1, 2. What
    doesn't fit matters in its low bits only, and these are those of ggml's 64-bit lroundf."""
    with ignore_fp_warnings():
        d = running_max(np.abs(rows)).reshape(-1, 1)
        return d, round_away(rows * inverse(d)) + np.int32(1)


def encode_tq2_0(x: Floats) -> tuple[Bytes, Lost]:
    """Two bits of each code."""
    d, q = _trits(x.reshape(-1, TQ_N))
    shifted = (q.reshape(-1, 2, 4, 32) & 3) << np.array([0, 2, 4, 6])[:, None]
    return pack("TQ2_0", d=to_half(d), qs=shifted.sum(axis=2)), scale_loss(d)


def _tq2_0_parts(src: Bytes) -> Parts:
    """Two runs of 32 bytes with four codes each; a byte's codes belong to every 32nd element."""
    blocks = view("TQ2_0", src)
    return {"d": half(blocks["d"]), "q": two_bit_codes(blocks["qs"].reshape(-1, 2, 32)).reshape(-1, TQ_N)}


def decode_tq2_0(src: Bytes) -> Floats:
    """x = d * (q - 1)."""
    return _decode_ternary(_tq2_0_parts(src))


def _tq1_0_parts(src: Bytes) -> Parts:
    blocks = view("TQ1_0", src)
    return {"d": half(blocks["d"]), "q": trits(blocks)}


def decode_tq1_0(src: Bytes) -> Floats:
    """x = d * (q - 1)."""
    return _decode_ternary(_tq1_0_parts(src))


def trits(blocks: Array) -> NDArray[np.int32]:
    """The digits [n, 256] of TQ1_0 blocks: 32 + 16 bytes of five base-3 digits, 4 of four. A byte is a fraction of 256:
    times three, the carry is the next digit. All bytes of a part give their first digits, then their second."""
    remainders, digits, at = np.concatenate([blocks["qs"], blocks["qh"]], axis=1).astype(np.int32), [], 0
    for count, digits_per_byte in TQ1_PARTS:
        part = remainders[:, at : at + count]
        for k in range(digits_per_byte):
            digits.append((part * 3**k % 256) * 3 >> 8)
        at += count
    return np.concatenate(digits, axis=1)


def encode_tq1_0(x: Floats) -> tuple[Bytes, Lost]:
    """Five digits in a byte, the first the highest, as ceil(q * 256 / 243); C counts in a byte. A fifth digit that
    isn't there is 0."""
    d, q = _trits(x.reshape(-1, TQ_N))
    parts, at = [], 0
    for count, each in TQ1_PARTS:
        digits = q[:, at : at + count * each].reshape(-1, each, count) & 255
        number = (digits * 3 ** np.arange(4, 4 - each, -1)[:, None]).sum(axis=1) & 255
        parts.append(((number * 256 + 242) // 243).astype(np.uint8))
        at += count * each
    *qs, qh = parts
    return pack("TQ1_0", d=to_half(d), qs=np.concatenate(qs, axis=1), qh=qh), scale_loss(d)


CODECS: Final = MappingProxyType(
    {
        "IQ4_NL": Codec(half_scales("IQ4_NL", "d"), decode_iq4_nl, unpacking=Unpacking("d * table[q]", _iq4_nl_parts)),
        "MXFP4": Codec(
            _mxfp4_scales, decode_mxfp4, encode_mxfp4, unpacking=Unpacking("2 ** (e - 128) * table[q]", _mxfp4_parts)
        ),
        "NVFP4": Codec(
            _nvfp4_scales, decode_nvfp4, encode_nvfp4, unpacking=Unpacking("scale / 2 * table[q]", _nvfp4_parts)
        ),
        "Q1_0": Codec(
            half_scales("Q1_0", "d"), decode_q1_0, encode_q1_0, unpacking=Unpacking("d * (2 * q - 1)", _q1_0_parts)
        ),
        "Q2_0": Codec(
            half_scales("Q2_0", "d"), decode_q2_0, encode_q2_0, unpacking=Unpacking("d * (q - 1)", _q2_0_parts)
        ),
        "TQ1_0": Codec(
            half_scales("TQ1_0", "d"), decode_tq1_0, encode_tq1_0, unpacking=Unpacking("d * (q - 1)", _tq1_0_parts)
        ),
        "TQ2_0": Codec(
            half_scales("TQ2_0", "d"), decode_tq2_0, encode_tq2_0, unpacking=Unpacking("d * (q - 1)", _tq2_0_parts)
        ),
    }
)
