"""Gemma 3's tower: how many patches the projector averages along each side."""

from __future__ import annotations

import math
from typing import Any

from weighbridge.models.arch.tables.expression import evaluate
from weighbridge.models.arch.tables.values import Config, integer


def complete(config: Config) -> dict[str, Any]:
    """Adds `pooled`, as the reference converter computes it from the number of patches and of tokens per image
    (conversion/gemma.py `Gemma3VisionModel`, llama.cpp b11549)."""
    tokens = integer(evaluate("preprocessor.image_seq_length", config) or 256, "image_seq_length", 1)
    patches = evaluate("vision_config.image_size // vision_config.patch_size", config) or 0
    return {"pooled": patches // math.isqrt(tokens) or None}


def restore(config: Config) -> dict[str, Any]:
    """The number of tokens per image of `pooled`, and no head, which Gemma 3 doesn't use and a GGUF doesn't hold."""
    side = evaluate("vision_config.image_size // vision_config.patch_size", config) or 0
    pooled = integer(config.get("pooled") or 4, "vision.projector.scale_factor", 1)
    vision = {**config["vision_config"], "vision_use_head": False}
    return {"pooled": None, "mm_tokens_per_image": (side // pooled) ** 2, "vision_config": vision}
