"""EAGLE-3's drafts: the layers of the target whose outputs they read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from weighbridge.base.errors import FormatError
from weighbridge.models.arch.tables.values import Config, integer

KEYS: Final = ("eagle_aux_hidden_state_layer_ids", "target")
_FEWEST: Final = 4  # layers that have those three


def complete(config: Config) -> dict[str, Any]:
    """Adds `target_layers`: those of the config, or the third, the middle one and the third from the end of the
    target's, as the reference converter computes them (conversion/llama.py `LlamaModel`, llama.cpp b11549)."""
    layers, target = config.get("eagle_aux_hidden_state_layer_ids"), config.get("target")
    if not layers and isinstance(target, Mapping):
        count = integer(target.get("num_hidden_layers"), "num_hidden_layers")
        if count < _FEWEST:
            raise FormatError("the target has too few layers for this draft", field="num_hidden_layers",
                              expected=f">= {_FEWEST}", found=count)  # fmt: skip
        layers = [2, count // 2, count - 3]
    return {"target_layers": layers} if layers else {}


def restore(config: Config) -> dict[str, Any]:
    """Restores the list of the config."""
    return {"target_layers": None, "eagle_aux_hidden_state_layer_ids": config.get("target_layers")}
