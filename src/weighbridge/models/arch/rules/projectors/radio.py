"""RADIO in Nemotron Nano VL: a ratio whose inverse a GGUF has."""

from __future__ import annotations

from typing import Any, Final

from weighbridge.models.arch.rules.projectors.internvl import inverse
from weighbridge.models.arch.tables.values import Config, integer

_RATIO: Final = "downsample_ratio"


def complete(config: Config) -> dict[str, Any]:
    """Adds `pixel_shuffle_factor`, as the reference converter computes it (conversion/nemotron.py
    `NemotronNanoV2VLModel`, llama.cpp b11549)."""
    return {"pixel_shuffle_factor": inverse(config.get(_RATIO), _RATIO)}


def restore(config: Config) -> dict[str, Any]:
    """The ratio, whose inverse is `pixel_shuffle_factor`."""
    factor = integer(config["pixel_shuffle_factor"], "vision.projector.scale_factor", 1)
    return {"pixel_shuffle_factor": None, _RATIO: 1 / factor}
