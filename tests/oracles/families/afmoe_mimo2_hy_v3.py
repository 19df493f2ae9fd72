"""Small mixtures of experts: AFMoE, EXAONE MoE, MiMo 2 and HY 3. See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles.case import Case, like, table
from tests.oracles.families.common import BPE, GQA, WINDOW, theta

_ROUTER = ((("mlp.gate.weight", "router.gate.weight"), (0.0, 0.1)),)  # a sigmoid in front of experts must not saturate
_EXPERTS: dict[str, Any] = {
    "moe_intermediate_size": 32, "num_experts": 6, "num_experts_per_tok": 2, "num_shared_experts": 2,
}  # fmt: skip
_FOUR: dict[str, Any] = GQA | BPE | {"num_hidden_layers": 4, "head_dim": 24, "sliding_window": WINDOW}

# K-EXAONE's layer behind the others has a dense feed forward.
_EXAONE_FURTHER: dict[str, tuple[int, ...]] = {
    "mtp.fc.weight": (64, 128),
    **{f"mtp.{name}.weight": (64,) for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")},
    **{f"mtp.layers.0.{name}_layernorm.weight": (64,) for name in ("input", "post_attention")},
    **{f"mtp.layers.0.self_attn.{name}_norm.weight": (24,) for name in "qk"},
    "mtp.layers.0.self_attn.q_proj.weight": (96, 64),
    "mtp.layers.0.self_attn.k_proj.weight": (48, 64),
    "mtp.layers.0.self_attn.v_proj.weight": (48, 64),
    "mtp.layers.0.self_attn.o_proj.weight": (64, 96),
    "mtp.layers.0.mlp.gate_proj.weight": (96, 64),
    "mtp.layers.0.mlp.up_proj.weight": (96, 64),
    "mtp.layers.0.mlp.down_proj.weight": (64, 96),
}

_HY = "model.layers.3"
_HY_PARTS = {"gate_proj": (32, 64), "up_proj": (32, 64), "down_proj": (64, 32)}
_HY_FURTHER: dict[str, tuple[int, ...]] = {
    f"{_HY}.eh_proj.weight": (64, 128),
    **{f"{_HY}.{name}.weight": (64,) for name in ("enorm", "hnorm", "final_layernorm")},
    **{f"{_HY}.{name}_layernorm.weight": (64,) for name in ("input", "post_attention")},
    **{f"{_HY}.self_attn.{name}_norm.weight": (24,) for name in "qk"},
    f"{_HY}.self_attn.q_proj.weight": (96, 64),
    f"{_HY}.self_attn.k_proj.weight": (48, 64),
    f"{_HY}.self_attn.v_proj.weight": (48, 64),
    f"{_HY}.self_attn.o_proj.weight": (64, 96),
    f"{_HY}.mlp.router.gate.weight": (6, 64),
    f"{_HY}.mlp.expert_bias": (6,),
    **{f"{_HY}.mlp.experts.{e}.{name}.weight": shape for e in range(6) for name, shape in _HY_PARTS.items()},
    f"{_HY}.mlp.shared_mlp.gate_proj.weight": (64, 64),
    f"{_HY}.mlp.shared_mlp.up_proj.weight": (64, 64),
    f"{_HY}.mlp.shared_mlp.down_proj.weight": (64, 64),
}

_MIMO: dict[str, Any] = GQA | BPE | {
    "num_hidden_layers": 3, "num_key_value_heads": 1, "head_dim": 24, "v_head_dim": 20, "moe_intermediate_size": 32,
    "n_routed_experts": 6, "num_experts_per_tok": 2, "sliding_window": WINDOW, "attention_value_scale": 0.707,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 8 / 24},
        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 8 / 24},
    },
}  # fmt: skip
_MIMO_SAID: dict[str, Any] = {
    "hybrid_layer_pattern": [0, 1, 0], "moe_layer_freq": [0, 1, 1], "swa_num_key_value_heads": 2, "swa_head_dim": 24,
    "swa_v_head_dim": 20, "swa_num_attention_heads": 4, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
}  # fmt: skip
_MIMO_WORDS: dict[str, Any] = {
    "hybrid_layer_pattern": [int(i > 0 and (i + 1) % 6 > 0) for i in range(48)],
    "moe_layer_freq": [0, *([1] * 47)],
    "swa_num_key_value_heads": 8,
}


def _mimo_further() -> dict[str, tuple[int, ...]]:
    one: dict[str, tuple[int, ...]] = {
        "eh_proj.weight": (64, 128),
        **{f"{name}.weight": (64,) for name in ("enorm", "hnorm", "final_layernorm")},
        **{f"{name}_layernorm.weight": (64,) for name in ("input", "pre_mlp")},
        "self_attn.q_proj.weight": (96, 64),
        "self_attn.k_proj.weight": (48, 64),
        "self_attn.v_proj.weight": (40, 64),
        "self_attn.o_proj.weight": (64, 80),
        "self_attn.attention_sink_bias": (4,),
        "mlp.gate_proj.weight": (96, 64),
        "mlp.up_proj.weight": (96, 64),
        "mlp.down_proj.weight": (64, 96),
    }
    return {f"model.mtp.layers.{n}.{name}": shape for n in range(3) for name, shape in one.items()}


CASES = table(
    # Trinity: gated attention, norms around each block, the fourth layer without rotation
    Case(
        "afmoe",
        "AfmoeConfig",
        "bpe",
        _FOUR | _EXPERTS | theta(5000.0) | {"num_dense_layers": 1, "route_scale": 2.5, "mup_enabled": True},
        said={"route_norm": True, "score_func": "sigmoid", "n_group": 1, "topk_group": 1},
        words={"route_norm": True, "score_func": "sigmoid"},
        recorded=("hf5", "mlx"),
        spreads=_ROUTER,
    ),
    # K-EXAONE: the fourth layer without rotation, and a layer behind the others
    Case(
        "exaone-moe",
        "ExaoneMoeConfig",
        "bpe",
        _FOUR | _EXPERTS | theta(5000.0) | {"routed_scaling_factor": 2.5, "norm_topk_prob": True},
        said={"scoring_func": "sigmoid", "num_nextn_predict_layers": 1, "is_moe_layer": [False, True, True, True]},
        further=_EXAONE_FURTHER,
        recorded=("hf5", "mlx"),
        unheld=frozenset({"is_moe_layer", "mlp_layer_types", "scoring_func"}),
        spreads=_ROUTER,
    ),
    # ... and as transformers writes it
    Case(
        "exaone-moe-plain",
        "ExaoneMoeConfig",
        "none",
        _FOUR | _EXPERTS | theta(5000.0),
        said={"scoring_func": "sigmoid"},
        unheld=frozenset({"mlp_layer_types", "scoring_func"}),
    ),
    Case(
        "hy-v3-plain",
        "HYV3Config",
        "none",
        GQA | BPE | _EXPERTS | theta(5000.0) | {"num_hidden_layers": 3, "head_dim": 24},
        said={"num_nextn_predict_layers": 0},
        unheld=frozenset({"enable_moe_fp32_combine"}),
    ),
    # MiMo-V2: two kinds of attention, narrow values, and three layers behind the others
    Case(
        "mimo2",
        "MiMoV2FlashConfig",
        "bpe",
        _MIMO,
        said=_MIMO_SAID | {"layernorm_epsilon": _MIMO["rms_norm_eps"], "num_nextn_predict_layers": 3},
        words=_MIMO_WORDS,
        # in the words of the published config, which is all that the reference reads
        hparams={"rope_parameters": None, "rms_norm_eps": None, "rope_theta": 5000.0, "swa_rope_theta": 500.0}
        | {"partial_rotary_factor": 8 / 24},
        further=_mimo_further(),
        unheld=frozenset({*_MIMO_SAID, "layernorm_epsilon", "mlp_layer_types"}),
        recorded=("hf5", "mlx"),
        spreads=_ROUTER,
        guesses=("assuming the class MiMoV2FlashForCausalLM: a mimo2 GGUF of MiMoV2ForCausalLM is the same",),
    ),
    # Hy3: one dense layer in front, and one more behind the others
    like(
        "hy-v3-plain",
        "hy-v3",
        tokenizer="bpe",
        more={"router_scaling_factor": 2.5, "num_nextn_predict_layers": 1},
        further=_HY_FURTHER,
        said={},
        spreads=_ROUTER,
        recorded=("hf5",),
    ),
)
UNSAID: dict[str, dict[str, Any]] = {
    "afmoe": {"hidden_act": "gelu", "attention_bias": True, "n_group": 2, "mup_enabled": False}
    | {"full_attention_every": 3, "rope.rope_type": "llama3"},
    "mimo2": {"hidden_act": "gelu", "attention_bias": True, "n_group": 2, "norm_topk_prob": False}
    | {"scoring_func": "softmax", "topk_method": "greedy", "routed_scaling_factor": 2.0, "rope.rope_type": "yarn"}
    | {"add_full_attention_sink_bias": True, "add_swa_attention_sink_bias": False, "n_shared_experts": 1},
    "hy-v3": {"hidden_act": "gelu", "attention_bias": True, "mlp_bias": True, "n_group": 2}
    | {"route_norm": False, "rope.rope_type": "llama3"},
    "exaone-moe": {"hidden_act": "gelu", "n_group": 2, "scoring_func": "softmax", "rope.rope_type": "yarn"},
}
