"""The small decoders whose norms are of the root mean square. See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles import vocabularies
from tests.oracles.case import Case, like, table
from tests.oracles.families.common import BPE, GLM, GQA, LATENT, SPM, WINDOW, theta

_DEEPSEEK: dict[str, Any] = GQA | BPE | {
    "rms_norm_eps": LATENT,
    "num_key_value_heads": 4, "num_hidden_layers": 3, "moe_intermediate_size": 32, "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "n_shared_experts": 3, "first_k_dense_replace": 1, "kv_lora_rank": 32, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16, "v_head_dim": 24,
}  # fmt: skip


_EXAONE: dict[str, Any] = GQA | BPE | theta(5000.0) | {
    "model_type": "exaone4", "vocab_size": vocabularies.BPE_SIZE, "head_dim": 16, "hidden_act": "silu",
    "sliding_window": None, "layer_types": ["full_attention"] * 2, "tie_word_embeddings": False,
}  # fmt: skip


_EXAONE_LAYER: dict[str, tuple[int, ...]] = {
    "self_attn.q_proj.weight": (64, 64), "self_attn.k_proj.weight": (32, 64), "self_attn.v_proj.weight": (32, 64),
    "self_attn.o_proj.weight": (64, 64), "self_attn.q_norm.weight": (16,), "self_attn.k_norm.weight": (16,),
    "post_attention_layernorm.weight": (64,), "post_feedforward_layernorm.weight": (64,),
    "mlp.gate_proj.weight": (96, 64), "mlp.up_proj.weight": (96, 64), "mlp.down_proj.weight": (64, 96),
}  # fmt: skip
_EXAONE_FURTHER: dict[str, tuple[int, ...]] = {
    **{f"mtp.layers.0.{name}": shape for name, shape in _EXAONE_LAYER.items()},
    "mtp.fc.weight": (64, 128),
    **{f"mtp.{name}.weight": (64,) for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")},
}


def _exaone(front: str, layers: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of an EXAONE 4."""
    rows = (vocabularies.BPE_SIZE, 64)
    every = {f"{front}layers.{i}.{name}": shape for i in range(layers) for name, shape in _EXAONE_LAYER.items()}
    return every | {f"{front}embed_tokens.weight": rows, f"{front}norm.weight": (64,), "lm_head.weight": rows}


