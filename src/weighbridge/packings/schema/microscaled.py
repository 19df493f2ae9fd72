"""Small floats with a scale per group of columns (`base/dtypes.py`): MXFP4 and NVFP4, two codes per byte, the
first in the low nibble; MXFP6, four codes in three bytes, the first in the low bits. NVFP4 may also have one F32 scale
per tensor.

    MLX mxfp4, nvfp4        P.weight U32 [.., out, in / 8], P.scales U8 [.., out, in / 32 or 16]
    gpt-oss                 P_blocks U8 [experts, out, in / 32, 16], P_scales U8 [experts, out, in / 32]
    gpt-oss, original       P.blocks, P.scales
    compressed-tensors      P.weight_packed U8 [out, in / 2] (mxfp6: in * 3 / 4), P.weight_scale U8 or F8_E4M3,
                            P.weight_global_scale F32
    DeepSeek V4             P.weight I8 [out, in / 2], P.scale F8_E8M0 [out, in / 32]
    ModelOpt NVFP4          P.weight U8 [out, in / 2], P.weight_scale F8_E4M3, P.weight_scale_2 F32
    GGUF NVFP4              P.weight NVFP4 [.., out, in], P.scale F32 [1], for a stack of experts [experts];
                            P.input_scale F32: scales activations (and no graph of b11549 reads it)

    value = e2m1(code) * scale            exact: 2 and at most 4 significant bits
    value = e2m1(code) * scale * global   ModelOpt: weight_scale_2; GGUF: scale; compressed-tensors:
                                          1 / weight_global_scale

Source: OCP MX 1.0, openai/gpt-oss (weights.py), compressed_tensors (nvfp4); llama.cpp b11549:
conversion/base.py (`_repack_nvfp4`), llama-model.cpp (`load_tensors`), llama-graph.cpp (`build_lora_mm`).
"""

from __future__ import annotations

from math import inf
from typing import Final, NamedTuple

from weighbridge.base.dtypes import BY_NAME, E4M3, E8M0, F32, FOUR_BITS, MXFP6, NVFP4, U8, U32, DType, MicroscaledType
from weighbridge.base.spec import Shape
from weighbridge.packings.schema.base import Evidence, Group, Member, PackingSchema, Shared, Solution

NAME: Final = "fp4"
BLOCKS, SCALES = "_blocks", "_scales"  # suffixes of gpt-oss's codes and scales
_I8: Final = BY_NAME["I8"]
_NVFP4_BLOCK: Final = BY_NAME["NVFP4"]
_READER: Final = "weighbridge.packings.read.microscaled"
_ACTIVATIONS: Final = (".input_scale", ".input_global_scale", ".k_scale", ".v_scale")


class MicroscaledLayout(NamedTuple):
    """`divided`: values are divided by the global scale."""

    type: MicroscaledType
    divided: bool = False


