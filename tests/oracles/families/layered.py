"""Small models of PLM, OpenELM, Refact and RWKV 6. See __init__.py, and oracles/plain_plamo.py for what they do."""

from __future__ import annotations

from typing import Any

from tests.oracles import vocabularies
from tests.oracles.case import Case
from tests.oracles.families.common import BPE, LATENT, SPM
from tests.oracles.families.wrapped import Shapes

_BPE, _SPM = vocabularies.BPE_SIZE, vocabularies.SPM_SIZE


def _plm() -> Shapes:
    out: Shapes = {"model.embed_tokens.weight": (_BPE, 64), "model.norm.weight": (64,)}
    for i in range(2):
        at = f"model.layers.{i}"
        out |= {f"{at}.{name}_layernorm.weight": (64,) for name in ("input", "post_attention")}
        out |= {f"{at}.mlp.up_proj.weight": (96, 64), f"{at}.mlp.down_proj.weight": (64, 96)}
        at += ".self_attn"
        out |= {f"{at}.q_proj.weight": (160, 64), f"{at}.kv_a_proj_with_mqa.weight": (48, 64)}
        out |= {f"{at}.kv_a_layernorm.weight": (32,), f"{at}.kv_b_proj.weight": (192, 32)}
        out |= {f"{at}.o_proj.weight": (64, 96)}
    return out


_HEADS, _KEYS, _WIDTHS = (4, 6, 8), (2, 2, 4), (64, 96, 160)


def _openelm() -> Shapes:
    """Three layers, each of its own sizes."""
    out: Shapes = {"transformer.token_embeddings.weight": (_SPM, 64), "transformer.norm.weight": (64,)}
    for i, (heads, keys, wide) in enumerate(zip(_HEADS, _KEYS, _WIDTHS, strict=True)):
        at = f"transformer.layers.{i}"
        out |= {f"{at}.attn.qkv_proj.weight": ((heads + 2 * keys) * 16, 64), f"{at}.attn_norm.weight": (64,)}
        out |= {f"{at}.attn.out_proj.weight": (64, heads * 16), f"{at}.ffn_norm.weight": (64,)}
        out |= {f"{at}.attn.{part}_norm.weight": (16,) for part in "qk"}
        out |= {f"{at}.ffn.proj_1.weight": (2 * wide, 64), f"{at}.ffn.proj_2.weight": (64, wide)}
    return out


def _refact() -> Shapes:
    """Two layers, one head of keys and values; the width of the feed forward follows from that of the model."""
    out: Shapes = {"transformer.wte.weight": (_BPE, 64), "ln_f.weight": (64,), "lm_head.weight": (_BPE, 64)}
    for i in range(2):
        at = f"transformer.h.{i}"
        out |= {f"{at}.ln_{n}.weight": (64,) for n in (1, 2)} | {f"{at}.attn.kv.weight": (32, 64)}
        out |= {f"{at}.attn.{part}.weight": (64, 64) for part in ("q", "c_proj")}
        out |= {f"{at}.mlp.gate_up_proj.weight": (512, 64), f"{at}.mlp.c_proj.weight": (64, 256)}
    return out


def _rwkv6() -> Shapes:
    """Three layers with two heads of 64; every second layer is halved once more."""
    rows = (vocabularies.RWKV_SIZE, 128)
    out: Shapes = {"rwkv.embeddings.weight": rows, "head.weight": rows}
    norms = ["rwkv.ln_out", "rwkv.blocks.0.pre_ln"]
    for i in range(3):
        at, ffn = f"rwkv.blocks.{i}.attention", f"rwkv.blocks.{i}.feed_forward"
        norms += [f"rwkv.blocks.{i}.ln1", f"rwkv.blocks.{i}.ln2", f"{at}.ln_x"]
        out |= {f"{at}.time_maa_{part}": (1, 1, 128) for part in "xwkvrg"} | {f"{at}.time_decay": (1, 1, 128)}
        out |= {f"{at}.{part}.weight": (128, 128) for part in ("receptance", "key", "value", "gate", "output")}
        out |= {f"{at}.time_maa_w1": (128, 160), f"{at}.time_maa_w2": (5, 32, 128), f"{at}.time_faaaa": (2, 64)}
        out |= {f"{at}.time_decay_w1": (128, 64), f"{at}.time_decay_w2": (64, 128)}
        out |= {f"{ffn}.time_maa_{part}": (1, 1, 128) for part in "kr"} | {f"{ffn}.receptance.weight": (128, 128)}
        out |= {f"{ffn}.key.weight": (256, 128), f"{ffn}.value.weight": (128, 256)}
    return out | {f"{name}.{kind}": (128,) for name in norms for kind in ("weight", "bias")}


