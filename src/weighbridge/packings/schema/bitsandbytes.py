"""bitsandbytes. A module P of W[out, in], 4 bits (nf4, fp4):

    P.weight                    U8 [n / 2, 1], or the same bytes in a different type: codes of the flat matrix,
                                two per byte, the first in the high nibble
    P.weight.quant_map          F32 [16]
    P.weight.absmax             F32 [n / blocksize], or U8 of the same length if statistics are nested, and then
    P.weight.nested_quant_map   F32 [256], P.weight.nested_absmax F32 [blocks / nested_blocksize]
    P.weight.quant_state.bitsandbytes__nf4 (or __fp4)   U8: a JSON object with shape, blocksize, nested_offset ...

    value = quant_map[code] * absmax,   absmax = nested_quant_map[byte] * nested_absmax + nested_offset

and 8 bits:  P.weight I8 [out, in], P.SCB F32 [out], value = code * SCB * (1 / 127), as `int8_vectorwise_dequant`
computes it. FP4 here isn't E2M1: the file's map has its values. Source: bitsandbytes/functional.py (0.4x).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from weighbridge.base.dtypes import BY_NAME, F32, U8
from weighbridge.base.limits import PROBE_SETTING, PROBE_TEXT
from weighbridge.packings.schema.base import Evidence, Group, Member, PackingSchema, Solution, json_object

NAME: Final = "bitsandbytes"
_I8: Final = BY_NAME["I8"]
_READER: Final = "weighbridge.packings.read.bitsandbytes"


class Bnb4Layout(NamedTuple):
    """Elements per block; blocks per nested_absmax (0: not nested), and the offset added to it."""

    block: int
    nested: int
    offset: float


def _solve_4bit(group: Group) -> Solution:
    state = _state(group)
    shape, block = tuple(state["shape"]), state["blocksize"]
    elements = math.prod(shape)
    blocks = -(-elements // block)
    nested = state.get("nested_blocksize", 256) if "nested_absmax" in group.specs else 0
    expected = {"codes": -(-elements // 2), "absmax": blocks, "map": 16}
    expected |= {"nested_absmax": -(-blocks // nested), "nested_map": 256} if nested else {}
    specs = {role: spec for role, spec in group.specs.items() if role != "state"}
    actual = {role: spec.elements for role, spec in specs.items()} | {"codes": specs["codes"].nbytes}
    kinds = {role: (U8 if role == "absmax" and nested else F32) for role in expected if role != "codes"}
    fits = actual == expected and all(specs[role].dtype is dtype for role, dtype in kinds.items())
    group.need(fits, "a 4-bit weight doesn't fit its shape", f"{expected} for {list(shape)}")
    return Solution(shape, layout=Bnb4Layout(block, nested, float(state.get("nested_offset", 0.0))))


def _state(group: Group) -> Mapping[str, Any]:
    """The JSON of a quant_state, checked."""
    state = json_object(group.values["state"], "quant_state", group.module)
    shape, block = state.get("shape"), state.get("blocksize")
    sound = (
        isinstance(shape, list) and shape and all(type(d) is int and d > 0 for d in shape)
        and type(block) is int and block > 0 and block % 16 == 0
        and type(state.get("nested_blocksize", 256)) is int and state.get("nested_blocksize", 256) > 0
        and isinstance(state.get("nested_offset", 0.0), int | float)
    )  # fmt: skip
    group.need(sound, "quant_state is incomplete", "shape, blocksize (and nested_*)", dict(state))
    return state


def _solve_int8(group: Group) -> Solution:
    weight, scales = group.specs["codes"], group.specs["scales"]
    group.need(len(weight.shape) == 2 and scales.elements == weight.rows, "SCB doesn't belong to the weight",
               "I8 [out, in] and F32 [out]")  # fmt: skip
    if "format" in group.specs:
        group.need(not any(group.values.get("format", b"")), "weight_format", "0 (rows)", "a tiled form for a GPU")
    return Solution(weight.shape)


def _four_bits(kind: str) -> PackingSchema:
    return PackingSchema(
        f"bnb-{kind}", NAME, "bnb-4bit",
        {
            "codes": Member(""),
            "absmax": Member(".absmax"),
            "map": Member(".quant_map"),
            "state": Member(f".quant_state.bitsandbytes__{kind}", (U8,), probe=PROBE_TEXT),
            "nested_absmax": Member(".nested_absmax", required=False),
            "nested_map": Member(".nested_quant_map", required=False),
        },
        key="state", solve=_solve_4bit, reader=_READER, logical="",
        evidence=Evidence("bnb-4bit", "bitsandbytes 4-bit quant_state"),
    )  # fmt: skip


BNB_4BIT: Final = (_four_bits("nf4"), _four_bits("fp4"))
BNB_INT8: Final = PackingSchema(
    "bnb-int8", NAME, "bnb-int8",
    {
        "codes": Member(".weight", (_I8,), selects=True),
        "scales": Member(".SCB", (F32,)),
        "format": Member(".weight_format", required=False, probe=PROBE_SETTING),
    },
    key="scales", solve=_solve_int8, reader=_READER, bits=8,
    evidence=Evidence("bnb-int8", "bitsandbytes int8 SCB scales"),
)  # fmt: skip
