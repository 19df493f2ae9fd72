"""Small models of Laguna. See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles.case import Case, table
from tests.oracles.families.common import BPE, GQA, WINDOW

_LAGUNA: dict[str, Any] = GQA | BPE | {
    "num_hidden_layers": 5, "head_dim": 24, "sliding_window": WINDOW, "moe_intermediate_size": 32, "num_experts": 6,
    "num_experts_per_tok": 2, "shared_expert_intermediate_size": 40, "moe_routed_scaling_factor": 2.5,
    "num_attention_heads_per_layer": [4, 6, 6, 6, 4], "gating": "per-head",
    "layer_types": ["full_attention", *["sliding_attention"] * 3, "full_attention"],
    "rope_parameters": {
        "full_attention": {
            "rope_type": "yarn", "rope_theta": 5000.0, "partial_rotary_factor": 8 / 24, "factor": 4.0,
            "original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0},
    },
}  # fmt: skip

CASES = table(
    # Laguna XS.2: more heads where there is a window, whose outputs a gate scales, heads that rotate partly by yarn
    Case(
        "laguna",
        "LagunaConfig",
        "bpe",
        _LAGUNA,
        said={"eos_token_id": [701, 702]},  # the other of which ends a turn
        unheld=frozenset({"eos_token_id"}),
        recorded=("hf5", "mlx"),
        spreads=((("mlp.gate.weight",), (0.0, 0.1)),),
    ),
)
UNSAID: dict[str, dict[str, Any]] = {
    "laguna": {"hidden_act": "gelu", "attention_bias": True, "layout_every": -1, "gate_width": "element"}
    | {"moe_apply_router_weight_on_input": True, "moe_router_logit_softcapping": 30.0, "rope.rope_type": "llama3"}
    | {"rope_sliding.rope_type": "yarn"},
}
