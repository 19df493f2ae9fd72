"""ggml's super-blocks of 256 in plain numpy: Q2_K to Q6_K, Q8_K. Floats equal to llama.cpp's dequantize_row_*
(ggml-quants.c, b11549). docs/block-types.md draws the blocks.

256 elements are 16 or 8 parts with a scale (and a minimum) each, of few bits, and these have one f16 scale together.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

import numpy as np

from weighbridge.tensors.reference import kquants_encode
from weighbridge.tensors.reference.codec import Codec, Parts, Unpacking, half_scales, view
from weighbridge.tensors.reference.floats import Array, Bytes, Floats, half, ignore_fp_warnings
from weighbridge.tensors.reference.kquants_encode import unpack_q4_scales
from weighbridge.tensors.reference.lowbit import two_bit_codes

QK_K: Final = 256
Q3_SCALE_ZERO: Final = 32
Q3_ZERO: Final = 4
Q6_ZERO: Final = 32


def _scaled(codes: Array, scales: Floats, low: Floats | None = None) -> Floats:
    """codes [blocks, 256] times the scales [blocks, parts], less the minima."""
    parts = codes.reshape(*scales.shape, QK_K // scales.shape[1]).astype(np.float32)
    with ignore_fp_warnings():
        out: Floats = parts * scales[..., None]
        if low is not None:
            out = out - low[..., None]
    return out.reshape(-1)


def _products(d: Floats, factors: Array) -> Floats:
    with ignore_fp_warnings():
        out: Floats = d * factors.astype(np.float32)
    return out


def _q2_k_parts(src: Bytes) -> Parts:
    """Low nibbles of `scales` are scales, high ones minima."""
    blocks = view("Q2_K", src)
    return {
        "d": half(blocks["d"]),
        "dmin": half(blocks["dmin"]),
        "scale": blocks["scales"] & 15,
        "minimum": blocks["scales"] >> 4,
        "q": two_bit_codes(blocks["qs"].reshape(-1, 2, 32)).reshape(-1, QK_K),
    }


def _decode_with_minimum(parts: Parts) -> Floats:
    return _scaled(parts["q"], _products(parts["d"], parts["scale"]), _products(parts["dmin"], parts["minimum"]))


def decode_q2_k(src: Bytes) -> Floats:
    """x = d * scale * q - dmin * minimum, by 16."""
    return _decode_with_minimum(_q2_k_parts(src))


def _q3_k_parts(src: Bytes) -> Parts:
    """Bit i of byte l of `hmask` is the third bit of element l + 32 * i."""
    blocks = view("Q3_K", src)
    low = two_bit_codes(blocks["qs"].reshape(-1, 2, 32)).reshape(-1, 8, 32)
    high = blocks["hmask"][:, None] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    codes = (low | high.astype(np.int32) << 2).reshape(-1, QK_K)
    # 16 x 6 bits: nibbles of bytes 0..7 (all low ones first), and two more bits from bytes 8..11: one has those of
    # every fourth scale.
    packed = blocks["scales"]
    low = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], axis=1)
    scales: Array = low | two_bit_codes(packed[:, 8:]).reshape(-1, 16) << 4
    return {"d": half(blocks["d"]), "scale": scales, "q": codes}


def decode_q3_k(src: Bytes) -> Floats:
    """x = d * (scale - 32) * (q - 4), by 16."""
    parts = _q3_k_parts(src)
    return _scaled(parts["q"] - Q3_ZERO, _products(parts["d"], parts["scale"] - Q3_SCALE_ZERO))


def _paired_nibbles(codes: Bytes) -> Bytes:
    """[blocks, 128] bytes -> [blocks, 8, 32] codes: 32 bytes are 64 elements, low nibbles first."""
    groups = codes.reshape(-1, 4, 1, 32)
    return np.concatenate([groups & 15, groups >> 4], axis=2).reshape(-1, 8, 32)


def _q45_parts(blocks: Array, codes: Array) -> Parts:
    scales, minima = unpack_q4_scales(blocks["scales"])
    d, dmin = half(blocks["d"]), half(blocks["dmin"])
    return {"d": d, "dmin": dmin, "scale": scales, "minimum": minima, "q": codes.reshape(-1, QK_K)}


def _q4_k_parts(src: Bytes) -> Parts:
    blocks = view("Q4_K", src)
    return _q45_parts(blocks, _paired_nibbles(blocks["qs"]))


def decode_q4_k(src: Bytes) -> Floats:
    """x = d * scale * q - dmin * minimum, by 32."""
    return _decode_with_minimum(_q4_k_parts(src))


def _q5_k_parts(src: Bytes) -> Parts:
    """Bit p of byte l of `qh` is the fifth bit of element l of sub-block p."""
    blocks = view("Q5_K", src)
    high = blocks["qh"][:, None] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    return _q45_parts(blocks, _paired_nibbles(blocks["qs"]) | high << 4)


def decode_q5_k(src: Bytes) -> Floats:
    """As Q4_K, with codes of five bits."""
    return _decode_with_minimum(_q5_k_parts(src))


def _q6_k_parts(src: Bytes) -> Parts:
    """A half of 128 has 64 bytes of nibbles (all low ones first) and 32 bytes of upper bits."""
    blocks = view("Q6_K", src)
    low = blocks["ql"].reshape(-1, 2, 1, 64)
    codes = np.concatenate([low & 15, low >> 4], axis=2).reshape(-1, QK_K).astype(np.int32)
    high = two_bit_codes(blocks["qh"].reshape(-1, 2, 32)).reshape(-1, QK_K)
    return {"d": half(blocks["d"]), "scale": blocks["scales"], "q": codes | high << 4}


def decode_q6_k(src: Bytes) -> Floats:
    """x = d * scale * (q - 32), by 16."""
    parts = _q6_k_parts(src)
    return _scaled(parts["q"] - Q6_ZERO, _products(parts["d"], parts["scale"]))


def _q8_k_parts(src: Bytes) -> Parts:
    return {"d": _q8_k_scales(src).reshape(-1, 1), "q": view("Q8_K", src)["qs"]}


def _q8_k_scales(src: Bytes) -> Floats:
    return np.ascontiguousarray(view("Q8_K", src)["d"])


def decode_q8_k(src: Bytes) -> Floats:
    """x = d * q. ggml's own intermediate."""
    parts = _q8_k_parts(src)
    return _scaled(parts["q"], parts["d"])


