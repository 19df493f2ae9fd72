"""LLaVA's tower: the layers whose outputs the projector takes, in transformers counted from either end."""

from __future__ import annotations

from typing import Any, Final

from weighbridge.base.errors import FormatError
from weighbridge.models.arch.tables.values import Config, integer

_KEY: Final = "vision_feature_layer"


def complete(config: Config) -> dict[str, Any]:
    """Adds `feature_layers`, counted from the first layer's input, as llama.cpp counts (`hparams.feature_layers`,
    tools/mtmd/clip.cpp, b11549)."""
    depth = integer((config.get("vision_config") or {}).get("num_hidden_layers"), "vision_config.num_hidden_layers", 1)
    stated = config.get(_KEY)
    layers = stated if isinstance(stated, list | tuple) else [stated]
    return {"feature_layers": [_counted(layer, depth) for layer in layers]}


def _counted(layer: Any, depth: int) -> int:
    if isinstance(layer, bool) or not isinstance(layer, int) or not -depth - 1 <= layer <= depth:
        raise FormatError(f"must be a layer of {depth}", field=_KEY, found=repr(layer)[:80])
    return layer if layer >= 0 else depth + 1 + layer


def restore(config: Config) -> dict[str, Any]:
    """One layer as a number, several as a list. A GGUF has no head, which pools an image to one vector."""
    layers = config["feature_layers"]
    stated = layers[0] if isinstance(layers, list | tuple) and len(layers) == 1 else layers
    vision = {**config["vision_config"], "vision_use_head": False}
    return {"feature_layers": None, _KEY: stated, "vision_config": vision}
