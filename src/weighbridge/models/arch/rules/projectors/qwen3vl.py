"""Qwen 3-VL's tower: the side of a square image with as many patches as there are position embeddings."""

from __future__ import annotations

import math
from typing import Any

from weighbridge.models.arch.tables.expression import evaluate
from weighbridge.models.arch.tables.values import Config, integer

_COUNT = "vision_config.num_position_embeddings"


def complete(config: Config) -> dict[str, Any]:
    """Adds `square_image_size`: the config's, or as the reference converter computes it (conversion/qwen3vl.py
    `Qwen3VLVisionModel`, llama.cpp b11549)."""
    if (stated := evaluate("vision_config.image_size", config)) is not None:
        return {"square_image_size": stated}
    count = integer(evaluate(_COUNT, config) or 2304, _COUNT, 1)
    return {"square_image_size": int(math.sqrt(count) * (evaluate("vision_config.patch_size", config) or 16))}


def restore(config: Config) -> dict[str, Any]:
    """The number of position embeddings of `square_image_size`."""
    vision = config["vision_config"]
    side = integer(config["square_image_size"], "vision.image_size", 1) // integer(
        vision["patch_size"], "patch_size", 1
    )
    return {"square_image_size": None, "vision_config": {**vision, "num_position_embeddings": side * side}}
