"""d1-omni: an LFM2 with the blocks of a head after its own (conversion/lfm2.py `_load_d1_omni_hparams`, llama.cpp
b11549)."""

from __future__ import annotations

from typing import Any, Final

from weighbridge.base.limits import LAYERS
from weighbridge.models.arch.rules import lfm2
from weighbridge.models.arch.tables.values import Config, integer

KEYS: Final = ("head_layers", "temperatures", "block_ffn_dim_multiplier", "block_multiple_of")
_HEAD: Final = "decision"  # the kind of a head's layer


def complete(config: Config) -> dict[str, Any]:
    """Adds the head's blocks to the number of layers, their kinds, the numbers of keys and the widths of the feed
    forward; and `decision`, the settings of the head."""
    if config.get("head_layers") is None or _HEAD in config:
        return {}
    blocks = integer(config["head_layers"], "head_layers", 1, LAYERS)
    layers = integer(config.get("num_hidden_layers"), "num_hidden_layers", 1, LAYERS)
    kinds = list(config.get("layer_types") or ["full_attention"] * layers)[:layers]
    heads, keys = (integer(config.get(f"num_{kind}_heads"), f"num_{kind}_heads") for kind in ("attention", "key_value"))
    width = lfm2.complete({**config, "block_auto_adjust_ff_dim": True})["intermediate_size"]
    stated = config.get("temperatures")
    names = {key.replace(":", ".").replace("-", "_").rstrip("+"): key for key in stated or {}}
    return {
        "num_hidden_layers": layers + blocks, "layer_types": kinds + [_HEAD] * blocks,
        "kv_heads_by_layer": [0 if kind == "conv" else keys for kind in kinds] + [heads] * blocks,
        "intermediate_size": [width] * layers + [4 * integer(config.get("hidden_size"), "hidden_size")] * blocks,
        "block_auto_adjust_ff_dim": False,
        _HEAD: {"type": "lfm2-d1-omni", "head_layers": blocks,
                "temperature": {name: (stated or {})[key] for name, key in names.items()}},
    }  # fmt: skip


def restore(config: Config) -> dict[str, Any]:
    """The settings of the trunk, with a width that is adjusted to that of its tensors."""
    decision = config.get(_HEAD) or {}
    blocks = decision.get("head_layers") or 0
    layers = integer(config.get("num_hidden_layers"), "num_hidden_layers") - blocks
    widths = config.get("intermediate_size")
    width = integer(widths[0] if isinstance(widths, list) and widths else widths, "feed_forward_length")
    keys = next((n for n in (config.get("kv_heads_by_layer") or [])[:layers] if n), config.get("num_key_value_heads"))
    return {
        "num_hidden_layers": layers, "num_key_value_heads": keys,
        "layer_types": list(config.get("layer_types") or ())[:layers],
        "head_layers": blocks, "temperatures": dict(decision.get("temperature") or {}), _HEAD: None,
        "intermediate_size": -(-3 * width // 2), "block_multiple_of": 1, "block_ffn_dim_multiplier": 1.0,
        "kv_heads_by_layer": None, "layer_norm_eps": None,
    }  # fmt: skip
