"""Small models of Nemotron-H Puzzle, as published (no class in transformers). See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles.case import Case, table
from tests.oracles.families.common import BPE, LN
from tests.oracles.families.wrapped import VOCABULARY, Shapes

_BPE = VOCABULARY["vocab_size"]


def _experts(width: int, used: int) -> dict[str, Any]:
    return {"block_type": "moe", "moe_intermediate_size": width, "num_experts_per_tok": used}


_CONFIG: dict[str, Any] = LN | BPE | VOCABULARY | {
    "model_type": "nemotron_h_puzzle", "head_dim": 32, "layer_norm_epsilon": 5e-2, "mamba_num_heads": 4,
    "mamba_head_dim": 32, "n_groups": 2, "ssm_state_size": 16, "num_key_value_heads": 1, "conv_kernel": 4,
    "n_routed_experts": 6, "n_shared_experts": 1, "moe_shared_expert_intermediate_size": 96, "moe_latent_size": 16,
    "norm_topk_prob": True, "routed_scaling_factor": 2.5, "n_group": 1, "topk_group": 1, "num_hidden_layers": 5,
    "rms_norm_eps": 5e-2, "rope_theta": 500.0, "mlp_hidden_act": "relu2", "mamba_hidden_act": "silu",
    "use_conv_bias": True, "tie_word_embeddings": False, "num_nextn_predict_layers": 1,
    "block_configs": [
        {"block_type": "mamba"}, _experts(32, 2), {"block_type": "attention"}, _experts(64, 3), _experts(48, 1),
    ],
    "mtp_block_configs": [{"block_type": "attention"}, _experts(32, 2)],
}  # fmt: skip


def _mixer(block: dict[str, Any]) -> Shapes:
    if block["block_type"] == "mamba":
        return {
            "A_log": (4,), "D": (4,), "dt_bias": (4,), "conv1d.weight": (192, 1, 4), "conv1d.bias": (192,),
            "in_proj.weight": (324, 64), "norm.weight": (128,), "out_proj.weight": (64, 128),
        }  # fmt: skip
    if block["block_type"] == "attention":
        return {
            "q_proj.weight": (128, 64), "k_proj.weight": (32, 64), "v_proj.weight": (32, 64),
            "o_proj.weight": (64, 128),
        }  # fmt: skip
    width = block["moe_intermediate_size"]
    out: Shapes = {
        "gate.weight": (6, 64), "gate.e_score_correction_bias": (6,), "fc1_latent_proj.weight": (16, 64),
        "fc2_latent_proj.weight": (64, 16), "shared_experts.up_proj.weight": (96, 64),
        "shared_experts.down_proj.weight": (64, 96),
    }  # fmt: skip
    for e in range(6):
        out |= {f"experts.{e}.up_proj.weight": (width, 16), f"experts.{e}.down_proj.weight": (16, width)}
    return out


_SHAPES: Shapes = {"model.embeddings.weight": (_BPE, 64), "model.norm_f.weight": (64,), "lm_head.weight": (_BPE, 64)}
for _i, _block in enumerate(_CONFIG["block_configs"]):
    _SHAPES |= {f"model.layers.{_i}.mixer.{name}": shape for name, shape in _mixer(_block).items()}
    _SHAPES |= {f"model.layers.{_i}.norm.weight": (64,)}

_DEFAULTS: dict[str, Any] = {
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "vocab_size": 131072, "hidden_size": 4096,
    "tie_word_embeddings": False, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "max_position_embeddings": 4096, "attention_bias": False, "mlp_hidden_act": "relu2", "mlp_bias": False,
    "ssm_state_size": 128, "mamba_num_heads": 128, "mamba_head_dim": 64, "mamba_hidden_act": "silu", "n_groups": 8,
    "conv_kernel": 4, "use_conv_bias": True, "mamba_proj_bias": False, "use_bias": False, "layer_norm_epsilon": 1e-5,
    "n_routed_experts": 8, "n_shared_experts": 1, "moe_intermediate_size": 7688, "topk_group": 1, "n_group": 1,
    "moe_shared_expert_intermediate_size": 7688, "num_experts_per_tok": 2, "routed_scaling_factor": 1.0,
    "norm_topk_prob": True,
}  # fmt: skip
_SPREADS = (
    (("A_log", "mixer.D", "dt_bias"), (0.0, 0.5)),
    (("conv1d.weight",), (0.0, 0.4)),
    (("norm_f.weight",), (1.0, 0.25)),
    (("embeddings.weight",), (0.0, 0.5)),
)
CASES = table(
    Case(
        "nemotron-h-puzzle",
        "NemotronHPuzzleForCausalLM",
        "bpe",
        _CONFIG,
        shapes=_SHAPES,
        defaults=_DEFAULTS,
        spreads=_SPREADS,
        beside=("mtp.layers.0.mixer.q_proj.weight",),
        releases={"hf_dot": {"e_score_correction.bias": "e_score_correction_bias"}},
        unheld=frozenset(
            {"max_position_embeddings", "num_nextn_predict_layers", "mtp_block_configs"}
            | {"layers_block_type", "num_hidden_layers", "intermediate_size"}
        ),
    ),
)
UNSAID: dict[str, dict[str, Any]] = {
    "nemotronhpuzzle": {"mlp_hidden_act": "relu", "mamba_hidden_act": "relu", "attention_bias": True, "use_bias": True}
    | {"mlp_bias": True, "mamba_proj_bias": True, "use_conv_bias": False, "sliding_window": 8, "rms_norm_eps": 1e-5}
    | {"time_step_limit": [0.0, 1.0]},
}
