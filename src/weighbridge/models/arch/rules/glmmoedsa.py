"""GLM-5 (MoE with sparse attention): the layers with an indexer (configuration_glm_moe_dsa.py, transformers 5.23)."""

from __future__ import annotations

from typing import Any

from weighbridge.base.errors import FormatError
from weighbridge.models.arch.tables.expression import layer_count
from weighbridge.models.arch.tables.values import Config, integer


def complete(config: Config) -> dict[str, Any]:
    """Adds `indexer_types`, unless a config has it: from a letter per layer, or one indexer every n layers."""
    if config.get("indexer_types") is not None:
        return {}
    layers, letters = range(layer_count(config)), config.get("index_topk_pattern")
    if letters is not None:
        full = [str(letter) in ("F", "full") for letter in letters] if isinstance(letters, str | list) else []
        if len(full) != len(layers):
            raise FormatError("needs an entry per layer", field="index_topk_pattern", found=str(letters)[:80])
    else:
        step = max(integer(config.get("index_topk_freq", 1), "index_topk_freq"), 1)
        first = integer(config.get("index_skip_topk_offset", 2), "index_skip_topk_offset")
        full = [max(i - first + 1, 0) % step == 0 for i in layers]
    return {"indexer_types": ["full" if has_indexer else "shared" for has_indexer in full]}
