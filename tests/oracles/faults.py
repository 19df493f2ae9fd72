"""Seeded faults: what a converter could get wrong, done to a right file.

Each must push llama.cpp's answer away from transformers' by more than the tolerance, or make llama.cpp refuse the file.
Three tables: layouts (rows in another order), keys, and presence. Rows of the architecture tables are covered by
`shifted`, which moves the rows of any one tensor: a role that was mapped to a wrong name, or whose data don't matter,
would survive it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tests.oracles.gguf_file import File, Tensor

Fault = Callable[[File], None]

BLOCK = "blk.1."

# What no judge of numbers can see: without rotation a key bias adds the same to all scores of a query, and softmax
# doesn't change. (Its bytes are compared with the reference converter's.)
INVISIBLE = {name: {"blk.0.attn_k.bias", "blk.1.attn_k.bias"} for name in ("bert", "roberta-labels")}


def shifted(name: str) -> Fault:
    """Rows (of one row or a 1-D tensor: elements) moved by one; stacked experts by one row inside each expert."""

    def fault(file: File) -> None:
        tensor = file.tensors[name]
        axis = max(tensor.data.ndim - 2, 0)
        tensor.data = np.roll(tensor.data, 1, axis=axis if tensor.data.shape[axis] > 1 else -1)

    return fault


def swapped(first: str, second: str) -> Fault:
    def fault(file: File) -> None:
        a, b = file.tensors[first], file.tensors[second]
        a.data, b.data = b.data, a.data

    return fault


def edited(name: str, change: Callable[[Tensor], Any]) -> Fault:
    def fault(file: File) -> None:
        file.tensors[name].data = np.ascontiguousarray(change(file.tensors[name]))

    return fault


def _drop_tensor(name: str) -> Fault:
    def fault(file: File) -> None:
        del file.tensors[name]

    return fault


def _copy(name: str, new: str) -> Fault:
    def fault(file: File) -> None:
        file.tensors[new] = file.tensors[name]

    return fault


def unpermuted(name: str, heads: str) -> Fault:
    """Rotary rows back in Hugging Face's order (halves) instead of llama.cpp's (pairs)."""

    def fault(file: File) -> None:
        tensor = file.tensors[name]
        n = int(file.fields[heads].value)
        rest = tensor.data.shape[1:]
        pairs = tensor.data.reshape(n, tensor.data.shape[0] // n // 2, 2, *rest)
        tensor.data = np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(tensor.data.shape))

    return fault


def set_key(key: str, value: Any) -> Fault:
    """`value` in place of the key's, or, if callable, made from it."""

    def fault(file: File) -> None:
        field = file.fields[key]
        new = value(field.value) if callable(value) else value
        file.fields[key] = type(field)(field.type, field.item, new)

    return fault


def drop_key(key: str) -> Fault:
    def fault(file: File) -> None:
        del file.fields[key]

    return fault


def _transposed(tensor: Tensor) -> Any:
    return tensor.data.swapaxes(-1, -2)


def _ones(tensor: Tensor) -> Any:
    return np.ones_like(tensor.data)


def _zeros(tensor: Tensor) -> Any:
    return np.zeros_like(tensor.data)


