"""Kimi K2.5's tower: a square of patches joined to one, and a number of patches that a GGUF has as pixels."""

from __future__ import annotations

from typing import Any

from weighbridge.base.errors import FormatError
from weighbridge.models.arch.tables.expression import stated
from weighbridge.models.arch.tables.values import Config, integer

_KERNEL, _PATCHES = "vision_config.merge_kernel_size", "preprocessor.in_patch_limit"


def complete(config: Config) -> dict[str, Any]:
    """Adds `merge_side`, `position_rows`, `gelu` and `largest`, as the reference converter computes them
    (conversion/kimivl.py `KimiK25Model`, llama.cpp b11549)."""
    kernel = stated(config, _KERNEL) or (2, 2)
    if not isinstance(kernel, list | tuple) or len({*map(repr, kernel)}) != 1:
        raise FormatError("must be a square", field=_KERNEL, found=repr(kernel)[:80])
    patch = integer(stated(config, "vision_config.patch_size"), "vision_config.patch_size", 1)
    count = integer(next((v for v in [stated(config, _PATCHES)] if v is not None), 16384), _PATCHES, 1)
    rows = stated(config, "vision_config.init_pos_emb_height") or 64
    act = stated(config, "vision_config.projector_hidden_act") or "gelu"
    return {"merge_side": kernel[0], "position_rows": rows, "gelu": act == "gelu", "largest": count * patch**2}


def restore(config: Config) -> dict[str, Any]:
    """The square, and the number of patches."""
    vision, side = dict(config["vision_config"]), integer(config["merge_side"], "vision.projector.scale_factor", 1)
    patch = integer(vision["patch_size"], "vision.patch_size", 1)
    limit = integer(config["largest"], "vision.image_max_pixels", 1) // patch**2
    vision["merge_kernel_size"] = [side, side]
    gone = dict.fromkeys(("merge_side", "gelu", "largest", "position_rows"))
    return {**gone, "vision_config": vision, "preprocessor": {**config["preprocessor"], "in_patch_limit": limit}}
