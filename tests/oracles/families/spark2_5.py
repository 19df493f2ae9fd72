"""A small Spark 2.5, as its publisher's files name it (mlx_lm/models/spark2_5.py). See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles import vocabularies
from tests.oracles.case import Case, table
from tests.oracles.families.common import BPE, GQA, WINDOW

_SPARK: dict[str, Any] = GQA | BPE | {
    "model_type": "spark2_5", "num_hidden_layers": 4, "head_dim": 24, "sliding_window": WINDOW, "hidden_act": "gelu",
    "layer_types": [*["sliding_attention"] * 2, "full_attention", "sliding_attention"], "attention_bias": False,
    "mlp_bias": False, "gate_attn_act_mode": "sigmoid", "headwise_attn_output_gate": True, "tie_word_embeddings": True,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 8 / 24},
        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 16 / 24},
    },
}  # fmt: skip
_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}
_LAYER: dict[str, tuple[int, ...]] = {
    "input_layernorm.weight": (64,),
    "self_attn.q_k_v_proj.weight": (192, 64),
    "self_attn.g_proj.weight": (4, 64),
    "self_attn.out_proj.weight": (64, 96),
    "post_attention_layernorm.weight": (64,),
    "mlp.gate_proj.weight": (96, 64),
    "mlp.up_proj.weight": (96, 64),
    "mlp.down_proj.weight": (64, 96),
}
_SHAPES: dict[str, tuple[int, ...]] = {
    "model.embedding.weight": (vocabularies.BPE_SIZE, 64),
    **{f"model.layers.{layer}.{name}": shape for layer in range(4) for name, shape in _LAYER.items()},
    "model.norm.weight": (64,),
}
CASES = table(
    Case(
        "spark2.5",
        "Spark2_5ForCausalLM",
        "bpe",
        _SPARK,
        shapes=_SHAPES,
        defaults={
            "rms_norm_eps": 1e-6, "max_position_embeddings": 8192, "attention_bias": False, "mlp_bias": False,
            "hidden_act": "gelu", "gate_attn_act_mode": "sigmoid", "headwise_attn_output_gate": True,
            "tie_word_embeddings": True, "rope_parameters": {"full_attention": _ROPE, "sliding_attention": _ROPE},
        },
        recorded=("mlx",),
        gelu=True,
    ),
)  # fmt: skip
UNSAID: dict[str, dict[str, Any]] = {
    "spark2_5": {"hidden_act": "relu", "attention_bias": True, "mlp_bias": True, "gate_attn_act_mode": "tanh"}
    | {"headwise_attn_output_gate": False, "rope.rope_type": "yarn", "rope_sliding.rope_type": "yarn"},
}