CASES = table(
    Case(
        "smollm3",
        "SmolLM3Config",
        "bpe",
        GQA | BPE | theta(5000.0) | {"num_hidden_layers": 4},
        recorded=("mlx",),
    ),
    like(
        "smollm3",
        "smollm3-bias",
        more={"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
        runs=False,
        recorded=(),
    ),
    # Gemma: norms that multiply by 1 + w, a scaled embedding that is also the output, wide heads
    Case(
        "gemma",
        "GemmaConfig",
        "gemma",
        GQA | SPM | theta(10000.0) | {"head_dim": 32, "pad_token_id": 0},
        recorded=("mlx",),
        gelu=True,
        older=("lm_head.weight",),
    ),
    # norms around each block, soft caps, every second layer with a window
    Case(
        "gemma2",
        "Gemma2Config",
        "gemma",
        GQA
        | SPM
        | theta(10000.0)
        | {
            "head_dim": 32,
            "pad_token_id": 0,
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 32,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 3.0,
        },
        gelu=True,
        recorded=("mlx",),
    ),
    # norms on q and k too, five layers with a window and a base frequency of their own to one without
    Case(
        "gemma3",
        "Gemma3TextConfig",
        "gemma",
        GQA
        | SPM
        | {
            "num_hidden_layers": 6,
            "head_dim": 32,
            "pad_token_id": 0,
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 32,
            "final_logit_softcapping": 30.0,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 50000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
            },
        },
        gelu=True,
        recorded=("mlx",),
    ),
    # Phi-3: q, k and v in one tensor, gate and up in another
    Case(
        "phi-mini",
        "Phi3Config",
        "spm",
        GQA | SPM | theta(5000.0) | {"sliding_window": WINDOW, "original_max_position_embeddings": 256},
        recorded=("mlx",),
        settings={"sliding_window": None},
        told=("config.json: sliding_window",),
    ),
    Case(
        "phi-mini-long",
        "Phi3Config",
        "spm",
        GQA
        | SPM
        | {
            "original_max_position_embeddings": 64,
            "sliding_window": None,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 5000.0,
                "short_factor": [1.0 + i / 16 for i in range(8)],
                "long_factor": [1.5 + i / 4 for i in range(8)],
            },
        },
    ),
    Case("olmo2", "Olmo2Config", "bpe", GQA | BPE | theta(5000.0), recorded=("mlx",)),
    # three of four layers with a window, here two in an order of their own; yarn turns the others alone
    Case(
        "olmo3",
        "Olmo3Config",
        "bpe",
        GQA
        | BPE
        | {
            "num_hidden_layers": 3,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "rope_theta": 5000.0,
                    "original_max_position_embeddings": 64,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
            },
        },
        recorded=("mlx",),
    ),
    Case(
        "exaone4",
        "Exaone4Config",
        "bpe",
        GQA
        | BPE
        | {
            "sliding_window": None,
            "layer_types": ["full_attention"] * 2,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 2000.0,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
        unheld=frozenset({"sliding_window_pattern"}),
    ),
    # the large one's layers; llama.cpp gives them a window where there are 64 (test_exaone4 in tests/proof)
    Case(
        "exaone4-window",
        "Exaone4Config",
        "bpe",
        GQA | BPE | theta(5000.0) | {"num_hidden_layers": 4, "sliding_window": WINDOW},
        said={"sliding_window_pattern": "LLLG", "head_dim": 16},
        recorded=("mlx",),
        runs=False,
        unheld=frozenset({"sliding_window_pattern"}),
        told=("config.json: num_hidden_layers",),
    ),
    # EXAONE 4.5: the part of it that writes, and a layer that predicts a further token
    Case(
        "exaone4.5",
        "Exaone4_5_ForConditionalGeneration",
        "none",
        {"model_type": "exaone4_5", "text_config": _EXAONE | {"num_nextn_predict_layers": 1}},
        shapes=_exaone("model.language_model.", 2) | _EXAONE_FURTHER | {"model.visual.x.weight": (8,)},
        further=_EXAONE_FURTHER,
        apart=("model.visual.",),
        head="Exaone4_5_ForConditionalGeneration",
        taken="exaone4",
        runs=False,
        unheld=frozenset({"architectures", "model_type", "sliding_window_pattern"}),
    ),
    # ... as it was published first, without that layer
    like(
        "exaone4.5",
        "exaone4.5-first",
        more={"text_config": _EXAONE | {"model_type": "exaone4_5_text", "num_nextn_predict_layers": 0}},
        shapes=_exaone("model.language_model.", 2) | {"model.visual.x.weight": (8,)},
        further={},
        unheld=frozenset({"architectures", "model_type", "num_nextn_predict_layers", "sliding_window_pattern"}),
        part_type="exaone4",
    ),
    Case(
        "olmoe",
        "OlmoeConfig",
        "bpe",
        GQA
        | BPE
        | theta(5000.0)
        | {"rms_norm_eps": 1e-5, "num_key_value_heads": 4, "num_experts": 6, "num_experts_per_tok": 2},
        recorded=("mlx", "hf5"),
    ),
    Case(
        "granite",
        "GraniteConfig",
        "bpe",
        GQA
        | BPE
        | theta(5000.0)
        | {
            "attention_multiplier": 0.2,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.5,
            "logits_scaling": 2.0,
        },
        recorded=("mlx",),
    ),
    Case(
        "granite-bias",
        "GraniteConfig",
        "bpe",
        GQA
        | BPE
        | theta(5000.0)
        | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "head_dim": 16},
        unheld=frozenset({"head_dim"}),
    ),
    Case(
        "glm4",
        "Glm4Config",
        "glm",
        GQA | GLM | theta(5000.0, partial_rotary_factor=0.5) | {"head_dim": 32, "attention_bias": True},
        recorded=("mlx",),
        unheld=frozenset({"bos_token_id"}),
    ),
    like("glm4", "glm4-plain", more={"attention_bias": False, "tie_word_embeddings": True}, recorded=()),
    like(  # the language model of a GLM-4V, as a GGUF of it leads back
        "glm4",
        "glm4-sections",
        more=theta(5000.0, partial_rotary_factor=0.5, mrope_section=[1, 1, 2]) | {"head_dim": 16},
        recorded=(),
    ),
    Case("seed-oss", "SeedOssConfig", "bpe", GQA | BPE | theta(5000.0) | {"head_dim": 32}, recorded=("mlx",)),
    like(
        "seed-oss",
        "seed-oss-out",
        more={"attention_bias": False, "attention_out_bias": True, "tie_word_embeddings": True},
        runs=False,
        recorded=(),
    ),
    # DeepSeek V3: latent attention, one dense layer, shared and chosen experts, a bias that chooses
    Case(
        "deepseek-v3",
        "DeepseekV3Config",
        "bpe",
        _DEEPSEEK
        | theta(5000.0)
        | {
            "q_lora_rank": 32,
            "num_experts_per_tok": 3,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
        },
        said={"scoring_func": "sigmoid"},
        beside=("model.layers.3.enorm.weight", "model.layers.3.mlp.experts.0.up_proj.weight"),
        recorded=("hf5", "mlx"),
        spreads=((("mlp.gate.weight",), (0.0, 0.1)),),
        unheld=frozenset({"scoring_func"}),
    ),
    Case(
        "deepseek-v2",
        "DeepseekV2Config",
        "bpe",
        _DEEPSEEK
        | {
            "q_lora_rank": 32,
            "routed_scaling_factor": 1.0,
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "rope_theta": 10000.0,
                "original_max_position_embeddings": 64,
                "mscale": 0.707,
                "mscale_all_dim": 0.707,
                "beta_fast": 32,
                "beta_slow": 1,
            },
        },
        recorded=("hf5",),
    ),
    # ... and of DeepSeek V2 Lite, which llama.cpp knows by its 27 layers
    Case(
        "deepseek-v2-lite",
        "DeepseekV2Config",
        "bpe",
        _DEEPSEEK | theta(10000.0) | {"q_lora_rank": None, "first_k_dense_replace": 0, "num_hidden_layers": 2},
        runs=False,
    ),
    Case(
        "granite-moe",
        "GraniteMoeConfig",
        "bpe",
        GQA
        | BPE
        | theta(5000.0)
        | {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "attention_multiplier": 0.2,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.5,
            "logits_scaling": 2.0,
        },
        recorded=("mlx",),
        said={"head_dim": 16},
        unheld=frozenset({"head_dim"}),
    ),
    # as published: the base frequency stretched
    Case(
        "hunyuan-dense-long",
        "HunYuanDenseV1Config",
        "bpe",
        GQA
        | BPE
        | {
            "head_dim": 32,
            "eod_token_id": vocabularies.BPE_SIZE - 2,
            "rope_parameters": {"rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0, "rope_theta": 10000.0},
            "max_position_embeddings": 32768,
        },
        unheld=frozenset({"eod_token_id", "max_position_embeddings", "rope", "ntk_alpha_base", "rope_parameters"}),
    ),
    Case(
        "hunyuan-dense",
        "HunYuanDenseV1Config",
        "bpe",
        GQA | BPE | theta(5000.0) | {"head_dim": 32, "eod_token_id": vocabularies.BPE_SIZE - 2},
        recorded=("mlx",),
        unheld=frozenset({"eod_token_id"}),
        generation={"eos_token_id": [vocabularies.BPE_SIZE - 3, vocabularies.BPE_SIZE - 2]},
    ),
    Case("ernie4.5", "Ernie4_5Config", "spm", GQA | SPM | theta(5000.0) | {"head_dim": 32}, recorded=("mlx",)),
    Case("arcee", "ArceeConfig", "bpe", GQA | BPE | theta(5000.0)),
)

