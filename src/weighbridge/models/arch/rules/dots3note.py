"""dots3-note: its kinds of layers (configuration_dots3_note.py, transformers 5.23), the factors of its norms, and the
published keys of a config that transformers 5 saved under others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from weighbridge.base.errors import FormatError
from weighbridge.models.arch.rules.common import leading_dense
from weighbridge.models.arch.tables.expression import layer_count, stated
from weighbridge.models.arch.tables.values import Config, number

KEYS: Final = ("apply_mla_qkv_lora_rescale", "per_layer_config")
_RANKS: Final = {"q_rescaled": "q_lora_rank", "kv_rescaled": "kv_lora_rank", "swa_kv_rescaled": "swa_kv_lora_rank"}
_RENAMED: Final = {
    "sliding_window": "sliding_window_size", "shared_experts_intermediate_size": "moe_shared_expert_intermediate_size",
}  # fmt: skip
_OF_LAYER: Final = (
    "num_attention_heads", "num_key_value_heads", "q_lora_rank", "kv_lora_rank", "head_dim", "qk_nope_head_dim",
    "v_head_dim", "qk_rope_head_dim",
)  # fmt: skip
_FULL: Final = "full_attention"


def complete(config: Config) -> dict[str, Any]:
    """Adds `layer_types` unless the config has it, the published keys if it has others, and the widths to which latent
    vectors are rescaled: by the root of such a width over their rank. Without `apply_mla_qkv_lora_rescale` it is the
    rank (conversion/dots3.py, llama.cpp b11549)."""
    own = _published(config) if "per_layer_config" in config else {}
    whole = {**config, **own}
    own |= {key: whole.get("hidden_size" if whole.get(KEYS[0]) else rank) for key, rank in _RANKS.items()}
    if whole.get("layer_types") is not None:
        return own
    full = (layer < 2 or layer % 4 == 1 for layer in range(layer_count(config)))
    return {**own, "layer_types": [_FULL if kind else "sliding_attention" for kind in full]}


def _published(config: Config) -> dict[str, Any]:
    """The published keys of a config that transformers 5 saved, which states what differs from layer to layer and
    always rescales."""
    kinds, by_layer, rope = (config.get(key) for key in ("layer_types", "per_layer_config", "rope_parameters"))
    if not (isinstance(kinds, list | tuple) and isinstance(by_layer, Mapping) and isinstance(rope, Mapping)):
        raise FormatError("must have the layers' kinds and settings", field="layer_types, per_layer_config")
    kinds = [_FULL if kind == "indexed_attention" else kind for kind in kinds]
    sliding = [by_layer.get(str(n), {}) for n, kind in enumerate(kinds) if kind != _FULL]
    if any(not isinstance(layer, Mapping) or layer != sliding[0] for layer in sliding):
        raise FormatError("must be the same for all layers with a window", field="per_layer_config")
    own = {**config, **(sliding[0] if sliding else {})}
    _check_shares(rope, {"indexed_attention": config, "sliding_attention": own})
    return {
        "layer_types": kinds, "rope_parameters": {"full_attention": rope.get("indexed_attention"), **rope},
        **{f"swa_{key}": own.get(key) for key in _OF_LAYER},
        **{published: config[usual] for usual, published in _RENAMED.items() if usual in config},
        "first_k_dense_replace": leading_dense(config)["first_k_dense_replace"], KEYS[0]: True,
    }  # fmt: skip


def _check_shares(rope: Config, sizes: Mapping[str, Config]) -> None:
    for kind, own in sizes.items():
        share, width = stated(rope, f"{kind}.partial_rotary_factor"), number(own.get("head_dim"), "head_dim")
        if share is not None and round(number(share, kind) * width) != own.get("qk_rope_head_dim"):
            raise FormatError("isn't the part of a head that rotates", field="partial_rotary_factor", found=share)


def restore(config: Config) -> dict[str, Any]:
    """Leaves out the widths, and the rotation in transformers' words, in which the kinds of layers have other names."""
    return dict.fromkeys((*_RANKS, "rope_parameters"))
