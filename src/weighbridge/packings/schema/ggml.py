"""ggml's NVFP4 with a separate scale for the whole tensor, as llama.cpp (b11549) stores it:

    P.weight       NVFP4 [.., out, in]
    P.scale        F32 [1], for a stack of experts [experts]: multiplies the product of the matrix
    P.input_scale  F32: scales activations, doesn't affect the weights (and no graph of b11549 reads it)

Source: conversion/base.py (`_repack_nvfp4`), llama-model.cpp (`load_tensors`), llama-graph.cpp (`build_lora_mm`).
"""

from __future__ import annotations

from typing import Final

from weighbridge.base.dtypes import BY_NAME, F32, NVFP4
from weighbridge.packings.schema.base import Group, Member, PackingSchema, Shared, Solution

NAME: Final = "ggml-nvfp4"
_BLOCK: Final = BY_NAME["NVFP4"]


def solve(group: Group) -> Solution:
    weight, scale = group.specs["codes"], group.specs["global"]
    count = weight.shape[0] if len(weight.shape) > 2 else 1
    group.need(scale.elements == count, "the scale doesn't belong to the weight", f"F32 [{count}]", scale)
    units = {"block": Shared(_BLOCK.block, _BLOCK.block, "a block")}
    return Solution(weight.shape, NVFP4.bits, NVFP4.group, count, units)


GGML_NVFP4: Final = PackingSchema(
    NAME, NAME, NAME,
    {
        "codes": Member(".weight", (_BLOCK,), "rows columns/block", selects=True),
        "global": Member(".scale", (F32,), selects=True),
    },
    key="global", solve=solve, by_module=False, reader="weighbridge.packings.read.ggml", ignored=(".input_scale",),
)  # fmt: skip
