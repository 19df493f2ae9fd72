"""Gemma 4: layers of different head widths and feed forwards (configuration_gemma4.py, transformers 5.23)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from weighbridge.base.errors import FormatError
from weighbridge.models.arch.tables.expression import evaluate
from weighbridge.models.arch.tables.values import Config

_OF_FULL: Final = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}


def complete(config: Config) -> dict[str, Any]:
    """Adds the head width and number of keys of layers with full attention, and the width of the feed forward in layers
    that share keys (twice as wide if configured).

    transformers 5.23 writes the former per layer (`per_layer_config`); published configs and mlx-lm have keys for them.
    The last layer always has full attention.
    """
    kinds = list(config.get("layer_types") or ())
    kinds[-1:] = ["full_attention"] if kinds else []
    full = {i for i, kind in enumerate(kinds) if kind == "full_attention"}
    factor = 2 if config.get("use_double_wide_mlp") else 1
    width = evaluate("intermediate_size", config)
    out = {"layer_types": kinds, "shared_intermediate_size": None if width is None else factor * width}
    listed = config.get("per_layer_config")
    if listed is None:
        return out if config.get("attention_k_eq_v") else {**out, "num_global_key_value_heads": None}
    if not isinstance(listed, Mapping) or not all(isinstance(settings, Mapping) for settings in listed.values()):
        raise FormatError("is not an object of objects", field="per_layer_config", found=repr(listed)[:80])
    if any(not str(layer).isdigit() for layer in listed):
        raise FormatError("has keys that aren't numbers of layers", field="per_layer_config",
                          found=sorted(map(str, listed)))  # fmt: skip
    declared = {int(layer): settings for layer, settings in listed.items() if settings}
    first = declared[min(declared)] if declared else {}
    if declared.keys() - full or any(s != first or s.keys() - _OF_FULL.keys() for s in declared.values()):
        raise FormatError(
            "has settings that this family's table doesn't describe", field="per_layer_config", found=listed,
            expected="head_dim and num_key_value_heads, the same in all layers with full attention",
        )  # fmt: skip
    if declared and declared.keys() != full:
        raise FormatError("must cover all layers with full attention", field="per_layer_config")
    return {**out, "global_head_dim": first.get("head_dim", config.get("head_dim")),
            "num_global_key_value_heads": first.get("num_key_value_heads")}  # fmt: skip
