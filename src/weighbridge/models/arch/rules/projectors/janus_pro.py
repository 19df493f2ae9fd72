"""Janus' tower: the width of its feed forward, which a config may give as a multiple of the tower's width."""

from __future__ import annotations

from typing import Any

from weighbridge.models.arch.tables.values import Config, integer


def complete(config: Config) -> dict[str, Any]:
    """Adds `intermediate_size` to `vision_config` unless it is there, as the reference converter computes it
    (conversion/januspro.py `JanusProVisionModel`, llama.cpp b11549)."""
    vision = config.get("vision_config") or {}
    if vision.get("intermediate_size") is not None or "hidden_size" not in vision:
        return {}
    width = integer(vision["hidden_size"], "vision_config.hidden_size", 1)
    return {"vision_config": {**vision, "intermediate_size": round(width * vision["mlp_ratio"])}}


def restore(config: Config) -> dict[str, Any]:
    """The multiple, from which transformers computes the width."""
    vision = config["vision_config"]
    ratio = integer(vision["intermediate_size"], "vision.feed_forward_length", 1) / integer(
        vision["hidden_size"], "vision.embedding_length", 1
    )
    return {"vision_config": {**vision, "mlp_ratio": ratio}}
