"""Small models whose layers keep a state of their own kind in the place of keys and values. See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles import vocabularies
from tests.oracles.case import Case, table
from tests.oracles.families.common import BPE, GQA, LATENT
from tests.oracles.families.wrapped import VOCABULARY, Shapes

_BPE = VOCABULARY["vocab_size"]


def _swiglu(at: str, wide: int, names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")) -> Shapes:
    gate, up, down = names
    wides: Shapes = {f"{at}.{name}.weight": (wide, 64) for name in (gate, up)}
    return wides | {f"{at}.{down}.weight": (64, wide)}


def _kimi(*, lora: bool = False) -> Shapes:
    """Three layers of delta attention, of which the first is dense, and one of latent attention, whose queries too may
    be of low rank."""
    out: Shapes = {"model.embed_tokens.weight": (_BPE, 64), "model.norm.weight": (64,), "lm_head.weight": (_BPE, 64)}
    delta: Shapes = {
        **{f"{part}_proj.weight": (128, 64) for part in "qkv"}, "o_proj.weight": (64, 128),
        **{f"{part}_conv1d.weight": (128, 1, 4) for part in "qkv"}, "f_a_proj.weight": (32, 64),
        "f_b_proj.weight": (128, 32), "b_proj.weight": (4, 64), "A_log": (1, 1, 4, 1), "dt_bias": (128,),
        "g_a_proj.weight": (32, 64), "g_b_proj.weight": (128, 32), "o_norm.weight": (32,),
    }  # fmt: skip
    latent: Shapes = {
        "q_proj.weight": (4 * 40, 64), "kv_a_proj_with_mqa.weight": (48, 64), "kv_a_layernorm.weight": (32,),
        "kv_b_proj.weight": (4 * 48, 32), "o_proj.weight": (64, 96),
    }  # fmt: skip
    if lora:
        del latent["q_proj.weight"]
        latent |= {"q_a_proj.weight": (32, 64), "q_a_layernorm.weight": (32,), "q_b_proj.weight": (4 * 40, 32)}
    for i in range(4):
        at = f"model.layers.{i}"
        out |= {f"{at}.{name}_layernorm.weight": (64,) for name in ("input", "post_attention")}
        out |= {f"{at}.self_attn.{name}": shape for name, shape in (latent if i == 2 else delta).items()}
        if i == 0:
            out |= _swiglu(f"{at}.mlp", 96)
            continue
        moe = f"{at}.block_sparse_moe"
        out |= {f"{moe}.gate.weight": (6, 64), f"{moe}.gate.e_score_correction_bias": (6,)}
        for e in range(6):
            out |= _swiglu(f"{moe}.experts.{e}", 32, ("w1", "w3", "w2"))
        out |= _swiglu(f"{moe}.shared_experts", 32)
    return out


def _rwkv7() -> Shapes:
    """Two layers, with two heads of 64."""
    rows = (vocabularies.RWKV_SIZE, 128)
    out: Shapes = {"model.embeddings.weight": rows, "lm_head.weight": rows}
    norms = ["model.norm", "model.layers.0.pre_norm"]
    for i in range(2):
        at = f"model.layers.{i}"
        norms += [f"{at}.attn_norm", f"{at}.ffn_norm", f"{at}.attn.g_norm"]
        out |= {f"{at}.attn.x_{part}": (1, 1, 128) for part in "rwkvag"}
        out |= {f"{at}.attn.{part}_proj.weight": (128, 128) for part in "rkvo"}
        out |= {f"{at}.attn.k_k": (128,), f"{at}.attn.k_a": (128,), f"{at}.attn.r_k": (2, 64), f"{at}.ffn.x_k": (128,)}
        out |= {f"{at}.ffn.key.weight": (256, 128), f"{at}.ffn.value.weight": (128, 256)}
        for part, rank in (("w", 32), ("a", 64), ("v", 96), ("g", 160)):
            if part == "v" and i == 0:
                continue
            lora = f"{at}.attn.{part}_lora.lora"
            out |= {f"{lora}.0.weight": (rank, 128), f"{lora}.2.weight": (128, rank)}
            out |= {} if part == "g" else {f"{lora}.2.bias": (128,)}
    return out | {f"{name}.{kind}": (128,) for name in norms for kind in ("weight", "bias")}


_RWKV7: dict[str, Any] = {
    "model_type": "rwkv7", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "head_dim": 64,
    "num_heads": 2, "decay_low_rank_dim": 32, "a_low_rank_dim": 64, "v_low_rank_dim": 96, "gate_low_rank_dim": 160,
    "hidden_act": "sqrelu", "hidden_ratio": 2.0, "norm_first": True, "norm_bias": True, "norm_eps": 1e-5, "attn": None,
    "max_position_embeddings": 256, "bos_token_id": 0, "eos_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip
_RWKV7_DEFAULTS: dict[str, Any] = {
    "hidden_size": 2048, "hidden_ratio": 4.0, "num_hidden_layers": 24, "head_dim": 64, "vocab_size": 32000,
    "decay_low_rank_dim": 64, "gate_low_rank_dim": 128, "a_low_rank_dim": 64, "v_low_rank_dim": 32,
    "hidden_act": "sqrelu", "max_position_embeddings": 2048, "norm_first": True, "norm_bias": True, "norm_eps": 1e-5,
    "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False, "intermediate_size": 8192, "attn": None,
}  # fmt: skip
_KIMI: dict[str, Any] = (
    {key: value for key, value in GQA.items() if key != "max_position_embeddings"}
    | BPE
    | VOCABULARY
    | {
        "model_type": "kimi_linear",
        "num_hidden_layers": 4,
        "num_key_value_heads": 4,
        "model_max_length": 256,
        "rms_norm_eps": LATENT,
        "head_dim": 18,
        "hidden_act": "silu",
        "kv_lora_rank": 32,
        "q_lora_rank": None,
        "qk_nope_head_dim": 24,
        "qk_rope_head_dim": 16,
        "v_head_dim": 24,
        "mla_use_nope": True,
        "linear_attn_config": {
            "full_attn_layers": [3],
            "kda_layers": [1, 2, 4],
            "head_dim": 32,
            "num_heads": 4,
            "short_conv_kernel_size": 4,
        },
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 32,
        "moe_layer_freq": 1,
        "moe_renormalize": True,
        "moe_router_activation_func": "sigmoid",
        "num_expert_group": 1,
        "topk_group": 1,
        "num_experts": 6,
        "num_experts_per_token": 2,
        "num_shared_experts": 1,
        "routed_scaling_factor": 2.446,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "tie_word_embeddings": False,
    }
)
_KIMI_WORDS: dict[str, Any] = {
    "model_max_length": 1048576, "num_experts": 256, "num_experts_per_token": 8,
    "num_shared_experts": 1, "num_expert_group": 1, "moe_renormalize": True, "moe_layer_freq": 1,
    "moe_router_activation_func": "sigmoid", "first_k_dense_replace": 1, "mla_use_nope": True, "rope_theta": 10000.0,
    "linear_attn_config": {
        "full_attn_layers": [*range(4, 27, 4), 27], "kda_layers": [i for i in range(1, 27) if i % 4], "head_dim": 128,
        "num_heads": 32, "short_conv_kernel_size": 4,
    },
}  # fmt: skip

CASES = table(
    Case(
        "kimi-linear",
        "KimiLinearForCausalLM",
        "bpe",
        _KIMI,
        shapes=_kimi(),
        words=_KIMI_WORDS,
        recorded=("mlx",),
        spreads=((("gate.weight",), (0.0, 0.1)), (("o_norm.weight",), (1.0, 0.25))),
    ),
    Case(
        "rwkv7",
        "RWKV7ForCausalLM",
        "rwkv",
        _RWKV7,
        shapes=_rwkv7(),
        defaults=_RWKV7_DEFAULTS,
        recorded=("mlx",),
        unheld=frozenset({"num_heads", "max_position_embeddings"}),
        spreads=(((".x_k", ".x_r", ".x_w", ".x_v", ".x_a", ".x_g", "k_k", "k_a"), (0.5, 0.25)),),
    ),
    # ... and with queries of low rank
    Case(
        "kimi-linear-lora",
        "KimiLinearForCausalLM",
        "none",
        {key: value for key, value in _KIMI.items() if key != "head_dim"} | {"q_lora_rank": 32},
        shapes=_kimi(lora=True),
        words=_KIMI_WORDS,
    ),
)
UNSAID: dict[str, dict[str, Any]] = {
    "rwkv7": {"hidden_act": "relu", "norm_first": False, "norm_bias": False, "attn": {}, "norm_eps": 1e-6},
    "kimi-linear": {"hidden_act": "gelu", "num_expert_group": 2, "moe_renormalize": False, "mla_use_nope": False}
    | {"moe_layer_freq": 2, "rope.rope_type": "yarn", "linear_attn_config.num_heads": 8, "rms_norm_eps": 1e-5},
}
