"""Integer codes into ggml's simple blocks of 32: the target of every exact move from another scheme.

    type   a block                                    value
    Q4_0   f16 d, 16 bytes of nibbles                 d * (code - 8)
    Q4_1   f16 d, f16 m, 16 bytes of nibbles          d * code + m
    Q5_0   f16 d, u32 of fifth bits, 16 bytes         d * (code - 16)
    Q5_1   f16 d, f16 m, u32, 16 bytes                d * code + m
    Q8_0   f16 d, 32 bytes                            d * code, code signed

Byte j of the nibbles has code j low and code j + 16 high; bit j of the u32 is the fifth bit of code j.
Source: ggml/src/ggml-common.h, ggml-quants.c (b11549).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np

from weighbridge.base.dtypes import BY_NAME, F16, Q4_0, Q4_1, Q8_0, DType
from weighbridge.tensors import kernels
from weighbridge.tensors.kinds import Bytes, Node
from weighbridge.tensors.nodes import cast

Q5_0: Final = BY_NAME["Q5_0"]
Q5_1: Final = BY_NAME["Q5_1"]
LENGTH: Final = 32


class Room(NamedTuple):
    """What fits a block type: codes from `low` to `high`, stored `low` less; with a minimum or without."""

    low: int
    high: int
    minimum: bool


#: Block types by what they hold, smallest first.
ROOM: Final[Mapping[DType, Room]] = MappingProxyType(
    {
        Q4_0: Room(-8, 7, False),
        Q4_1: Room(0, 15, True),
        Q5_0: Room(-16, 15, False),
        Q5_1: Room(0, 31, True),
        Q8_0: Room(-128, 127, False),
    }
)


def fitting(low: int, high: int, minimum: bool) -> tuple[DType, ...]:
    """The types with room for codes from `low` to `high`."""
    return tuple(d for d, r in ROOM.items() if r.minimum is minimum and r.low <= low and high <= r.high)


def write(dtype: DType, codes: Bytes, parameters: tuple[Bytes, ...], out: Bytes) -> None:
    """Blocks of `dtype` from int8 (with a minimum: uint8) codes [n, 32] and the f16 bytes [n, 2] of d (and m)."""
    room, blocks = ROOM[dtype], out.reshape(-1, dtype.size)
    at = 2 * len(parameters)
    for i, part in enumerate(parameters):
        blocks[:, 2 * i : 2 * i + 2] = part
    if dtype is Q8_0:
        blocks[:, at:] = codes.view(np.uint8)
        return
    stored = codes.view(np.uint8) - np.uint8(room.low & 255)
    if room.high - room.low == 31:
        blocks[:, at : at + 4] = np.packbits(stored >> 4, axis=1, bitorder="little")
        stored, at = stored & np.uint8(15), at + 4
    blocks[:, at:] = stored[:, :16] | (stored[:, 16:] << 4)


def halves(dtype: DType, part: Bytes, repeat: int) -> Bytes:
    """Parameters as f16 bytes [blocks, 2], each for `repeat` blocks."""
    found = part
    if dtype is not F16:
        found = np.empty(len(part) // dtype.size * 2, np.uint8)
        kernels.cast(dtype, F16, part, found)
    return np.repeat(found.reshape(-1, 2), repeat, axis=0)


def fits_f16(node: Node) -> bool:
    """True where an f16 holds every value of a small tensor (scales, biases)."""
    if node.spec.dtype is F16:
        return True
    there_and_back = cast(cast(node, F16), node.spec.dtype)
    step = max(1, (8 << 20) // max(node.spec.row_bytes, 1))
    return all(
        np.array_equal(node.read(lo, hi), there_and_back.read(lo, hi))
        for lo in range(0, node.spec.rows, step)
        for hi in (min(lo + step, node.spec.rows),)
    )
