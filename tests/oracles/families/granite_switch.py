"""Small models of Granite Switch, under the names that the reference converter reads. See __init__.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.oracles.case import Case, table
from tests.oracles.families.common import BPE, GQA
from tests.oracles.families.wrapped import VOCABULARY, Shapes

_BPE = VOCABULARY["vocab_size"]
# Tokens of the probe (models.py `probe`): from the first on an adapter is on, from the second on another.
_PROBE = np.random.default_rng(7).integers(5, _BPE - 5, 96)
_CONFIG: dict[str, Any] = GQA | BPE | VOCABULARY | {
    "model_type": "granite_switch", "num_hidden_layers": 3, "shared_intermediate_size": 96, "num_adapters": 3,
    "max_lora_rank": 8, "adapter_token_ids": [int(_PROBE[10]), 6, int(_PROBE[50])], "control_token_gain": 15.0,
    "adapter_substitute_token_ids": [7, 8, 9], "attention_multiplier": 0.2, "embedding_multiplier": 6.0,
    "residual_multiplier": 0.5, "logits_scaling": 4.0, "attention_bias": False, "rope_theta": 5000.0,
    "hidden_act": "silu", "num_local_experts": 0, "num_experts_per_tok": 2, "tie_word_embeddings": True,
    "head_dim": 16, "projection_head_dim": 16,
}  # fmt: skip
_PARTS = {  # of each matrix its inputs, and the outputs of its parts
    "self_attn.qkv_proj": (64, (64, 32, 32)), "self_attn.o_proj": (64, (64,)),
    "shared_mlp.input_linear": (64, (96, 96)), "shared_mlp.output_linear": (96, (64,)),
}  # fmt: skip


def _shapes() -> Shapes:
    out: Shapes = {"model.embed_tokens.weight": (_BPE, 64), "model.norm.weight": (64,)}
    for layer in (0, 1):
        at = f"model.layers.{layer}."
        out |= {f"{at}input_layernorm.weight": (64,), f"{at}post_attention_layernorm.weight": (64,)}
        for name, (inputs, outputs) in _PARTS.items():
            out[f"{at}{name}.base_layer.weight"] = (sum(outputs), inputs)
            for n, rows in enumerate(outputs):
                end = f"_slices.{n}" if len(outputs) > 1 else ""
                out |= {f"{at}{name}.lora_A{end}": (3, 1, 8, inputs), f"{at}{name}.lora_B{end}": (3, 1, rows, 8)}
    return out


_DEFAULTS: dict[str, Any] = {
    "tie_word_embeddings": True, "hidden_act": "silu", "rope_theta": 10000.0, "bos_token_id": 1, "eos_token_id": 2,
    "vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "attention_multiplier": 1.0, "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0, "logits_scaling": 1.0, "attention_bias": False, "control_token_gain": 15.0,
}  # fmt: skip
CASES = table(
    Case(
        "granite-switch",
        "GraniteSwitchForCausalLM",
        "bpe",
        _CONFIG,
        shapes=_shapes(),
        defaults=_DEFAULTS,
        spreads=((("lora_A", ".0", ".1", ".2", "lora_B"), (0.0, 0.15)),),
        older=("model.adapter_token_ids", "model.control_to_substitute_lut", "lm_head.weight"),
        beside=("model.switch.x",),
        unheld=frozenset({"num_experts_per_tok", "num_local_experts", "head_dim", "projection_head_dim"}),
    ),
)
UNSAID: dict[str, dict[str, Any]] = {
    "graniteswitch": {
        "hidden_act": "gelu",
        "attention_bias": True,
        "num_local_experts": 4,
        "tie_word_embeddings": False,
    }
    | {"rope.rope_type": "llama3"},
}
