"""A small ruGPT-3 XL under its published names. See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles.case import Case, table
from tests.oracles.families.common import BPE, SMALL
from tests.oracles.families.wrapped import VOCABULARY, Shapes

_BPE = VOCABULARY["vocab_size"]
_CONFIG: dict[str, Any] = SMALL | BPE | VOCABULARY | {
    "model_type": "rugpt3xl", "layer_norm_eps": 5e-2, "hidden_act": "gelu_new", "tie_word_embeddings": False,
    "sparse_mode": "alternating",
}  # fmt: skip
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 50264, "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16,
    "intermediate_size": 8192, "hidden_act": "gelu_new", "max_position_embeddings": 2048, "layer_norm_eps": 1e-5,
    "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0, "tie_word_embeddings": False, "sparse_mode": "none",
}  # fmt: skip
_SHAPES: Shapes = {
    "model.embed_tokens.weight": (_BPE, 64), "model.embed_positions.weight": (256, 64), "lm_head.weight": (_BPE, 64),
    "model.norm.weight": (64,), "model.norm.bias": (64,),
}  # fmt: skip
_LAYER: Shapes = {
    "input_layernorm": (64,), "post_attention_layernorm": (64,), "mlp.up_proj": (96, 64), "mlp.down_proj": (64, 96),
    **{f"self_attn.{part}_proj": (64, 64) for part in "qkvo"},
}  # fmt: skip
for _name, _shape in _LAYER.items():
    _SHAPES |= {f"model.layers.{i}.{_name}.weight": _shape for i in range(2)}
    _SHAPES |= {f"model.layers.{i}.{_name}.bias": _shape[:1] for i in range(2)}
CASES = table(
    Case(
        "rugpt3xl",
        "RuGPT3XLForCausalLM",
        "bpe",
        _CONFIG,
        shapes=_SHAPES,
        defaults=_DEFAULTS,
        taken="gpt2",  # whose names a folder made of its GGUF has
        returns=False,
        unheld=frozenset(_CONFIG.keys() - {"vocab_size", "tie_word_embeddings", "bos_token_id", "eos_token_id"}),
        told=("config.json: sparse_mode",),
        gelu=True,
    ),
)
UNSAID: dict[str, dict[str, Any]] = {"rugpt3xl": {"hidden_act": "relu"}}
