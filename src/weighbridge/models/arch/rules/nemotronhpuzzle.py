"""Nemotron-H Puzzle: the layers of a model found by a search (NVIDIA's configuration_nemotron_h_puzzle.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from weighbridge.base.errors import FormatError
from weighbridge.models.arch.tables.values import Config, integer

KEYS: Final = ("block_configs", "layers_block_type")
_KINDS, _WIDTHS, _USED = "layers_block_type", "expert_widths_by_layer", "experts_used_by_layer"
_OF_BLOCK: Final = {_WIDTHS: "moe_intermediate_size", _USED: "num_experts_per_tok"}
#: Kinds of layers in the words of transformers 5, and of this class.
_BLOCKS: Final = {"linear_attention": "mamba", "full_attention": "attention"}


def complete(config: Config) -> dict[str, Any]:
    """Adds three lists from `block_configs`: the kind of each layer, the width of its experts, and how many of them it
    uses (0 without experts)."""
    blocks = config.get("block_configs")
    if blocks is None:
        return {}
    if not isinstance(blocks, list) or not all(isinstance(b, Mapping) and b.get("block_type") for b in blocks):
        raise FormatError("is not a list of blocks, each with a block_type", field="block_configs",
                          found=repr(blocks)[:80])  # fmt: skip
    lists = {name: [integer(b.get(key) or 0, key) for b in blocks] for name, key in _OF_BLOCK.items()}
    return {_KINDS: [b["block_type"] for b in blocks], **lists}


def restore(config: Config) -> dict[str, Any]:
    """Builds `block_configs` from the three lists, and counts them."""
    sizes = zip(config[_KINDS], config[_WIDTHS], config[_USED], strict=True)
    blocks = [
        {"block_type": _BLOCKS.get(kind, kind)}
        | ({"moe_intermediate_size": width, "num_experts_per_tok": used} if width else {})
        for kind, width, used in sizes
    ]
    removed = dict.fromkeys((_KINDS, *_OF_BLOCK, *_OF_BLOCK.values()))
    return {**removed, "block_configs": blocks, "num_hidden_layers": len(blocks)}
