"""compressed-tensors (llm-compressor, vLLM), the integer formats. A module P of W[out, in]:

    pack-quantized    P.weight_packed      I32 [out, words]     code + 2 ** (b - 1), a stream along `in`
                      P.weight_scale       floats [out, groups]
                      P.weight_shape       I64 or I32 [2]
                      P.weight_zero_point  I32 [words, groups]  packed along `out`, with the same 2 ** (b - 1) added
                      P.weight_g_idx       I32 [in]             if columns were quantized in activation order
    int-quantized,    P.weight             I8 [out, in]
    naive-quantized   P.weight_scale       floats [out, groups], [out, 1], [out] or one
                      P.weight_zero_point  I8, as the scales

    W[o, i] = (code[o, i] - zero[o, group of i]) * scale[o, group of i]

Up to 0.17 the codes of 3, 5, 6 and 7 bits were padded to whole words, since 0.18 they are dense; only the width of the
tensor shows it. Source: compressed_tensors/compressors/quantized_compressors (0.17.1 and 0.18.0).
"""

from __future__ import annotations

from typing import Final

from weighbridge.base.dtypes import BY_NAME, I32
from weighbridge.base.errors import FormatError
from weighbridge.base.limits import PROBE_INDEX, PROBE_SETTING
from weighbridge.packings.schema.base import (
    FLOATS,
    Evidence,
    Group,
    Member,
    PackingSchema,
    Solution,
    configured_group_bits,
    in_group,
    in_words,
    integers,
)

NAME: Final = "compressed-tensors"
_BITS: Final = range(1, 9)
_I8: Final = BY_NAME["I8"]
_I64: Final = BY_NAME["I64"]
#: The scale of a matrix's inputs, a float [1], if it doesn't depend on them.
INPUT_SCALE: Final = ".input_scale"
# Scales of activations and caches.
_ACTIVATIONS: Final = (INPUT_SCALE, ".input_zero_point", ".output_scale")


def _solve_words(group: Group) -> Solution:
    specs, codes = group.specs, group.specs["codes"]
    group.need(specs["shape"].elements == 2, "weight_shape is misshapen", "I64 [2]", specs["shape"])
    outer, inner = integers(group, "shape")
    group.need(codes.shape[:1] == (outer,) and len(codes.shape) == 2 and inner > 0,
               "weight_shape contradicts weight_packed", f"[{outer}, words]", codes)  # fmt: skip
    bits, layout = _layout(group, codes.shape[-1], inner)
    groups = _groups(group, outer, inner)
    width = -(-outer // (32 // bits)) if layout == "padded" else -(-outer * bits // 32)
    zeros, index = specs.get("zeros"), specs.get("g_idx")
    group.need(zeros is None or zeros.shape == (width, groups), "weight_zero_point doesn't belong to the weight",
               f"I32 [{width}, {groups}]", zeros)  # fmt: skip
    group.need(index is None or index.shape == (inner,), "weight_g_idx is misshapen", f"I32 [{inner}]", index)
    size = inner // groups
    units = {"word": in_words(bits, inner, codes.shape[-1]), "group": in_group(size, inner)}
    if zeros is not None:
        units["out-word"] = in_words(bits, outer, zeros.shape[0])
    return Solution((outer, inner), bits, size, layout, units)


def _layout(group: Group, words: int, inner: int) -> tuple[int, str]:
    """Bits and layout from the number of words; from the config if several match, which happens with few columns."""
    dense = [(b, "stream") for b in _BITS if -(-inner * b // 32) == words]
    padded = [(b, "padded") for b in _BITS if 32 % b and -(-inner // (32 // b)) == words]
    configured = configured_group_bits(group.config)
    fits = [f for f in (*dense, *padded) if configured in (0, f[0])] or [*dense, *padded]
    if len(fits) == 1 or len({b for b, _ in fits}) == 1:
        return fits[0]
    raise FormatError(
        f"{group.module}: bits are ambiguous: {words} words for {inner} columns",
        expected=f"one of {sorted({b for b, _ in fits})} as num_bits in the config" if fits else "1 to 8 bits",
        found=configured or "nothing",
    )


def _groups(group: Group, outer: int, inner: int) -> int:
    """The number of column groups, for scales of shape [out, groups] or [out], or a single scale."""
    spec = group.specs["scales"]
    shape = spec.shape
    groups = max(shape[1], 1) if len(shape) == 2 and shape[0] == outer else 1
    fits = shape == (outer, shape[-1]) if len(shape) == 2 else spec.elements in (1, outer)
    group.need(fits and spec.elements > 0 and inner % groups == 0, "weight_scale doesn't belong to the weight",
               f"floats [{outer}, groups]", spec)  # fmt: skip
    return groups


def solve_bytes(group: Group) -> Solution:
    """Codes of a byte each, with scales and zero points."""
    weight, zeros = group.specs["codes"], group.specs.get("zeros")
    group.need(len(weight.shape) == 2 and weight.elements > 0, "weight isn't a matrix", "I8 [out, in]", weight)
    outer, inner = weight.shape
    groups, scales = _groups(group, outer, inner), group.specs["scales"]
    group.need(zeros is None or zeros.elements == scales.elements, "weight_zero_point is not like weight_scale",
               f"I8 {list(scales.shape)}", zeros)  # fmt: skip
    # Codes of fewer bits are stored in bytes too, so the bits can't be compared with a config.
    return Solution(weight.shape, None, inner // groups, units={"group": in_group(inner // groups, inner)})


_SCALES: Final = Member(".weight_scale", FLOATS, "rows columns/group")

PACKED: Final = PackingSchema(
    "compressed-packed", NAME, NAME,
    {
        "codes": Member(".weight_packed", (I32,), "rows columns/word", selects=True),
        "scales": _SCALES,
        "shape": Member(".weight_shape", (_I64, I32), "-", probe=PROBE_SETTING),
        "zeros": Member(".weight_zero_point", (I32,), "rows/out-word columns/group", required=False),
        "g_idx": Member(".weight_g_idx", (I32,), "columns", required=False, probe=PROBE_INDEX),
    },
    key="codes", solve=_solve_words, reader="weighbridge.packings.read.compressed", ignored=_ACTIVATIONS,
    evidence=Evidence(NAME, "weight_packed tensors (compressed-tensors)"),
)  # fmt: skip
INT8: Final = PackingSchema(
    "compressed-int8", NAME, "int8",
    {
        "codes": Member(".weight", (_I8,), "rows columns", selects=True),
        "scales": _SCALES,
        "zeros": Member(".weight_zero_point", (_I8,), "rows columns/group", required=False),
    },
    key="scales", solve=solve_bytes, by_module=False, reader="weighbridge.packings.read.compressed",
    ignored=_ACTIVATIONS, bits=8,
)  # fmt: skip
