"""Laguna: heads, gates and rotation by layer (configuration_laguna.py, transformers 5.23)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from weighbridge.base.errors import FormatError
from weighbridge.models.arch.tables.expression import layer_count
from weighbridge.models.arch.tables.values import Config, integer, number

_HEADS: Final = "num_attention_heads_per_layer"
_PERIOD: Final = 4  # llama.cpp's graph has full attention in the first of every 4 layers
_KINDS: Final = ("full_attention", "sliding_attention")


def complete(config: Config) -> dict[str, Any]:
    """Adds the lists by layer of heads and of feed forwards; `gate_width`: whether a gate scales each `head` or each
    `element`, or the layers differ; `layout_every`: n if every n-th layer from the first has full attention, 0 without
    a window, -1 for any other layout; `sliding_rope_dim`, the elements of a head that rotate in layers with a window;
    and `end_of_turn`, the first of several end tokens that isn't that of the beginning."""
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
        "sliding_rope_dim": _sliding_rope_dim(config),
    }


def _gate_width(config: Config) -> str:
    """conversion/laguna.py `_attn_gate_types` (llama.cpp b11549)."""
    listed = config.get("gating_types") or [config.get("gating")]
    widths = {str(kind).replace("-", "_").removeprefix("per_").replace("True", "head") for kind in listed}
    return widths.pop() if len(widths) == 1 else "mixed"


def _sliding_rope_dim(config: Config) -> int | None:
    by_kind = config.get("rope_parameters")
    sliding = by_kind.get(_KINDS[1]) if isinstance(by_kind, Mapping) else None
    if not isinstance(sliding, Mapping):
        return None
    share = number(sliding.get("partial_rotary_factor", 1.0), "partial_rotary_factor")
    if not 0 < share <= 1:
        raise FormatError("is not a share of a head", field="partial_rotary_factor", found=share)
    return int(integer(config.get("head_dim"), "head_dim", 1) * share)


def restore(config: Config) -> dict[str, Any]:
    """Sets the shares of rotation by kind of layer, and the kinds of layers."""
    head, count = integer(config.get("head_dim"), "head_dim", 1), layer_count(config)
    rotated = dict(zip(_KINDS, (config.get("rope_dim", head), config.get("sliding_rope_dim")), strict=True))
    by_kind = {
        kind: {**part, "partial_rotary_factor": integer(rotated[kind], "rope.dimension_count") / head}
        for kind, part in config.get("rope_parameters", {}).items()
        if rotated.get(kind) is not None
    }
    windowed = config.get("sliding_window") is not None
    dropped = ("gate_width", "layout_every", "rope_dim", "sliding_rope_dim", "gating_types")
    return {
        **dict.fromkeys(dropped),
        "num_attention_heads": config[_HEADS][0],
        "gating": "per-head",
        "rope_parameters": by_kind,
        "layer_types": [_KINDS[windowed and layer % _PERIOD > 0] for layer in range(count)],
    }