_SAID: dict[str, Any] = BPE | {
    "model_type": "plm", "vocab_size": _BPE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "hidden_act": "relu2", "max_position_embeddings": 256,
    "rms_norm_eps": LATENT, "rope_theta": 5000.0, "kv_lora_rank": 32, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16,
    "v_head_dim": 24, "q_lora_rank": None, "attention_bias": False, "tie_word_embeddings": True,
}  # fmt: skip
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 32,
    "num_attention_heads": 16, "num_key_value_heads": 16, "hidden_act": "relu2", "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "attention_bias": False, "rope_theta": 100000.0,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "q_lora_rank": None,
}  # fmt: skip
_ELM: dict[str, Any] = SPM | {
    "model_type": "openelm", "vocab_size": _SPM, "max_context_length": 256, "num_transformer_layers": 3,
    "model_dim": 64, "head_dim": 16, "num_query_heads": [*_HEADS], "num_kv_heads": [*_KEYS], "ffn_dim_divisor": 32,
    "ffn_multipliers": [0.8, 1.5, 2.4], "ffn_with_glu": True, "activation_fn_name": "swish", "rope_freq_constant": 5000,
    "normalization_layer_name": "rms_norm", "normalize_qk_projections": True, "share_input_output_layers": True,
}  # fmt: skip
_ELM_DEFAULTS: dict[str, Any] = {
    "vocab_size": 32000, "max_context_length": 2048, "num_transformer_layers": 12, "model_dim": 2048, "head_dim": 128,
    "ffn_dim_divisor": 256, "ffn_with_glu": True, "activation_fn_name": "swish", "rope_freq_constant": 10000,
    "normalization_layer_name": "rms_norm", "normalize_qk_projections": True, "share_input_output_layers": True,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_RWKV6: dict[str, Any] = {
    "model_type": "rwkv6", "vocab_size": vocabularies.RWKV_SIZE, "hidden_size": 128, "intermediate_size": 256,
    "num_hidden_layers": 3, "attention_hidden_size": 128, "head_size": 64, "head_size_divisor": 8,
    "layer_norm_epsilon": 1e-5, "rescale_every": 2, "bos_token_id": 0, "eos_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip
_RWKV6_DEFAULTS: dict[str, Any] = {
    "vocab_size": 65536, "hidden_size": 768, "num_hidden_layers": 24, "head_size": 64, "head_size_divisor": 8,
    "layer_norm_epsilon": 1e-5, "rescale_every": 6, "bos_token_id": 0, "eos_token_id": 0, "tie_word_embeddings": False,
    "intermediate_size": 2688, "attention_hidden_size": 768,
}  # fmt: skip
_REFACT: dict[str, Any] = BPE | {
    "model_type": "gpt_refact", "vocab_size": _BPE, "n_positions": 256, "n_embd": 64, "n_layer": 2, "n_head": 4,
    "layer_norm_epsilon": 3e-3, "multi_query": True, "tie_word_embeddings": False,
}  # fmt: skip
_REFACT_DEFAULTS: dict[str, Any] = {
    "vocab_size": 49216, "n_positions": 4096, "n_embd": 1024, "n_layer": 32, "n_head": 64, "layer_norm_epsilon": 1e-5,
    "multi_query": True, "tie_word_embeddings": False, "bos_token_id": -1, "eos_token_id": 0,
}  # fmt: skip

CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case(
            "plm", "PLMForCausalLM", "bpe", _SAID, shapes=_plm(), defaults=_DEFAULTS,
            unheld=frozenset({"num_key_value_heads"}),
        ),
        Case(
            "refact",
            "GPTRefactForCausalLM",
            "bpe",
            _REFACT,
            shapes=_refact(),
            defaults=_REFACT_DEFAULTS,
        ),
        Case(
            "rwkv6",
            "Rwkv6ForCausalLM",
            "rwkv",
            _RWKV6,
            shapes=_rwkv6(),
            defaults=_RWKV6_DEFAULTS,
            spreads=(((".time_maa_",), (0.5, 0.1)),),
        ),
        Case(
            "openelm", "OpenELMForCausalLM", "spm", _ELM, shapes=_openelm(), defaults=_ELM_DEFAULTS, recorded=("mlx",),
            unheld=frozenset({"ffn_multipliers", "ffn_dim_divisor"}),
        ),
    )
}  # fmt: skip
UNSAID: dict[str, dict[str, Any]] = {
    "rwkv6": {"head_size_divisor": 4, "attention_hidden_size": 64},
    "refact": {"multi_query": False},
    "plm": {"hidden_act": "silu", "attention_bias": True, "q_lora_rank": 32, "tie_word_embeddings": False}
    | {"rope.rope_type": "yarn", "rms_norm_eps": 1e-5},
    "openelm": {"ffn_with_glu": False, "activation_fn_name": "gelu", "normalization_layer_name": "layer_norm"}
    | {"normalize_qk_projections": False, "share_input_output_layers": False},
}
