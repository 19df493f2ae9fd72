"""A small Hunyuan 4, under the names in which it is published: those that transformers 5.23 writes aren't read again.
See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles import vocabularies
from tests.oracles.case import Case, table
from tests.oracles.families.common import BPE, GQA, LATENT

_HY4: dict[str, Any] = GQA | BPE | {
    "model_type": "hy_v4", "num_hidden_layers": 4, "rms_norm_eps": LATENT, "num_key_value_heads": 4,
    "moe_intermediate_size": 32, "n_routed_experts": 6, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "routed_scaling_factor": 2.5, "norm_topk_prob": True, "n_group": 1, "topk_group": 1, "q_lora_rank": 32,
    "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 24, "index_topk": 256,
    "index_head_dim": 32, "index_n_heads": 2, "indexer_types": ["full", "full", "shared", "shared"], "hc_mult": 2,
    "hc_magnitude": 2.0, "hc_eps": 1e-6, "swiglu_limit": 1.0, "hidden_act": "silu", "tie_word_embeddings": False,
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    "rope_theta": 5000.0,
}  # fmt: skip


def _layer(number: int) -> dict[str, tuple[int, ...]]:
    at = f"model.layers.{number}."
    streams = {
        f"{at}hc_{kind}_layer.hc_pre.hc_{part}": shape
        for kind in ("attn", "mlp")
        for part, shape in (("fn", (4, 128)), ("base", (4,)), ("scale", (2,)))
    }
    attention: dict[str, tuple[int, ...]] = {
        "q_a_proj.weight": (32, 64), "q_a_layernorm.weight": (32,), "q_b_proj.weight": (128, 32),
        "kv_a_proj_with_mqa.weight": (48, 64), "kv_a_layernorm.weight": (32,), "kv_b_proj.weight": (160, 32),
        "o_proj.weight": (64, 96), "linear_gate.weight": (96, 64), "learnable_sink_param": (4,),
    }  # fmt: skip
    indexer: dict[str, tuple[int, ...]] = {
        "wq_b.weight": (64, 32), "wk.weight": (32, 64), "k_norm.weight": (32,), "k_norm.bias": (32,),
        "weights_proj.weight": (2, 64),
    }  # fmt: skip
    dense: dict[str, tuple[int, ...]] = {
        "gate_proj.weight": (96, 64), "up_proj.weight": (96, 64), "down_proj.weight": (64, 96),
    }  # fmt: skip
    sparse: dict[str, tuple[int, ...]] = {
        "gate.weight": (6, 64), "gate.e_score_correction_bias": (6,), "experts.gate_up_proj": (6, 64, 64),
        "experts.down_proj": (6, 64, 32), "shared_experts.gate_proj.weight": (32, 64),
        "shared_experts.up_proj.weight": (32, 64), "shared_experts.down_proj.weight": (64, 32),
    }  # fmt: skip
    return {
        **{f"{at}{name}_layernorm.weight": (64,) for name in ("input", "post_attention")},
        **streams,
        **{f"{at}self_attn.{name}": shape for name, shape in attention.items()},
        **({f"{at}self_attn.indexer.{name}": shape for name, shape in indexer.items()} if number < 2 else {}),
        **{f"{at}mlp.{name}": shape for name, shape in (sparse if number else dense).items()},
    }


_SHAPES: dict[str, tuple[int, ...]] = {
    "model.embed_tokens.weight": (vocabularies.BPE_SIZE, 64),
    **{name: shape for number in range(4) for name, shape in _layer(number).items()},
    "model.hc_head.hc_head_fn": (2, 128),
    "model.hc_head.hc_head_base": (2,),
    "model.hc_head.hc_head_scale": (1,),
    "model.norm.weight": (64,),
    "lm_head.weight": (vocabularies.BPE_SIZE, 64),
}
CASES = table(
    # The indexer picks all tokens here: transformers and llama.cpp differ in how its queries and keys rotate.
    Case(
        "hy-v4",
        "HYV4ForCausalLM",
        "bpe",
        _HY4,
        shapes=_SHAPES,
        recorded=("hf5",),
        beside=("model.mtp_layers.0.eh_proj.weight",),
        words={
            "indexer_types": ["full" if i == 0 or i % 4 == 1 else "shared" for i in range(34)],
            "mlp_layer_types": ["dense", *["sparse"] * 33],
        },
        spreads=((("mlp.gate.weight",), (0.0, 0.1)),),
    ),
)
UNSAID: dict[str, dict[str, Any]] = {
    "hy-v4": {"hidden_act": "gelu", "attention_bias": True, "n_group": 2, "rope.rope_type": "yarn"}
    | {"rms_norm_eps": 1e-5, "head_dim": 32},
}
