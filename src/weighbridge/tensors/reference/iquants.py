"""ggml's super-blocks over codebooks in plain numpy: IQ1_S to IQ4_XS. Floats equal to llama.cpp's dequantize_row_*
(ggml-quants.c, b11549). See `reference.py`.

A code names a point of a codebook (`grids.py`): the magnitudes of eight neighbours (of four in IQ3). Their signs are
eight bits more, or seven, the eighth then making an even number of minuses. 32 elements (a run) go together.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from weighbridge.tensors.reference.grids import grid
from weighbridge.tensors.reference.lowbit import IQ4_VALUES, look_up
from weighbridge.tensors.reference.simple import Array, Block, Bytes, Floats, half, half_scales, quiet, widen

QK_K: Final = 256
RUNS: Final = 8  # of 32 elements
IQ1_DELTA: Final = 0.125
SCALE_SHIFT: Final = 0.5  # IQ2, IQ3_XXS: scales are odd multiples of a half
IQ2_SCALE: Final = 0.25
IQ3_SCALE: Final = 0.5
IQ4_SCALE_ZERO: Final = 32
PARITIES: Final = 0x6996  # bit n: whether n, of four bits, has an odd number of ones
CODE_BITS: Final = 9  # IQ2_XS: of the code; the signs are above


def _words(columns: Bytes, size: int) -> Array:
    """Little-endian words [blocks, n] as u32."""
    return np.ascontiguousarray(columns).view(f"<u{size}").astype(np.uint32)


def _even(seven: Array) -> Bytes:
    """Seven signs and the eighth that makes their number even."""
    folded = seven ^ seven >> 4
    signs: Bytes = (seven | (PARITIES >> (folded & 15) & 1) << 7).astype(np.uint8)
    return signs


def _four_signs(words: Array) -> Bytes:
    """[blocks, runs] words -> [blocks, runs, 4] bytes of signs, from four times seven bits."""
    return _even(words[..., None] >> np.array([0, 7, 14, 21], np.uint32) & 127)


def _halves_scale(d: Floats, packed: Bytes) -> Floats:
    """[blocks, runs] bytes of two nibbles -> scales of 16 elements [blocks, 2 * runs]."""
    parts = np.stack([packed & 15, packed >> 4], axis=-1).reshape(-1, 2 * RUNS)
    return _odd_scale(d, parts, IQ2_SCALE)


def _odd_scale(d: Floats, parts: Array, factor: float) -> Floats:
    with quiet():
        out: Floats = d * (np.float32(SCALE_SHIFT) + parts.astype(np.float32)) * np.float32(factor)
    return out


def _signed(points: NDArray[np.int8], scales: Floats, signs: Bytes) -> Floats:
    """scale * magnitude * sign. The sign of a NaN flips too: ggml multiplies by -1, of which compilers make a
    negation."""
    minus = np.unpackbits(signs.reshape(-1), bitorder="little").reshape(-1, QK_K)
    values = _by_parts(points, scales)
    return np.where(minus, -values, values).reshape(-1)


def _by_parts(values: Array, scales: Floats) -> Floats:
    with quiet():
        parts = values.reshape(*scales.shape, QK_K // scales.shape[1]).astype(np.float32)
        out: Floats = scales[..., None] * parts
    return out.reshape(-1, QK_K)


def decode_iq2_xxs(src: Bytes) -> Floats:
    """[d | a run: four codes of 8 bits, u32 of 4 x 7 signs and 4 bits of scale]: x = d (0.5 + scale) / 4 * point."""
    block = src.reshape(-1, 66)
    runs = block[:, 2:].reshape(-1, RUNS, 8)
    rest = _words(runs[..., 4:], 4)[..., 0]
    points = grid("IQ2_XXS")[runs[..., :4]]
    return _signed(points, _odd_scale(half(block[:, :2]), rest >> 28, IQ2_SCALE), _four_signs(rest))


def decode_iq2_xs(src: Bytes) -> Floats:
    """[d | 32 x u16: code of 9 bits, 7 signs | 8 x two nibbles of scale, for 16 elements each]."""
    block = src.reshape(-1, 74)
    words = _words(block[:, 2:66], 2)
    points = grid("IQ2_XS")[words & (2**CODE_BITS - 1)]
    return _signed(points, _halves_scale(half(block[:, :2]), block[:, 66:]), _even(words >> CODE_BITS))


def _with_upper(low: Bytes, upper: Bytes, bits: int) -> Array:
    """Codes [blocks, n] of eight low bits, and above them `bits` bits each from the bytes of `upper`, lowest first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    high = (upper[..., None] >> shifts & (2**bits - 1)).reshape(low.shape)
    codes: Array = low | high.astype(np.uint32) << 8
    return codes


def decode_iq2_s(src: Bytes) -> Floats:
    """[d | 32 codes | 32 x 8 signs | 8 bytes of two upper bits of each code | 8 x two nibbles of scale]."""
    block = src.reshape(-1, 82)
    points = grid("IQ2_S")[_with_upper(block[:, 2:34], block[:, 66:74], 2)]
    return _signed(points, _halves_scale(half(block[:, :2]), block[:, 74:]), block[:, 34:66])


