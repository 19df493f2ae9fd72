"""Small assistants of Gemma 4, which predict further tokens with the keys of the model that they assist."""

from __future__ import annotations

from typing import Any

from tests.oracles import vocabularies
from tests.oracles.case import Case, like, table
from tests.oracles.families.gemma4 import _GEMMA4, _NO_PARTS, _SPREADS, _WORDS

_TEXT: dict[str, Any] = _GEMMA4 | {
    "model_type": "gemma4_text", "vocab_size": vocabularies.SPM_SIZE, "num_kv_shared_layers": 3,
    "vocab_size_per_layer_input": 0, "attention_k_eq_v": True, "num_global_key_value_heads": 1,
    "enable_moe_block": False, "use_double_wide_mlp": False, "tie_word_embeddings": True,
}  # fmt: skip
_ASSISTANT: dict[str, Any] = {
    "model_type": "gemma4_assistant", "backbone_hidden_size": 96, "use_ordered_embeddings": False,
    "tie_word_embeddings": True, "text_config": _TEXT,
}  # fmt: skip


def _layer(number: int, width: int) -> dict[str, tuple[int, ...]]:
    norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
    at = f"model.layers.{number}."
    return {
        **{f"{at}{name}_layernorm.weight": (64,) for name in norms},
        f"{at}layer_scalar": (1,),
        f"{at}mlp.gate_proj.weight": (96, 64),
        f"{at}mlp.up_proj.weight": (96, 64),
        f"{at}mlp.down_proj.weight": (64, 96),
        f"{at}self_attn.q_norm.weight": (width,),
        f"{at}self_attn.q_proj.weight": (4 * width, 64),
        f"{at}self_attn.o_proj.weight": (64, 4 * width),
    }


_SHAPES: dict[str, tuple[int, ...]] = {
    "model.embed_tokens.weight": (vocabularies.SPM_SIZE, 64),
    **_layer(0, 48),
    **_layer(1, 48),
    **_layer(2, 64),
    "model.norm.weight": (64,),
    "pre_projection.weight": (64, 192),
    "post_projection.weight": (96, 64),
}

CASES = table(
    # transformers 5.23 has the class and can't make it: no layer would have keys of its own
    Case(
        "gemma4-assistant",
        "Gemma4AssistantForCausalLM",
        "gemma4",
        _ASSISTANT,
        shapes=_SHAPES,
        words=_WORDS,
        defaults={"model_type": "gemma4_assistant", "backbone_hidden_size": 1536},
        head="Gemma4AssistantForCausalLM",
        beside=("masked_embedding.centroids.weight", "masked_embedding.token_ordering"),
        taken="gemma4_assistant",
        guesses=(
            "assuming the class Gemma4AssistantForCausalLM: a gemma4-assistant GGUF of "
            "Gemma4UnifiedAssistantForCausalLM is the same",
        ),
        unheld=frozenset({"vocab_size_per_layer_input"}),
        spreads=_SPREADS,
        runs=False,  # without the model that it assists
    ),
    like(
        "gemma4-assistant",
        "gemma4-unified-assistant",
        {"model_type": "gemma4_unified_assistant", "text_config": _TEXT | {"model_type": "gemma4_unified_text"}},
        config="Gemma4UnifiedAssistantForCausalLM",
        defaults={"model_type": "gemma4_unified_assistant"},
        words=_WORDS | _NO_PARTS | {"use_double_wide_mlp": False},
        head="Gemma4UnifiedAssistantForCausalLM",
    ),
)
UNSAID: dict[str, dict[str, Any]] = {"gemma4-assistant": {"use_ordered_embeddings": True}}
