"""The small decoders with experts, one kind after another. See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles.case import Case
from tests.oracles.families.common import BPE, GQA, SPM, theta

_ROUTER = ((("gate.weight",), (0.0, 0.1)),)  # a sigmoid in front of the experts must not saturate
_ERNIE: dict[str, Any] = GQA | SPM | theta(5000.0) | {
    "intermediate_size": 192, "num_hidden_layers": 3, "moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 32,
    "pad_token_id": 0, "moe_layer_end_index": 2,
}  # fmt: skip

CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case(
            "ernie4.5-moe",
            "Ernie4_5_MoeConfig",
            "spm",
            _ERNIE | {"moe_num_shared_experts": 3, "moe_layer_start_index": 1},
            recorded=("hf5", "mlx"),
        ),
        # as the largest: no shared experts; and none of its layers dense
        Case(
            "ernie4.5-moe-large",
            "Ernie4_5_MoeConfig",
            "spm",
            _ERNIE | {"moe_num_shared_experts": 0, "moe_layer_start_index": 0, "tie_word_embeddings": False},
        ),
        Case(
            "dots1",
            "Dots1Config",
            "bpe",
            GQA
            | BPE
            | theta(5000.0)
            | {
                "num_hidden_layers": 3,
                "num_key_value_heads": 4,
                "n_routed_experts": 6,
                "num_experts_per_tok": 2,
                "n_shared_experts": 3,
                "first_k_dense_replace": 1,
                "moe_intermediate_size": 32,
                "norm_topk_prob": True,
                "routed_scaling_factor": 2.5,
                "sliding_window": None,
            },
            said={"scoring_func": "sigmoid"},
            recorded=("hf5", "mlx"),
            spreads=_ROUTER,
            unheld=frozenset({"scoring_func", "sliding_window"}),
        ),
        Case(
            "minimax-m2",
            "MiniMaxM2Config",
            "bpe",
            GQA
            | BPE
            | theta(5000.0)
            | {"num_local_experts": 6, "num_experts_per_tok": 2, "head_dim": 32, "rotary_dim": 16},
            said={"scoring_func": "sigmoid", "use_qk_norm": True, "shared_intermediate_size": 0},
            recorded=("hf5", "mlx"),
            spreads=_ROUTER,
            unheld=frozenset({"scoring_func", "use_qk_norm", "shared_intermediate_size"}),
        ),
    )
}

_ACT = {"hidden_act": "relu"}
_ROPE = {"rope.rope_type": "dynamic"}
UNSAID: dict[str, dict[str, Any]] = {
    "ernie4_5-moe": _ACT | _ROPE | {"use_bias": True, "moe_layer_interval": 2, "moe_layer_end_index": 1},
    "dots1": _ACT
    | _ROPE
    | {"scoring_func": "softmax", "attention_bias": True, "n_group": 2, "full_attention_every": 0},
    "minimax-m2": _ACT | _ROPE | {"scoring_func": "softmax", "use_qk_norm": False},
}
