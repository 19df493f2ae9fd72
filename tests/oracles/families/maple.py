"""A small Maple, as published. See __init__.py, and plain_maple.py for what it computes."""

from __future__ import annotations

from typing import Any

from tests.oracles import vocabularies
from tests.oracles.case import Case, table
from tests.oracles.families.common import BPE, GQA, WINDOW

_MAPLE: dict[str, Any] = GQA | BPE | {
    "model_type": "maple", "num_hidden_layers": 3, "head_dim": 24, "sliding_window": WINDOW, "hidden_act": "silu",
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "moe_intermediate_size": 32,
    "num_experts": 6, "num_experts_per_tok": 2, "norm_topk_prob": True, "nope_on_global_attention": True,
    "num_shared_experts": 0, "rope_theta": 5000.0, "tie_word_embeddings": False,
}  # fmt: skip
_LAYER: dict[str, tuple[int, ...]] = {
    "input_layernorm.weight": (64,),
    "self_attn.q_proj.weight": (96, 64),
    "self_attn.k_proj.weight": (48, 64),
    "self_attn.v_proj.weight": (48, 64),
    "self_attn.o_proj.weight": (64, 96),
    "self_attn.q_norm.weight": (24,),
    "self_attn.k_norm.weight": (24,),
    "post_attention_layernorm.weight": (64,),
    "mlp.gate.weight": (6, 64),
    **{f"mlp.experts.{e}.{part}_proj.weight": (32, 64) for e in range(6) for part in ("gate", "up")},
    **{f"mlp.experts.{e}.down_proj.weight": (64, 32) for e in range(6)},
}
_SHAPES: dict[str, tuple[int, ...]] = {
    "model.embed_tokens.weight": (vocabularies.BPE_SIZE, 64),
    **{f"model.layers.{layer}.{name}": shape for layer in range(3) for name, shape in _LAYER.items()},
    "model.norm.weight": (64,),
    "lm_head.weight": (vocabularies.BPE_SIZE, 64),
}
CASES = table(
    Case(
        "maple",
        "MapleForCausalLM",
        "bpe",
        _MAPLE,
        shapes=_SHAPES,
        defaults={
            "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False,
            "norm_topk_prob": True, "partial_rotary_factor": 1.0, "num_hidden_layers": 24, "num_shared_experts": 0,
        },
        spreads=((("gate_proj.weight", "up_proj.weight"), (0.0, 0.7)),),  # beyond what clamps
    ),
)  # fmt: skip
UNSAID: dict[str, dict[str, Any]] = {
    "maple": {"hidden_act": "relu", "norm_topk_prob": False, "num_shared_experts": 1, "rope.rope_type": "yarn"}
    | {"nope_on_global_attention": False},
}
