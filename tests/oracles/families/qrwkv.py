"""Small models of QRWKV 6 and ARWKV 7, under the names that the reference converter reads. See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles.case import Case, like, table
from tests.oracles.families.common import BPE
from tests.oracles.families.wrapped import VOCABULARY, Shapes

_BPE = VOCABULARY["vocab_size"]
_WIDTH = 128
_QWEN: dict[str, Any] = BPE | VOCABULARY | {
    "hidden_size": _WIDTH, "intermediate_size": 160, "num_hidden_layers": 2, "rms_norm_eps": 3e-3,
    "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip
_CONFIG: dict[str, Any] = _QWEN | {
    "model_type": "rwkv6qwen2", "num_attention_heads": 4, "num_key_value_heads": 2, "lora_rank_tokenshift": 16,
    "lora_rank_decay": 24,
}  # fmt: skip
_SILENT = {key: value for key, value in _CONFIG.items() if not key.startswith("lora_rank")}
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 152064, "hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 64,
    "num_attention_heads": 40, "num_key_value_heads": 8, "rms_norm_eps": 1e-6, "hidden_act": "silu",
    "tie_word_embeddings": False, "rope_theta": 10000.0,
}  # fmt: skip


def _decoder(width: int) -> Shapes:
    rows = (_BPE, width)
    out: Shapes = {"model.embed_tokens.weight": rows, "lm_head.weight": rows, "model.norm.weight": (width,)}
    for i in range(2):
        at = f"model.layers.{i}"
        out |= {f"{at}.{name}_layernorm.weight": (width,) for name in ("input", "post_attention")}
        out |= {f"{at}.mlp.{name}_proj.weight": (160, width) for name in ("gate", "up")}
        out[f"{at}.mlp.down_proj.weight"] = (width, 160)
    return out


def _shapes(mixing: int, decay: int, *, bias: bool = True) -> Shapes:
    out = _decoder(_WIDTH)
    for i in range(2):
        at = f"model.layers.{i}.self_attn."
        out |= {f"{at}{name}.weight": (_WIDTH, _WIDTH) for name in ("q_proj", "o_proj", "gate")}
        out |= {f"{at}{name}.weight": (64, _WIDTH) for name in ("k_proj", "v_proj")}
        if bias:
            out |= {f"{at}{name}.bias": (rows,) for name, rows in (("q_proj", 128), ("k_proj", 64), ("v_proj", 64))}
        out |= {f"{at}time_maa_{part}": (1, 1, _WIDTH) for part in "xrkvwg"}
        out |= {f"{at}time_maa_w1": (_WIDTH, 5 * mixing), f"{at}time_maa_w2": (5, mixing, _WIDTH)}
        out |= {f"{at}time_decay": (1, 1, _WIDTH), f"{at}time_decay_w1": (_WIDTH, decay)}
        out[f"{at}time_decay_w2"] = (decay, _WIDTH)
    return out


_WIDE = 192  # another number than the rank of its gate
_HYBRID: dict[str, Any] = _QWEN | {
    "model_type": "rwkv_hybrid", "hidden_size": _WIDE, "head_size": 64, "wkv_version": 7,
    "wkv_has_gate": True, "wkv_has_group_norm": False,
}  # fmt: skip
_HYBRID_DEFAULTS: dict[str, Any] = {
    "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "head_size": 64,
    "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False, "rope_theta": 10000.0, "wkv_version": 7,
    "wkv_has_gate": True, "wkv_has_group_norm": False,
}  # fmt: skip


def _hybrid() -> Shapes:
    out = _decoder(_WIDE)
    for i in range(2):
        at = f"model.layers.{i}.self_attn.time_mixer."
        out |= {f"{at}{name}.weight": (_WIDE, _WIDE) for name in ("receptance", "key", "value", "output")}
        out |= {f"{at}x_{part}": (1, 1, _WIDE) for part in "rwkvag"}
        out |= {f"{at}{name}": (1, 1, _WIDE) for name in ("k_k", "k_a", "w0", "a0")}
        ranks = {"w": 64, "a": 64, "g": 128} | ({"v": 32} if i else {})
        out |= {f"{at}{part}1": (_WIDE, rank) for part, rank in ranks.items()}
        out |= {f"{at}{part}2": (rank, _WIDE) for part, rank in ranks.items()}
        out |= {f"{at}v0": (1, 1, _WIDE)} if i else {}
        out[f"{at}r_k"] = (3, 64)
    return out


CASES = table(
    Case(
        "qrwkv6",
        "RWKV6Qwen2ForCausalLM",
        "bpe",
        _CONFIG,
        shapes=_shapes(16, 24),
        defaults=_DEFAULTS,
    ),
    # ... whose ranks follow from its width, without biases
    like("qrwkv6", "qrwkv6-silent", tokenizer="none", options=_SILENT, shapes=_shapes(32, 64, bias=False)),
    Case("arwkv7", "RwkvHybridForCausalLM", "bpe", _HYBRID, shapes=_hybrid(), defaults=_HYBRID_DEFAULTS),
)
UNSAID: dict[str, dict[str, Any]] = {
    "rwkv6qwen2": {"hidden_act": "gelu"},
    "arwkv7": {"hidden_act": "gelu", "wkv_version": 6, "wkv_has_gate": False, "wkv_has_group_norm": True},
}
