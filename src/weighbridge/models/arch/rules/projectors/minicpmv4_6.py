"""MiniCPM-V 4.6's tower: the block after which it joins patches, and the number of its position embeddings."""

from __future__ import annotations

import math
from typing import Any

from weighbridge.base.errors import UnsupportedError
from weighbridge.models.arch.tables.expression import stated
from weighbridge.models.arch.tables.values import Config, integer

_BLOCK = "insert_layer_id"


def complete(config: Config) -> dict[str, Any]:
    """Adds `insert_layers`, a list of the block. UnsupportedError if images keep four times as many patches, for which
    the tower has fewer tensors."""
    if (mode := stated(config, "preprocessor.downsample_mode")) not in (None, "16x"):
        raise UnsupportedError(f"preprocessor_config.json: downsample_mode is {mode}, but only 16x is described")
    block = next((v for key in (_BLOCK, f"vision_config.{_BLOCK}") if (v := stated(config, key)) is not None), 6)
    return {"insert_layers": [integer(block, _BLOCK)]}


def restore(config: Config) -> dict[str, Any]:
    """The block of `insert_layers`, and the size of an image with as many patches as there are position embeddings."""
    block, vision = config["insert_layers"][0], config["vision_config"]
    side = math.isqrt(integer(config["position_count"], "v.position_embd.weight", 1))
    size = side * integer(vision["patch_size"], "vision.patch_size", 1)
    return {
        "insert_layers": None, "position_count": None, _BLOCK: block,
        "vision_config": {**vision, _BLOCK: block, "image_size": size},
    }  # fmt: skip
