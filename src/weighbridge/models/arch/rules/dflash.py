"""DFlash and DSpark drafts, whose settings are at the top of a config, in its `dflash_config`, or both, and in part
those of the target.

Follows conversion/qwen.py `DFlashModel` and `DSparkModel` (llama.cpp b11549).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from weighbridge.base.errors import FormatError
from weighbridge.models.arch.tables.expression import layer_count
from weighbridge.models.arch.tables.values import Config, integer, number

_OBJECT: Final = "dflash_config"
_SPECULATORS: Final = "aux_hidden_state_layer_ids"
_RANK: Final = 256  # of the classes' configs
_WINDOWED: Final = "sliding_attention"
#: settings of both places: of `dflash_config` before those at the top
_EITHER: Final = (
    "block_size", "conv_group_size", "conv_kernel_size", "final_logit_softcapping", "input_embedding_scale",
    "output_multiplier", "selector_rank", "selector_top_k",
)  # fmt: skip
KEYS: Final = (
    *_EITHER, "attention_value_scale", "causal", "markov_rank", "mask_token_id", "max_window_layers", "mrope",
    "rope_is_neox_style", "speculators_model_type", "swa_window_size", "target", "target_layer_ids",
    "transformer_layer_config", "use_swa", _SPECULATORS, _OBJECT,
)  # fmt: skip


def complete(config: Config) -> dict[str, Any]:
    """Adds the settings that a config has in `dflash_config`, or that follow from the target; `target_layers`: the
    layers whose inputs the draft reads; `draft_mask_token`, `draft_block`; `draft_sections`, if the target's positions
    have axes; `draft_embedding_scale`; `draft_causal`; `draft_window` and `draft_windowed`, the layers that have it;
    `draft_markov_rank`, `draft_from_anchor` and `has_confidence_head` of DSpark; `shared_head`: whether the head is
    that of the target, and left out; `paired_rope`: whether adjacent elements rotate."""
    inside, target = (v if isinstance(v := config.get(key), Mapping) else {} for key in (_OBJECT, "target"))
    layers, mask = inside.get("target_layer_ids"), inside.get("mask_token_id")
    if layers is None and isinstance(listed := config.get(_SPECULATORS), list):
        layers = [integer(layer, _SPECULATORS) - 1 for layer in listed]
    layers = (config.get("target_layer_ids") if layers is None else layers) or None
    if layers is not None and not isinstance(layers, list):
        raise FormatError("is not a list of layers", field="target_layer_ids", found=repr(layers)[:80])
    scale = inside.get("input_embedding_scale", config.get("input_embedding_scale"))
    classes = [one[0] for part in (config, target) if isinstance(one := part.get("architectures"), list) and one]
    if scale is None and any(str(name).startswith("Gemma") for name in classes):  # its graph scales
        scale = math.sqrt(number(target.get("hidden_size", config.get("hidden_size")), "hidden_size"))
    heads = integer(config.get("num_attention_heads") or 1, "num_attention_heads", 1)
    head = config.get("head_dim") or integer(config.get("hidden_size") or 0, "hidden_size") // heads
    return {
        **{key: value for key in _EITHER if (value := inside.get(key, config.get(key))) is not None},
        "draft_mask_token": config.get("mask_token_id") if mask is None and _OBJECT not in config else mask,
        "draft_block": inside.get("block_size", config.get("block_size", 16)),
        # a config counts outputs, llama.cpp inputs
        "target_layers": layers and [integer(layer, "target_layer_ids", -1) + 1 for layer in layers],
        "attention_value_scale": inside.get("attention_value_scale"),
        "draft_embedding_scale": scale,
        "draft_causal": config.get("is_causal") if config.get("is_causal") is not None else inside.get("causal"),
        "draft_sections": [integer(head, "head_dim") // 2, 0, 0, 0] if target.get("mrope") else None,
        "paired_rope": config.get("rope_is_neox_style") is False,
        **_windows(config, inside),
        **_markov(config, inside),
    }


def _markov(config: Config, inside: Config) -> dict[str, Any]:
    """The settings of DSpark's heads; the rank also of a DFlash that has their matrices."""
    rank = inside.get("markov_rank", config.get("markov_rank"))
    if "DSpark" not in str(config.get("architectures")) and config.get("speculators_model_type") != "dspark":
        return {"draft_markov_rank": rank}
    nested = config.get(_SPECULATORS) is not None or config.get("transformer_layer_config") is not None
    anchored = config.get("sample_from_anchor")
    return {
        "draft_markov_rank": _RANK if rank is None else rank,
        "draft_from_anchor": not nested if anchored is None else anchored,
        "has_confidence_head": bool(config.get("has_confidence_head", config.get("enable_confidence_head", True))),
        "shared_head": config.get("draft_vocab_size") in (None, 0, config.get("vocab_size")),
    }


def _windows(config: Config, inside: Config) -> dict[str, Any]:
    """The window and the layers that have it."""
    window = inside.get("swa_window_size") or config.get("sliding_window")
    if not window or not (config.get("use_sliding_window") or inside.get("use_swa")):
        return {}
    count = layer_count(config)
    if inside.get("use_swa"):
        return {"draft_window": window, "draft_windowed": [True] * count}
    kinds = config.get("layer_types")
    if not isinstance(kinds, list):  # transformers' Qwen3Config
        first = integer(config.get("max_window_layers") or 0, "max_window_layers")
        kinds = [_WINDOWED if layer >= first else "" for layer in range(count)]
    return {"draft_window": window, "draft_windowed": [kind == _WINDOWED for kind in kinds]}


def restore(config: Config) -> dict[str, Any]:
    """Builds `dflash_config`, and the keys at the top that DSpark's readers know."""
    layers = [layer - 1 for layer in config.get("target_layers") or ()]
    inside = {**(config.get(_OBJECT) or {}), "target_layer_ids": layers}
    spark = {"target_layer_ids": layers, "markov_head_type": "vanilla"} if "sample_from_anchor" in config else {}
    share: dict[str, Any] = {}
    if config.get("rope_dim"):
        share["partial_rotary_factor"] = config["rope_dim"] / config["head_dim"]
    windowed = config.get("draft_windowed") or [False] * layer_count(config)
    if windowed and all(windowed):
        inside["use_swa"] = True
    plain = "global_head_dim" not in config
    kinds = [_WINDOWED if one and plain else "full_attention" for one in windowed]
    return {
        _OBJECT: inside, **spark, **share, "layer_types": kinds, "use_sliding_window": _WINDOWED in kinds,
        **dict.fromkeys(("rope_dim", "target_layers", "draft_windowed", "speculators_model_type")),
    }  # fmt: skip
