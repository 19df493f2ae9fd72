"""Laguna: heads, gates and rotation by layer (configuration_laguna.py, transformers 5.23)."""

from __future__ import annotations

from typing import Any, Final

from weighbridge.models.arch.tables.expression import layer_count
from weighbridge.models.arch.tables.values import Config

_HEADS: Final = "num_attention_heads_per_layer"
_PERIOD: Final = 4  # llama.cpp's graph has full attention in the first of every 4 layers
_KINDS: Final = ("full_attention", "sliding_attention")


def complete(config: Config) -> dict[str, Any]:
    """Adds the lists by layer of heads and of feed forwards; `gate_width`: whether a gate scales each `head` or each
    `element`, or the layers differ; `layout_every`: n if every n-th layer from the first has full attention, 0 without
    a window, -1 for any other layout; and `end_of_turn`, the first of several end tokens that isn't that of the
    beginning."""
    count = layer_count(config)
    kinds = config.get("layer_types") or [_KINDS[0]] * count
    window = config.get("sliding_window")
    listed = config.get("eos_token_id")
    ends = listed if isinstance(listed, list) else []
    known = [_KINDS[layer % _PERIOD > 0] for layer in range(count)]
    return {
        _HEADS: config.get(_HEADS) or [config.get("num_attention_heads")] * count,
        "mlp_layer_types": config.get("mlp_layer_types") or ["dense", *["sparse"] * (count - 1)],
        "gate_width": _gate_width(config),
        "end_of_turn": next((token for token in ends if token != config.get("bos_token_id")), None),
        "layout_every": (_PERIOD if kinds == known else -1) if window else 0,
    }


def _gate_width(config: Config) -> str:
    """conversion/laguna.py `_attn_gate_types` (llama.cpp b11549)."""
    listed = config.get("gating_types") or [config.get("gating")]
    widths = {str(kind).replace("-", "_").removeprefix("per_").replace("True", "head") for kind in listed}
    return widths.pop() if len(widths) == 1 else "mixed"


def restore(config: Config) -> dict[str, Any]:
    """Builds the kinds of layers."""
    windowed = config.get("sliding_window") is not None
    return {
        **dict.fromkeys(("gate_width", "layout_every", "gating_types")),
        "num_attention_heads": config[_HEADS][0],
        "gating": "per-head",
        "layer_types": [_KINDS[windowed and layer % _PERIOD > 0] for layer in range(layer_count(config))],
    }