def _halves_swapped(tensor: Tensor) -> Any:
    return np.roll(tensor.data, len(tensor.data) // 2, axis=0)


def _reversed_experts(tensor: Tensor) -> Any:
    return tensor.data[::-1]


_ATTENTION: dict[str, Fault] = {
    "q-unpermuted": unpermuted(f"{BLOCK}attn_q.weight", "llama.attention.head_count"),
    "k-unpermuted": unpermuted(f"{BLOCK}attn_k.weight", "llama.attention.head_count_kv"),
    "k-v-swapped": swapped(f"{BLOCK}attn_k.weight", f"{BLOCK}attn_v.weight"),
    "norms-swapped": swapped(f"{BLOCK}attn_norm.weight", f"{BLOCK}ffn_norm.weight"),
    "attn-norm-reset": edited(f"{BLOCK}attn_norm.weight", _ones),
    "ffn-norm-reset": edited(f"{BLOCK}ffn_norm.weight", _ones),
    "output-norm-reset": edited("output_norm.weight", _ones),
    "layers-swapped": swapped("blk.0.attn_q.weight", "blk.1.attn_q.weight"),
    "norm-dropped": _drop_tensor("output_norm.weight"),
}
_DENSE: dict[str, Fault] = {"gate-up-swapped": swapped(f"{BLOCK}ffn_gate.weight", f"{BLOCK}ffn_up.weight")}
_UNTIED: dict[str, Fault] = {
    "output-tied": _drop_tensor("output.weight"),
    "output-embedding-swapped": swapped("output.weight", "token_embd.weight"),
}
_EXPERTS: dict[str, Fault] = {
    "gate-up-swapped": swapped(f"{BLOCK}ffn_gate_exps.weight", f"{BLOCK}ffn_up_exps.weight"),
    "gate-experts-reversed": edited(f"{BLOCK}ffn_gate_exps.weight", _reversed_experts),
    "up-experts-reversed": edited(f"{BLOCK}ffn_up_exps.weight", _reversed_experts),
    "down-experts-reversed": edited(f"{BLOCK}ffn_down_exps.weight", _reversed_experts),
    "router-reversed": edited(f"{BLOCK}ffn_gate_inp.weight", lambda t: t.data[::-1]),
}


def permuted(name: str, heads: int) -> Fault:
    """Rotary rows in the pairs of llama, where llama.cpp expects halves."""

    def fault(file: File) -> None:
        tensor = file.tensors[name]
        rest = tensor.data.shape[1:]
        halves = tensor.data.reshape(heads, 2, tensor.data.shape[0] // heads // 2, *rest)
        tensor.data = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(tensor.data.shape))

    return fault


_QWEN_ATTENTION: dict[str, Fault] = {name: f for name, f in _ATTENTION.items() if not name.endswith("-unpermuted")} | {
    "q-permuted-as-llama": permuted(f"{BLOCK}attn_q.weight", 4),
    "k-permuted-as-llama": permuted(f"{BLOCK}attn_k.weight", 2),
}

_CLASSIFIER: dict[str, Fault] = {
    "dense-zero": edited("cls.weight", _zeros),
    "labels-turned": edited("cls.output.weight", lambda t: t.data[::-1]),
    "bias-zero": edited("cls.output.bias", _zeros),
}
LAYOUTS: dict[str, dict[str, Fault]] = {
    "llama": _ATTENTION
    | _DENSE
    | _UNTIED
    | {
        "q-transposed": edited(f"{BLOCK}attn_q.weight", _transposed),
        "v-permuted": unpermuted(f"{BLOCK}attn_v.weight", "llama.attention.head_count_kv"),
        "o-transposed": edited(f"{BLOCK}attn_output.weight", _transposed),
    },
    "llama3": _ATTENTION
    | _DENSE
    | {
        "rope-factors-dropped": _drop_tensor("rope_freqs.weight"),
        "rope-factors-reset": edited("rope_freqs.weight", _ones),
    },
    "llama-bias": {
        "q-bias-unpermuted": unpermuted(f"{BLOCK}attn_q.bias", "llama.attention.head_count"),
        "k-bias-unpermuted": unpermuted(f"{BLOCK}attn_k.bias", "llama.attention.head_count_kv"),
        "q-bias-dropped": _drop_tensor(f"{BLOCK}attn_q.bias"),
        "o-bias-zero": edited(f"{BLOCK}attn_output.bias", _zeros),
        "down-bias-zero": edited(f"{BLOCK}ffn_down.bias", _zeros),
        "gate-up-bias-swapped": swapped(f"{BLOCK}ffn_gate.bias", f"{BLOCK}ffn_up.bias"),
    },
    "mistral": _ATTENTION | _DENSE | _UNTIED,
    "mixtral": _ATTENTION | _UNTIED | _EXPERTS,
    "qwen2": _QWEN_ATTENTION
    | _DENSE
    | {
        "q-bias-zero": edited(f"{BLOCK}attn_q.bias", _zeros),
        "k-bias-zero": edited(f"{BLOCK}attn_k.bias", _zeros),
        "v-bias-zero": edited(f"{BLOCK}attn_v.bias", _zeros),
        "k-v-bias-swapped": swapped(f"{BLOCK}attn_k.bias", f"{BLOCK}attn_v.bias"),
    },
    "qwen2moe": _QWEN_ATTENTION
    | _UNTIED
    | _EXPERTS
    | {
        "q-bias-zero": edited(f"{BLOCK}attn_q.bias", _zeros),
        "shared-gate-up-swapped": swapped(f"{BLOCK}ffn_gate_shexp.weight", f"{BLOCK}ffn_up_shexp.weight"),
        "shared-gate-negated": edited(f"{BLOCK}ffn_gate_inp_shexp.weight", lambda t: -t.data),
        "shared-down-zero": edited(f"{BLOCK}ffn_down_shexp.weight", _zeros),
    },
    "qwen3": _QWEN_ATTENTION
    | _DENSE
    | _UNTIED
    | {
        "q-norm-reset": edited(f"{BLOCK}attn_q_norm.weight", _ones),
        "k-norm-reset": edited(f"{BLOCK}attn_k_norm.weight", _ones),
        "q-k-norms-swapped": swapped(f"{BLOCK}attn_q_norm.weight", f"{BLOCK}attn_k_norm.weight"),
        "q-norm-dropped": _drop_tensor(f"{BLOCK}attn_q_norm.weight"),
    },
    "qwen3moe": _QWEN_ATTENTION | _UNTIED | _EXPERTS,
    "modernbert": {
        "gate-up-swapped": edited(f"{BLOCK}ffn_up.weight", _halves_swapped),
        "q-k-v-turned": edited(f"{BLOCK}attn_qkv.weight", lambda t: np.roll(t.data, 64, axis=0)),
        "norms-swapped": swapped(f"{BLOCK}attn_norm.weight", f"{BLOCK}ffn_norm.weight"),
        "embedding-norm-reset": edited("token_embd_norm.weight", _ones),
        "output-norm-reset": edited("output_norm.weight", _ones),
        "first-norm": _copy(f"{BLOCK}attn_norm.weight", "blk.0.attn_norm.weight"),
    },
    "modernbert-labels": _CLASSIFIER | {"norm-reset": edited("cls.norm.weight", _ones)},
    "nomic-bert": {
        "gate-up-swapped": swapped(f"{BLOCK}ffn_gate.weight", f"{BLOCK}ffn_up.weight"),
        "q-k-v-turned": edited(f"{BLOCK}attn_qkv.weight", lambda t: np.roll(t.data, 64, axis=0)),
        "norms-swapped": swapped(f"{BLOCK}attn_output_norm.weight", f"{BLOCK}layer_output_norm.weight"),
        "types-zero": edited("token_types.weight", _zeros),
    },
    "jina-bert-v3": {
        "q-k-v-turned": edited(f"{BLOCK}attn_qkv.weight", lambda t: np.roll(t.data, 64, axis=0)),
        "q-k-v-biases-turned": edited(f"{BLOCK}attn_qkv.bias", lambda t: np.roll(t.data, 64)),
        "norms-swapped": swapped(f"{BLOCK}attn_output_norm.weight", f"{BLOCK}layer_output_norm.weight"),
        "types-zero": edited("token_types.weight", _zeros),
    },
    "nomic-bert-moe": {
        "q-k-v-turned": edited(f"{BLOCK}attn_qkv.weight", lambda t: np.roll(t.data, 64, axis=0)),
        "q-k-v-biases-turned": edited(f"{BLOCK}attn_qkv.bias", lambda t: np.roll(t.data, 64)),
        "norms-swapped": swapped(f"{BLOCK}attn_output_norm.weight", f"{BLOCK}layer_output_norm.weight"),
        "experts-turned": edited(f"{BLOCK}ffn_up_exps.weight", lambda t: np.roll(t.data, 1, axis=0)),
        "down-transposed": edited(
            f"{BLOCK}ffn_down_exps.weight", lambda t: t.data.swapaxes(1, 2).reshape(t.data.shape)
        ),
        "router-negated": edited(f"{BLOCK}ffn_gate_inp.weight", lambda t: -t.data),
        "types-zero": edited("token_types.weight", _zeros),
    },
    "t5": {
        "gate-up-swapped": swapped("dec.blk.1.ffn_gate.weight", "dec.blk.1.ffn_up.weight"),
        "cross-k-v-swapped": swapped("dec.blk.1.cross_attn_k.weight", "dec.blk.1.cross_attn_v.weight"),
        "cross-norm-reset": edited("dec.blk.1.cross_attn_norm.weight", _ones),
        "biases-swapped": swapped("enc.blk.0.attn_rel_b.weight", "dec.blk.0.attn_rel_b.weight"),
        "bias-turned": edited("enc.blk.0.attn_rel_b.weight", lambda t: t.data[::-1]),
        "norms-swapped": swapped("enc.output_norm.weight", "dec.output_norm.weight"),
        "output-tied": _drop_tensor("output.weight"),
    },
    "gemma4": {
        "keys-of-the-next": swapped("blk.0.attn_k.weight", "blk.1.attn_k.weight"),
        "layer-scale-reset": edited(f"{BLOCK}layer_output_scale.weight", _ones),
        "shared-layer-scaled": edited("blk.4.layer_output_scale.weight", lambda t: t.data * 2),
        "layers-embeddings-turned": edited("per_layer_token_embd.weight", lambda t: np.roll(t.data, 32, axis=1)),
        "layers-projections-turned": edited("per_layer_model_proj.weight", lambda t: np.roll(t.data, 32, axis=0)),
        "all-pairs-turn": edited("rope_freqs.weight", _ones),
        "no-pair-turns": edited("rope_freqs.weight", lambda t: np.full_like(t.data, 1e30)),
        "factors-dropped": _drop_tensor("rope_freqs.weight"),
    },
    "gemma4-experts": _UNTIED
    | {
        "gate-up-swapped": edited(f"{BLOCK}ffn_gate_up_exps.weight", lambda t: np.roll(t.data, 32, axis=1)),
        "gate-up-reversed": edited(f"{BLOCK}ffn_gate_up_exps.weight", _reversed_experts),
        "down-reversed": edited(f"{BLOCK}ffn_down_exps.weight", _reversed_experts),
        "expert-scale-reset": edited(f"{BLOCK}ffn_down_exps.scale", _ones),
        "expert-scale-turned": edited(f"{BLOCK}ffn_down_exps.scale", lambda t: t.data[::-1]),
        "router-norm-reset": edited(f"{BLOCK}ffn_gate_inp.scale", _ones),
        "norms-behind-swapped": swapped(f"{BLOCK}post_ffw_norm_1.weight", f"{BLOCK}post_ffw_norm_2.weight"),
        "norms-before-swapped": swapped(f"{BLOCK}ffn_norm.weight", f"{BLOCK}pre_ffw_norm_2.weight"),
    },
    "gemmaembedding": {
        "norm-unshifted": edited(f"{BLOCK}attn_norm.weight", lambda t: t.data - 1),
        "q-k-norms-swapped": swapped(f"{BLOCK}attn_q_norm.weight", f"{BLOCK}attn_k_norm.weight"),
        "gate-up-swapped": swapped(f"{BLOCK}ffn_gate.weight", f"{BLOCK}ffn_up.weight"),
    },
    "roberta-labels": _CLASSIFIER | {"dense-bias-zero": edited("cls.bias", _zeros)},
    "bert": {
        "q-permuted-as-llama": unpermuted(f"{BLOCK}attn_q.weight", "bert.attention.head_count"),
        "k-v-swapped": swapped(f"{BLOCK}attn_k.weight", f"{BLOCK}attn_v.weight"),
        "norms-swapped": swapped(f"{BLOCK}attn_output_norm.weight", f"{BLOCK}layer_output_norm.weight"),
        "norm-bias-zero": edited(f"{BLOCK}layer_output_norm.bias", _zeros),
        "types-zero": edited("token_types.weight", _zeros),
        "positions-off-by-two": edited("position_embd.weight", lambda t: np.roll(t.data, 2, 0)),
        "embedding-norm-reset": edited("token_embd_norm.weight", _ones),
    },
}


def _decoder_keys(architecture: str) -> dict[str, Fault]:
    return {
        "eps": set_key(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-6),
        "rope-theta": set_key(f"{architecture}.rope.freq_base", lambda v: v * 1.5),
        "rope-theta-dropped": set_key(f"{architecture}.rope.freq_base", 20000.0),
        "heads": set_key(f"{architecture}.attention.head_count", 2),
        "kv-heads": set_key(f"{architecture}.attention.head_count_kv", 1),
        "layers": set_key(f"{architecture}.block_count", 1),
        "width": set_key(f"{architecture}.embedding_length", 32),
        "ffn-width": set_key(f"{architecture}.feed_forward_length", 64),
    }


def _expert_keys(architecture: str) -> dict[str, Fault]:
    return {
        "experts": set_key(f"{architecture}.expert_count", 3),
        "experts-used": set_key(f"{architecture}.expert_used_count", 1),
        "experts-used-more": set_key(f"{architecture}.expert_used_count", 3),
    }


def _yarn_keys(architecture: str) -> dict[str, Fault]:
    return {
        "scaling-factor": set_key(f"{architecture}.rope.scaling.factor", 2.0),
        "scaling-type": set_key(f"{architecture}.rope.scaling.type", "linear"),
        "original-length": set_key(f"{architecture}.rope.scaling.original_context_length", 512),
        "original-length-dropped": drop_key(f"{architecture}.rope.scaling.original_context_length"),
    }


def _head_keys(architecture: str) -> dict[str, Fault]:
    """Where a head isn't hidden / heads wide."""
    return {
        "key-length": drop_key(f"{architecture}.attention.key_length"),
        "value-length": set_key(f"{architecture}.attention.value_length", 16),
    }


_LLAMA_KEYS = _decoder_keys("llama") | {"rope-dimension": set_key("llama.rope.dimension_count", 8)}
KEYS: dict[str, dict[str, Fault]] = {
    "llama": _LLAMA_KEYS,
    "llama3": _LLAMA_KEYS | _head_keys("llama"),
    "llama-linear": {  # a missing type isn't a fault: llama.cpp then takes a factor as linear
        "scaling-factor": set_key("llama.rope.scaling.factor", 4.0),
        "scaling-type": set_key("llama.rope.scaling.type", "none"),
    },
    "llama-yarn": _yarn_keys("llama"),
    "mistral": _LLAMA_KEYS,
    "mixtral": _LLAMA_KEYS | _expert_keys("llama"),
    "qwen2": _decoder_keys("qwen2"),
    "qwen2-yarn": _yarn_keys("qwen2"),
    # ffn-width is that of layers without experts, of which these have none
    "qwen2moe": {name: f for name, f in _decoder_keys("qwen2moe").items() if name != "ffn-width"}
    | _expert_keys("qwen2moe")
    | {
        "expert-width": set_key("qwen2moe.expert_feed_forward_length", 32),
        "shared-width": set_key("qwen2moe.expert_shared_feed_forward_length", 64),
    },
    "qwen3": _decoder_keys("qwen3") | _head_keys("qwen3"),
    "qwen3moe": {name: f for name, f in _decoder_keys("qwen3moe").items() if name != "ffn-width"}
    | _head_keys("qwen3moe")
    | _expert_keys("qwen3moe")
    | {"expert-width": set_key("qwen3moe.expert_feed_forward_length", 32)},
    "olmo3": _yarn_keys("olmo2")
    | {  # olmo2.rope.freq_base_swa isn't here: llama.cpp's graph turns all layers by the same base
        "window": set_key("olmo2.attention.sliding_window", 12),
        "window-dropped": drop_key("olmo2.attention.sliding_window"),
        "layers-turned": set_key("olmo2.attention.sliding_window_pattern", lambda v: [not slides for slides in v]),
        "layers-dropped": drop_key("olmo2.attention.sliding_window_pattern"),
    },
    "deepseek-v3.2-yarn": {
        "scaling-factor": set_key("deepseek32.rope.scaling.factor", 2.0),
        "original-length": set_key("deepseek32.rope.scaling.original_context_length", 1 << 14),
        "eps": set_key("deepseek32.attention.layer_norm_rms_epsilon", 3e-2),
        "sharpness": set_key("deepseek32.rope.scaling.yarn_log_multiplier", lambda v: v * 3),
        "chosen-more": set_key("deepseek32.attention.indexer.top_k", 48),
        "index-heads": set_key("deepseek32.attention.indexer.head_count", 8),
        "experts-scale": set_key("deepseek32.expert_weights_scale", 1.0),
        "dense-layers": set_key("deepseek32.leading_dense_block_count", 0),
    },
    "glm5": {
        "eps": set_key("glm-dsa.attention.layer_norm_rms_epsilon", 3e-2),
        "chosen-more": set_key("glm-dsa.attention.indexer.top_k", 48),
        "indexers": set_key("glm-dsa.attention.indexer.types", [True, False, False]),
        "experts-scale": set_key("glm-dsa.expert_weights_scale", 1.0),
    },
    "exaone4": _decoder_keys("exaone4"),
    "modernbert": {
        "eps": set_key("modern-bert.attention.layer_norm_epsilon", 1e-12),
        "heads": set_key("modern-bert.attention.head_count", 2),
        "pooling": set_key("modern-bert.pooling_type", 2),
        "theta": set_key("modern-bert.rope.freq_base", 500.0),
        "window-theta": set_key("modern-bert.rope.freq_base_swa", 5000.0),
        "window": set_key("modern-bert.attention.sliding_window", 12),
        "window-dropped": drop_key("modern-bert.attention.sliding_window"),
        "pattern": set_key("modern-bert.attention.sliding_window_pattern", 3),
        "activation": set_key("modern-bert.hidden_activation", "silu"),
        "ffn-width": set_key("modern-bert.feed_forward_length", 64),
    },
    "modernbert-labels": {
        "pooling": set_key("modern-bert.classifier.pooling_type", 2),
        "activation": set_key("modern-bert.classifier.activation", "tanh"),
        "labels": set_key("modern-bert.classifier.output_labels", ["bad", "good"]),
    },
    "nomic-bert": {
        "eps": set_key("nomic-bert.attention.layer_norm_epsilon", 1e-12),
        "heads": set_key("nomic-bert.attention.head_count", 2),
        "theta": set_key("nomic-bert.rope.freq_base", 1000.0),
        "pooling": set_key("nomic-bert.pooling_type", 2),
        "layers": set_key("nomic-bert.block_count", 1),
    },
    "jina-bert-v3": {
        "eps": set_key("jina-bert-v3.attention.layer_norm_epsilon", 1e-5),
        "heads": set_key("jina-bert-v3.attention.head_count", 2),
        "theta": set_key("jina-bert-v3.rope.freq_base", 10000.0),
        "pooling": set_key("jina-bert-v3.pooling_type", 2),
    },
    "nomic-bert-moe": {
        "eps": set_key("nomic-bert-moe.attention.layer_norm_epsilon", 1e-5),
        "heads": set_key("nomic-bert-moe.attention.head_count", 2),
        "theta": set_key("nomic-bert-moe.rope.freq_base", 10000.0),
        "pooling": set_key("nomic-bert-moe.pooling_type", 2),
        "experts-of-a-token": set_key("nomic-bert-moe.expert_used_count", 3),
        "layers": set_key("nomic-bert-moe.block_count", 2),
    },
    "t5": {
        "eps": set_key("t5.attention.layer_norm_rms_epsilon", 1e-6),
        "heads": set_key("t5.attention.head_count", 2),
        "head-width": set_key("t5.attention.key_length", 16),
        "buckets": set_key("t5.attention.relative_buckets_count", 8),
        "layers": set_key("t5.block_count", 2),
        "decoder-layers": set_key("t5.decoder_block_count", 1),
        "decoder-layers-dropped": drop_key("t5.decoder_block_count"),
        "ffn-width": set_key("t5.feed_forward_length", 64),
    },
    "gemma4": {
        "eps": set_key("gemma4.attention.layer_norm_rms_epsilon", 1.0),
        "theta": set_key("gemma4.rope.freq_base", 500.0),
        "window-theta": set_key("gemma4.rope.freq_base_swa", 50000.0),
        "window": set_key("gemma4.attention.sliding_window", 12),
        "layers-turned": set_key("gemma4.attention.sliding_window_pattern", lambda v: [not slides for slides in v]),
        "shared": set_key("gemma4.attention.shared_kv_layers", 2),
        "shared-dropped": drop_key("gemma4.attention.shared_kv_layers"),
        "key-length": set_key("gemma4.attention.key_length", 48),
        "window-key-length": set_key("gemma4.attention.key_length_swa", 64),
        "window-value-length": drop_key("gemma4.attention.value_length_swa"),
        "rope-dimension": set_key("gemma4.rope.dimension_count", 32),
        "window-rope-dimension": set_key("gemma4.rope.dimension_count_swa", 24),
        "width": set_key("gemma4.feed_forward_length", lambda v: [v[0]] * len(v)),
        "layers-width": set_key("gemma4.embedding_length_per_layer_input", 16),
        "soft-cap": set_key("gemma4.final_logit_softcapping", 5.0),
    },
    "gemma4-experts": {
        "soft-cap-dropped": drop_key("gemma4.final_logit_softcapping"),  # llama.cpp then takes 30
        "key-heads": set_key("gemma4.attention.head_count_kv", [2, 2, 2]),
        "experts-used": set_key("gemma4.expert_used_count", 3),
        "expert-width": set_key("gemma4.expert_feed_forward_length", 64),
    },
    "gemmaembedding": {
        "eps": set_key("gemma-embedding.attention.layer_norm_rms_epsilon", 1.0),
        "theta": set_key("gemma-embedding.rope.freq_base", 500.0),
        "window-theta": set_key("gemma-embedding.rope.freq_base_swa", 50000.0),
        "window": set_key("gemma-embedding.attention.sliding_window", 12),
        "pooling": set_key("gemma-embedding.pooling_type", 2),
        "key-length": drop_key("gemma-embedding.attention.key_length"),
    },
    "roberta-labels": {"labels-dropped": drop_key("bert.classifier.output_labels")},
    "bert": {  # bert.attention.causal isn't here: llama.cpp encodes without a mask whatever it says
        "eps": set_key("bert.attention.layer_norm_epsilon", 1e-12),
        "heads": set_key("bert.attention.head_count", 2),
        "pooling": set_key("bert.pooling_type", 2),
        "pooling-dropped": drop_key("bert.pooling_type"),
        "layers": set_key("bert.block_count", 1),
        "width": set_key("bert.embedding_length", 32),
        "ffn-width": set_key("bert.feed_forward_length", 64),
        "context": set_key("bert.context_length", 64),
        "type-count": set_key("tokenizer.ggml.token_type_count", 1),
    },
}

TOKENIZER_KEYS: dict[str, dict[str, Fault]] = {
    "llama": {
        "scores-reversed": set_key("tokenizer.ggml.scores", lambda v: v[:3] + v[:2:-1]),
        "bos-off": set_key("tokenizer.ggml.add_bos_token", False),
        "bos-id": set_key("tokenizer.ggml.bos_token_id", 5),
        "eos-on": set_key("tokenizer.ggml.add_eos_token", True),
        "tokens-shifted": set_key("tokenizer.ggml.tokens", lambda v: v[:300] + v[301:] + v[300:301]),
        "byte-types-lost": set_key("tokenizer.ggml.token_type", lambda v: [1 if t == 6 else t for t in v]),
        "model": set_key("tokenizer.ggml.model", "bert"),
    },
    "llama3": {
        "pre": set_key("tokenizer.ggml.pre", "default"),
        "merges-reversed": set_key("tokenizer.ggml.merges", lambda v: v[::-1]),
        "merge-lost": set_key("tokenizer.ggml.merges", lambda v: v[:20] + v[24:]),
        "bos-id": set_key("tokenizer.ggml.bos_token_id", 5),
        "tokens-shifted": set_key("tokenizer.ggml.tokens", lambda v: v[:300] + v[301:-3] + v[300:301] + v[-3:]),
        "control-types-lost": set_key("tokenizer.ggml.token_type", lambda v: [1] * len(v)),
    },
    "bert": {
        "phantom-space-lost": set_key("tokenizer.ggml.tokens", lambda v: [t.removeprefix("▁") for t in v]),
        "cls-id": set_key("tokenizer.ggml.bos_token_id", 4),
        "sep-id": set_key("tokenizer.ggml.seperator_token_id", 4),
        "model": set_key("tokenizer.ggml.model", "gpt2"),
    },
}
