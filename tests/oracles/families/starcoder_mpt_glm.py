"""Small StarCoders, MPTs, GLMs and MiniCPM3s. See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles.case import Case, like, table
from tests.oracles.families.common import BPE, GLM, GQA, LATENT, SPM, theta

_MPT: dict[str, Any] = BPE | {
    "d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": 256, "layer_norm_epsilon": 5e-2,
}  # fmt: skip
_MPT_NAME = {"architectures": ["MPTForCausalLM"]}  # as published; transformers writes MptForCausalLM
_MPT_EPSILON = {"mpt.attention.layer_norm_epsilon": 5e-2}

_GLM: dict[str, Any] = GQA | GLM | theta(5000.0, partial_rotary_factor=0.5) | {"head_dim": 16}
_GLM_OURS = {
    "chatglm.context_length": 256,
    "chatglm.attention.layer_norm_rms_epsilon": 3e-3,
    "chatglm.rope.freq_base": 5000.0,
}

_MINICPM3: dict[str, Any] = GQA | SPM | {
    "rms_norm_eps": LATENT,
    "num_key_value_heads": 4, "q_lora_rank": 48, "kv_lora_rank": 32, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16,
    "v_head_dim": 16, "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256,
}  # fmt: skip

CASES = table(
    Case(
        "starcoder",
        "GPTBigCodeConfig",
        "bpe",
        BPE | {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256, "layer_norm_epsilon": 5e-2},
        older=("transformer.h.0.attn.bias", "transformer.h.1.attn.masked_bias"),
        unheld=frozenset({"n_inner"}),
        gelu=True,
    ),
    like(
        "starcoder",
        "starcoder-untied",
        more={"n_inner": 96, "tie_word_embeddings": False},
        ours={"starcoder.feed_forward_length": 96},
        recorded=("mlx",),
        unheld=frozenset(),
        older=(),
    ),
    Case(
        "mpt",
        "MptConfig",
        "bpe",
        _MPT | {"attn_config": {"clip_qkv": 1.5}},
        hparams=_MPT_NAME,
        ours=_MPT_EPSILON,
        gelu=True,
    ),
    Case(
        "mpt-untied",
        "MptConfig",
        "bpe",
        _MPT | {"attn_config": {"alibi_bias_max": 4}, "tie_word_embeddings": False},
        hparams=_MPT_NAME,
        ours=_MPT_EPSILON,
        runs=False,  # transformers' ALiBi goes up to 8 whatever the config says
    ),
    Case(
        "glm",
        "GlmConfig",
        "glm",
        _GLM | {"attention_bias": True},
        recorded=("mlx",),
        ours=_GLM_OURS,
        unheld=frozenset({"bos_token_id"}),
    ),
    like("glm", "glm-plain", more={"attention_bias": False, "tie_word_embeddings": True}, recorded=()),
    Case(
        "minicpm3",
        "MiniCPM3Config",
        "spm",
        _MINICPM3 | theta(10000.0),
    ),
    Case(
        "minicpm3-long",
        "MiniCPM3Config",
        "spm",
        _MINICPM3
        | {
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "short_factor": [1.0 + i / 16 for i in range(8)],
                "long_factor": [1.5 + i / 4 for i in range(8)],
                "original_max_position_embeddings": 256,
            },
            "tie_word_embeddings": False,
        },
        recorded=("mlx",),
    ),
)

UNSAID: dict[str, dict[str, Any]] = {
    "starcoder": {"activation_function": "relu", "scale_attn_weights": False, "multi_query": False},
    "glm": {"hidden_act": "relu", "rope.rope_type": "dynamic", "head_dim": 32},
    "minicpm3": {
        "hidden_act": "relu",
        "rope.rope_type": "dynamic",
        "rope.rope_theta": 5000.0,
        "attention_bias": True,
        "mlp_bias": True,
        "scale_emb": 1,
        "scale_depth": 1.0,
        "dim_model_base": 64,
        "v_head_dim": 8,
        "rms_norm_eps": 1e-5,
    },
    "mpt": {
        "expansion_ratio": 2,
        "no_bias": False,
        "logit_scale": 0.5,
        "attn_config.alibi": False,
        "attn_config.kv_n_heads": 2,
        "attn_config.qk_ln": True,
        "attn_config.prefix_lm": True,
        "attn_config.softmax_scale": 0.1,
    },
}
