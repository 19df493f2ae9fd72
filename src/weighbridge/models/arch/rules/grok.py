"""Grok: the factor of the attention's logits, and settings of yarn at the top of its config."""

from __future__ import annotations

from typing import Any

from weighbridge.models.arch.tables.values import Config


def complete(config: Config) -> dict[str, Any]:
    """Adds `attn_output_multiplier` unless the config has it: one over the root of a head's width, as the reference
    converter computes it (conversion/grok.py, llama.cpp b11549)."""
    if config.get("attn_output_multiplier") is not None:
        return {}
    width, hidden, heads = (config.get(key) for key in ("head_dim", "hidden_size", "num_attention_heads"))
    if isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
        width = width or hidden // heads
    return {"attn_output_multiplier": width**-0.5} if isinstance(width, int) and width > 0 else {}


def restore(config: Config) -> dict[str, Any]:
    """Leaves yarn's settings only at the top."""
    return {"rope_scaling": None} if config.get("rope_type") else {}
