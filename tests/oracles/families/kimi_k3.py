"""Small Kimi K3s: delta and latent attention, experts in a narrower space, a choice among blocks of layers. See
__init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles import published_packings
from tests.oracles.case import Case, table
from tests.oracles.families.common import BPE, GQA, LATENT
from tests.oracles.families.wrapped import VOCABULARY, Shapes

_BPE = VOCABULARY["vocab_size"]
_DELTA: Shapes = {
    **{f"{part}_proj.weight": (128, 64) for part in "qkvg"}, "o_proj.weight": (64, 128),
    **{f"{part}_conv1d.weight": (128, 1, 4) for part in "qkv"}, "f_a_proj.weight": (32, 64),
    "f_b_proj.weight": (128, 32), "b_proj.weight": (4, 64), "A_log": (32,), "dt_bias": (128,), "o_norm.weight": (32,),
}  # fmt: skip
_LATENT: Shapes = {
    "q_a_proj.weight": (32, 64), "q_a_layernorm.weight": (32,), "q_b_proj.weight": (4 * 40, 32),
    "kv_a_proj_with_mqa.weight": (48, 64), "kv_a_layernorm.weight": (32,), "kv_b_proj.weight": (4 * 48, 32),
    "o_proj.weight": (64, 96), "g_proj.weight": (96, 64),
}  # fmt: skip


def _matrices(at: str, outside: int, inside: int, names: tuple[str, str, str]) -> Shapes:
    gate, up, down = (f"{at}.{name}.weight" for name in names)
    return {gate: (inside, outside), up: (inside, outside), down: (outside, inside)}


def _moe(at: str) -> Shapes:
    out: Shapes = {
        f"{at}.gate.weight": (6, 64), f"{at}.gate.e_score_correction_bias": (6,),
        f"{at}.routed_expert_down_proj.weight": (32, 64), f"{at}.routed_expert_norm.weight": (32,),
        f"{at}.routed_expert_up_proj.weight": (64, 32),
    }  # fmt: skip
    for e in range(6):
        out |= _matrices(f"{at}.experts.{e}", 32, 96, ("w1", "w3", "w2"))
    return out | _matrices(f"{at}.shared_experts", 64, 192, ("gate_proj", "up_proj", "down_proj"))


def _shapes(*, lora: bool = True) -> Shapes:
    """Four layers, of which the first is dense and the third has latent attention; its queries may be of low rank."""
    out: Shapes = {"model.embed_tokens.weight": (_BPE, 64), "model.norm.weight": (64,), "lm_head.weight": (_BPE, 64)}
    out |= {"model.output_attn_res_norm.weight": (64,), "model.output_attn_res_proj.weight": (1, 64)}
    latent = _LATENT if lora else {"q_proj.weight": (160, 64), **_LATENT}
    latent = {name: shape for name, shape in latent.items() if lora or not name.startswith(("q_a", "q_b"))}
    for i in range(4):
        at = f"model.layers.{i}"
        out |= {f"{at}.{name}_layernorm.weight": (64,) for name in ("input", "post_attention")}
        for part in ("self_attention", "mlp"):
            out |= {f"{at}.{part}_res_norm.weight": (64,), f"{at}.{part}_res_proj.weight": (1, 64)}
        out |= {f"{at}.self_attn.{name}": shape for name, shape in (latent if i == 2 else _DELTA).items()}
        if i:
            out |= _moe(f"{at}.block_sparse_moe")
        else:
            out |= _matrices(f"{at}.mlp", 64, 96, ("gate_proj", "up_proj", "down_proj"))
    return {f"language_model.{name}": shape for name, shape in out.items()}


_K3: dict[str, Any] = (
    GQA
    | BPE
    | VOCABULARY
    | {
        "model_type": "kimi_linear", "architectures": ["KimiLinearForCausalLM"], "num_hidden_layers": 4,
        "num_key_value_heads": 4, "rms_norm_eps": LATENT, "hidden_act": "situ", "activation_situ_beta": 3.0,
        "activation_situ_linear_beta": 20.0, "attn_res_block_size": 2, "q_lora_rank": 32, "kv_lora_rank": 32,
        "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 24, "mla_use_nope": True,
        "mla_use_output_gate": True, "first_k_dense_replace": 1, "moe_intermediate_size": 96, "moe_layer_freq": 1,
        "moe_renormalize": True, "moe_router_activation_func": "sigmoid", "num_expert_group": 1, "topk_group": 1,
        "num_experts": 6, "num_experts_per_token": 2, "num_shared_experts": 2, "routed_expert_hidden_size": 32,
        "latent_moe_use_norm": True, "routed_scaling_factor": 1.5, "topk_method": "noaux_tc", "use_grouped_topk": True,
        "num_nextn_predict_layers": 0, "tie_word_embeddings": False,
        "linear_attn_config": {
            "full_attn_layers": [3], "kda_layers": [1, 2, 4], "head_dim": 32, "num_heads": 4, "gate_lower_bound": -5.0,
            "short_conv_kernel_size": 4, "use_full_rank_gate": True,
        },
    }
)  # fmt: skip
_DEFAULTS: dict[str, Any] = {
    "model_type": "kimi_k3", "vocab_size": 163840, "hidden_size": 7168, "intermediate_size": 33792,
    "num_hidden_layers": 93, "num_attention_heads": 96, "num_key_value_heads": 96, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "mla_use_nope": True,
    "mla_use_output_gate": True, "num_experts": 896, "num_experts_per_token": 16, "num_shared_experts": 2,
    "moe_intermediate_size": 3072, "routed_expert_hidden_size": 3584, "latent_moe_use_norm": True,
    "moe_renormalize": True, "moe_router_activation_func": "sigmoid", "num_expert_group": 1, "topk_group": 1,
    "routed_scaling_factor": 1.0, "first_k_dense_replace": 1, "moe_layer_freq": 1, "hidden_act": "situ",
    "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0, "attn_res_block_size": 12, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 1048576, "tie_word_embeddings": False, "head_dim": None,
}  # fmt: skip
_WORDS: dict[str, Any] = {
    "linear_attn_config": {
        "full_attn_layers": [*range(4, 93, 4), 93], "kda_layers": [i for i in range(1, 93) if i % 4], "head_dim": 128,
        "num_heads": 96, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0, "use_full_rank_gate": True,
    },
}  # fmt: skip


def _config(**text: Any) -> dict[str, Any]:
    tokens = {key: value for key, value in BPE.items() if key.endswith("_token_id")}
    return {"model_type": "kimi_k3", **tokens, "text_config": {**_K3, **text}, "vision_config": {"hidden_size": 32}}


_SPREADS = (
    (("block_sparse_moe.gate.weight",), (0.0, 0.1)),
    (("o_norm.weight", "res_proj.weight"), (1.0, 0.25)),
)
_UNHELD = frozenset({"model_type", "topk_method", "use_grouped_topk", "num_nextn_predict_layers"})
_PRODUCTS = (("res_norm.weight", "res_proj.weight"),)
_BESIDE = ("vision_tower.encoder.blocks.0.norm0.weight", "mm_projector.proj.0.weight")
CASES = table(
    Case(
        "kimi-k3",
        "KimiK3ForConditionalGeneration",
        "bpe",
        _config(),
        shapes=_shapes(),
        words=_WORDS,
        defaults=_DEFAULTS,
        part_type="kimi_k3",
        taken="kimi_k3",
        products=_PRODUCTS,
        tails={"A_log": 4},
        spreads=_SPREADS,
        beside=_BESIDE,
        recorded=("types", "mlx"),
        unheld=_UNHELD,
        returns=False,  # but a product for each norm and its matrix of one row
    ),
    # ... as transformers 5 writes its config, and with queries that aren't of low rank
    Case(
        "kimi-k3-plain",
        "KimiK3ForConditionalGeneration",
        "none",
        _config(q_lora_rank=None, head_dim=18),
        shapes=_shapes(lora=False),
        words=_WORDS,
        defaults=_DEFAULTS,
        part_type="kimi_k3",
        taken="kimi_k3",
        products=_PRODUCTS,
        tails={"A_log": 4},
        recorded=("mlx",),
        unheld=_UNHELD | {"head_dim"},
    ),
    # ... as it is published, with experts in MXFP4
    Case(
        "kimi-k3-published",
        "KimiK3ForConditionalGeneration",
        "bpe",
        _config(),
        shapes=_shapes(),
        packed=published_packings.kimi_k3,
        spreads=_SPREADS,
        golden=False,
        runs=False,
        returns=False,
        unheld=_UNHELD,
    ),
)
UNSAID: dict[str, dict[str, Any]] = {
    "kimi-k3": {"hidden_act": "silu", "num_expert_group": 2, "mla_use_nope": False, "mla_use_output_gate": False}
    | {"moe_layer_freq": 2, "latent_moe_use_norm": False, "linear_attn_config.use_full_rank_gate": False}
    | {"linear_attn_config.num_heads": 8, "rms_norm_eps": 1e-5},
}
