"""EXL3 (exllamav3). A module P of W[out, in] with codes of K bits on a trellis:

    P.trellis   I16 [in / 16, out / 16, 16 * K]: tiles of 16 x 16 weights
    P.suh, P.svh   F16 [in], [out]: signs and scales of rotated columns and rows; older: P.su, P.sv, packed signs

Weighbridge counts its weights and doesn't decode them. Source: exllamav3/modules/quant/exl3.py.
"""

from __future__ import annotations

from typing import Final

from weighbridge.base.dtypes import BY_NAME
from weighbridge.packings.schema.base import Group, Member, PackingSchema, Solution

_TILE: Final = 16


def solve(group: Group) -> Solution:
    tiles = group.specs["codes"].shape
    group.need(len(tiles) == 3 and tiles[2] % _TILE == 0, "trellis is misshapen", "[in / 16, out / 16, 16 * bits]")
    return Solution((tiles[1] * _TILE, tiles[0] * _TILE), tiles[2] // _TILE)


EXL3: Final = PackingSchema(
    "exl3", "exl3", "exl3",
    {"codes": Member(".trellis", (BY_NAME["I16"],))},
    key="codes", solve=solve, reader="", ignored=(".suh", ".svh", ".su", ".sv", ".mcg", ".mul1"),
)  # fmt: skip
