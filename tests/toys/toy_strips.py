"""A packing whose parts run along the matrix in odd ways. A module P of W[out, in] is stored as

P.strip_codes  U8 [in / 2, out]    two columns a byte: the even one in the low four bits
P.strip_scale  F16 [in / 32, out]  a scale for 32 columns of a row
P.strip_zero   U8 [1, out]         a zero point for each row

value = (code - zero) * scale
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from weighbridge.base.dtypes import F16, U8
from weighbridge.packings.base import NoBlockForm
from weighbridge.packings.schema.base import Evidence, Group, Member, PackingSchema, Shared, Solution, in_group

COLUMNS = 32  # that share a scale


def solve(group: Group) -> Solution:
    codes, scale, zero = (group.specs[role].shape for role in ("codes", "scales", "zeros"))
    inner, outer = 2 * codes[0], codes[-1]
    fits = len(codes) == 2 and inner % COLUMNS == 0 and (scale, zero) == ((inner // COLUMNS, outer), (1, outer))
    group.need(fits, "parts of different shapes", f"F16 [in / {COLUMNS}, out] and U8 [1, out]")
    units = {"pair": Shared(2, 1, "a byte"), "group": in_group(COLUMNS, inner)}
    return Solution((outer, inner), 4, COLUMNS, units=units)


STRIPS = PackingSchema(
    "strips", "strips", "strips",
    {
        "codes": Member(".strip_codes", (U8,), "columns/pair rows"),
        "scales": Member(".strip_scale", (F16,), "columns/group rows"),
        "zeros": Member(".strip_zero", (U8,), "- rows"),
    },
    key="codes", solve=solve, reader="toy_strips", by_module=False, evidence=Evidence("strips", "strip codes"),
)  # fmt: skip


@dataclass(frozen=True)
class Strips(NoBlockForm):
    """Codes [out, in / 2], scales [out, in / 32] and zeros [out, 1], all in rows of the matrix."""

    name: str = "strips"
    code_bits: int = 4

    @property
    def row_map(self) -> Mapping[str, int]:
        return {"codes": 1, "scales": 1, "zeros": 1}

    def decode(self, spec, parts, lo, hi, out) -> None:
        pairs = parts["codes"].reshape(hi - lo, -1)
        codes = np.stack([pairs & 15, pairs >> 4], axis=2).reshape(hi - lo, -1, COLUMNS)
        scales = parts["scales"].view("<f2").astype(np.float32).reshape(hi - lo, -1, 1)
        zeros = parts["zeros"].astype(np.float32).reshape(hi - lo, 1, 1)
        out[:] = ((codes.astype(np.float32) - zeros) * scales).reshape(-1)


def build(match, stored):
    from weighbridge.tensors import nodes

    return nodes.QuantizedTensor(match.spec, Strips(), {role: nodes.transpose(node) for role, node in stored.items()})


def example():
    """Stored arrays of one module of [256, 512], for the conformance tests."""
    rng = np.random.default_rng(1)
    return {
        "m.strip_codes": rng.integers(0, 256, (256, 256), np.uint8),
        "m.strip_scale": rng.normal(size=(16, 256)).astype("<f2"),
        "m.strip_zero": rng.integers(0, 16, (1, 256), np.uint8),
    }
