"""LFM2: the width of the feed forward (modeling_lfm2.py `Lfm2MLP`, transformers 5.23)."""

from __future__ import annotations

from typing import Any, Final

from weighbridge.models.arch.tables.values import Config, integer, number

KEYS: Final = ("block_ff_dim", "block_ffn_dim_multiplier", "block_multiple_of", "block_auto_adjust_ff_dim")


def complete(config: Config) -> dict[str, Any]:
    """Sets `intermediate_size` to the width of the tensors: older configs have another key, and the class adjusts the
    width if configured."""
    key = "intermediate_size" if config.get("block_ff_dim") is None else "block_ff_dim"
    width = integer(config.get(key), key)
    if config.get("block_auto_adjust_ff_dim"):
        multiplier = config.get("block_ffn_dim_multiplier")
        multiple = integer(config.get("block_multiple_of"), "block_multiple_of", 1)
        width = int(2 * width / 3)
        width = width if multiplier is None else int(number(multiplier, "block_ffn_dim_multiplier") * width)
        width = multiple * ((width + multiple - 1) // multiple)
    return {"intermediate_size": width, "block_auto_adjust_ff_dim": False}
