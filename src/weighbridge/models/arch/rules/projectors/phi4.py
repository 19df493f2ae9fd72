"""Phi-4's tower: a block less than config.json counts, and numbers of patches that a GGUF has as pixels."""

from __future__ import annotations

import math
from typing import Any

from weighbridge.base.errors import FormatError
from weighbridge.models.arch.tables.expression import stated
from weighbridge.models.arch.tables.values import Config, integer

_COUNTS = {"smallest": "min_num_patches", "largest": "max_num_patches"}


def complete(config: Config) -> dict[str, Any]:
    """Adds `blocks`, `square_image_size`, `smallest` and `largest`, as the reference converter computes them
    (conversion/phi.py `Phi4VisionMmprojModel`, llama.cpp b11549)."""
    vision = config.get("vision_config") or {}
    patch = integer(stated(config, "preprocessor.patch_size"), "preprocessor_config.json: patch_size", 1)
    positions = integer(vision.get("num_patches", 256), "vision_config.num_patches", 1)
    if (side := math.isqrt(positions)) ** 2 != positions:
        raise FormatError("must be a square number", field="vision_config.num_patches", found=str(positions))
    limits = {}
    for name, key in _COUNTS.items():
        count = next((v for path in (f"preprocessor.{key}", key) if (v := stated(config, path)) is not None), None)
        limits[name] = integer(count, key, 1) * patch**2
    layers = integer(vision.get("num_hidden_layers"), "vision_config.num_hidden_layers", 2)
    return {"blocks": layers - 1, "square_image_size": side * patch, **limits}


def restore(config: Config) -> dict[str, Any]:
    """The layers of the config, and the numbers of patches."""
    prepared, vision = dict(config["preprocessor"]), dict(config["vision_config"])
    patch = integer(prepared["patch_size"], "vision.patch_size", 1)
    for name, key in _COUNTS.items():
        prepared[key] = integer(config[name], key, 1) // patch**2
    vision |= {"num_hidden_layers": config["blocks"] + 1, "patch_size": patch}
    gone = dict.fromkeys(("blocks", "square_image_size", *_COUNTS))
    return {**gone, "preprocessor": prepared, "vision_config": vision}
