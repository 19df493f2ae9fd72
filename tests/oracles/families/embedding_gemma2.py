"""A small EmbeddingGemma 2: a Gemma 4 that attends both ways and projects to another width. See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles import vocabularies
from tests.oracles.case import Case, table
from tests.oracles.families.common import GQA, SPM, WINDOW

_TEXT: dict[str, Any] = GQA | SPM | {
    "num_hidden_layers": 3, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "head_dim": 48, "global_head_dim": 64, "num_global_key_value_heads": 1, "pad_token_id": 0,
    "sliding_window": WINDOW // 2,
    "hidden_size_per_layer_input": 32,
    "embedding_dim": 96, "vocab_size": vocabularies.SPM_SIZE,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 50000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
    },
}  # fmt: skip

CASES = table(
    Case(
        "embeddinggemma2",
        "EmbeddingGemma2Config",
        "gemma4",
        {"text_config": _TEXT, "vision_config": None, "audio_config": None},
        head="EmbeddingGemma2Model",
        spreads=((("layer_scalar",), (1.0, 0.25)),),
        defaults={"model_type": "embedding_gemma2"},
        words={
            "global_head_dim": 512, "num_global_key_value_heads": 1, "attention_k_eq_v": True,
            "tie_word_embeddings": True, "vocab_size_per_layer_input": 262144, "num_kv_shared_layers": 0,
            "enable_moe_block": False, "use_double_wide_mlp": False,
        },
        unheld=frozenset({"per_layer_config", "vocab_size", "text_config"}),
        beside=tuple(f"{part}.x.weight" for part in ("vision_tower", "embed_vision", "audio_tower", "embed_audio")),
        taken="embedding_gemma2",
        gelu=True,
    ),
)  # fmt: skip
UNSAID: dict[str, dict[str, Any]] = {"embeddinggemma2": {"rope.rope_type": "proportional"}}
