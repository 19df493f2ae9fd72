"""Small models of Step 3.5 and 3.7 as they are published; plain.py computes them. See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles import vocabularies
from tests.oracles.case import Case, table
from tests.oracles.families.common import BPE, GQA, WINDOW

Shapes = dict[str, tuple[int, ...]]
_BPE = vocabularies.BPE_SIZE
_KINDS = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
_FURTHER = ["sliding_attention", "full_attention"]  # of the layers that predict further tokens
_DIM = 16


def _by_kind(kinds: list[str], full: float, sliding: float) -> list[float]:
    return [full if kind == "full_attention" else sliding for kind in kinds]


_STEP: dict[str, Any] = {k: v for k, v in (GQA | BPE).items() if k != "num_key_value_heads"} | {
    "model_type": "step3p5", "vocab_size": _BPE, "pad_token_id": BPE["eos_token_id"],
    "num_hidden_layers": 4, "num_attention_groups": 2, "head_dim": _DIM,
    "layer_types": _KINDS, "sliding_window": WINDOW, "rope_theta": _by_kind(_KINDS, 700.0, 100.0),
    "partial_rotary_factors": _by_kind(_KINDS, 0.5, 1.0), "yarn_only_types": ["full_attention"],
    "rope_scaling": {
        "rope_type": "llama3", "factor": 2.0, "original_max_position_embeddings": 256, "low_freq_factor": 1.0,
        "high_freq_factor": 32.0,
    },
    "attention_other_setting": {
        "attention_type": "sliding_attention", "num_attention_heads": 6, "num_attention_groups": 3, "head_dim": _DIM,
    },
    "use_head_wise_attn_gate": True, "moe_layers_enum": "2,3", "moe_num_experts": 6, "moe_top_k": 2,
    "moe_every_n_layer": 1, "moe_intermediate_size": 32, "share_expert_dim": 48, "moe_router_activation": "sigmoid",
    "moe_router_scaling_factor": 3.0, "norm_expert_weight": True, "swiglu_limits": [0.0, None, 0.0, 0.75],
    "swiglu_limits_shared": [0.0, None, 0.0, 0.5], "zero_centered": True, "tie_word_embeddings": False,
}  # fmt: skip
# in the words of the published config, which is all that the reference reads; transformers writes others
_OTHER_WORDS = (
    "rope_parameters", "num_key_value_heads", "n_routed_experts", "num_experts_per_tok", "mlp_layer_types",
    "mtp_layer_types", "mtp_mlp_layer_types", "num_local_experts", "per_layer_config", "num_sliding_attention_heads",
    "hidden_act", "attention_bias", "mlp_bias",
)  # fmt: skip
_HPARAMS: dict[str, Any] = _STEP | dict.fromkeys(_OTHER_WORDS)
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 128815, "hidden_size": 4096, "intermediate_size": 11264, "num_hidden_layers": 45,
    "num_attention_heads": 64, "num_attention_groups": 8, "head_dim": 128, "max_position_embeddings": 128000,
    "rms_norm_eps": 1e-5, "pad_token_id": 1, "tie_word_embeddings": False, "moe_top_k": 8, "moe_num_experts": 288,
    "moe_intermediate_size": 1280, "share_expert_dim": 1280, "moe_router_scaling_factor": 1.0, "rope_theta": 10000.0,
    "norm_expert_weight": True,
}  # fmt: skip


def _layer(at: str, kind: str, sparse: bool) -> Shapes:
    heads, groups = (4, 2) if kind == "full_attention" else (6, 3)
    out: Shapes = {f"{at}.{name}_layernorm.weight": (64,) for name in ("input", "post_attention")}
    out |= {f"{at}.self_attn.{part}_norm.weight": (_DIM,) for part in "qk"}
    rows = {"q": heads * _DIM, "k": groups * _DIM, "v": groups * _DIM, "g": heads}
    out |= {f"{at}.self_attn.{part}_proj.weight": (n, 64) for part, n in rows.items()}
    out[f"{at}.self_attn.o_proj.weight"] = (64, heads * _DIM)
    for name, wide, front in (("share_expert", 48, ()), ("moe", 32, (6,))) if sparse else (("mlp", 96, ()),):
        out |= {f"{at}.{name}.{part}_proj.weight": (*front, wide, 64) for part in ("gate", "up")}
        out[f"{at}.{name}.down_proj.weight"] = (*front, 64, wide)
    return out | ({f"{at}.moe.gate.weight": (6, 64), f"{at}.moe.router_bias": (6,)} if sparse else {})


def _shapes() -> Shapes:
    out: Shapes = {"model.embed_tokens.weight": (_BPE, 64), "model.norm.weight": (64,), "lm_head.weight": (_BPE, 64)}
    for i, kind in enumerate(_KINDS):
        out |= _layer(f"model.layers.{i}", kind, i > 1)
    return out


def _further() -> Shapes:
    out: Shapes = {}
    for i, kind in enumerate(_FURTHER, len(_KINDS)):
        at = f"model.layers.{i}"
        out |= _layer(at, kind, False) | {f"{at}.{name}.weight": (64,) for name in ("enorm", "hnorm")}
        out |= {f"{at}.eh_proj.weight": (64, 128), f"{at}.transformer.shared_head.norm.weight": (64,)}
        out[f"{at}.transformer.shared_head.output.weight"] = (_BPE, 64)
    return out


_ALL = _KINDS + _FURTHER
_ALL_SAID: dict[str, Any] = {
    "num_nextn_predict_layers": len(_FURTHER), "layer_types": _ALL, "rope_theta": _by_kind(_ALL, 700.0, 100.0),
    "partial_rotary_factors": _by_kind(_ALL, 0.5, 1.0), "swiglu_limits": [0.0, 0.0, 0.0, 0.75, 0.0, 0.0],
    "swiglu_limits_shared": [0.0, 0.0, 0.0, 0.5, 0.0, 0.0],
}  # fmt: skip
_SILENT = ("rope_scaling", "swiglu_limits", "swiglu_limits_shared", "moe_every_n_layer")
_SPREADS = ((("moe.gate.weight",), (0.0, 0.1)),)  # a sigmoid in front of experts must not saturate

CASES = table(
    # Step 3.5 Flash: lists by layer run over the two that predict further tokens
    Case(
        "step3.5",
        "Step3p5ForCausalLM",
        "bpe",
        _STEP | _ALL_SAID,
        hparams=_HPARAMS | _ALL_SAID,
        shapes=_shapes() | _further(),
        further=_further(),
        defaults=_DEFAULTS,
        spreads=_SPREADS,
        recorded=("mlx",),
        unheld=frozenset({"use_head_wise_attn_gate", "yarn_only_types", "zero_centered"}),
    ),
    # ... without them
    Case(
        "step3.5-plain",
        "Step3p5ForCausalLM",
        "bpe",
        {k: v for k, v in _STEP.items() if k not in _SILENT} | {"num_nextn_predict_layers": 0},
        hparams=_HPARAMS | dict.fromkeys(_SILENT),
        shapes=_shapes(),
        defaults=_DEFAULTS,
        spreads=_SPREADS,
        unheld=frozenset({"use_head_wise_attn_gate", "yarn_only_types", "zero_centered"}),
    ),
    # Step 3.7 Flash: the part that writes
    Case(
        "step3.7",
        "Step3p7ForConditionalGeneration",
        "none",
        {"model_type": "step3p7", "text_config": _STEP},
        hparams={"text_config": _STEP},
        shapes=_shapes() | {"vision_model.x.weight": (8,), "vit_large_projector.weight": (8,)},
        apart=("vision_model.", "vit_large_projector."),
        head="Step3p7ForConditionalGeneration",
        defaults=_DEFAULTS,
        spreads=_SPREADS,
        runs=False,
        unheld=frozenset(
            {"architectures", "num_key_value_heads", "use_head_wise_attn_gate", "yarn_only_types", "zero_centered"}
        ),
    ),
)
UNSAID: dict[str, dict[str, Any]] = {
    "step35": {"rope_bases": 2, "yarn_only_types": ["sliding_attention"], "use_head_wise_attn_gate": False}
    | {"zero_centered": False, "moe_router_activation": "tanh", "rope.rope_type": "yarn"}
    | {"rope_shares": {"full_attention": [1.0]}},
}
