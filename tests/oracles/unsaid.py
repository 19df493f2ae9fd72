"""What a config of a family may not say without a loss: what llama.cpp's graph has built in and no key tells."""

from __future__ import annotations

from typing import Any

_ACT = {"hidden_act": "relu"}
_GELU = {"hidden_activation": "relu"}
_ROPE = {"rope.rope_type": "dynamic"}
_BASE = {"rope.rope_theta": 5000.0}
UNSAID: dict[str, dict[str, Any]] = {
    "smollm3": _ACT | _ROPE | {"use_sliding_window": True, "unrotated_every": 0},
    "gemma": _GELU | _ROPE | _BASE | {"attention_bias": True},
    "gemma2": _GELU | _ROPE | _BASE | {"attention_bias": True, "full_attention_every": 3, "query_pre_attn_scalar": 16},
    "gemma3": _GELU
    | _ROPE
    | {"attention_bias": True, "attn_logit_softcapping": 2.0, "full_attention_every": 5, "query_pre_attn_scalar": 16},
    "phi3": _ACT | _ROPE,
    "phi2": _ACT | _ROPE | _BASE | {"qk_layernorm": True},
    "gpt2": {"activation_function": "relu", "scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True},
    "gptneox": _ACT | _ROPE | _BASE | {"attention_bias": False, "tie_word_embeddings": True},
    "starcoder2": _ACT | _ROPE | {"sliding_window": 16},
    "falcon": _ROPE | _BASE | {"activation": "relu", "bias": True, "alibi": True, "parallel_attn": False},
    "deepseek2": _ACT
    | {"rope.rope_type": "linear"}
    | {"attention_bias": True, "rope_interleave": False, "num_key_value_heads": 2},
    "granitemoe": _ACT | _ROPE | {"attention_bias": True},
    "hunyuan-dense": _ACT | _ROPE | {"attention_bias": True},
    "ernie4_5": _ACT | _ROPE | {"use_bias": True},
    "arcee": {"hidden_act": "silu"} | _ROPE | {"attention_bias": True, "mlp_bias": True},
    "bloom": {"apply_residual_connection_post_layernorm": True},
    "olmo2": _ACT | _ROPE | {"attention_bias": True},
    "olmoe": _ACT | _ROPE | {"attention_bias": True, "clip_qkv": 1.0, "norm_topk_prob": True},
    "granite": _ACT | _ROPE,
    "command-r": _ACT | _ROPE | {"attention_bias": True},
    "cohere2": _ACT | _ROPE | {"attention_bias": True, "full_attention_every": 2, "rotary_pct": 0.5},
    "glm4": _ACT | _ROPE,
    "nemotron": {"hidden_act": "silu"} | _ROPE | {"attention_bias": True, "mlp_bias": True},
    "distilbert": {"activation": "relu"},
    "roberta": _ACT | {"is_decoder": True},
    "seed-oss": _ACT | _ROPE | {"mlp_bias": True},
    "stablelm": _ACT | _ROPE | _BASE | {"qk_layernorm": True},
}