_WITH_MINIMUM: Final = "d * scale * q - dmin * minimum"

CODECS: Final = MappingProxyType(
    {
        "Q2_K": Codec(
            half_scales("Q2_K", "d", "dmin"), decode_q2_k, kquants_encode.encode_q2_k, kquants_encode.weighted_q2_k,
            Unpacking(_WITH_MINIMUM, _q2_k_parts),
        ),
        "Q3_K": Codec(
            half_scales("Q3_K", "d"), decode_q3_k, kquants_encode.encode_q3_k, kquants_encode.weighted_q3_k,
            Unpacking("d * (scale - 32) * (q - 4)", _q3_k_parts),
        ),
        "Q4_K": Codec(
            half_scales("Q4_K", "d", "dmin"), decode_q4_k, kquants_encode.encode_q4_k, kquants_encode.weighted_q4_k,
            Unpacking(_WITH_MINIMUM, _q4_k_parts),
        ),
        "Q5_K": Codec(
            half_scales("Q5_K", "d", "dmin"), decode_q5_k, kquants_encode.encode_q5_k, kquants_encode.weighted_q5_k,
            Unpacking(_WITH_MINIMUM, _q5_k_parts),
        ),
        "Q6_K": Codec(
            half_scales("Q6_K", "d"), decode_q6_k, kquants_encode.encode_q6_k, kquants_encode.weighted_q6_k,
            Unpacking("d * scale * (q - 32)", _q6_k_parts),
        ),
        "Q8_K": Codec(_q8_k_scales, decode_q8_k, unpacking=Unpacking("d * q", _q8_k_parts)),
    }
)  # fmt: skip
