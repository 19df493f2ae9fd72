"""Small decoders with experts, and such as are one part of a larger model. See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles import mxfp4, vocabularies
from tests.oracles.case import Case
from tests.oracles.families.common import BPE, GLM, GQA, LATENT, SPM, WINDOW, theta

# llama.cpp rounds the bounds of yarn's ramp (`truncate`), the model's own code doesn't.
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 5000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 8.0,
    "beta_slow": 1.0,
    "truncate": False,
}
_GPT_OSS: dict[str, Any] = GQA | BPE | {
    "head_dim": 24, "intermediate_size": 96, "num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": WINDOW,
    "rope_parameters": _YARN,
}  # fmt: skip
_ROUNDED = {"rope_parameters": _YARN | {"truncate": True}}
_ROUNDS = ("config.json: rope.truncate",)

_GLM: dict[str, Any] = GQA | GLM | theta(5000.0, partial_rotary_factor=0.5) | {
    "num_hidden_layers": 3, "head_dim": 24, "moe_intermediate_size": 32, "n_routed_experts": 6,
    "num_experts_per_tok": 2, "n_shared_experts": 3, "routed_scaling_factor": 2.5, "norm_topk_prob": True,
    "num_nextn_predict_layers": 1,
}  # fmt: skip
_ROUTER = ((("mlp.gate.weight",), (0.0, 0.1)),)  # a sigmoid in front of the experts must not saturate
_PHI: dict[str, Any] = GQA | SPM | {
    "num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": None,
    "rope_parameters": {
        "rope_type": "longrope", "rope_theta": 5000.0, "original_max_position_embeddings": 64,
        "short_factor": [1.0 + i / 16 for i in range(8)], "long_factor": [1.5 + i / 4 for i in range(8)],
        "short_mscale": 1.25, "long_mscale": 1.25,
    },
}  # fmt: skip
_LLAMA4: dict[str, Any] = GQA | BPE | {
    "num_hidden_layers": 4, "head_dim": 24, "intermediate_size": 32, "intermediate_size_mlp": 96,
    "num_local_experts": 6, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2,
    "rope_parameters": {
        "rope_type": "llama3", "rope_theta": 2000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0,
        "original_max_position_embeddings": 32,
    },
}  # fmt: skip
_MINISTRAL: dict[str, Any] = GQA | BPE | {
    "head_dim": 24,
    "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 32,
        "beta_fast": 8.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.5,
    },
}  # fmt: skip
_PIXTRAL: dict[str, Any] = {
    "model_type": "pixtral", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
    "num_attention_heads": 2, "head_dim": 16, "image_size": 28, "patch_size": 14,
}  # fmt: skip
_KIMI: dict[str, Any] = GQA | BPE | {
    "rms_norm_eps": LATENT,
    "num_key_value_heads": 4, "num_hidden_layers": 3, "moe_intermediate_size": 32, "n_routed_experts": 6,
    "num_experts_per_tok": 3, "n_shared_experts": 1, "first_k_dense_replace": 1, "kv_lora_rank": 32,
    "q_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 24, "n_group": 1, "topk_group": 1,
    "norm_topk_prob": True, "routed_scaling_factor": 2.827,
    "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 50000.0, "factor": 4.0, "original_max_position_embeddings": 64,
        "beta_fast": 1.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
    },
}  # fmt: skip
_WORDS = {"vocab_size": vocabularies.BPE_SIZE}

_ROTATION = ("model.layers.0.self_attn.rotary_emb.inv_freq",)

CASES: dict[str, Case] = {
    case.name: case
    for case in (
        # gpt-oss: biases and sinks everywhere, gate and up row by row in one tensor, its experts the other way round
        Case("gpt-oss", "GptOssConfig", "bpe", _GPT_OSS, recorded=("mlx", "mxfp4"), settings=_ROUNDED, told=_ROUNDS),
        # ... and as it is published: llama.cpp rounds what it multiplies with MXFP4 to 8 bits
        Case(
            "gpt-oss-mxfp4",
            "GptOssConfig",
            "bpe",
            _GPT_OSS,
            packed=mxfp4.pack,
            v4=True,
            settings=_ROUNDED,
            runs=False,
            told=_ROUNDS,
        ),
        # GLM-4.5: dots.llm1 with biases, half of a head rotating, and a layer behind the others
        Case(
            "glm4.5",
            "Glm4MoeConfig",
            "glm",
            _GLM | {"use_qk_norm": True, "attention_bias": True},
            mtp=True,
            recorded=("hf5", "mlx"),
            spreads=_ROUTER,
            unheld=frozenset({"bos_token_id"}),
        ),
        # GLM-4.5-Air, from whose folder transformers has left that layer away
        Case(
            "glm4.5-air",
            "Glm4MoeConfig",
            "glm",
            _GLM | {"tie_word_embeddings": True},
            spreads=_ROUTER,
            unheld=frozenset({"bos_token_id"}),
        ),
        # Phi-3.5-MoE: llama.cpp weighs experts by another rule (tests/proof/test_phimoe.py)
        Case(
            "phi-moe",
            "PhimoeConfig",
            "spm",
            _PHI | {"attention_bias": True, "lm_head_bias": True},
            recorded=("hf5", "mlx"),
            runs=False,
            told=("config.json: num_local_experts",),
            ours={"phimoe.rope.scaling.attn_factor": 1.25},
            hparams={"architectures": ["PhiMoEForCausalLM"]},  # the name under which it is published
            unheld=frozenset({"original_max_position_embeddings"}),  # transformers repeats it from the rope parameters
        ),
        Case(
            "phi-moe-plain",
            "PhimoeConfig",
            "spm",
            _PHI | {"tie_word_embeddings": True, "sliding_window": WINDOW},
            runs=False,
            kept={"output.weight": "model.embed_tokens.weight"},
            told=("config.json: num_local_experts",),
            ours={"phimoe.rope.scaling.attn_factor": 1.25},
            hparams={"architectures": ["PhiMoEForCausalLM"]},  # the name under which it is published
            unheld=frozenset({"original_max_position_embeddings", "tie_word_embeddings"}),
        ),
        # Llama 4: every second layer with experts, the fourth without rotation
        Case("llama4", "Llama4TextConfig", "bpe", _LLAMA4, older=_ROTATION),
        # ... and as it is published, one part of a model that sees
        Case(
            "llama4-seeing",
            "Llama4Config",
            "bpe",
            {
                "text_config": _LLAMA4 | _WORDS,
                "vision_config": {
                    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2,
                    "image_size": 28, "patch_size": 14, "vision_output_dim": 64, "projector_input_dim": 64,
                    "projector_output_dim": 64,
                },
            },
            head="Llama4ForConditionalGeneration",
            recorded=("mlx",),
        ),
        # Ministral 3: yarn, and attention scaled by the position
        Case("ministral3", "Ministral3Config", "bpe", _MINISTRAL, recorded=("mlx",)),
        Case(
            "ministral3-seeing",
            "Mistral3Config",
            "bpe",
            {"text_config": _MINISTRAL | _WORDS | {"model_type": "ministral3"}, "vision_config": _PIXTRAL}
            | {"tie_word_embeddings": False},
            head="Mistral3ForConditionalGeneration",
            older=_ROTATION,
            recorded=("hf5", "mlx"),
        ),
        # Kimi K2: a DeepSeek V3 with one group of experts and a yarn without a ramp, spelled as published
        Case(
            "kimi-k2",
            "DeepseekV3Config",
            "bpe",
            _KIMI,
            v4=True,
            said={"scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1, "aux_loss_alpha": 0.001},
            spreads=_ROUTER,
            unheld=frozenset({"scoring_func", "topk_method", "moe_layer_freq", "aux_loss_alpha"}),
        ),
        # Gemma 3 from 4B on
        Case(
            "gemma3-seeing",
            "Gemma3Config",
            "gemma",
            {
                "text_config": GQA
                | SPM
                | {
                    "vocab_size": vocabularies.SPM_SIZE,
                    "num_hidden_layers": 6,
                    "head_dim": 32,
                    "pad_token_id": 0,
                    "sliding_window": WINDOW,
                    "query_pre_attn_scalar": 32,
                    "rope_parameters": {
                        "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 50000.0},
                        "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
                    },
                },
                "vision_config": {k: v for k, v in _PIXTRAL.items() if k not in ("model_type", "head_dim")},
                "mm_tokens_per_image": 4,
            },
            head="Gemma3ForConditionalGeneration",
            recorded=("hf5", "mlx"),
            gelu=True,
        ),
        # Mistral Small 3.1
        Case(
            "mistral3-small",
            "Mistral3Config",
            "bpe",
            {"vision_config": _PIXTRAL, "tie_word_embeddings": False}
            | {
                "text_config": GQA
                | BPE
                | _WORDS
                | theta(5000.0)
                | {"model_type": "mistral", "head_dim": 24, "sliding_window": None}
            },
            head="Mistral3ForConditionalGeneration",
        ),
    )
}  # fmt: skip

_ACT = {"hidden_act": "relu"}
UNSAID: dict[str, dict[str, Any]] = {
    "mistral3": _ACT | {"rope.rope_type": "dynamic", "sliding_window": 16},
    "llama4": _ACT
    | {"rope.rope_type": "dynamic", "attention_bias": True, "attention_chunk_size": 16, "attn_scale": 0.2}
    | {"attn_temperature_tuning": False, "floor_scale": 16, "unrotated_every": 2, "full_attention_every": 2}
    | {"use_qk_norm": False},
    "phimoe": _ACT | {"rope.rope_type": "dynamic", "router_jitter_noise": 0.1},
    "glm4moe": _ACT | {"rope.rope_type": "dynamic", "scoring_func": "softmax", "n_group": 2},
    "gpt-oss": _ACT
    | {"rope.rope_type": "dynamic", "rope.truncate": True, "attention_bias": False, "full_attention_every": 3}
    | {"swiglu_alpha": 1.0, "swiglu_limit": 5.0},
}
