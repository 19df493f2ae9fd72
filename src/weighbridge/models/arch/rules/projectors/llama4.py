"""Llama 4's tower: a ratio whose inverse a GGUF has."""

from __future__ import annotations

from typing import Any

from weighbridge.models.arch.rules.projectors.internvl import inverse
from weighbridge.models.arch.tables.expression import stated
from weighbridge.models.arch.tables.values import Config, integer

_RATIO = "pixel_shuffle_ratio"


def complete(config: Config) -> dict[str, Any]:
    """Adds `pixel_shuffle_factor`, as the reference converter computes it (conversion/llama4.py `Llama4VisionModel`,
    llama.cpp b11549)."""
    return {"pixel_shuffle_factor": inverse(stated(config, f"vision_config.{_RATIO}"), f"vision_config.{_RATIO}")}


def restore(config: Config) -> dict[str, Any]:
    """The ratio, whose inverse is `pixel_shuffle_factor`."""
    factor = integer(config["pixel_shuffle_factor"], "vision.projector.scale_factor", 1)
    return {"pixel_shuffle_factor": None, "vision_config": {**config["vision_config"], _RATIO: 1 / factor}}
