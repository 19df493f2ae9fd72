"""Falcon: the number of groups in which queries share a key and a value."""

from __future__ import annotations

from typing import Any

from weighbridge.models.arch.tables.expression import evaluate
from weighbridge.models.arch.tables.values import Config


def complete(config: Config) -> dict[str, Any]:
    """Sets `num_kv_heads`. The first configs (RefinedWeb) of the larger models have an older key; those of the smaller
    models, and later ones without the newer layers, only say that all queries share one key (modeling_falcon.py
    `FalconAttention`, transformers 5.23)."""
    if (older := evaluate("n_head_kv", config)) is not None and config.get("num_kv_heads") is None:
        return {"num_kv_heads": older, "new_decoder_architecture": True}
    shared = config.get("multi_query") and not config.get("new_decoder_architecture")
    groups = 1 if shared else evaluate("num_kv_heads", config) or evaluate("num_attention_heads", config)
    return {"num_kv_heads": groups}
