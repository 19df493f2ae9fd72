"""The small models of families whose code came with their weights and that no class of transformers computes: plain.py
does. See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles import vocabularies
from tests.oracles.case import Case

Shapes = dict[str, tuple[int, ...]]


def _layers(count: int, one: Shapes, front: str) -> Shapes:
    return {f"{front}{i}.{name}": shape for i in range(count) for name, shape in one.items()}


def _dense(name: str, rows: int, columns: int) -> Shapes:
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}


def _norm(name: str) -> Shapes:
    return {f"{name}.weight": (64,), f"{name}.bias": (64,)}


_JINA: Shapes = {
    "embeddings.word_embeddings.weight": (vocabularies.WORDPIECE_SIZE, 64),
    "embeddings.token_type_embeddings.weight": (3, 64),
    **_norm("embeddings.LayerNorm"),
    **_layers(
        2,
        {
            **_dense("attention.self.query", 64, 64),
            **_dense("attention.self.key", 64, 64),
            **_dense("attention.self.value", 64, 64),
            **_dense("attention.output.dense", 64, 64),
            **_norm("attention.output.LayerNorm"),
            "mlp.gated_layers.weight": (192, 64),
            **_dense("mlp.wo", 64, 96),
            **_norm("mlp.layernorm"),
        },
        "encoder.layer.",
    ),
    **_dense("pooler.dense", 64, 64),
}
_JINA_SAID: dict[str, Any] = {
    "model_type": "bert", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 256, "type_vocab_size": 3, "layer_norm_eps": 5e-2, "pad_token_id": 0,
    "position_embedding_type": "alibi", "feed_forward_type": "geglu", "hidden_act": "gelu",
}  # fmt: skip
_JINA_DEFAULTS: dict[str, Any] = {
    "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512, "type_vocab_size": 2, "initializer_range": 0.02, "layer_norm_eps": 1e-12,
    "pad_token_id": 0, "position_embedding_type": "absolute", "feed_forward_type": "original", "use_cache": True,
    "emb_pooler": None,
}  # fmt: skip

CASES: dict[str, Case] = {
    case.name: case
    for case in (
        # Jina embeddings v2: no positions, attention that falls off with the distance
        Case(
            "jina-bert-v2",
            "JinaBertModel",
            "wordpiece",
            _JINA_SAID,
            shapes=_JINA,
            defaults=_JINA_DEFAULTS,
            spreads=(((".layernorm.weight",), (1.0, 0.25)), (("query.weight", "key.weight"), (0.0, 0.22))),
            beside=("cls.predictions.bias",),
            prefixed="bert.",
        ),
    )
}
UNSAID: dict[str, dict[str, Any]] = {
    "jina-bert-v2": {"position_embedding_type": "absolute", "feed_forward_type": "original"},
}
