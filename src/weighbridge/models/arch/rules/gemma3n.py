"""Gemma 3n: how sparse each layer is (transformers 5.23, `Gemma3nTextConfig`)."""

from __future__ import annotations

from typing import Any

from weighbridge.base.errors import FormatError
from weighbridge.models.arch.tables.expression import layer_count
from weighbridge.models.arch.tables.values import Config, integer


def complete(config: Config) -> dict[str, Any]:
    """Adds the list of sparsities, which the class computes if a config has none; `sparse_layers`, the number of
    leading layers with the usual 0.95 (-1: another list); and `unshared_kv_layers`."""
    key = "activation_sparsity_pattern"
    count, shared = layer_count(config), integer(config.get("num_kv_shared_layers"), "num_kv_shared_layers")
    if shared > count:
        raise FormatError("is more than the layers", field="num_kv_shared_layers", expected=f"<= {count}", found=shared)
    sparse = 10 if count > 10 else 0
    listed = config.get(key)
    if listed is None:
        listed = [0.95] * sparse + [0.0] * (count - sparse)
    for name, entries in ((key, listed), ("layer_types", config.get("layer_types"))):
        if not isinstance(entries, list | tuple) or len(entries) != count:
            raise FormatError("needs an entry per layer", field=name, expected=count, found=str(entries)[:80])
    leading = listed.count(0.95)
    usual = [*listed] == [0.95] * leading + [0.0] * (count - leading)
    return {key: listed, "sparse_layers": leading if usual else -1, "unshared_kv_layers": count - shared}
