"""The towers of Janus and Step3-VL: the width of the feed forward, which a config may give as a multiple of the tower's
width."""

from __future__ import annotations

from typing import Any, Final

from weighbridge.models.arch.tables.values import Config, integer, positive

_WIDTHS: Final = ("hidden_size", "width")
_USUAL: Final = 8960 / 1536  # Step3-VL's, whose config may omit it


def complete(config: Config) -> dict[str, Any]:
    """Adds `intermediate_size` to `vision_config` unless it is there, as the reference converter computes it
    (conversion/januspro.py `JanusProVisionModel`, conversion/step3.py `Step3VLVisionModel`, llama.cpp b11549)."""
    vision = config.get("vision_config") or {}
    key = next((key for key in _WIDTHS if vision.get(key)), None)
    if vision.get("intermediate_size") is not None or key is None:
        return {}
    width, ratio = integer(vision[key], f"vision_config.{key}", 1), vision.get("mlp_ratio", _USUAL)
    return {"vision_config": {**vision, "intermediate_size": round(width * positive(ratio, "vision_config.mlp_ratio"))}}


def restore(config: Config) -> dict[str, Any]:
    """The multiple, from which transformers computes the width."""
    vision = config["vision_config"]
    width = next(vision[key] for key in _WIDTHS if key in vision)
    inner = integer(vision["intermediate_size"], "vision.feed_forward_length", 1)
    return {"vision_config": {**vision, "mlp_ratio": inner / integer(width, "vision.embedding_length", 1)}}
