"""Codes that are indices into codebooks, or paths on a trellis. EXL2 and QTIP are recognised and not decoded.

    AQLM   P.codes        I8 or I16 [out / a, in / b, books]: an index into each codebook per block of a x b weights
           P.codebooks    floats [books, 2^bits, a, b]; P.scales [out / a, 1, 1, 1]
           block = scale * the sum of an entry of each codebook; indices are unsigned modulo 2^bits
    EXL2   P.q_weight     I32 [words, out]: codes of 2 to 8 bits, which differ between groups of columns
           P.q_groups     I16 [2 * groups]: bits and first row of words of each group
           P.q_scale      I32 [groups, out / 8], 4 bits each; P.q_scale_max F16 [groups]; P.q_invperm [in], the order
    EXL3   P.trellis      I16 [in / 16, out / 16, 16 * bits]: tiles of 16 x 16 codes on a trellis
           P.suh, P.svh   F16 [in], [out]: signs and scales of rotated columns and rows (older: P.su, P.sv, signs of
                          16 in a word); P.mcg, P.mul1: markers of the codebook. 16 * bits + 8: codes of two widths
    QTIP   P.trellis      I16 [tiles, 16 * bits]; P.SU, P.SV floats [in], [out]; P.rcp, P.tp_rank, P.tlut

Source: aqlm/inference.py, aqlm/utils.py (1.1.7); exllamav2/linear.py, ext.py; exllamav3/modules/quant/exl3.py;
qtip/lib/linear/quantized_linear.py.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from weighbridge.base.dtypes import BY_NAME, F16, I32
from weighbridge.packings.schema.base import FLOATS, Evidence, Group, Member, PackingSchema, Solution

_I8, _I16 = BY_NAME["I8"], BY_NAME["I16"]
_TILE: Final = 16  # rows and columns of EXL3's tiles
_ROTATED: Final = 8  # tiles that EXL3 rotates together
_MOST_BITS: Final = 8
_SIXTEEN: Final = 16  # bits of a word of QTIP's trellis
_WORD: Final = 32
_SCALES: Final = 8  # of EXL2, 4 bits each, in a word


def _solve_exl2(group: Group) -> Solution:
    codes, scales = group.specs["codes"].shape, group.specs["scales"].shape
    columns, groups = group.specs["order"].elements, group.specs["maxima"].elements
    group.need(
        len(codes) == 2 and columns > 0 and codes[0] * _WORD <= columns * _SCALES and groups > 0
        and scales == (groups, -(-codes[1] // _SCALES)) and group.specs["groups"].elements == 2 * groups,
        "parts don't belong together", "I32 [words, out], I32 [groups, out / 8], [groups], [2 * groups], [in]",
    )  # fmt: skip
    bits, mixed = divmod(codes[0] * _WORD, columns)
    return Solution((codes[1], columns), None if mixed else bits)


def _solve_exl3(group: Group) -> Solution:
    tiles = group.specs["codes"].shape
    group.need(len(tiles) == 3 and min(tiles) > 0 and tiles[2] % (_TILE // 2) == 0 and tiles[2] <= _TILE * _MOST_BITS
               and tiles[0] % _ROTATED == tiles[1] % _ROTATED == 0,
               "trellis is misshapen", "[in / 16, out / 16, 16 * bits], in and out multiples of 128")  # fmt: skip
    outer, inner = tiles[1] * _TILE, tiles[0] * _TILE
    scales = [(group.specs.get(f"{side}s"), group.specs.get(f"{side}_signs")) for side in ("input", "output")]
    sizes = [
        one.elements if one is not None else None if sign is None else sign.elements * _TILE for one, sign in scales
    ]
    group.need(sizes == [inner, outer] and (scales[0][0] is None) == (scales[1][0] is None),
               "scales don't belong to the trellis", f"F16 [{inner}], [{outer}], or signs")  # fmt: skip
    bits, half = divmod(tiles[2], _TILE)
    return Solution((outer, inner), None if half else bits)


def _solve_qtip(group: Group) -> Solution:
    codes, inner, outer = group.specs["codes"], group.specs["inputs"].elements, group.specs["outputs"].elements
    bits, mixed = divmod(codes.elements * _SIXTEEN, inner * outer) if inner * outer else (0, 1)
    group.need(not mixed and 0 < bits <= _MOST_BITS, "parts don't belong together",
               "trellis [tiles, bits * 16], SU [in], SV [out]")  # fmt: skip
    return Solution((outer, inner), bits)


class AqlmLayout(NamedTuple):
    """Codebooks of `entries` blocks, each `high` rows and `wide` columns of the matrix."""

    books: int
    entries: int
    high: int
    wide: int


def _solve_aqlm(group: Group) -> Solution:
    codes, books = group.specs["codes"].shape, group.specs["books"].shape
    group.need(
        len(codes) == 3 and len(books) == 4 and codes[2] == books[0] and min(*codes, *books) > 0
        and group.specs["scales"].elements == codes[0],
        "parts don't belong together", "codes [out / a, in / b, books], codebooks [books, 2^bits, a, b], [out / a]",
    )  # fmt: skip
    layout = AqlmLayout(*books)
    index = (layout.entries - 1).bit_length()
    group.need(1 << index == layout.entries and index <= group.specs["codes"].dtype.bits,
               "a codebook's size doesn't belong to the codes", "a power of two that the codes can index")  # fmt: skip
    bits = -(-layout.books * index // (layout.high * layout.wide))
    return Solution((codes[0] * layout.high, codes[1] * layout.wide), bits, layout.wide, layout)


EXL2: Final = PackingSchema(
    "exl2", "exl2", "exl2",
    {
        "codes": Member(".q_weight", (I32,), selects=True),
        "scales": Member(".q_scale", (I32,), needs="codes"),
        "maxima": Member(".q_scale_max", (F16,), needs="codes"),
        "groups": Member(".q_groups", (_I16,), needs="codes"),
        "order": Member(".q_invperm", needs="codes"),
    },
    key="codes", solve=_solve_exl2, reader="", by_module=False,
    evidence=Evidence("exl2", "EXL2 q_groups tensors", "groups"),
)  # fmt: skip
EXL3: Final = PackingSchema(
    "exl3", "exl3", "exl3",
    {
        "codes": Member(".trellis", (_I16,)),
        "inputs": Member(".suh", (F16,), required=False, needs="codes"),
        "outputs": Member(".svh", (F16,), required=False, needs="codes"),
        "input_signs": Member(".su", (_I16,), required=False, needs="codes"),
        "output_signs": Member(".sv", (_I16,), required=False, needs="codes"),
        "mcg": Member(".mcg", (I32,), required=False, needs="codes"),
        "mul1": Member(".mul1", (I32,), required=False, needs="codes"),
    },
    key="codes", solve=_solve_exl3, reader="weighbridge.packings.read.codebooks", by_module=False,
    applies=lambda group: "codes" not in group.specs or len(group.specs["codes"].shape) != 2,
    evidence=Evidence("exl3", "EXL3 suh tensors", "inputs"),
)  # fmt: skip
QTIP: Final = PackingSchema(
    "qtip", "qtip", "qtip",
    {
        "codes": Member(".trellis", (_I16,), selects=True),
        "inputs": Member(".SU", FLOATS, needs="codes"),
        "outputs": Member(".SV", FLOATS, needs="codes"),
        "rows_split": Member(".rcp", required=False, needs="codes"),
    },
    key="codes", solve=_solve_qtip, reader="", by_module=False,
    applies=lambda group: "inputs" in group.specs and len(group.specs["codes"].shape) == 2,
    ignored=(".tp_rank", ".tlut"), evidence=Evidence("qtip", "QTIP rcp tensors", "rows_split"),
)  # fmt: skip
AQLM: Final = PackingSchema(
    "aqlm", "aqlm", "aqlm",
    {
        "codes": Member(".codes", (_I8, _I16), selects=True),
        "books": Member(".codebooks", FLOATS, needs="codes"),
        "scales": Member(".scales", FLOATS, needs="codes"),
    },
    key="books", solve=_solve_aqlm, reader="weighbridge.packings.read.codebooks", bits=2, by_module=False,
    evidence=Evidence("aqlm", "AQLM codebooks"),
)  # fmt: skip
