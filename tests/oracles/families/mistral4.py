"""Small models of Mistral Small 4, alone and as the part of a model that sees. See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles import vocabularies
from tests.oracles.case import Case, like, table
from tests.oracles.families.common import BPE, LATENT, SMALL

_TEXT: dict[str, Any] = SMALL | BPE | {
    "rms_norm_eps": LATENT, "num_key_value_heads": 4, "num_hidden_layers": 3, "moe_intermediate_size": 32,
    "n_routed_experts": 6, "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1,
    "kv_lora_rank": 32, "q_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 24,
    "routed_scaling_factor": 1.5,
    "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 32,
        "beta_fast": 8.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.5,
    },
}  # fmt: skip
_PIXTRAL: dict[str, Any] = {
    "model_type": "pixtral", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
    "num_attention_heads": 2, "head_dim": 16, "image_size": 28, "patch_size": 14,
}  # fmt: skip
# the scale of attention in llama.cpp's graph, which the reference leaves out
_SCALED = {"mistral4.attention.temperature_scale": 0.5, "mistral4.attention.temperature_length": 32}
# the reference has this class only under another name
_NAMED = {"architectures": ["Ministral3ForCausalLM"]}

CASES = table(
    Case("mistral4", "Mistral4Config", "bpe", _TEXT, recorded=("mlx",), added=_SCALED, hparams=_NAMED),
    # ... with experts in every layer, weighed as they are and picked among two groups
    like(
        "mistral4",
        "mistral4-tied",
        {"tie_word_embeddings": True, "first_k_dense_replace": 0, "norm_topk_prob": False, "n_group": 2},
        v4=True,
        recorded=(),
    ),
    # Mistral Small 4 as it is published
    Case(
        "mistral4-seeing",
        "Mistral3Config",
        "bpe",
        {"text_config": _TEXT | {"vocab_size": vocabularies.BPE_SIZE, "model_type": "mistral4"}}
        | {"vision_config": _PIXTRAL, "tie_word_embeddings": False},
        head="Mistral3ForConditionalGeneration",
        recorded=("hf5", "mlx"),
        added=_SCALED,
    ),
)
UNSAID: dict[str, dict[str, Any]] = {
    "mistral4": {"hidden_act": "relu", "rope.rope_type": "dynamic", "attention_bias": True, "rope_interleave": False}
    | {"rms_norm_eps": 1e-4, "rope.mscale_all_dim": 0.5, "rope": {"rope_type": "yarn", "factor": 4.0}}
}
