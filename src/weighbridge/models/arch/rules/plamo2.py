"""PLaMo 2: the layers with attention (modeling_plamo.py, `is_mamba`)."""

from __future__ import annotations

from typing import Any

from weighbridge.base.errors import FormatError
from weighbridge.models.arch.tables.expression import layer_count
from weighbridge.models.arch.tables.values import Config, integer


def complete(config: Config) -> dict[str, Any]:
    """Adds `attending_layers`: the middle one of every `mamba_step` layers; the last one if there are too few
    layers."""
    count, step = layer_count(config), integer(config.get("mamba_step"), "mamba_step", 2)
    return {"attending_layers": [count - 1] if count <= step // 2 else [*range(step // 2, count, step)]}


def restore(config: Config) -> dict[str, Any]:
    """Finds the step. FormatError if no step results in these layers."""
    listed = config["attending_layers"]
    for step in range(2, 2 * layer_count(config) + 2):
        if complete({**config, "mamba_step": step})["attending_layers"] == listed:
            return {"attending_layers": None, "mamba_step": step}
    raise FormatError("layers with attention follow no step", field="attention.head_count_kv", found=str(listed)[:80])