def decode_iq3_xxs(src: Bytes) -> Floats:
    """[d | 64 codes of 8 bits | a run: u32 as in IQ2_XXS]: x = d (0.5 + scale) / 2 * point."""
    block = src.reshape(-1, 98)
    rest = _words(block[:, 66:], 4)
    scales = _odd_scale(half(block[:, :2]), rest >> 28, IQ3_SCALE)
    return _signed(grid("IQ3_XXS")[block[:, 2:66]], scales, _four_signs(rest))


def decode_iq3_s(src: Bytes) -> Floats:
    """[d | 64 codes | 8 bytes of an upper bit of each code | 32 x 8 signs | 4 x two nibbles of scale]:
    x = d (1 + 2 scale) * point."""
    block = src.reshape(-1, 110)
    parts = np.stack([block[:, 106:] & 15, block[:, 106:] >> 4], axis=-1).reshape(-1, RUNS).astype(np.int32)
    with quiet():
        scales = half(block[:, :2]) * (1 + 2 * parts).astype(np.float32)
    return _signed(grid("IQ3_S")[_with_upper(block[:, 2:66], block[:, 66:74], 1)], scales, block[:, 74:106])


def _ternary(codes: Array, minus: Array, d: Floats, parts: Array) -> Floats:
    """x = d (2 scale + 1) * (point +- delta); `minus` for each point, `parts` for each scale."""
    delta = np.where(minus, -np.float32(IQ1_DELTA), np.float32(IQ1_DELTA))
    with quiet():
        return _by_parts(grid("IQ1_S")[codes] + delta[..., None], d * (2 * parts + 1).astype(np.float32)).reshape(-1)


def decode_iq1_s(src: Bytes) -> Floats:
    """[d | 32 codes | a run: u16 of 4 x 3 upper bits, 3 bits of scale, sign of delta]."""
    block = src.reshape(-1, 50)
    rest = _words(block[:, 34:], 2)
    high = rest[..., None] >> np.array([0, 3, 6, 9], np.uint32) & 7
    codes = block[:, 2:34] | high.reshape(-1, 32) << 8
    return _ternary(codes, np.repeat(rest >> 15, 4, axis=1), half(block[:, :2]), rest >> 12 & 7)


def _iq1_m_scales(src: Bytes) -> Floats:
    """d: four bits each on top of the four words of scales, the lowest first."""
    tops = _words(src.reshape(-1, 56)[:, 48:], 2) >> 12
    return widen("F16", (tops << np.array([0, 4, 8, 12], np.uint32)).sum(axis=1).astype(np.uint16).view(np.uint8))


def decode_iq1_m(src: Bytes) -> Floats:
    """[32 codes | 32 nibbles of 3 upper bits and the sign of delta | 4 x u16 of 4 x 3 bits of scale, for 16]."""
    block = src.reshape(-1, 56)
    rest = np.stack([block[:, 32:48] & 15, block[:, 32:48] >> 4], axis=-1).reshape(-1, 32)
    parts = _words(block[:, 48:], 2)[..., None] >> np.array([0, 3, 6, 9], np.uint32) & 7
    codes = block[:, :32] | (rest & 7).astype(np.uint32) << 8
    return _ternary(codes, rest & 8, _iq1_m_scales(src).reshape(-1, 1), parts.reshape(-1, 16))


def decode_iq4_xs(src: Bytes) -> Floats:
    """[d | u16 of 8 x 2 upper bits of scale | 4 x two nibbles of these | a run: 16 bytes of two nibbles]:
    x = d (scale - 32) * IQ4_VALUES[q]."""
    block = src.reshape(-1, 136)
    low = np.stack([block[:, 4:8] & 15, block[:, 4:8] >> 4], axis=-1).reshape(-1, RUNS).astype(np.int32)
    high = _words(block[:, 2:4], 2) >> np.arange(0, 16, 2, dtype=np.uint32) & 3
    runs = block[:, 8:].reshape(-1, RUNS, 16)
    values = look_up(IQ4_VALUES, np.concatenate([runs & 15, runs >> 4], axis=2))
    with quiet():
        scales = half(block[:, :2]) * ((low | high.astype(np.int32) << 4) - IQ4_SCALE_ZERO).astype(np.float32)
    return _by_parts(values, scales).reshape(-1)


BLOCKS: Final = MappingProxyType(
    {
        "IQ1_S": Block(QK_K, 50, half_scales(50, 0), decode_iq1_s, None),
        "IQ1_M": Block(QK_K, 56, _iq1_m_scales, decode_iq1_m, None),
        "IQ2_XXS": Block(QK_K, 66, half_scales(66, 0), decode_iq2_xxs, None),
        "IQ2_XS": Block(QK_K, 74, half_scales(74, 0), decode_iq2_xs, None),
        "IQ2_S": Block(QK_K, 82, half_scales(82, 0), decode_iq2_s, None),
        "IQ3_XXS": Block(QK_K, 98, half_scales(98, 0), decode_iq3_xxs, None),
        "IQ3_S": Block(QK_K, 110, half_scales(110, 0), decode_iq3_s, None),
        "IQ4_XS": Block(QK_K, 136, half_scales(136, 0), decode_iq4_xs, None),
    }
)
