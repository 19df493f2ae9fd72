"""Small model folders whose conversion by the reference is recorded in golden/reference.json.

Each case turns one thing that the tables decide: the spelling of rope, a default left out, the class, the labels, the
model card, a name. Weights are zeros: names, shapes, types, order and key-values are what counts here (numbers are
compared elsewhere). `python -m tests.models.record_reference` records anew.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parent / "golden"


@cache
def golden(name: str) -> dict[str, Any]:
    """The records of a file of golden/."""
    return json.loads((GOLDEN / f"{name}.json").read_text())


SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 128,
}
GQA = {**SMALL, "num_key_value_heads": 2, "max_position_embeddings": 256}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
MIXTRAL = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
QWEN2_MOE = {"architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe"}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
QWEN3_MOE = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"}
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 80, "norm_topk_prob": True}
BERT = {"model_type": "bert", **SMALL, "max_position_embeddings": 64}
L3 = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@dataclass(frozen=True)
class Case:
    """A folder: its name, config.json, other files, and which optional groups of tensors it holds. `shards`: tensors
    are dealt to so many files. `dialect`, `prefix`: whose names they have. `extra`: further tensors, name to shape."""

    folder: str
    config: dict[str, Any]
    groups: tuple[str, ...] = ()
    tied: bool = False
    generation: dict[str, Any] | None = None
    card: str | None = None
    files: dict[str, str] = field(default_factory=dict)
    shards: int = 1
    dialect: str = "hf"
    prefix: str | None = None
    extra: dict[str, tuple[int, ...]] = field(default_factory=dict)
    outtype: str = "q8_0"


CARD = """---
license: llama3.2
language:
- en
- no
tags:
- facebook
- "2024"
pipeline_tag: text-generation
base_model:
- meta-llama/Llama-3.2-1B
- https://huggingface.co/org-name/Base-Model-7B-v0.3
- https://example.org/some/where
datasets: [wikitext, org/data-set]
model_creator: Somebody
model_type: llama
version: "1.5"
---
# Llama
"""
POOL = '[{"type": "a.Transformer", "path": ""}, {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]'

CASES: dict[str, Case] = {
    "llama-silent": Case("Llama-2-7b-chat-hf", {**LLAMA, **SMALL}),
    "llama-v4": Case(
        "llama-3.2-1B-Instruct", {**LLAMA, **GQA, "rope_theta": 500000.0, "rope_scaling": None}, card=CARD
    ),
    "llama3-v4": Case("x", {**LLAMA, **GQA, "rope_theta": 5e5, "rope_scaling": {**L3, "rope_type": "llama3"}}),
    "llama3-v5": Case(
        "tiny", {**LLAMA, **GQA, "head_dim": 32, "rope_parameters": {**L3, "rope_type": "llama3", "rope_theta": 1e6}}
    ),
    "llama3-top": Case(
        "a b",
        {
            **LLAMA,
            **GQA,
            "original_max_position_embeddings": 64,
            "rope_scaling": {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        },
    ),
    "yarn-v4": Case("yarn-v0.1", {**LLAMA, **GQA, "rope_scaling": {"type": "yarn", "factor": 4.0}}, outtype="f32"),
    "yarn-v5": Case(
        "Yarn-7B-128k",
        {
            **MISTRAL,
            **GQA,
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "rope_theta": 1e4,
                "original_max_position_embeddings": 64,
                "extrapolation_factor": 1.5,
                "attn_factor": 0.9,
                "beta_fast": 31,
                "beta_slow": 2,
            },
        },
        outtype="f16",
    ),
    "linear-v4": Case("lin", {**LLAMA, **GQA, "rope_scaling": {"type": "linear", "factor": 2}}, outtype="bf16"),
    "dynamic-v4": Case("dyn", {**LLAMA, **GQA, "rope_scaling": {"type": "dynamic", "factor": 2.0}}),
    "longrope": Case(
        "long",
        {
            **LLAMA,
            **GQA,
            "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "factor": 2.0},
        },
    ),
    "mistral": Case(
        "Mistral-7B-Instruct-v0.3",
        {**MISTRAL, **SMALL, "num_attention_heads": 8, "_name_or_path": "mistralai/Mistral-7B-v0.3"},
        generation={"temperature": 0.7, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.1},
    ),
    "mistral-null": Case("m", {**MISTRAL, **GQA, "head_dim": None, "sliding_window": None}),
    "mixtral-shards": Case("Mixtral-8x7B-v0.1", {**MIXTRAL, **GQA, "num_local_experts": 3}, shards=3),
    "mixtral-head": Case("moe", {**MIXTRAL, **GQA, "num_local_experts": 2, "head_dim": 32}),
    "llama-bias": Case(
        "bias",
        {**LLAMA, **GQA, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "head_dim": 32},
        groups=("attention_bias", "mlp_bias"),
        tied=True,
        shards=2,
    ),
    "llama-inv-freq": Case(
        "inv", {**LLAMA, **GQA}, extra={f"model.layers.{i}.self_attn.rotary_emb.inv_freq": (8,) for i in range(2)}
    ),
    "qwen2": Case(
        "Qwen2.5-0.5B-Instruct",
        {**QWEN2, **GQA, "rope_theta": 1e6, "sliding_window": 32, "use_sliding_window": False, "max_window_layers": 1},
        generation={"repetition_penalty": 1.1, "temperature": 0.7, "top_p": 0.8, "top_k": 20},
    ),
    "qwen2-yarn": Case(
        "gte",
        {**QWEN2, **GQA, "head_dim": 24, "is_causal": False, "rope_scaling": {"type": "yarn", "factor": 4.0}},
        tied=True,
        files={"modules.json": POOL, "1_Pooling/config.json": '{"pooling_mode_lasttoken": true}'},
        shards=2,
        outtype="f16",
    ),
    "qwen2-silent": Case("Qwen2-7B", {**QWEN2, **SMALL}, outtype="f32"),
    "qwen2moe": Case(
        "Qwen1.5-MoE-A2.7B",
        {
            **QWEN2_MOE,
            **GQA,
            **MOE,
            "num_experts": 3,
            "shared_expert_intermediate_size": 112,
            "norm_topk_prob": False,
            "head_dim": 24,
            "is_causal": False,
        },
        groups=("qkv_bias",),
        shards=3,
    ),
    "qwen2moe-v5": Case(
        "fused2",
        {**QWEN2_MOE, **GQA, **MOE, "num_experts": 3, "norm_topk_prob": False, "qkv_bias": False},
        dialect="hf5",
        outtype="f16",
    ),
    "qwen3": Case("Qwen3-0.6B", {**QWEN3, **GQA, "rope_theta": 1e6, "head_dim": 24}, tied=True),
    "qwen3-embedding": Case(
        "Embedding-0.6B",
        {**QWEN3, **GQA, "is_causal": False},
        files={"modules.json": POOL, "1_Pooling/config.json": '{"pooling_mode_lasttoken": true}'},
    ),
    "qwen3moe": Case(
        "Qwen3-30B-A3B", {**QWEN3_MOE, **GQA, **MOE, "num_experts": 3, "head_dim": 24, "is_causal": False}, shards=3
    ),
    # a shared expert of no width, as Qwen3-Coder-480B says
    "qwen3moe-v5": Case(
        "fused",
        {**QWEN3_MOE, **GQA, **MOE, "num_local_experts": 3, "shared_expert_intermediate_size": 0},
        dialect="hf5",
    ),
    "bert": Case(
        "MiniLM-L6-v2",
        {**BERT, "architectures": ["BertModel"]},
        groups=("pooler",),
        files={"modules.json": POOL, "1_Pooling/config.json": '{"pooling_mode_mean_tokens": true}'},
    ),
    "bert-mlm": Case(
        "bert-base-uncased",
        {**BERT, "architectures": ["BertForMaskedLM"], "type_vocab_size": 3, "layer_norm_eps": 1e-7},
        groups=("mlm", "mlm_out_bias"),
        prefix="bert.",
        extra={"bert.embeddings.position_ids": (1, 64)},
        outtype="f16",
    ),
    "bert-gamma": Case(
        "old",
        {**BERT, "architectures": ["BertForMaskedLM"]},
        prefix="bert.",
        dialect="hf_gamma",
        files={"modules.json": POOL, "1_Pooling/config.json": '{"pooling_mode": "lasttoken"}'},
    ),
    "bert-labels": Case(
        "rank",
        {
            **BERT,
            "architectures": ["BertForSequenceClassification"],
            "id2label": {"0": "no", "10": "ten", "2": "yes"},
            "label2id": {"no": 0, "ten": 10, "yes": 2},
        },
        groups=("classifier", "pooler"),
        prefix="bert.",
        files={"modules.json": POOL, "1_Pooling/config.json": '{"pooling_mode_cls_token": true}'},
    ),
    "bert-dummies": Case(
        "cls", {**BERT, "architectures": ["BertForSequenceClassification"]}, groups=("classifier",), prefix="bert."
    ),
    "bert-one": Case(
        "one",
        {**BERT, "architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}},
        groups=("classifier",),
        prefix="bert.",
        files={"embedding_config.json": '{"pooling": "last_token"}'},
    ),
}
