"""The small encoders: models that give embeddings. See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles.case import Case

_SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
_DISTILBERT: dict[str, Any] = {
    "dim": 64,
    "hidden_dim": 96,
    "n_layers": 2,
    "n_heads": 4,
    "max_position_embeddings": 128,
}
_SHARP = ((("q_lin.weight", "k_lin.weight"), (0.0, 0.22)),)
_ROBERTA: dict[str, Any] = _SMALL | {
    "max_position_embeddings": 130,  # two of which no token takes
    "layer_norm_eps": 5e-2,
    "type_vocab_size": 1,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case(
            "distilbert",
            "DistilBertConfig",
            "wordpiece",
            _DISTILBERT,
            spreads=_SHARP,
            older=("embeddings.position_ids",),
            vocabulary={"tokenizer.ggml.bos_token_id": 2},  # [CLS], of which its config says nothing
        ),
        Case(
            "distilbert-mlm",
            "DistilBertConfig",
            "wordpiece",
            _DISTILBERT | {"tie_word_embeddings": False},
            head="DistilBertForMaskedLM",
            unheld=frozenset({"tie_word_embeddings"}),
        ),
        Case(
            "roberta",
            "RobertaConfig",
            "roberta",
            _ROBERTA,
            older=("embeddings.position_ids", "embeddings.token_type_ids"),
            prefixed="roberta.",
            vocabulary={"tokenizer.ggml.merges": ["a b"]},
        ),
        # Unigram, which tokenizers here don't know yet
        Case(
            "xlm-roberta",
            "XLMRobertaConfig",
            "none",
            _ROBERTA | {"type_vocab_size": 2, "pad_token_id": 3, "max_position_embeddings": 132},
            vocabulary={"tokenizer.ggml.scores": [0.0]},
        ),
    )
}
