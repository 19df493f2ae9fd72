"""A small GLM-5.3 Flash under its published names. See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles.case import Case, like, table
from tests.oracles.families.common import GLM, GQA
from tests.oracles.families.wrapped import VOCABULARY, Shapes

_BPE = VOCABULARY["vocab_size"]
_TEXT: dict[str, Any] = GQA | GLM | VOCABULARY | {
    "model_type": "glm5_next_text", "num_hidden_layers": 4, "num_key_value_heads": 4, "hidden_act": "silu",
    "moe_intermediate_size": 32, "n_routed_experts": 6, "num_experts_per_tok": 2, "n_shared_experts": 2,
    "routed_scaling_factor": 1.5, "norm_topk_prob": True, "n_group": 1, "topk_group": 1, "q_lora_rank": 24,
    "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 0, "v_head_dim": 24, "mla_use_nope": True,
    "index_topk": 256, "index_head_dim": 16, "index_n_heads": 2, "index_kpool": 4,
    "index_kpool_always_select_tail": True, "hc_mult": 4, "hc_eps": 1e-6, "hc_sinkhorn_iters": 3, "swiglu_limit": 1.5,
    "first_k_dense_replace": 1, "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    "layer_types": ["linear_attention", "indexed_attention", "indexed_attention", "linear_attention"],
    "indexer_types": ["full", "full", "shared", "shared"], "num_nextn_predict_layers": 1,
    "linear_attn_config": {
        "head_dim": 32, "num_heads": 4, "short_conv_kernel_size": 3, "gate_lower_bound": -4.0,
    },
    "tie_word_embeddings": False, "scoring_func": "sigmoid",
}  # fmt: skip
_VISION = {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "out_hidden_size": 16}
_LINEAR: Shapes = {
    **{f"{part}_proj.weight": (128, 64) for part in "qkv"}, **{f"{part}_conv1d.weight": (128, 1, 3) for part in "qkv"},
    **{f"{part}_a_proj.weight": (32, 64) for part in "fg"}, **{f"{part}_b_proj.weight": (128, 32) for part in "fg"},
    "b_proj.weight": (4, 64), "A_log": (4,), "dt_bias": (128,), "o_norm.weight": (32,), "o_proj.weight": (64, 128),
}  # fmt: skip
_LATENT: Shapes = {
    "q_a_proj.weight": (24, 64), "q_a_layernorm.weight": (24,), "q_b_proj.weight": (64, 24),
    "kv_a_proj_with_mqa.weight": (32, 64), "kv_a_layernorm.weight": (32,), "kv_b_proj.weight": (160, 32),
    "o_proj.weight": (64, 96),
}  # fmt: skip
_INDEXER: Shapes = {
    "wq_b.weight": (32, 24), "wk.weight": (16, 64), "k_norm.weight": (16,), "k_norm.bias": (16,),
    "weights_proj.weight": (2, 64), "index_kpool_compress_ape": (4, 16), "index_kpool_compress_gate": (16, 64),
}  # fmt: skip


def _gated(at: str, width: int) -> Shapes:
    ends = {"gate_proj": (width, 64), "up_proj": (width, 64), "down_proj": (64, width)}
    return {f"{at}.{name}.weight": shape for name, shape in ends.items()}


def _shapes(further: int) -> Shapes:
    at = "model.language_model."
    out: Shapes = {
        f"{at}embed_tokens.weight": (_BPE, 64), f"{at}norm.weight": (64,), "lm_head.weight": (_BPE, 64),
    }  # fmt: skip
    for i in range(4 + further):
        at = f"model.language_model.layers.{i}."
        out |= {f"{at}{name}_layernorm.weight": (64,) for name in ("input", "post_attention")}
        out |= {f"{at}self_attn.{name}": shape for name, shape in (_LINEAR if i in (0, 3) else _LATENT).items()}
        if i in (1, 4):
            out |= {f"{at}self_attn.indexer.{name}": shape for name, shape in _INDEXER.items()}
        for part in ("attn", "ffn") if i < 4 else ():
            out |= {f"{at}hc_{part}_fn": (24, 256), f"{at}hc_{part}_base": (24,), f"{at}hc_{part}_scale": (3,)}
        if i == 0:
            out |= _gated(f"{at}mlp", 96)
            continue
        out |= {f"{at}mlp.gate.weight": (6, 64), f"{at}mlp.gate.e_score_correction_bias": (6,)}
        out |= _gated(f"{at}mlp.shared_experts", 64)
        for e in range(6):
            out |= _gated(f"{at}mlp.experts.{e}", 32)
        if i == 4:
            out |= {f"{at}{name}.weight": (64,) for name in ("enorm", "hnorm", "shared_head.norm")}
            out |= {f"{at}{name}.weight": (_BPE, 64) for name in ("embed_tokens", "shared_head.head")}
            out[f"{at}eh_proj.weight"] = (64, 128)
    return out


_UNHELD = frozenset({
    "text_config", "vision_config", "vocab_size", "bos_token_id", "eos_token_id", "pad_token_id", "linear_attn_config",
    "model_type",
})  # fmt: skip
# The indexer picks all tokens: llama.cpp keeps its keys in F16, so that others come first where scores are near.
_FLAT = {key: value for key, value in _TEXT.items() if key not in ("mlp_layer_types", "linear_attn_config")} | {
    "num_nextn_predict_layers": 0, "linear_head_dim": 32, "linear_num_heads": 4, "linear_conv_kernel_dim": 3,
    "linear_lower_bound": -4.0, "head_dim": 0,
}  # fmt: skip
CASES = table(
    Case(
        "glm5-next",
        "Glm5NextForConditionalGeneration",
        "glm",
        {"model_type": "glm5_next", "text_config": _TEXT, "vision_config": _VISION},
        shapes=_shapes(1),
        beside=("model.visual.blocks.0.norm1.weight",),
        part_type="glm5_next_text",
        defaults={"model_type": "glm5_next"},
        taken="glm5_next",
        unheld=_UNHELD,
        words={
            "first_k_dense_replace": 3,
            "mlp_layer_types": [*["dense"] * 3, *["sparse"] * 42],
        },
    ),
    # ... in transformers' words, without a layer that predicts further tokens
    like(
        "glm5-next",
        "glm5-next-flat",
        {"text_config": _FLAT},
        tokenizer="none",
        shapes=_shapes(0),
        hparams={"text_config": _FLAT | {"linear_attn_config": _TEXT["linear_attn_config"]}},
    ),
)
UNSAID: dict[str, dict[str, Any]] = {
    "glm5-next": {"hidden_act": "relu", "attention_bias": True, "scoring_func": "softmax", "n_group": 2, "hc_mult": 2}
    | {"linear_num_heads": 2, "mla_use_nope": False},
}
