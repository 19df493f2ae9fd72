"""The small encoders: models that give embeddings. See __init__.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.oracles import vocabularies
from tests.oracles.case import Case, like, table
from tests.oracles.families.common import SPM, WINDOW

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
_BERT: dict[str, Any] = _SMALL | {"max_position_embeddings": 128, "layer_norm_eps": 5e-2, "pad_token_id": 0}
_POOLER = {"cls.weight": "bert.pooler.dense.weight", "cls.bias": "bert.pooler.dense.bias"}
_ROBERTA: dict[str, Any] = _SMALL | {
    "max_position_embeddings": 130,  # two of which no token takes
    "layer_norm_eps": 5e-2,
    "type_vocab_size": 1,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
_CAMEMBERT: dict[str, Any] = _ROBERTA | {"bos_token_id": 5, "eos_token_id": 6}
_AS_XLM_ROBERTA = {"architectures": ["XLMRobertaModel"]}
_T5: dict[str, Any] = {
    "d_model": 64,
    "d_kv": 32,
    "d_ff": 96,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 16,
    "layer_norm_epsilon": 3e-3,
    "decoder_start_token_id": 0,
}
_T5_UNHELD = frozenset({"dense_act_fn", "is_gated_act", "scale_decoder_outputs"})  # which follow from the rest
# Its scores aren't divided by the root of a head's width.
_T5_SPREADS = (
    (("layer_norm.weight",), (1.0, 0.25)),
    (("Attention.q.weight", "Attention.k.weight"), (0.0, 0.09)),
    (("relative_attention_bias.weight",), (0.0, 0.7)),
)
_NOMIC: dict[str, Any] = _SMALL | {
    "max_position_embeddings": 256,
    "type_vocab_size": 3,
    "layer_norm_eps": 5e-2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
}
_NOMIC_WORDS: dict[str, Any] = {
    "n_positions": 8192,
    "max_trained_positions": 2048,
    "activation_function": "swiglu",
    "causal": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
}
_LABELS: dict[str, Any] = {"id2label": {0: "bad", 1: "fair", 2: "good"}}
_MODERNBERT: dict[str, Any] = _SMALL | {
    "bos_token_id": vocabularies.BPE_SIZE - 4,
    "eos_token_id": vocabularies.BPE_SIZE - 3,
    "pad_token_id": vocabularies.BPE_SIZE - 2,
    "num_hidden_layers": 3,
    "max_position_embeddings": 256,
    "norm_eps": 5e-2,
    "local_attention": WINDOW,
    "cls_token_id": vocabularies.BPE_SIZE - 4,
    "sep_token_id": vocabularies.BPE_SIZE - 3,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 5000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
    },
}  # fmt: skip
_MODERNBERT_RECORD = Path(__file__).parents[2] / "models/golden/families/modernbert.json"
_MODERNBERT_V4: dict[str, Any] = {k: v for k, v in _MODERNBERT.items() if k != "rope_parameters"} | {
    "global_rope_theta": 5000.0, "local_rope_theta": 500.0, "global_attn_every_n_layers": 2,
    "hidden_activation": "gelu", "vocab_size": vocabularies.BPE_SIZE, "layer_norm_eps": 5e-2,
}  # fmt: skip


def _decision_shapes() -> dict[str, tuple[int, ...]]:
    """A ModernBERT of three blocks and a head of two."""
    out: dict[str, tuple[int, ...]] = {
        "encoder.embeddings.tok_embeddings.weight": (vocabularies.BPE_SIZE, 64),
        "encoder.embeddings.norm.weight": (64,),
        "encoder.final_norm.weight": (64,), "type_emb.weight": (3, 64),
        **{f"scorer.{n}.{end}": (64,) for n in (0,) for end in ("weight", "bias")},
        "scorer.1.weight": (64, 64), "scorer.1.bias": (64,), "scorer.3.weight": (1, 64), "scorer.3.bias": (1,),
    }  # fmt: skip
    for i in range(3):
        at = f"encoder.layers.{i}."
        out |= {f"{at}attn.Wqkv.weight": (192, 64), f"{at}attn.Wo.weight": (64, 64), f"{at}mlp_norm.weight": (64,)}
        out |= {f"{at}mlp.Wi.weight": (192, 64), f"{at}mlp.Wo.weight": (64, 96)}
        out |= {f"{at}attn_norm.weight": (64,)} if i else {}
    for i in range(2):
        at = f"head.layers.{i}."
        out |= {f"{at}norm{n}.{end}": (64,) for n in (1, 2) for end in ("weight", "bias")}
        out |= {f"{at}self_attn.in_proj_weight": (192, 64), f"{at}self_attn.in_proj_bias": (192,)}
        out |= {f"{at}self_attn.out_proj.weight": (64, 64), f"{at}self_attn.out_proj.bias": (64,)}
        out |= {f"{at}linear1.weight": (256, 64), f"{at}linear1.bias": (256,)}
        out |= {f"{at}linear2.weight": (64, 256), f"{at}linear2.bias": (64,)}
    return out


def _as_published(folder: Path) -> None:
    """The encoder's config in a folder of its own, and the head's settings."""
    config = json.loads((folder / "config.json").read_text())
    decision = config.pop("decision")
    config |= {"architectures": ["ModernBertModel"], "model_type": "modernbert", "num_hidden_layers": 3}
    (folder / "encoder").mkdir()
    (folder / "encoder" / "config.json").write_text(json.dumps(config | {"intermediate_size": 96}))
    settings = {key: value for key, value in decision.items() if key not in ("type", "temperature")}
    (folder / "rl_agent_config.json").write_text(json.dumps(settings | {"temperature": [1.5, 0.5, 2.0]}))


CASES = table(
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
    # ModernBERT under transformers 4's config, as its models are published, every second layer without a window
    Case(
        "modernbert",
        "ModernBertConfig",
        "modernbert",
        _MODERNBERT | {"global_attn_every_n_layers": 2},
        v4=True,
        said={"layer_norm_eps": 5e-2},
        prefixed="model.",
    ),
    # and as transformers 5 writes it: each layer's kind, and the epsilon under one name
    Case(
        "modernbert-v5",
        "ModernBertConfig",
        "modernbert",
        _MODERNBERT | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        added={
            "modern-bert.attention.layer_norm_epsilon": 5e-2,
            "modern-bert.attention.sliding_window_pattern": [True, False, True],
        },
    ),
    # the reference takes its head for a classifier's and stumbles over the bias of its output
    Case(
        "modernbert-mlm",
        "ModernBertConfig",
        "modernbert",
        _MODERNBERT | {"global_attn_every_n_layers": 3, "tie_word_embeddings": False},
        said={"layer_norm_eps": 5e-2},
        head="ModernBertForMaskedLM",
        beyond=("head.dense.weight", "head.norm.weight", "decoder.bias", "decoder.weight"),
        unheld=frozenset({"tie_word_embeddings"}),
    ),
    # a decision model on it: two blocks of a head behind those of the encoder
    Case(
        "modernbert-decision",
        "ModernBertDecisionModel",
        "none",
        _MODERNBERT_V4
        | {
            "model_type": "modernbert_decision",
            "num_hidden_layers": 5,
            "intermediate_size": [96] * 3 + [256] * 2,
            "decision": {
                "type": "laya",
                "head_layers": 2,
                "head_max_len": 128,
                "temperature": {"choice": 1.5, "score": 0.5, "noul": 2.0},
            },
        },
        shapes=_decision_shapes(),
        runs=False,
        finish=_as_published,
        defaults=json.loads(_MODERNBERT_RECORD.read_text("utf-8"))["defaults"] | {"model_type": "modernbert_decision"},
        beside=("act_head.x.weight", "temperature"),
    ),
    Case(
        "modernbert-labels",
        "ModernBertConfig",
        "modernbert",
        _MODERNBERT
        | _LABELS
        | {"global_attn_every_n_layers": 3, "classifier_pooling": "mean", "classifier_activation": "silu"},
        said={"layer_norm_eps": 5e-2},
        head="ModernBertForSequenceClassification",
        unheld=frozenset({"label2id"}),
    ),
    # NomicBERT, in the words of its published config beside those of transformers 5
    Case(
        "nomic-bert",
        "NomicBertConfig",
        "wordpiece",
        _NOMIC,
        said=_NOMIC_WORDS
        | {
            "n_embd": 64,
            "n_layer": 2,
            "n_head": 4,
            "n_inner": 96,
            "rotary_emb_base": 500,
            "layer_norm_epsilon": 5e-2,
        },
        words=_NOMIC_WORDS
        | {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_inner": 3072, "rotary_emb_base": 1000.0}
        | {"layer_norm_epsilon": 1e-12},
        recorded=("hf5",),
        unheld=frozenset({"rotary_emb_scale_base", "rotary_emb_base"}),
    ),
    # EmbeddingGemma: a window to both sides
    Case(
        "gemmaembedding",
        "Gemma3TextConfig",
        "gemma",
        _SMALL
        | SPM
        | {
            "num_key_value_heads": 2,
            "rms_norm_eps": 3e-3,
            "max_position_embeddings": 256,
            "num_hidden_layers": 6,
            "head_dim": 32,
            "pad_token_id": 0,
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 32,
            "use_bidirectional_attention": True,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 50000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            },
        },
        head="Gemma3TextModel",
    ),
    # T5: first as it was, then gated and with an output of its own, then its encoder alone
    Case(
        "t5",
        "T5Config",
        "t5",
        _T5
        | {
            "num_layers": 3,
            "num_decoder_layers": 2,
            "feed_forward_proj": "gated-gelu",
            "tie_word_embeddings": False,
        },
        said={"tie_word_embeddings": False, "n_positions": 256},
        head="T5ForConditionalGeneration",
        spreads=_T5_SPREADS,
        gelu=True,
        tolerance=0.02,
        unheld=_T5_UNHELD,
        older=("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
    ),
    Case(
        "t5-first",
        "T5Config",
        "t5",
        _T5,
        head="T5ForConditionalGeneration",
        spreads=_T5_SPREADS,
        unheld=_T5_UNHELD,
        older=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
        settings={"scale_decoder_outputs": False},
        told=("config.json: tie_word_embeddings",),
    ),
    # mT5, which is T5 v1.1, and UMT5, each of whose blocks has its own bias of positions
    Case(
        "mt5",
        "MT5Config",
        "t5",
        _T5 | {"num_layers": 3, "num_decoder_layers": 2},
        said={"tie_word_embeddings": False},
        head="MT5ForConditionalGeneration",
        taken="t5",
        spreads=_T5_SPREADS,
        gelu=True,
        tolerance=0.02,
        unheld=_T5_UNHELD | {"model_type", "architectures"},
        older=("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
    ),
    like("mt5", "mt5-tied", tokenizer="none", options=_T5, said={}, tolerance=None, spreads=(), gelu=False, older=()),
    Case(
        "umt5",
        "UMT5Config",
        "t5",
        _T5 | {"num_layers": 3, "num_decoder_layers": 2},
        said={"tie_word_embeddings": False, "n_positions": 256},
        head="UMT5ForConditionalGeneration",
        spreads=_T5_SPREADS,
        gelu=True,
        tolerance=0.02,
        unheld=_T5_UNHELD,
        settings={"tie_word_embeddings": False},
    ),
    Case(
        "umt5-plain",
        "UMT5Config",
        "none",
        _T5 | {"feed_forward_proj": "relu"},
        head="UMT5ForConditionalGeneration",
        unheld=_T5_UNHELD,
        told=("config.json: tie_word_embeddings",),
    ),
    Case(
        "t5encoder",
        "T5Config",
        "t5",
        _T5 | {"feed_forward_proj": "gated-gelu"},
        said={"n_positions": 256},
        head="T5EncoderModel",
        spreads=_T5_SPREADS,
        unheld=_T5_UNHELD | {"decoder_start_token_id", "is_encoder_decoder", "num_decoder_layers"},
        older=("encoder.embed_tokens.weight",),
    ),
    like("t5encoder", "t5encoder-first", tokenizer="none", options=_T5, said={}, spreads=(), older=()),
    # UMT5's encoder, for which the reference converter has no row: it gets the class of T5's
    like(
        "t5encoder",
        "umt5encoder",
        config="UMT5Config",
        options=_T5 | {"num_layers": 3},
        head="UMT5EncoderModel",
        hparams={"architectures": ["T5EncoderModel"]},
        gelu=True,
    ),
    like(
        "umt5encoder",
        "umt5encoder-plain",
        tokenizer="none",
        options=_T5 | {"feed_forward_proj": "relu"},
        said={},
        spreads=(),
        older=(),
        gelu=False,
    ),
    # classifiers: a reranker with the pooler that its output wants, one whose two labels have no names, and one of
    # DistilBERT's, whose activation llama.cpp has no word for
    Case(
        "bert-rank",
        "BertConfig",
        "wordpiece",
        _BERT | {"num_labels": 1},
        head="BertForSequenceClassification",
        unheld=frozenset({"label2id"}),
        kept=_POOLER,
    ),
    Case(
        "bert-unnamed",
        "BertConfig",
        "wordpiece",
        _BERT,
        head="BertForSequenceClassification",
        added={"bert.classifier.output_labels": ["LABEL_0", "LABEL_1"]},
        kept=_POOLER | {"cls.output.weight": "classifier.weight", "cls.output.bias": "classifier.bias"},
    ),
    Case(
        "distilbert-labels",
        "DistilBertConfig",
        "wordpiece",
        _DISTILBERT | _LABELS,
        head="DistilBertForSequenceClassification",
        spreads=_SHARP,
        unheld=frozenset({"label2id"}),
        vocabulary={"tokenizer.ggml.bos_token_id": 2},
        told=("config.json: architectures",),
    ),
    # two labels without a name: the reference says nothing of them, and llama.cpp then looks for one
    Case(
        "roberta-labels",
        "RobertaConfig",
        "roberta",
        _ROBERTA,
        head="RobertaForSequenceClassification",
        # which older files hold, and nothing computes with
        further={"roberta.pooler.dense.weight": (64, 64), "roberta.pooler.dense.bias": (64,)},
        vocabulary={"tokenizer.ggml.merges": ["a b"]},
        added={"bert.classifier.output_labels": ["LABEL_0", "LABEL_1"]},
    ),
    Case(
        "xlm-roberta",
        "XLMRobertaConfig",
        "xlmr",
        _ROBERTA | {"type_vocab_size": 2},
        vocabulary={"tokenizer.ggml.scores": [0.0]},
    ),
    # whose padding token has another number, from behind which positions are counted
    like("xlm-roberta", "xlm-roberta-pad", tokenizer="none", more={"pad_token_id": 3, "max_position_embeddings": 132}),
    # a reranker
    Case(
        "xlm-roberta-rank",
        "XLMRobertaConfig",
        "xlmr",
        _ROBERTA | {"num_labels": 1},
        head="XLMRobertaForSequenceClassification",
        vocabulary={"tokenizer.ggml.scores": [0.0]},
        unheld=frozenset({"label2id"}),
    ),
    # whose first tokens no text has; the reference takes it for a BERT, with the rows of positions as they are
    Case(
        "camembert",
        "CamembertConfig",
        "camembert",
        _CAMEMBERT,
        hparams=_AS_XLM_ROBERTA,
        judged=False,
        vocabulary={"tokenizer.ggml.scores": [0.0]},
    ),
    like(
        "camembert",
        "camembert-labels",
        more={"num_labels": 3},
        hparams={"architectures": ["XLMRobertaForSequenceClassification"]},
        head="CamembertForSequenceClassification",
    ),
)
UNSAID: dict[str, dict[str, Any]] = {
    "gemmaembedding": {
        "use_bidirectional_attention": False,
        "hidden_activation": "relu",
        "rope.rope_type": "dynamic",
        "attention_bias": True,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 2.0,
        "full_attention_every": 5,
        "query_pre_attn_scalar": 16,
    },
    "t5": {"feed_forward_proj": "gated-silu", "relative_attention_max_distance": 64},
    "umt5": {"feed_forward_proj": "gated-silu", "relative_attention_max_distance": 64},
    "t5encoder": {"feed_forward_proj": "gated-silu", "relative_attention_max_distance": 64},
    "umt5encoder": {"feed_forward_proj": "gated-silu", "relative_attention_max_distance": 64},
    "nomic-bert": {
        "hidden_act": "gelu",
        "activation_function": "gelu",
        "causal": True,
        "prenorm": True,
        "rotary_emb_fraction": 0.5,
        "rotary_emb_interleaved": True,
        "parallel_block": True,
        "parallel_block_tied_norm": True,
        "scale_attn_weights": False,
        "scale_attn_by_inverse_layer_idx": True,
        "ffn_div": 2,
        "rope.rope_type": "linear",
    },
    "modernbert": {
        "attention_bias": True,
        "mlp_bias": True,
        "norm_bias": True,
        "classifier_bias": True,
        "rope.rope_type": "linear",
    },
}
