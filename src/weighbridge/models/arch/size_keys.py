"""The usual keys of a model's sizes, for models without a family table and for rules that cover all families."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple


class SizeKeys(NamedTuple):
    """Keys of config.json in order of preference, and the key of a GGUF without the architecture's name."""

    config: tuple[str, ...]
    gguf: str


SIZE_KEYS: Final[Mapping[str, SizeKeys]] = MappingProxyType(
    {
        "layers": SizeKeys(
            ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers"), "block_count"
        ),
        "hidden_size": SizeKeys(("hidden_size", "n_embd", "d_model", "dim"), "embedding_length"),
        "heads": SizeKeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), "attention.head_count"),
        "kv_heads": SizeKeys(("num_key_value_heads", "n_kv_heads", "num_kv_heads"), "attention.head_count_kv"),
        "experts": SizeKeys(("num_local_experts", "num_experts", "n_routed_experts"), "expert_count"),
        "context_length": SizeKeys(
            ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "seq_length"), "context_length"
        ),
        "vocab_size": SizeKeys(("vocab_size",), "vocab_size"),
    }
)
LAYERS: Final = SIZE_KEYS["layers"]
HEADS: Final = SIZE_KEYS["heads"]
