"""MLX affine quantization: a module P is stored as three tensors.

    P.weight  U32 [..., out, in*bits/32]   codes, a little-endian bit stream along the row
    P.scales  T   [..., out, in/group]     T is F16, BF16 or F32
    P.biases  T   [..., out, in/group]     (not to be confused with P.bias, an ordinary linear bias)

    value = scale * code + bias            the scale may be negative

Shapes fix only bits * group; config.json decides between the candidates.
Source: mlx/backend/cpu/quantized.cpp (0.32), mlx.nn.QuantizedLinear.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from weighbridge.base.dtypes import U8, U32
from weighbridge.base.errors import FormatError
from weighbridge.base.words import plural
from weighbridge.packings.schema.base import (
    FLOATS,
    Config,
    Evidence,
    Group,
    Member,
    PackingSchema,
    Shared,
    Solution,
    dense,
)

NAME: Final = "mlx-affine"
BITS: Final = (1, 2, 3, 4, 5, 6, 8)
GROUPS: Final = (32, 64, 128)
# The order in which bits are tried if the file doesn't determine them.
_USUAL: Final = (4, 8, 6, 5, 3, 2, 1)


def solve(group: Group) -> Solution:
    weight, scales, biases = (group.specs[m] for m in ("weight", "scales", "biases"))
    same = scales == biases and scales.shape[:-1] == weight.shape[:-1] and len(weight.shape) > 1
    group.need(same and 0 not in scales.shape, "weight, scales and biases don't belong together",
               f"scales and biases [{', '.join(map(str, weight.shape[:-1]))}, groups]")  # fmt: skip
    bits, size = _parameters(group, weight.shape[-1], scales.shape[-1])
    units = {"words": dense(bits)._replace(what="words"), "group": Shared(size)}
    return Solution((*weight.shape[:-1], weight.shape[-1] * 32 // bits), bits, size, units=units)


def _parameters(group: Group, words: int, groups: int) -> tuple[int, int]:
    """Bits and group size of a row of `words` words in `groups` groups: bits * size = 32 * words / groups."""
    fits = [(b, g) for b in BITS for g in GROUPS if b * g * groups == 32 * words]
    configured = _configured(group.module, group.config)
    if configured in fits:
        return configured
    if len(fits) == 1:
        return fits[0]
    if fits and group.guess:  # layers may have their own bits, and rarely their own group size
        usual = (configured[0], *_USUAL)
        return min(fits, key=lambda fit: (fit[1] != configured[1], usual.index(fit[0])))
    raise FormatError(
        f"bits and group size are ambiguous: {words} words in {plural(groups, 'group')} a row",
        field=group.module,
        expected=f"one of {fits} in config.json's quantization" if fits else "complete groups",
        found=configured if configured != (0, 0) else "nothing",
        hint="set group_size and bits in config.json's quantization",
    )


def _configured(module: str, config: Config) -> tuple[int, int]:
    """(bits, group size) of a module in config.json; an override's null group size means MLX's default of 64."""
    top = config.get("quantization") or config.get("quantization_config") or {}
    override = top.get(module) if isinstance(top, Mapping) else None
    table = override if isinstance(override, Mapping) else top
    if not isinstance(table, Mapping):
        return 0, 0
    bits, group = table.get("bits", top.get("bits")), table.get("group_size", top.get("group_size"))
    return (bits if isinstance(bits, int) else 0), (group if isinstance(group, int) else 64 if bits else 0)


AFFINE: Final = PackingSchema(
    NAME, NAME, "mlx",
    {
        "weight": Member(".weight", (U32,), "rows columns/words", selects=True, needs="scales"),
        "scales": Member(".scales", FLOATS, "rows columns/group", needs="weight"),
        "biases": Member(".biases", FLOATS, "rows columns/group"),
    },
    key="scales", solve=solve, reader="weighbridge.packings.read.affine", movable=True,
    applies=lambda group: "biases" in group.specs or group.specs["scales"].dtype is not U8,
    evidence=Evidence("mlx", "weights with separate scales (MLX)"),
)  # fmt: skip
