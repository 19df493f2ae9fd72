"""ggml's super-blocks of 256 in plain numpy: Q2_K to Q6_K, Q8_K. Floats equal to llama.cpp's dequantize_row_*
(ggml-quants.c, b11549). See `reference.py`; drawings of the blocks are in native/kquants.cpp.

256 elements are 16 or 8 parts with a scale (and a minimum) each, of few bits, and these have one f16 scale together.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

import numpy as np

from weighbridge.tensors.reference import kquants_encode as kencode
from weighbridge.tensors.reference.kquants_encode import unpack_q4_scales
from weighbridge.tensors.reference.lowbit import crumbs
from weighbridge.tensors.reference.simple import Array, Block, Bytes, Floats, aligned, half, half_scales, quiet

QK_K: Final = 256
Q3_SCALE_ZERO: Final = 32
Q3_ZERO: Final = 4
Q6_ZERO: Final = 32


def _scaled(codes: Array, scales: Floats, low: Floats | None = None) -> Floats:
    """codes [blocks, 256] times the scales [blocks, parts], less the minima."""
    parts = codes.reshape(*scales.shape, QK_K // scales.shape[1]).astype(np.float32)
    with quiet():
        out: Floats = parts * scales[..., None]
        if low is not None:
            out = out - low[..., None]
    return out.reshape(-1)


def _products(d: Floats, factors: Array) -> Floats:
    with quiet():
        out: Floats = d * factors.astype(np.float32)
    return out


def decode_q2_k(src: Bytes) -> Floats:
    """[16 x scale, minimum nibbles | 2 x 32 bytes of 2 bits | d | dmin]: x = d * scale * q - dmin * min, by 16."""
    block = src.reshape(-1, 84)
    codes = crumbs(block[:, 16:80].reshape(-1, 2, 32)).reshape(-1, QK_K)
    scales = _products(half(block[:, 80:82]), block[:, :16] & 15)
    return _scaled(codes, scales, _products(half(block[:, 82:]), block[:, :16] >> 4))


def _q3_scales(packed: Bytes) -> Array:
    """16 x 6 bits: nibbles of bytes 0..7 (all low ones first), then two bits more from bytes 8..11, 4 apart."""
    low = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], axis=1)
    scales: Array = (low | crumbs(packed[:, 8:]).reshape(-1, 16) << 4) - Q3_SCALE_ZERO
    return scales


def decode_q3_k(src: Bytes) -> Floats:
    """[32 bytes of third bits | 2 x 32 bytes of 2 bits | 16 x 6-bit scales | d]: x = d * (scale - 32) * (q - 4), by 16.
    Bit i of byte l is the third bit of element l + 32 * i."""
    block = src.reshape(-1, 110)
    low = crumbs(block[:, 32:96].reshape(-1, 2, 32)).reshape(-1, 8, 32)
    high = block[:, None, :32] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    scales = _products(half(block[:, 108:]), _q3_scales(block[:, 96:108]))
    return _scaled(low + (high.astype(np.int32) << 2) - Q3_ZERO, scales)


def _paired_nibbles(codes: Bytes) -> Bytes:
    """[blocks, 128] bytes -> [blocks, 8, 32] codes: 32 bytes are 64 elements, low nibbles first."""
    groups = codes.reshape(-1, 4, 1, 32)
    return np.concatenate([groups & 15, groups >> 4], axis=2).reshape(-1, 8, 32)


def _decode_q45(block: Bytes, codes: Array) -> Floats:
    scales, minima = unpack_q4_scales(block[:, 4:16])
    return _scaled(codes, _products(half(block[:, :2]), scales), _products(half(block[:, 2:4]), minima))


def decode_q4_k(src: Bytes) -> Floats:
    """[d | dmin | 12 bytes of scales | 128 bytes of nibbles]: x = d * scale * q - dmin * min, by 32."""
    block = src.reshape(-1, 144)
    return _decode_q45(block, _paired_nibbles(block[:, 16:]))


def decode_q5_k(src: Bytes) -> Floats:
    """As Q4_K with [32 bytes of fifth bits] before the nibbles: bit p of byte l is for element l of part p."""
    block = src.reshape(-1, 176)
    high = block[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    return _decode_q45(block, _paired_nibbles(block[:, 48:]) | high << 4)


def decode_q6_k(src: Bytes) -> Floats:
    """[128 bytes of nibbles | 64 bytes of 2 bits | 16 x int8 | d]: x = d * scale * (q - 32), by 16. A half of 128 has
    64 bytes of nibbles (all low ones first) and 32 bytes of upper bits."""
    block = src.reshape(-1, 210)
    low = block[:, :128].reshape(-1, 2, 1, 64)
    codes = np.concatenate([low & 15, low >> 4], axis=2).reshape(-1, QK_K).astype(np.int32)
    high = crumbs(block[:, 128:192].reshape(-1, 2, 32)).reshape(-1, QK_K)
    scales = block[:, 192:208].copy().view(np.int8)
    return _scaled((codes | high << 4) - Q6_ZERO, _products(half(block[:, 208:]), scales))


def _q8_k_scales(src: Bytes) -> Floats:
    return aligned(np.ascontiguousarray(src.reshape(-1, 292)[:, :4]).reshape(-1), np.dtype(np.float32))


def decode_q8_k(src: Bytes) -> Floats:
    """[d f32 | 256 x int8 | 16 sums]: x = d * q. ggml's own intermediate."""
    codes = src.reshape(-1, 292)[:, 4:260].copy().view(np.int8)
    return _scaled(codes, _q8_k_scales(src).reshape(-1, 1))


BLOCKS: Final = MappingProxyType(
    {
        "Q2_K": Block(QK_K, 84, half_scales(84, 80, 82), decode_q2_k, kencode.encode_q2_k, kencode.weighted_q2_k),
        "Q3_K": Block(QK_K, 110, half_scales(110, 108), decode_q3_k, kencode.encode_q3_k, kencode.weighted_q3_k),
        "Q4_K": Block(QK_K, 144, half_scales(144, 0, 2), decode_q4_k, kencode.encode_q4_k, kencode.weighted_q4_k),
        "Q5_K": Block(QK_K, 176, half_scales(176, 0, 2), decode_q5_k, kencode.encode_q5_k, kencode.weighted_q5_k),
        "Q6_K": Block(QK_K, 210, half_scales(210, 208), decode_q6_k, kencode.encode_q6_k, kencode.weighted_q6_k),
        "Q8_K": Block(QK_K, 292, _q8_k_scales, decode_q8_k, None),
    }
)