_ACT = {"hidden_act": "relu"}
_GELU = {"hidden_activation": "relu"}
_ROPE = {"rope.rope_type": "dynamic"}
_BASE = {"rope.rope_theta": 5000.0}
UNSAID: dict[str, dict[str, Any]] = {
    "smollm3": _ACT | _ROPE | {"use_sliding_window": True, "unrotated_every": 0},
    "gemma": _GELU | _ROPE | _BASE | {"attention_bias": True},
    "gemma2": _GELU | _ROPE | _BASE | {"attention_bias": True, "full_attention_every": 3, "query_pre_attn_scalar": 8},
    "gemma3": _GELU
    | _ROPE
    | {"attention_bias": True, "attn_logit_softcapping": 2.0, "full_attention_every": 5, "query_pre_attn_scalar": 16},
    "phi3": _ACT | _ROPE,
    "deepseek2": _ACT
    | {"rope.rope_type": "linear"}
    | {"attention_bias": True, "rope_interleave": False, "num_key_value_heads": 2}
    | {"rms_norm_eps": 1e-5, "rope.mscale_all_dim": 0.5, "rope": {"rope_type": "yarn", "factor": 4.0}},
    "granitemoe": _ACT | _ROPE | {"attention_bias": True},
    "hunyuan-dense": _ACT | _ROPE | {"attention_bias": True},
    "ernie4_5": _ACT | _ROPE | {"use_bias": True},
    "arcee": {"hidden_act": "silu"} | _ROPE | {"attention_bias": True, "mlp_bias": True},
    "exaone4": _ACT | _ROPE,
    "olmo2": _ACT | _ROPE | {"attention_bias": True},
    "olmoe": _ACT | _ROPE | {"attention_bias": True, "clip_qkv": 1.0, "norm_topk_prob": True},
    "granite": _ACT | _ROPE,
    "glm4": _ACT | _ROPE,
    "distilbert": {"activation": "relu"},
    "roberta": _ACT | {"is_decoder": True},
    "seed-oss": _ACT | _ROPE | {"mlp_bias": True},
}
