"""Small models with sliding windows by layer: Granite SWA, Granite MoE SWA and Cohere 2 MoE. See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles.case import Case, table
from tests.oracles.families.common import BPE, GQA, WINDOW, theta

_SWASH: dict[str, Any] = GQA | BPE | theta(5000.0) | {
    "num_hidden_layers": 5, "sliding_window": WINDOW, "layer_rope_theta": [0, 5000.0, 5000.0, 0, 5000.0],
    "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 2.0, "attention_multiplier": 0.3,
}  # fmt: skip
# in the words of the first files, which is all that the reference reads
_SWASH_HPARAMS: dict[str, Any] = {"no_rope_layers": [0, 1, 1, 0, 1]}

_ROUTER = ((("moe.gate.weight", "mlp.gate.weight"), (0.0, 0.1)),)  # a sigmoid in front of experts must not saturate
_NORTH: dict[str, Any] = GQA | BPE | theta(5000.0) | {
    "rope_theta": 5000.0,
    "num_hidden_layers": 4, "head_dim": 24, "intermediate_size": 32, "prefix_dense_intermediate_size": 96,
    "num_experts": 6, "num_experts_per_tok": 2, "num_shared_experts": 2, "layer_norm_eps": 3e-3, "logit_scale": 0.25,
    "sliding_window": WINDOW, "expert_selection_fn": "sigmoid",
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
}  # fmt: skip
_NO_RMS = {key: value for key, value in _NORTH.items() if key != "rms_norm_eps"}

CASES = table(
    # Granite 5: a window in three layers of four, layers without rotation, sinks
    Case("granite-swa", "GraniteSWAConfig", "bpe", _SWASH | {"tie_word_embeddings": False}, hparams=_SWASH_HPARAMS),
    # ... every layer rotates, biases
    Case(
        "granite-swa-bias",
        "GraniteSWAConfig",
        "none",
        _SWASH | {"layer_rope_theta": None, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
        said={"head_dim": 16},
        unheld=frozenset({"head_dim"}),
    ),
    # ... with experts, and one that every token takes
    Case(
        "granitemoe-swa",
        "GraniteMoeSWAConfig",
        "bpe",
        _SWASH | {"num_local_experts": 6, "num_experts_per_tok": 2, "shared_intermediate_size": 128},
        hparams=_SWASH_HPARAMS,
    ),
    # ... and without that one
    Case(
        "granitemoe-swa-plain",
        "GraniteMoeSWAConfig",
        "none",
        _SWASH | {"num_local_experts": 6, "num_experts_per_tok": 2, "layer_rope_theta": None},
        said={"head_dim": 16},
        unheld=frozenset({"head_dim"}),
    ),
    # North: layer norms, a sigmoid in front of the experts
    Case(
        "cohere2moe",
        "Cohere2MoeConfig",
        "bpe",
        _NO_RMS | {"tie_word_embeddings": False, "norm_topk_prob": False},
        recorded=("hf5",),
        spreads=_ROUTER,
    ),
    # ... RMS norms, a softmax over the chosen, no shared expert
    Case(
        "cohere2moe-softmax",
        "Cohere2MoeConfig",
        "bpe",
        _NORTH | {"expert_selection_fn": "softmax", "num_shared_experts": 0, "layer_norm_eps": 1e-5},
    ),
    # ... over all, which llama.cpp computes otherwise
    Case(
        "cohere2moe-shares",
        "Cohere2MoeConfig",
        "none",
        _NO_RMS | {"expert_selection_fn": "softmax", "norm_topk_prob": False},
        told=("config.json: norm_topk_prob = False: llama.cpp takes",),
    ),
)
UNSAID: dict[str, dict[str, Any]] = {
    "granite-swa": {"hidden_act": "gelu", "rope_bases": 2, "rope.rope_type": "longrope"},
    "cohere2moe": {"hidden_act": "gelu", "attention_bias": True, "prefix_dense_sliding_window_pattern": 4}
    | {"shared_expert_combination_strategy": "sum", "rope.rope_type": "yarn"},
    "granitemoe-swa": {"hidden_act": "gelu", "rope_bases": 2, "attention_bias": True, "rope.rope_type": "longrope"},
}
