"""GLM-5.3 Flash's tower: limits of an image in tokens, which a GGUF has as pixels."""

from __future__ import annotations

from typing import Any

from weighbridge.models.arch.tables.expression import stated
from weighbridge.models.arch.tables.values import Config, integer

_COUNTS = {"smallest": "min_image_tokens", "largest": "max_image_tokens"}


def complete(config: Config) -> dict[str, Any]:
    """Adds `smallest` and `largest`, as the reference converter computes them (conversion/qwen3vl.py
    `Glm5NextVisionModel`, llama.cpp b11549)."""
    pixels = _pixels_of_a_token(config)
    counts = {name: stated(config, f"preprocessor.{key}") for name, key in _COUNTS.items()}
    return {name: integer(n, _COUNTS[name], 1) * pixels for name, n in counts.items() if n is not None}


def restore(config: Config) -> dict[str, Any]:
    """The numbers of tokens."""
    pixels, prepared = _pixels_of_a_token(config), dict(config["preprocessor"])
    prepared |= {key: integer(config[n], key, 1) // pixels for n, key in _COUNTS.items() if config.get(n) is not None}
    return {**dict.fromkeys(_COUNTS), "preprocessor": prepared}


def _pixels_of_a_token(config: Config) -> int:
    sides = (("patch_size", 14), ("merge_size", 2))
    patch, merge = (integer(stated(config, f"preprocessor.{key}") or usual, key, 1) for key, usual in sides)
    return (patch * merge) ** 2
