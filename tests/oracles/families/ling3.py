"""A small Ling 3, as its publisher's files name it. See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles import vocabularies
from tests.oracles.case import Case, like, table
from tests.oracles.families.common import BPE, GQA, LATENT
from tests.oracles.families.published import renamed
from tests.oracles.families.wrapped import Shapes

_CONFIG: dict[str, Any] = GQA | BPE | {
    "vocab_size": vocabularies.BPE_SIZE, "model_type": "bailing_hybrid", "num_hidden_layers": 5,
    "num_key_value_heads": 4, "head_dim": 32, "rms_norm_eps": LATENT, "hidden_act": "silu", "use_qkv_bias": False,
    "use_bias": False, "rope_theta": 5000.0, "rope_scaling": None, "rope_interleave": True, "q_lora_rank": 24,
    "kv_lora_rank": 48, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 20,
    "gated_attention_proj_granularity_type": "head_wise", "layer_group_size": 2, "no_kda_lora": True,
    "kda_safe_gate": True, "kda_lower_bound": -4.0, "short_conv_kernel_size": 3, "num_experts": 4,
    "num_experts_per_tok": 2, "num_shared_experts": 1, "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 40, "first_k_dense_replace": 1, "moe_router_enable_expert_bias": True,
    "norm_topk_prob": True, "n_group": 2, "topk_group": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
    "routed_scaling_factor": 1.5, "num_nextn_predict_layers": 1, "tie_word_embeddings": False,
    "expert_swiglu_limit_list": [0.0, 7.0, 7.0, 7.0, 7.0, 7.0],
    "share_expert_swiglu_limit_list": [0.0, 5.0, 5.0, 5.0, 5.0, 5.0],
}  # fmt: skip
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 157184, "hidden_size": 1536, "intermediate_size": 4608, "num_hidden_layers": 24,
    "num_attention_heads": 16, "num_key_value_heads": 16, "hidden_act": "silu", "head_dim": 128, "rms_norm_eps": 1e-6,
    "use_qkv_bias": False, "use_bias": False, "max_position_embeddings": 8192, "rope_theta": 10000.0,
    "rope_interleave": True, "q_lora_rank": 256, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "gated_attention_proj_granularity_type": "head_wise", "layer_group_size": 4,
    "no_kda_lora": True, "kda_safe_gate": True, "kda_lower_bound": -5.0, "short_conv_kernel_size": 4,
    "num_experts": 128, "num_experts_per_tok": 8, "num_shared_experts": 1, "moe_intermediate_size": 512,
    "moe_shared_expert_intermediate_size": 512, "first_k_dense_replace": 1, "moe_router_enable_expert_bias": True,
    "norm_topk_prob": True, "n_group": 8, "topk_group": 4, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
    "routed_scaling_factor": 2.5, "num_nextn_predict_layers": 1, "pad_token_id": 156892, "eos_token_id": 156892,
    "tie_word_embeddings": False,
}  # fmt: skip
_LINEAR: Shapes = {
    **{f"{part}_proj.weight": (128, 64) for part in "qkvfg"},
    **{f"{part}_conv1d.weight": (128, 1, 3) for part in "qkv"},
    "b_proj.weight": (4, 64), "A_log": (4,), "dt_bias": (128,), "o_norm.weight": (32,), "o_proj.weight": (64, 128),
}  # fmt: skip
_LATENT: Shapes = {
    "q_a_proj.weight": (24, 64), "q_a_layernorm.weight": (24,), "q_b_proj.weight": (160, 24),
    "kv_a_proj_with_mqa.weight": (64, 64), "kv_a_layernorm.weight": (48,), "kv_b_proj.weight": (176, 48),
    "g_proj.weight": (4, 64), "dense.weight": (64, 80),
}  # fmt: skip


def _gated(at: str, width: int) -> Shapes:
    ends = {"gate_proj": (width, 64), "up_proj": (width, 64), "down_proj": (64, width)}
    return {f"{at}.{name}.weight": shape for name, shape in ends.items()}


def _shapes(*, layers: int = 6, lora: bool = True) -> Shapes:
    rows = (vocabularies.BPE_SIZE, 64)
    out: Shapes = {"model.word_embeddings.weight": rows, "model.norm.weight": (64,), "lm_head.weight": rows}
    latent = _LATENT if lora else {n: s for n, s in _LATENT.items() if "q_" not in n} | {"q_proj.weight": (160, 64)}
    for i in range(layers):
        at = f"model.layers.{i}."
        out |= {f"{at}attention.{name}": shape for name, shape in (latent if i in (1, 3, 4, 5) else _LINEAR).items()}
        out |= {f"{at}{name}_layernorm.weight": (64,) for name in ("input", "post_attention")}
        if i == 0:
            out |= _gated(f"{at}mlp", 96)
            continue
        out |= {f"{at}mlp.gate.weight": (4, 64), f"{at}mlp.gate.expert_bias": (4,)} | _gated(
            f"{at}mlp.shared_experts", 40
        )
        for e in range(4):
            out |= _gated(f"{at}mlp.experts.{e}", 32)
        if i == 5:
            out |= {f"{at}{name}.weight": (64,) for name in ("enorm", "hnorm", "final_layernorm")}
            out[f"{at}eh_proj.weight"] = (64, 128)
    return out


_PLAIN = {key: value for key, value in _CONFIG.items() if not key.endswith("_limit_list")} | {
    "num_nextn_predict_layers": 0, "q_lora_rank": None, "num_hidden_layers": 4,
}  # fmt: skip
CASES = table(
    Case(
        "ling3",
        "BailingMoeV3ForCausalLM",
        "none",
        _CONFIG,
        shapes=_shapes(),
        defaults=_DEFAULTS,
        head="BailingMoeV3ForCausalLM",
        runs=False,
        recorded=("mlx",),
        hparams=_CONFIG,  # transformers 5.23 keeps the settings under other names, which the reference doesn't know
    ),
    # ... the language model of one that sees, whose positions have three parts
    Case(
        "ling3-vl",
        "BailingMoeV3VLForConditionalGeneration",
        "none",
        {"model_type": "bailing_hybrid_vl", "text_config": _PLAIN | {"mrope_section": [4, 2, 2]}},
        shapes=renamed(_shapes(layers=4, lora=False), {"model.": "model.language_model."}),
        defaults=_DEFAULTS,
        part_type="bailing_hybrid",
        taken="bailing_hybrid_vl",
        beside=("model.visual.blocks.0.norm1.weight", "visual.merger.norm.weight", "linear_proj.0.weight"),
        unheld=frozenset({"vocab_size"}),
    ),
    # ... with queries of full rank, and without the further layer
    like(
        "ling3",
        "ling3-plain",
        options=_PLAIN,
        tokenizer="bpe",
        head=None,
        runs=True,
        shapes=_shapes(layers=4, lora=False),
        spreads=((("gate.weight",), (0.0, 0.1)), (("o_norm.weight",), (1.0, 0.25))),
        hparams=_PLAIN,
    ),
)
UNSAID: dict[str, dict[str, Any]] = {
    "bailingmoe3": {"hidden_act": "relu", "use_bias": True, "use_qkv_bias": True, "rope_interleave": False}
    | {"no_kda_lora": False, "topk_method": "greedy", "gated_attention_proj_granularity_type": "element_wise"}
    | {"moe_router_enable_expert_bias": False, "rope.rope_type": "yarn", "rms_norm_eps": 1e-5},
}
