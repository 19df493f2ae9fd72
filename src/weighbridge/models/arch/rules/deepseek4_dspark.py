"""DSpark in DeepSeek V4's folder (conversion/deepseek.py `DeepseekV4DSparkModel`, llama.cpp b11549)."""

from __future__ import annotations

from typing import Any, Final

from weighbridge.base.errors import FormatError
from weighbridge.models.arch.tables.expression import layer_count
from weighbridge.models.arch.tables.values import Config, integer

_LAYERS: Final = "dspark_target_layer_ids"
KEYS: Final = (_LAYERS, "target")


def complete(config: Config) -> dict[str, Any]:
    """Adds `target_layers`, the layers whose inputs the draft reads: a config counts outputs, llama.cpp inputs. No
    block of a draft compresses attention or has a table of experts, whatever the target's config lists."""
    blocks: dict[str, Any] = {"compress_ratios": [0] * layer_count(config), "num_hash_layers": 0}
    if (layers := config.get(_LAYERS)) is None:
        return blocks
    if not isinstance(layers, list):
        raise FormatError("is not a list of layers", field=_LAYERS, found=repr(layers)[:80])
    return {**blocks, "target_layers": [integer(layer, _LAYERS) + 1 for layer in layers]}


def restore(config: Config) -> dict[str, Any]:
    """Counts outputs again."""
    return {_LAYERS: [layer - 1 for layer in config.get("target_layers") or ()], "target_layers": None}
