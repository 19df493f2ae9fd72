"""dots3-note: its kinds of layers (configuration_dots3_note.py, transformers 5.23), and the factors of its norms."""

from __future__ import annotations

from typing import Any, Final

from weighbridge.models.arch.tables.expression import layer_count
from weighbridge.models.arch.tables.values import Config

KEYS: Final = ("apply_mla_qkv_lora_rescale",)
_RANKS: Final = {"q_rescaled": "q_lora_rank", "kv_rescaled": "kv_lora_rank", "swa_kv_rescaled": "swa_kv_lora_rank"}


def complete(config: Config) -> dict[str, Any]:
    """Adds `layer_types` unless the config has it, and the widths to which latent vectors are rescaled: by the root of
    such a width over their rank. Without `apply_mla_qkv_lora_rescale` it is the rank (conversion/dots3.py, llama.cpp
    b11549)."""
    widths = {key: config.get("hidden_size" if config.get(KEYS[0]) else rank) for key, rank in _RANKS.items()}
    if config.get("layer_types") is not None:
        return widths
    full = (layer < 2 or layer % 4 == 1 for layer in range(layer_count(config)))
    return {**widths, "layer_types": ["full_attention" if kind else "sliding_attention" for kind in full]}


def restore(config: Config) -> dict[str, Any]:
    """Leaves out the widths, and the rotation in transformers' words, in which the kinds of layers have other names."""
    return dict.fromkeys((*_RANKS, "rope_parameters"))
