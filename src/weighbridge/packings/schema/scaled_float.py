"""8-bit floats with a scale per rectangle of the matrix: value = weight * scale, in F32.

    DeepSeek V3, Qwen3, Kimi     P.weight F8_E4M3, P.weight_scale_inv F32 or BF16 [out / 128, in / 128], multiplied
                                 despite its name; the last blocks may be partial
    with ue8m0                   the same with powers of two as scales, one byte each (F8_E8M0, or labelled U8)
    DeepSeek V4                  P.weight, P.scale
    compressed-tensors, ModelOpt P.weight_scale: one, [out], [out, 1] or blocks
    mxfp8 (compressed-tensors)   P.weight_scale U8 [out, in / 32], powers of two
    mxfp8 (MLX)                  P.weight U32 words of F8_E4M3, P.scales U8 [out, in / 32]
    Mistral, ComfyUI             P.qscale_weight, P.scale_weight: one
    transformers 5 experts       P (no .weight) [experts, out, in], P_scale_inv

A product of an 8-bit float and a power of two is exact. Source: DeepSeek-V3 inference/kernel.py, compressed_tensors
(float-quantized), OCP MX 1.0.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from weighbridge.base.dtypes import BY_NAME, E4M3, E8M0, MXFP8, U8, U32, DType
from weighbridge.base.spec import Spec
from weighbridge.packings.schema.base import (
    COLUMNS,
    FLOATS,
    ROWS,
    AxisUse,
    Evidence,
    Group,
    Member,
    PackingSchema,
    Solution,
    StorageAxes,
)
from weighbridge.packings.schema.microscaled import words_per_scale

NAME: Final = "fp8"
FLOATS_8: Final = (E4M3, *(BY_NAME[name] for name in ("F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")))
_SCALES: Final = (*FLOATS, E8M0, U8)
_READER: Final = "weighbridge.packings.read.scaled_float"
_ACTIVATIONS: Final = (".input_scale", ".activation_scale", ".qscale_act", ".scale_input", ".k_scale", ".v_scale")
# The suffix of the scale -> the evidence that it is about a file.
_ENDINGS: Final = {
    ".weight_scale_inv": Evidence("fp8-block", "FP8 weights with weight_scale_inv"),
    ".weight_scale": None,
    ".scale_weight": Evidence("fp8-comfy", "scaled FP8 (ComfyUI)", marks=("scaled_fp8",)),
    ".qscale_weight": None,
    ".scale": None,
}
# Suffixes of scales that can be written back after rows were moved.
_MOVABLE: Final = (".weight_scale_inv", ".weight_scale")
# Heights and widths of known blocks, the usual first.
_SIDES: Final = ((128, 128), (32, 32), (64, 64), (1, 128), (1, 64), (1, 32))


class ScaledFloatLayout(NamedTuple):
    """The type of the values, the rows and columns that share a scale, and the scales' shape as [rows of blocks,
    columns of blocks]."""

    dtype: DType
    block: tuple[int, int]
    scale_shape: tuple[int, int]


def _solve_mlx(group: Group) -> Solution:
    words = group.specs["weight"]
    solution = solve(group, Spec((*words.shape[:-1], words.shape[-1] * 4), E4M3))
    axes: StorageAxes = (AxisUse(ROWS), AxisUse(COLUMNS, 4, 1, "a word"))
    return solution._replace(axes={**solution.axes, "weight": axes}, bits=MXFP8.bits, group=MXFP8.group)


def solve(group: Group, weight: Spec) -> Solution:
    """8-bit floats `weight` and the scales of their rectangles."""
    group.need(len(weight.shape) in (2, 3) and weight.elements > 0, "the weight isn't a matrix",
               "[out, in] or [experts, out, in]", weight)  # fmt: skip
    block, scale_shape = _blocks(group, weight)
    *lead, outer, _ = weight.shape
    group.need(not lead or outer % block[0] == 0, "experts don't end with a block of scales",
               f"a multiple of {block[0]} rows", outer)  # fmt: skip
    axes = {"weight": (AxisUse(ROWS), AxisUse(COLUMNS)), "scales": _scale_axes(group.specs["scales"], weight, block)}
    return Solution(weight.shape, layout=ScaledFloatLayout(weight.dtype, block, scale_shape), axes=axes)


def _blocks(group: Group, weight: Spec) -> tuple[tuple[int, int], tuple[int, int]]:
    """(rows, columns) of a block, and the scales' shape."""
    *lead, outer, inner = weight.shape
    scales = group.specs["scales"]
    count, rows = scales.elements, weight.rows
    if count == 1:
        return (rows, inner), (1, 1)
    if lead and count == lead[0]:
        return (outer, inner), (count, 1)
    if count == rows:
        return (1, inner), (rows, 1)
    down, across = scales.shape[-2:] if len(scales.shape) > 1 else (0, 0)
    for height, width in _SIDES:
        if (down, across) == (-(-outer // height), -(-inner // width)) and scales.shape[:-2] == tuple(lead):
            return (height, width), (scales.rows, across)
    group.need(False, "the scales don't belong to the weight", f"blocks of {list(weight.shape)}", scales)
    raise AssertionError


def _scale_axes(scales: Spec, weight: Spec, block: tuple[int, int]) -> StorageAxes:
    *lead, outer, inner = weight.shape
    height, width = block
    down = AxisUse(ROWS) if height == 1 else None if height >= outer else AxisUse(ROWS, height, 1, "a scale")
    across = None if width >= inner else AxisUse(COLUMNS, width, 1, "a scale")
    if len(scales.shape) < 2 or scales.elements == 1:
        return ((down,) if scales.elements > 1 and not lead else (None,)) * len(scales.shape)
    return (down, across)


def _schema(name: str, ending: str, logical: str = ".weight", evidence: Evidence | None = None) -> PackingSchema:
    return PackingSchema(
        name, NAME, "fp8",
        {
            "weight": Member(logical, FLOATS_8, selects=True),
            "scales": Member(ending, _SCALES, selects=True),
        },
        key="scales", solve=lambda group: solve(group, group.specs["weight"]), reader=_READER, by_module=False,
        ignored=_ACTIVATIONS, logical=logical, bits=8, movable=ending in _MOVABLE or not logical, evidence=evidence,
    )  # fmt: skip


DEEPSEEK_FP8, COMPRESSED_FP8, *_OTHERS = (
    _schema(f"fp8{ending}", ending, evidence=evidence) for ending, evidence in _ENDINGS.items()
)
FP8: Final = (DEEPSEEK_FP8, COMPRESSED_FP8, *_OTHERS, _schema("fp8-experts", "_scale_inv", ""))
MLX_FP8: Final = PackingSchema(
    "mlx-fp8", NAME, "mlx",
    {"weight": Member(".weight", (U32,), selects=True), "scales": Member(".scales", (U8,), selects=True)},
    key="scales", solve=_solve_mlx, reader=_READER, by_module=False, ignored=_ACTIVATIONS, bits=8, movable=True,
    # A word has half the columns of the 4-bit modes'.
    applies=lambda g: words_per_scale(g, "weight") == 8,
)  # fmt: skip
