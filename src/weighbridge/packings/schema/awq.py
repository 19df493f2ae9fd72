"""AWQ (AutoAWQ, llm-awq's GEMM form): a module P of W[out, in] is stored as

    P.qweight  I32 [in, out / 8]        eight outputs a word, nibbles in the order 0 2 4 6 1 3 5 7
    P.qzeros   I32 [groups, out / 8]    in the same order; absent: 8
    P.scales   F16 [groups, out]

    W[o, i] = scales[i // group, o] * (code[i, o] - zero[i // group, o])

The scaling by activations is folded into the weights and the norms before them. Source: AutoAWQ
(modules/linear/gemm.py, utils/packing_utils.py).
"""

from __future__ import annotations

from typing import Final

from weighbridge.base.dtypes import I32
from weighbridge.base.errors import UnsupportedError
from weighbridge.packings.schema.base import (
    FLOATS,
    Group,
    Member,
    PackingSchema,
    Shared,
    Solution,
    in_group,
    settings,
)
from weighbridge.packings.schema.gptq import columns

NAME: Final = "awq"
BITS: Final = 4


def applies(group: Group) -> bool:
    if "scales" not in group.specs:
        return False
    width, outputs = columns(group.specs["codes"]), columns(group.specs["scales"])
    return -1 not in (width, outputs) and width != outputs


def solve(group: Group) -> Solution:
    version = str(settings(group.config).get("version") or "gemm").lower()
    if version != "gemm":
        raise UnsupportedError(
            f"{group.module} is in AWQ's {version} order, made for one kernel", hint="use the repository's GEMM files"
        )
    (inner, words), (groups, outer) = group.specs["codes"].shape, group.specs["scales"].shape
    zeros = group.specs.get("zeros")
    fits = groups and inner % groups == 0 and words * 32 == outer * BITS
    group.need(fits and (zeros is None or zeros.shape == (groups, words)),
               "qweight, qzeros and scales don't belong together",
               "I32 [in, out / 8], I32 [groups, out / 8], floats [groups, out]")  # fmt: skip
    size = inner // groups
    return Solution((outer, inner), BITS, size, units={"word": Shared(8, 1, "a word"), "group": in_group(size, inner)})


AWQ: Final = PackingSchema(
    NAME, NAME, "awq",
    {
        "codes": Member(".qweight", (I32,), "columns rows/word"),
        "zeros": Member(".qzeros", (I32,), "columns/group rows/word", required=False),
        "scales": Member(".scales", FLOATS, "columns/group rows"),
    },
    key="codes", applies=applies, solve=solve, by_module=False, reader="weighbridge.packings.read.awq",
)  # fmt: skip
