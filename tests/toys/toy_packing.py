"""A packing in one file, as a plug-in brings it: a module P is stored as

    P.toy_codes  U8 [out, in]     code + 128
    P.toy_scale  F32 [out, 1]

    value = (code - 128) * scale

Registered as `[project.entry-points."weighbridge.packings"] toy = "toy_packing:TOY"`.
"""

from __future__ import annotations

from weighbridge.base.dtypes import F32, U8
from weighbridge.packings.schema.base import Evidence, Group, Member, PackingSchema, Solution


def solve(group: Group) -> Solution:
    codes, scale = group.specs["codes"], group.specs["scales"]
    group.need(scale.shape == (codes.rows, 1), "a scale for each row", f"F32 [{codes.rows}, 1]")
    return Solution(codes.shape, 8, codes.shape[1])


TOY = PackingSchema(
    "toy", "toy", "toy",
    {
        "codes": Member(".toy_codes", (U8,), "rows columns"),
        "scales": Member(".toy_scale", (F32,), "rows -"),
    },
    key="codes", solve=solve, reader="toy_packing", bits=8,
    evidence=Evidence("toy", "toy codes and scales"),
)  # fmt: skip


def build(match, stored):
    from weighbridge.packings.int_quant import IntQuant
    from weighbridge.tensors.nodes import QuantizedTensor

    packing = IntQuant("toy", 8, 8, match.group, F32, 128)
    return QuantizedTensor(match.spec, packing, dict(stored))
