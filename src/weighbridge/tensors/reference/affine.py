"""Integer codes with a scale and an offset per group, in numpy: MLX's affine scheme, codes that index a table, and
groups in any order. Codes are one little-endian bit stream along the last axis (mlx/backend/cpu/quantized.cpp).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from weighbridge.tensors.reference.floats import Bytes, Floats, ignore_fp_warnings, narrow, widen

AFFINE_BITS: Final = (2, 3, 4, 5, 6, 8)
AFFINE_GROUPS: Final = (32, 64, 128)
AFFINE_EPS: Final = 1e-7  # the least scale


def unpack_codes(bits: int, src: Bytes) -> Bytes:
    """Codes of `bits` bits from a little-endian bit stream: element i has bits [i * bits, i * bits + bits)."""
    stream = np.unpackbits(src, bitorder="little").reshape(-1, bits)
    codes: Bytes = (stream << np.arange(bits, dtype=np.uint8)).sum(axis=1, dtype=np.uint8)
    return codes


def pack_codes(bits: int, codes: Bytes) -> Bytes:
    """The inverse; the number of codes is a multiple of 8."""
    stream = (codes[:, None] >> np.arange(bits, dtype=np.uint8)) & 1
    return np.packbits(stream, bitorder="little")


def affine_decode(
    bits: int, group: int, dtype: str, codes: Bytes, scales: Bytes, offsets: Bytes, zeros: bool = False
) -> Floats:
    """code * scale + bias, or (code - zero) * scale, in f32, one rounding a step. (The libraries compute in the type of
    the scales.)"""
    values = unpack_codes(bits, codes).reshape(-1, group).astype(np.float32)
    scale = widen(dtype, scales)[:, None]
    with ignore_fp_warnings():
        if zeros:
            out: Floats = (values - offsets.astype(np.float32)[:, None]) * scale
        else:
            out = values * scale + widen(dtype, offsets)[:, None]
    return out.reshape(-1)


def ordered_decode(codes: Bytes, scales: Floats, zeros: Bytes, index: NDArray[np.int32], rows: int) -> Floats:
    """(code - zero) * scale, column i of group index[i]."""
    out = codes.reshape(rows, -1)[:, : index.size].astype(np.float32)
    with ignore_fp_warnings():
        out -= zeros.reshape(rows, -1)[:, index]
        out *= scales.reshape(rows, -1)[:, index]
    return out.reshape(-1)


def table_decode(table: Floats, group: int, codes: Bytes, scales: Floats, high_first: bool) -> Floats:
    """table[code] * scale; two codes a byte."""
    nibbles_ = (codes >> 4, codes & 15) if high_first else (codes & 15, codes >> 4)
    with ignore_fp_warnings():
        out: Floats = table[np.stack(nibbles_, axis=1).reshape(-1, group)] * scales[:, None]
    return out.reshape(-1)


def affine_encode(bits: int, group: int, dtype: str, x: Floats) -> tuple[Bytes, Bytes, Bytes]:
    """(weight, scales, biases) as MLX's CPU kernel 0.32 makes them; GPU kernels round ties differently. Scale and bias
    are stored in `dtype`; the codes come from them before that rounding."""
    rows, top, eps = x.reshape(-1, group), np.float32(2**bits - 1), np.float32(AFFINE_EPS)
    with ignore_fp_warnings():
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
