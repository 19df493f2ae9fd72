"""Ling 3: the layers with latent attention (modeling_bailing_moe_v3.py)."""

from __future__ import annotations

from typing import Any

from weighbridge.base.errors import FormatError
from weighbridge.models.arch.tables.expression import layer_count
from weighbridge.models.arch.tables.values import Config, integer


def complete(config: Config) -> dict[str, Any]:
    """Adds `attending_layers`: the last one of every `layer_group_size` layers, and those behind the last whole
    group."""
    count, size = layer_count(config), integer(config.get("layer_group_size"), "layer_group_size", 1)
    return {"attending_layers": [i for i in range(count) if (i + 1) % size == 0 or i >= count // size * size]}


def restore(config: Config) -> dict[str, Any]:
    """Finds the size of the groups. FormatError if no size results in these layers. The number of layers is still a
    GGUF's, with those that predict further tokens."""
    further = integer(config.get("num_nextn_predict_layers") or 0, "num_nextn_predict_layers")
    listed, count = config["attending_layers"], layer_count(config) - further
    for size in range(1, count + 2):
        if complete({"num_hidden_layers": count, "layer_group_size": size})["attending_layers"] == listed:
            return {"attending_layers": None, "layer_group_size": size}
    raise FormatError("layers with attention follow no group", field="attention.head_count_kv", found=str(listed)[:80])
