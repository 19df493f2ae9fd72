"""PaddleOCR-VL's tower: the side of its largest square image, and the number of its position embeddings."""

from __future__ import annotations

import math
from typing import Any

from weighbridge.models.arch.tables.expression import stated
from weighbridge.models.arch.tables.values import Config, integer

_LARGEST = "preprocessor.max_pixels"


def complete(config: Config) -> dict[str, Any]:
    """Adds `max_side`, as the reference converter computes it (conversion/ernie.py `PaddleOCRVisionModel`, llama.cpp
    b11549)."""
    if (pixels := stated(config, _LARGEST)) is None:
        return {}
    return {"max_side": math.isqrt(integer(pixels, _LARGEST, 1))}


def restore(config: Config) -> dict[str, Any]:
    """The size of an image with as many patches as there are position embeddings."""
    vision = config["vision_config"]
    side = math.isqrt(integer(config["position_count"], "v.position_embd.weight", 1))
    size = side * integer(vision["patch_size"], "vision.patch_size", 1)
    return {"max_side": None, "position_count": None, "vision_config": {**vision, "image_size": size}}
