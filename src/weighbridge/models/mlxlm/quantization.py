"""Infers MLX's `quantization` object from shapes, for a config that lacks it.

Shapes only determine the product of bits and group size. The family's table has the number of columns of a matrix,
which determines both. If no table describes the model, ambiguous modules are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

from weighbridge.base.dtypes import U32, DType
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.spec import Shape
from weighbridge.packings.schema.affine import BITS, GROUPS
from weighbridge.packings.schema.base import settings


class StoredMatrix(Protocol):
    """A stored tensor."""

    @property
    def dtype(self) -> DType: ...

    @property
    def shape(self) -> Shape: ...


def with_quantization(config: Mapping[str, Any], stored: Mapping[str, StoredMatrix]) -> Mapping[str, Any]:
    """Returns the config, with the `quantization` that its weights imply if it has none."""
    quantization = inferred(config, stored)
    return {**config, "quantization": quantization} if quantization else config


def inferred(config: Mapping[str, Any], stored: Mapping[str, StoredMatrix]) -> dict[str, Any] | None:
    """Returns MLX's `quantization` object from shapes, or None if the config has one, no weight needs it, or no table
    describes the model. A module whose shapes match no scheme is left out."""
    names = () if settings(config) else (name.removesuffix(".biases") for name in stored if name.endswith(".biases"))
    affine = [m for m in names if (w := stored.get(f"{m}.weight")) and w.dtype is U32 and f"{m}.scales" in stored]
    if not affine:
        return None
    from weighbridge.models.arch.registry import family_of_hf

    try:
        family = family_of_hf(config)
        sizes = family.sizes_from_hf(config)
        dialect, prefix = family.dialect_and_prefix([*stored], sizes)
    except (UnsupportedError, FormatError):
        return None
    places = family.expansion(dialect, sizes, prefix).places
    pairs: dict[str, tuple[int, int]] = {}  # bits and group size
    for module in affine:
        place = places.get(f"{module}.weight")
        width = place.shape[-1] if place and place.shape else 0
        packed, groups = stored[f"{module}.weight"].shape[-1], stored[f"{module}.scales"].shape[-1]
        bits, group = 32 * packed // max(width, 1), width // max(groups, 1)
        exact = bits * width == 32 * packed and group * groups == width
        if exact and bits in BITS and group in GROUPS:
            pairs[module] = bits, group
    if not pairs:
        return None
    usual = Counter(pairs.values()).most_common(1)[0][0]
    return {**_described(*usual), **{module: _described(*pair) for module, pair in pairs.items() if pair != usual}}


def _described(bits: int, group: int) -> dict[str, Any]:
    return {"bits": bits, "group_size": group}
