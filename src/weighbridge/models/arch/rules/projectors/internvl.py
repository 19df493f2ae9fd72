"""InternVL's tower: sizes in lists, and a ratio whose inverse a GGUF has."""

from __future__ import annotations

from typing import Any

from weighbridge.base.errors import FormatError
from weighbridge.models.arch.tables.values import Config, integer

_RATIO = "downsample_ratio"
_SIDES = ("image_size", "patch_size")


def complete(config: Config) -> dict[str, Any]:
    """Adds `pixel_shuffle_factor`, and replaces a list of sizes in `vision_config` by the first one, as the reference
    converter does (conversion/internvl.py `InternVisionModel`, llama.cpp b11549)."""
    vision, factor = config.get("vision_config") or {}, inverse(config.get(_RATIO), _RATIO)
    sides = {key: _side(vision[key], key) for key in _SIDES if isinstance(vision.get(key), list | tuple)}
    return {"pixel_shuffle_factor": factor, "vision_config": {**vision, **sides}}


def inverse(ratio: Any, key: str) -> int:
    """Patches joined to one along each side, from the ratio of sides after and before."""
    if not isinstance(ratio, float | int) or not 0 < ratio <= 1:
        raise FormatError("must be a share of 1", field=key, found=repr(ratio)[:80])
    return int(1 / ratio)


def _side(sizes: list[Any] | tuple[Any, ...], key: str) -> Any:
    if len({*map(repr, sizes)}) != 1:
        raise FormatError("must be a square", field=f"vision_config.{key}", found=repr(sizes)[:80])
    return sizes[0]


def restore(config: Config) -> dict[str, Any]:
    """The ratio, whose inverse is `pixel_shuffle_factor`, and the lists."""
    factor, vision = (
        integer(config["pixel_shuffle_factor"], "vision.projector.scale_factor", 1),
        config["vision_config"],
    )
    sides = {key: [vision[key]] * 2 for key in _SIDES}
    return {"pixel_shuffle_factor": None, _RATIO: 1 / factor, "vision_config": {**vision, **sides}}
