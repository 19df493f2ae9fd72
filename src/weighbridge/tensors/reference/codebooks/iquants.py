"""ggml's super-blocks over codebooks in plain numpy: IQ1_S to IQ4_XS. Floats equal to llama.cpp's dequantize_row_*
(ggml-quants.c, b11549).

A code names a point of a codebook (`grids.py`): the magnitudes of eight neighbours (of four in IQ3). Their signs are
eight bits more, or seven, the eighth then making an even number of minuses. 32 elements (a run) go together.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

import numpy as np

from weighbridge.tensors.reference.codebooks.grids import grid
from weighbridge.tensors.reference.codec import Codec, Parts, Unpacking, half_scales, view
from weighbridge.tensors.reference.floats import Array, Bytes, Floats, half, ignore_fp_warnings, widen
from weighbridge.tensors.reference.lowbit import IQ4_VALUES, look_up

QK_K: Final = 256
RUNS: Final = 8  # of 32 elements
IQ1_DELTA: Final = 0.125
SCALE_SHIFT: Final = 0.5  # IQ2, IQ3_XXS: scales are odd multiples of a half
IQ2_SCALE: Final = 0.25
IQ3_SCALE: Final = 0.5
IQ4_SCALE_ZERO: Final = 32
PARITIES: Final = 0x6996  # bit n: whether n, of four bits, has an odd number of ones
CODE_BITS: Final = 9  # IQ2_XS: of the code; the signs are above


def _even(seven: Array) -> Bytes:
    """Seven signs and the eighth that makes their number even."""
    folded = seven ^ seven >> 4
    signs: Bytes = (seven | (PARITIES >> (folded & 15) & 1) << 7).astype(np.uint8)
    return signs


def _four_signs(words: Array) -> Bytes:
    """[blocks, runs] words -> [blocks, runs, 4] bytes of signs, from four times seven bits."""
    return _even(words[..., None] >> np.array([0, 7, 14, 21], np.uint32) & 127)


def _nibbles(packed: Bytes) -> Array:
    """[blocks, n] bytes -> [blocks, 2 n] nibbles, the low one first."""
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), 2 * packed.shape[-1])


def _odd_scale(d: Floats, parts: Array, factor: float) -> Floats:
    with ignore_fp_warnings():
        out: Floats = d * (np.float32(SCALE_SHIFT) + parts.astype(np.float32)) * np.float32(factor)
    return out


def _codebook_parts(name: str, d: Floats, scales: Array, codes: Array, signs: Bytes) -> Parts:
    """`code`: the point's number in the codebook `name`; `point`: its coordinates; `sign`: 1 or -1."""
    minus = np.unpackbits(signs.reshape(-1), bitorder="little").reshape(-1, QK_K)
    book = grid(name)
    flat = codes.reshape(-1, QK_K // book.shape[1])
    points = book[flat].reshape(-1, QK_K)
    return {"d": d, "scale": scales, "code": flat, "sign": 1 - 2 * minus.astype(np.int8), "point": points}


def _signed(parts: Parts, scales: Floats) -> Floats:
    """scale * magnitude * sign. The sign of a NaN flips too: ggml multiplies by -1, which compilers turn into a
    negation."""
    values = _by_parts(parts["point"], scales)
    return np.where(parts["sign"] < 0, -values, values).reshape(-1)


def _by_parts(values: Array, scales: Floats) -> Floats:
    with ignore_fp_warnings():
        parts = values.reshape(*scales.shape, QK_K // scales.shape[1]).astype(np.float32)
        out: Floats = scales[..., None] * parts
    return out.reshape(-1, QK_K)


def _iq2_xxs_parts(src: Bytes) -> Parts:
    """A run is four codes of 8 bits and a u32 of 4 x 7 signs and 4 bits of scale."""
    blocks = view("IQ2_XXS", src)
    runs = blocks["qs"].reshape(-1, RUNS, 8)
    packed = np.ascontiguousarray(runs[..., 4:]).view("<u4")[..., 0]
    return _codebook_parts("IQ2_XXS", half(blocks["d"]), packed >> 28, runs[..., :4], _four_signs(packed))


def _decode_iq2(parts: Parts) -> Floats:
    return _signed(parts, _odd_scale(parts["d"], parts["scale"], IQ2_SCALE))


def decode_iq2_xxs(src: Bytes) -> Floats:
    """x = d (0.5 + scale) / 4 * point, by 32."""
    return _decode_iq2(_iq2_xxs_parts(src))


def _iq2_xs_parts(src: Bytes) -> Parts:
    """A word is a code of 9 bits and 7 signs; a nibble the scale of 16 elements."""
    blocks = view("IQ2_XS", src)
    words = blocks["qs"].astype(np.uint32)
    codes, signs = words & (2**CODE_BITS - 1), _even(words >> CODE_BITS)
    return _codebook_parts("IQ2_XS", half(blocks["d"]), _nibbles(blocks["scales"]), codes, signs)


def decode_iq2_xs(src: Bytes) -> Floats:
    """As IQ2_XXS, by 16."""
    return _decode_iq2(_iq2_xs_parts(src))


def _with_upper(low: Bytes, upper: Bytes, bits: int) -> Array:
    """Codes [blocks, n] of eight low bits, and above them `bits` bits each from the bytes of `upper`, lowest first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    high = (upper[..., None] >> shifts & (2**bits - 1)).reshape(low.shape)
    codes: Array = low | high.astype(np.uint32) << 8
    return codes


def _iq2_s_parts(src: Bytes) -> Parts:
    """`qh` has two upper bits of each code."""
    blocks = view("IQ2_S", src)
    codes = _with_upper(blocks["qs"], blocks["qh"], 2)
    return _codebook_parts("IQ2_S", half(blocks["d"]), _nibbles(blocks["scales"]), codes, blocks["signs"])


def decode_iq2_s(src: Bytes) -> Floats:
    """As IQ2_XXS, by 16."""
    return _decode_iq2(_iq2_s_parts(src))


def _iq3_xxs_parts(src: Bytes) -> Parts:
    """`signs` as the words of IQ2_XXS."""
    blocks = view("IQ3_XXS", src)
    packed = blocks["signs"].astype(np.uint32)
    return _codebook_parts("IQ3_XXS", half(blocks["d"]), packed >> 28, blocks["qs"], _four_signs(packed))


def decode_iq3_xxs(src: Bytes) -> Floats:
    """x = d (0.5 + scale) / 2 * point, by 32."""
    parts = _iq3_xxs_parts(src)
    return _signed(parts, _odd_scale(parts["d"], parts["scale"], IQ3_SCALE))


def _iq3_s_parts(src: Bytes) -> Parts:
    """`qh` has an upper bit of each code."""
    blocks = view("IQ3_S", src)
    codes = _with_upper(blocks["qs"], blocks["qh"], 1)
    return _codebook_parts("IQ3_S", half(blocks["d"]), _nibbles(blocks["scales"]), codes, blocks["signs"])


def decode_iq3_s(src: Bytes) -> Floats:
    """x = d (1 + 2 scale) * point, by 32."""
    parts = _iq3_s_parts(src)
    with ignore_fp_warnings():
        scales = parts["d"] * (1 + 2 * parts["scale"].astype(np.int32)).astype(np.float32)
    return _signed(parts, scales)


def _ternary_parts(codes: Array, minus: Array, d: Floats, scales: Array) -> Parts:
    """`minus` for each point: whether delta is negative."""
    delta = np.where(minus, -np.float32(IQ1_DELTA), np.float32(IQ1_DELTA))
    points = grid("IQ1_S")[codes].reshape(-1, QK_K)
    return {"d": d, "scale": scales, "code": codes, "point": points, "delta": delta}


def _decode_iq1(parts: Parts) -> Floats:
    """x = d (2 scale + 1) * (point + delta)."""
    values = parts["point"].reshape(*parts["delta"].shape, 8) + parts["delta"][..., None]
    with ignore_fp_warnings():
        return _by_parts(values, parts["d"] * (2 * parts["scale"] + 1).astype(np.float32)).reshape(-1)


def _iq1_s_parts(src: Bytes) -> Parts:
    """A word of `qh`: 4 x 3 upper bits of a run's codes, 3 bits of scale, the sign of delta."""
    blocks = view("IQ1_S", src)
    packed = blocks["qh"].astype(np.uint32)
    high = packed[..., None] >> np.array([0, 3, 6, 9], np.uint32) & 7
    codes = blocks["qs"] | high.reshape(-1, 32) << 8
    return _ternary_parts(codes, np.repeat(packed >> 15, 4, axis=1), half(blocks["d"]), packed >> 12 & 7)


def decode_iq1_s(src: Bytes) -> Floats:
    """x = d (2 scale + 1) * (point + delta), by 32."""
    return _decode_iq1(_iq1_s_parts(src))


def _iq1_m_scales(src: Bytes) -> Floats:
    """d: four bits each on top of the four words of scales, the lowest first."""
    tops = view("IQ1_M", src)["scales"].astype(np.uint32) >> 12
    return widen("F16", (tops << np.array([0, 4, 8, 12], np.uint32)).sum(axis=1).astype(np.uint16).view(np.uint8))


def _iq1_m_parts(src: Bytes) -> Parts:
    """Nibbles of `qh`: 3 upper bits of a code and the sign of delta; words of `scales`: 4 x 3 bits, for 16 each."""
    blocks = view("IQ1_M", src)
    packed = _nibbles(blocks["qh"])
    scales = blocks["scales"].astype(np.uint32)[..., None] >> np.array([0, 3, 6, 9], np.uint32) & 7
    codes = blocks["qs"] | (packed & 7).astype(np.uint32) << 8
    return _ternary_parts(codes, packed & 8, _iq1_m_scales(src).reshape(-1, 1), scales.reshape(-1, 16))


def decode_iq1_m(src: Bytes) -> Floats:
    """As IQ1_S, by 16."""
    return _decode_iq1(_iq1_m_parts(src))


def _iq4_xs_parts(src: Bytes) -> Parts:
    """`scales_h` has two upper bits of each scale, `scales_l` the low nibbles."""
    blocks = view("IQ4_XS", src)
    low = _nibbles(blocks["scales_l"]).astype(np.int32)
    high = blocks["scales_h"].astype(np.uint32)[:, None] >> np.arange(0, 16, 2, dtype=np.uint32) & 3
    runs = blocks["qs"].reshape(-1, RUNS, 16)
    codes = np.concatenate([runs & 15, runs >> 4], axis=2).reshape(-1, QK_K)
    return {
        "d": half(blocks["d"]),
        "scale": low | high.astype(np.int32) << 4,
        "table": np.array(IQ4_VALUES),
        "q": codes,
    }


def decode_iq4_xs(src: Bytes) -> Floats:
    """x = d (scale - 32) * IQ4_VALUES[q], by 32."""
    parts = _iq4_xs_parts(src)
    with ignore_fp_warnings():
        scales = parts["d"] * (parts["scale"] - IQ4_SCALE_ZERO).astype(np.float32)
    return _by_parts(look_up(IQ4_VALUES, parts["q"]), scales).reshape(-1)


_IQ1: Final = "d * (2 * scale + 1) * (point + delta)"
_IQ2: Final = "d * (0.5 + scale) * 0.25 * point * sign"

CODECS: Final = MappingProxyType(
    {
        "IQ1_S": Codec(half_scales("IQ1_S", "d"), decode_iq1_s, unpacking=Unpacking(_IQ1, _iq1_s_parts)),
        "IQ1_M": Codec(_iq1_m_scales, decode_iq1_m, unpacking=Unpacking(_IQ1, _iq1_m_parts)),
        "IQ2_XXS": Codec(half_scales("IQ2_XXS", "d"), decode_iq2_xxs, unpacking=Unpacking(_IQ2, _iq2_xxs_parts)),
        "IQ2_XS": Codec(half_scales("IQ2_XS", "d"), decode_iq2_xs, unpacking=Unpacking(_IQ2, _iq2_xs_parts)),
        "IQ2_S": Codec(half_scales("IQ2_S", "d"), decode_iq2_s, unpacking=Unpacking(_IQ2, _iq2_s_parts)),
        "IQ3_XXS": Codec(
            half_scales("IQ3_XXS", "d"),
            decode_iq3_xxs,
            unpacking=Unpacking("d * (0.5 + scale) * 0.5 * point * sign", _iq3_xxs_parts),
        ),
        "IQ3_S": Codec(
            half_scales("IQ3_S", "d"),
            decode_iq3_s,
            unpacking=Unpacking("d * (1 + 2 * scale) * point * sign", _iq3_s_parts),
        ),
        "IQ4_XS": Codec(
            half_scales("IQ4_XS", "d"), decode_iq4_xs, unpacking=Unpacking("d * (scale - 32) * table[q]", _iq4_xs_parts)
        ),
    }
)