def solve(group: Group, scale: DType, codes: Shape, row_bytes: int, *, divided: bool = False) -> Solution:
    """Codes [.., row_bytes] with scales of type `scale` [.., in / group]."""
    scales = group.specs["scales"]
    six = scale is E8M0 and row_bytes * 8 == MXFP6.bits * MXFP6.group * scales.shape[-1]
    type_ = MXFP6 if six else FOUR_BITS[scale]
    columns = row_bytes * 8 // type_.bits
    shape = (*codes[:-1], columns)
    group.need(len(shape) > 1 and scales.shape == (*shape[:-1], columns // type_.group) and scales.elements > 0,
               "codes and scales don't belong together", f"scales [.., in / {type_.group}]")  # fmt: skip
    entries = group.specs["codes"].shape[-1]
    word = Shared(4, 3, "a word") if six else Shared(row_bytes * 2 // entries, 1, "a word")
    units = {"word": word, "group": Shared(type_.group), "block": Shared(32, 1, "a block")}
    return Solution(shape, type_.bits, type_.group, MicroscaledLayout(type_, divided), units)


def words_per_scale(group: Group, words: str) -> float | None:
    """How many words of a row share a scale in MLX's float modes; None for tensors without columns."""
    columns, scales = (group.specs[role].shape[-1:] for role in (words, "scales"))
    if not columns or not scales or columns == scales == (0,):
        return None
    return columns[0] / scales[0] if scales[0] else inf


def _solve_mlx(group: Group) -> Solution:
    codes, scales = group.specs["codes"], group.specs["scales"]
    columns, groups = codes.shape[-1] * 8, scales.shape[-1]
    scale = next((dtype for dtype, row in FOUR_BITS.items() if groups * row.group == columns), None)
    group.need(scale, "words and scales don't belong together", "scales [.., in / 32] or [.., in / 16]")
    group.need("global" not in group.specs, "a stack of experts with global scales", "no global_scale", "global_scale")
    return solve(group, scale or E8M0, codes.shape, codes.row_bytes)


def _solve_gpt_oss(group: Group) -> Solution:
    codes, scales = group.specs["codes"].shape, group.specs["scales"].shape
    group.need(len(codes) > 1 and codes[-1] == 16 and scales == codes[:-1],
               "blocks and scales don't belong together", "U8 [.., groups, 16] and U8 [.., groups]")  # fmt: skip
    return solve(group, E8M0, codes[:-1], codes[-2] * 16)


def _solve_packed(group: Group, *, divided: bool) -> Solution:
    scales = group.specs["scales"].dtype
    scale = E8M0 if scales is U8 else scales
    overall = group.specs.get("global")
    group.need(overall is None or overall.elements == 1, "the global scale is misshapen", "one F32", overall)
    codes = group.specs["codes"]
    return solve(group, scale, codes.shape, codes.row_bytes, divided=divided)


def _gpt_oss_schema(codes: str, scales: str) -> PackingSchema:
    return PackingSchema(
        f"gpt-oss{codes}", NAME, "mxfp4",
        {
            "codes": Member(codes, (U8,), "rows columns/block -", needs="scales"),
            "scales": Member(scales, (U8,), "rows columns/group", needs="codes"),
        },
        key="scales", solve=_solve_gpt_oss, by_module=False, reader=_READER, logical=codes,
        applies=lambda group: "codes" in group.specs, evidence=Evidence("mxfp4", "MXFP4 blocks and scales", "codes"),
    )  # fmt: skip


_SCALE_DTYPES: Final = (U8, E4M3, E8M0)

MLX_FLOATS: Final = PackingSchema(
    "mlx-fp4", NAME, "mlx",
    {
        "codes": Member(".weight", (U32,), "rows columns/word", selects=True),
        "scales": Member(".scales", (U8,), "rows columns/group", selects=True, needs="codes"),
        "global": Member(".global_scale", required=False),
        "biases": Member(".biases", required=False),
    },
    key="scales", solve=_solve_mlx, by_module=False, reader=_READER, movable=True,
    # With twice the words per scale it is mxfp8.
    applies=lambda g: "biases" not in g.specs and words_per_scale(g, "codes") not in (None, 8),
)  # fmt: skip
GPT_OSS: Final = (_gpt_oss_schema(BLOCKS, SCALES), _gpt_oss_schema(".blocks", ".scales"))
COMPRESSED_FP4: Final = PackingSchema(
    "compressed-fp4", NAME, "fp4-packed",
    {
        "codes": Member(".weight_packed", (U8,), "rows columns/word", selects=True),
        "scales": Member(".weight_scale", _SCALE_DTYPES, "rows columns/group"),
        "global": Member(".weight_global_scale", (F32,), required=False),
    },
    key="codes", solve=lambda group: _solve_packed(group, divided=True), by_module=False, reader=_READER,
    ignored=_ACTIVATIONS,
)  # fmt: skip
SCALE_FP4: Final = PackingSchema(
    "fp4.scale", NAME, "mxfp4",
    {
        "codes": Member(".weight", (_I8, U8), "rows columns/word", selects=True),
        "scales": Member(".scale", (E8M0, U8), "rows columns/group", selects=True),
    },
    key="scales", solve=lambda group: _solve_packed(group, divided=False), by_module=False, reader=_READER,
)  # fmt: skip
MODELOPT_NVFP4: Final = PackingSchema(
    "modelopt-nvfp4", NAME, "nvfp4",
    {
        "codes": Member(".weight", (U8,), "rows columns/word", selects=True),
        "scales": Member(".weight_scale", _SCALE_DTYPES, "rows columns/group"),
        "global": Member(".weight_scale_2", (F32,)),
    },
    key="global", solve=lambda group: _solve_packed(group, divided=False), by_module=False, reader=_READER,
    ignored=_ACTIVATIONS, evidence=Evidence("nvfp4", "ModelOpt NVFP4 weight_scale_2"),
)  # fmt: skip


def _solve_ggml(group: Group) -> Solution:
    weight, scale = group.specs["codes"], group.specs["global"]
    count = weight.shape[0] if len(weight.shape) > 2 else 1
    group.need(scale.elements == count, "the scale doesn't belong to the weight", f"F32 [{count}]", scale)
    units = {"block": Shared(_NVFP4_BLOCK.block, _NVFP4_BLOCK.block, "a block")}
    return Solution(weight.shape, NVFP4.bits, NVFP4.group, count, units)


GGML_NVFP4: Final = PackingSchema(
    "ggml-nvfp4", "ggml-nvfp4", "ggml-nvfp4",
    {
        "codes": Member(".weight", (_NVFP4_BLOCK,), "rows columns/block", selects=True),
        "global": Member(".scale", (F32,), selects=True),
    },
    key="global", solve=_solve_ggml, reader="weighbridge.packings.read.ggml", ignored=(".input_scale",),
    by_module=False,
)  # fmt: skip
