"""Small models of K2 Horizon, under the names that the reference converter reads. See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles.case import Case, table
from tests.oracles.families.common import BPE, GQA
from tests.oracles.families.wrapped import VOCABULARY, Shapes

_BPE = VOCABULARY["vocab_size"]
_CONFIG: dict[str, Any] = GQA | BPE | VOCABULARY | {
    "model_type": "k2_horizon", "num_hidden_layers": 4, "head_dim": 16, "rope_theta": 5000.0, "hidden_act": "silu",
    "layernorm_num_groups": 4, "rope_head_dim": 8, "moe_intermediate_size": 32, "num_experts": 6,
    "num_experts_per_tok": 2, "num_shared_experts": 2, "mlp_only_layers": [0], "decoder_sparse_step": 1,
    "norm_topk_prob": True, "router_scaling_factor": 1.5, "mova_num_experts": 4, "mova_num_experts_per_tok": 2,
    "attention_gate_func": "softplus", "tie_word_embeddings": False,
}  # fmt: skip
_DENSE: dict[str, Any] = GQA | BPE | VOCABULARY | {
    "model_type": "k2_horizon", "num_hidden_layers": 2, "head_dim": 16, "rope_theta": 5000.0, "hidden_act": "silu",
    "layernorm_num_groups": 1, "tie_word_embeddings": True, "attention_gate_func": None,
}  # fmt: skip
_SOFTMAX: dict[str, Any] = _CONFIG | {
    "num_dense_layers": 2, "mova_num_experts": 0, "mova_num_experts_per_tok": 0, "num_shared_experts": 0,
    "scoring_func": "softmax", "norm_topk_prob": False,
}  # fmt: skip
del _SOFTMAX["router_scaling_factor"], _SOFTMAX["mlp_only_layers"]


def _gated(at: str, width: int) -> Shapes:
    return {
        f"{at}.gate_proj.weight": (width, 64), f"{at}.up_proj.weight": (width, 64),
        f"{at}.down_proj.weight": (64, width),
    }  # fmt: skip


def _shapes(config: dict[str, Any], dense: int) -> Shapes:
    out: Shapes = {"model.embed_tokens.weight": (_BPE, 64), "model.norm.weight": (64,)}
    if not config["tie_word_embeddings"]:
        out["lm_head.weight"] = (_BPE, 64)
    for i in range(config["num_hidden_layers"]):
        at, own = f"model.layers.{i}", f"model.layers.{i}.self_attn."
        out |= {f"{at}.input_layernorm.weight": (64,), f"{at}.post_attention_layernorm.weight": (64,)}
        out |= {f"{own}q_proj.weight": (64, 64), f"{own}k_proj.weight": (32, 64), f"{own}o_proj.weight": (64, 64)}
        if config["attention_gate_func"]:
            out |= {f"{own}attn_gate_proj.weight": (64, 64), f"{own}q_norm.weight": (64,), f"{own}k_norm.weight": (32,)}
        if i < dense:
            out |= {f"{own}v_proj.weight": (32, 64), **_gated(f"{at}.mlp", 96)}
            continue
        out[f"{at}.mlp.gate.weight"] = (6, 64)
        if config["norm_topk_prob"]:
            out[f"{at}.mlp.gate.bias"] = (6,)
        for e in range(6):
            out |= _gated(f"{at}.mlp.experts.{e}", 32)
        if config["num_shared_experts"]:
            out |= _gated(f"{at}.mlp.shared_experts", 64)
        if config["mova_num_experts"]:
            out |= {f"{own}v_router.weight": (4, 64), f"{own}v_router.bias": (4,)}
            out |= {f"{own}v_experts.{e}.weight": (32, 64) for e in range(4)}
        else:
            out[f"{own}v_proj.weight"] = (32, 64)
    return out


_DEFAULTS: dict[str, Any] = {
    "num_hidden_layers": 28, "layernorm_num_groups": 1, "num_shared_experts": 0, "mova_num_experts": 0,
    "mova_num_experts_per_tok": 0, "decoder_sparse_step": 1, "norm_topk_prob": False, "tie_word_embeddings": False,
    "hidden_act": "silu", "rope_theta": 10000.0,
}  # fmt: skip
_SPREADS = ((("router.weight", "mlp.gate.weight"), (0.0, 0.1)),)
CASES = table(
    Case(
        "k2-horizon",
        "K2HorizonForCausalLM",
        "bpe",
        _CONFIG,
        shapes=_shapes(_CONFIG, 1),
        defaults=_DEFAULTS,
        spreads=_SPREADS,
        unheld=frozenset({"mlp_only_layers"}),  # a GGUF has their number
    ),
    # ... without experts, gates and norms of heads
    Case("k2-horizon-dense", "K2HorizonForCausalLM", "bpe", _DENSE, shapes=_shapes(_DENSE, 2), defaults=_DEFAULTS),
    # ... whose values have no experts, and whose router takes a softmax without a bias
    Case(
        "k2-horizon-softmax",
        "K2HorizonForCausalLM",
        "bpe",
        _SOFTMAX,
        shapes=_shapes(_SOFTMAX, 2),
        defaults=_DEFAULTS,
        spreads=_SPREADS,
    ),
)
UNSAID: dict[str, dict[str, Any]] = {
    "k2-horizon": {"hidden_act": "gelu", "attention_gate_func": "sigmoid", "decoder_sparse_step": 2}
    | {"rope.rope_type": "llama3"},
}
