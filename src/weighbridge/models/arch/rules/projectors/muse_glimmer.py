"""Muse Glimmer's tower: layers that attend to windows or to the whole image, and a square of position embeddings."""

from __future__ import annotations

import math
from typing import Any

from weighbridge.base.limits import LAYERS
from weighbridge.models.arch.tables.expression import stated
from weighbridge.models.arch.tables.values import Config, integer


def complete(config: Config) -> dict[str, Any]:
    """Adds `every_fourth_global`: whether every fourth layer and the last one attend to the whole image, the others to
    windows, as llama.cpp's graph computes it (configuration_muse_glimmer.py, transformers 5.23)."""
    kinds = stated(config, "vision_config.layer_types")
    count = stated(config, "vision_config.num_hidden_layers")
    layers = integer(count, "vision_config.num_hidden_layers", 1, LAYERS)
    whole = {*range(3, layers, 4), layers - 1}
    usual = ["full_attention" if layer in whole else "window_attention" for layer in range(layers)]
    return {"every_fourth_global": kinds in (None, usual)}


def restore(config: Config) -> dict[str, Any]:
    """The sides of the square grid of positions."""
    side = math.isqrt(integer(config["position_count"], "v.position_embd.weight", 1))
    vision = {**config["vision_config"], "pos_emb_height": side, "pos_emb_width": side}
    return {"every_fourth_global": None, "position_count": None, "vision_config": vision}
