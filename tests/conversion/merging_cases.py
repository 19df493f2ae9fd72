"""Recipes and the small models that they merge, for mergekit (`record_merging.py`) and for the tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 16, "hidden_size": 8,
    "intermediate_size": 12, "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
    "tie_word_embeddings": False, "torch_dtype": "float32", "rms_norm_eps": 1e-5, "hidden_act": "silu",
    "max_position_embeddings": 64, "rope_theta": 10000.0,
}  # fmt: skip
MODELS = ("base", "one", "two")


def shapes(layers: int = 3) -> dict[str, tuple[int, ...]]:
    rows: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (16, 8), "model.norm.weight": (8,)}
    matrices = {
        "self_attn.q_proj": (8, 8), "self_attn.k_proj": (4, 8), "self_attn.v_proj": (4, 8), "self_attn.o_proj": (8, 8),
        "mlp.gate_proj": (12, 8), "mlp.up_proj": (12, 8), "mlp.down_proj": (8, 12), "input_layernorm": (8,),
        "post_attention_layernorm": (8,),
    }  # fmt: skip
    rows |= {f"model.layers.{n}.{name}.weight": shape for n in range(layers) for name, shape in matrices.items()}
    return {**rows, "lm_head.weight": (16, 8)}


def tensors(model: str) -> dict[str, np.ndarray]:
    """The base is random; each model differs from it in a direction that all share, and in one of its own."""
    base, shared = np.random.default_rng(1), np.random.default_rng(2)
    own = np.random.default_rng(3 + MODELS.index(model))
    out = {}
    for name, shape in shapes().items():
        values, common, other = (source.standard_normal(shape) for source in (base, shared, own))
        change = 0.0 if model == "base" else 0.3 * common + 0.15 * other
        out[name] = (0.5 * values + change).astype(np.float32)
    return out


def write_models(folder: Path) -> Path:
    for model in MODELS:
        (folder / model).mkdir(parents=True)
        (folder / model / "config.json").write_text(json.dumps(CONFIG))
        save_file(tensors(model), folder / model / "model.safetensors", {"format": "pt"})
    return folder


def _models(*names: str, **parameters: Any) -> list[dict[str, Any]]:
    return [{"model": name, **({"parameters": dict(parameters)} if parameters else {})} for name in names]


def _source(model: str, layers: list[int], **parameters: Any) -> dict[str, Any]:
    return {"model": model, "layer_range": layers, "parameters": parameters}


_T = [{"filter": "self_attn", "value": [0, 0.6, 1]}, {"filter": "mlp", "value": [1, 0.2]}, {"value": 0.4}]
_HALF = {"weight": 0.5, "density": 0.5}
_TWO = [*_models("one", weight=0.6, density=0.4), *_models("two", weight=0.5, density=0.4)]
RECIPES: Mapping[str, Mapping[str, Any]] = {
    "the module of a language model": {
        "merge_method": "linear", "parameters": {"normalize": False},
        "modules": {"default": {"models": [{"model": "one"}, {"model": "two"}], "parameters": {"weight": 0.3}}},
    },
    "slices of a module": {
        "merge_method": "passthrough", "modules": {"default": {"slices": [
            {"sources": [{"model": "one", "layer_range": [0, 2]}]},
            {"sources": [{"model": "two", "layer_range": [1, 2]}]},
        ]}},
    },
    "linear": {
        "merge_method": "linear",
        "models": [*_models("one", weight=0.3), *_models("two", weight=[0.2, 0.9])],
    },
    "linear, not normalized": {
        "merge_method": "linear", "models": _models("one", "two", weight=0.3), "parameters": {"normalize": False},
    },
    "slerp": {
        "merge_method": "slerp", "base_model": "one", "models": _models("one", "two"), "parameters": {"t": _T},
    },
    "slerp of slices": {
        "merge_method": "slerp", "base_model": "one", "parameters": {"t": _T},
        "slices": [{"sources": [_source("one", [0, 3]), _source("two", [0, 3])]}],
    },
    "nuslerp": {"merge_method": "nuslerp", "models": [*_models("one", weight=0.4), *_models("two", weight=0.9)]},
    "nuslerp of rows from a base": {
        "merge_method": "nuslerp", "base_model": "base", "models": _models("one", "two", weight=0.4),
        "parameters": {"nuslerp_flatten": False},
    },
    "nuslerp of columns": {
        "merge_method": "nuslerp", "models": _models("one", "two", weight=0.4),
        "parameters": {"nuslerp_flatten": False, "nuslerp_row_wise": True},
    },
    "multislerp": {"merge_method": "multislerp", "models": [*_models("one", weight=0.2), *_models("two", weight=0.7)]},
    "multislerp, weights as given": {
        "merge_method": "multislerp", "models": _models("one", "two", weight=0.4),
        "parameters": {"normalize_weights": False},
    },
    "multislerp from a base": {
        "merge_method": "multislerp", "base_model": "base", "models": _models("one", "two", weight=0.4),
        "parameters": {"eps": 0.01},
    },
    "karcher": {"merge_method": "karcher", "models": _models("one", "two", "base")},
    "karcher, one step": {
        "merge_method": "karcher", "models": _models("one", "two", "base"), "parameters": {"max_iter": 1},
    },
    "karcher, a wide tolerance": {
        "merge_method": "karcher", "models": _models("one", "two", "base"), "parameters": {"tol": 0.9},
    },
    "task_arithmetic": {
        "merge_method": "task_arithmetic", "base_model": "base", "models": _models("one", "two", weight=0.6),
        "parameters": {"lambda": 0.8},
    },
    "task_arithmetic, normalized": {
        "merge_method": "task_arithmetic", "base_model": "base", "models": _models("one", "two", weight=0.6),
        "parameters": {"normalize": True},
    },
    "ties": {"merge_method": "ties", "base_model": "base", "models": _TWO},
    "ties with gradients": {
        "merge_method": "ties", "base_model": "base", "parameters": {"normalize": False, "rescale": True},
        "models": [
            *_models("one", weight=0.6, density=[1, 0.5, 0.1]), *_models("two", weight=[0, 0.7, 1], density=0.3),
        ],
    },
    "breadcrumbs": {
        "merge_method": "breadcrumbs", "base_model": "base", "models": _TWO, "parameters": {"gamma": 0.1},
    },
    "breadcrumbs_ties": {
        "merge_method": "breadcrumbs_ties", "base_model": "base", "models": _TWO, "parameters": {"rescale": True},
    },
    "dare_linear of all": {
        "merge_method": "dare_linear", "base_model": "base", "models": _models("one", "two", weight=0.6, density=1.0),
    },
    "dare_ties of all": {
        "merge_method": "dare_ties", "base_model": "base", "models": _models("one", "two", weight=0.6, density=1.0),
    },
    "della of all": {
        "merge_method": "della", "base_model": "base", "models": _models("one", "two", weight=0.6, density=1.0),
    },
    "della_linear of all": {
        "merge_method": "della_linear", "base_model": "base", "models": _models("one", "two", weight=0.6, density=1.0),
    },
    "model_stock": {"merge_method": "model_stock", "base_model": "base", "models": _models("one", "two")},
    "model_stock of rows": {
        "merge_method": "model_stock", "base_model": "base", "models": _models("one", "two"),
        "parameters": {"filter_wise": True},
    },
    "sce": {"merge_method": "sce", "base_model": "base", "models": _models("one", "two")},
    "sce of some": {
        "merge_method": "sce", "base_model": "base", "models": _models("one", "two"),
        "parameters": {"select_topk": 0.3},
    },
    "nearswap": {
        "merge_method": "nearswap", "base_model": "base", "models": _models("one"), "parameters": {"t": 0.05},
    },
    "arcee_fusion": {"merge_method": "arcee_fusion", "base_model": "base", "models": _models("one")},
    "passthrough": {
        "merge_method": "passthrough",
        "slices": [
            {"sources": [_source("one", [0, 2])]},
            {"sources": [_source("two", [1, 3], scale=[{"filter": "o_proj", "value": 0.5}, {"value": 1.0}])]},
        ],
    },
    "ties of slices": {
        "merge_method": "ties", "base_model": "base",
        "slices": [
            {"sources": [_source("one", [0, 2], **_HALF), _source("two", [1, 3], **_HALF), _source("base", [0, 2])]},
            {"sources": [_source("one", [1, 3], **_HALF), _source("two", [0, 2], **_HALF), _source("base", [1, 3])]},
        ],
    },
}  # fmt: skip

# ------------------------------------------------------------------------------------------------ tokenizers

#: Ordinary tokens of each model, then its added ones with whether they are special, then rows that fill up.
TOKENS: Mapping[str, tuple[list[str], list[tuple[str, bool]], int]] = {
    "base": (["t", "0", "t0", "a", "b", "c"], [("<s>", True)], 0),
    "one": (["0", "t", "t0", "b", "d", "e", "a"], [("<s>", True), ("<|one|>", True), ("[both]", False)], 3),
    "two": (["t", "0", "t0", "c", "e"], [("[both]", False), ("<two>", True)], 0),
}
_LINEAR = [*_models("one", weight=0.3), *_models("two", weight=0.5), *_models("base", weight=0.4)]
_ALL = {"merge_method": "linear", "base_model": "base", "models": _LINEAR}
TOKEN_RECIPES: Mapping[str, Mapping[str, Any]] = {
    "union": {**_ALL, "tokenizer_source": "union"},
    "union without a base": {"merge_method": "linear", "models": _LINEAR, "tokenizer_source": "union"},
    "union of differences": {
        "merge_method": "task_arithmetic", "base_model": "base", "models": _LINEAR[:2], "tokenizer_source": "union",
    },
    "union of a sphere": {
        "merge_method": "slerp", "base_model": "base", "models": _models("two", "base"), "tokenizer_source": "union",
        "parameters": {"t": 0.3},
    },
    "base": {**_ALL, "tokenizer_source": "base"},
    "a model": {**_ALL, "tokenizer_source": "two"},
    "a model, padded": {**_ALL, "tokenizer": {"source": "one", "pad_to_multiple_of": 8}},
    "tokens with sources": {
        **_ALL,
        "tokenizer": {
            "source": "union",
            "tokens": {
                "a": {"source": "one", "force": True},
                "t": {"source": {"kind": "zero"}, "force": True},
                "<s>": {"source": {"kind": "model_token", "model": "two", "token": "<two>"}},
                "<new>": {"source": {"kind": "model_token", "model": "one", "token_id": 4}},
                "e": {"source": {"kind": "zero"}},
            },
        },
    },
}  # fmt: skip


def rows_of(model: str) -> int:
    ordinary, added, padding = TOKENS[model]
    return len(ordinary) + len(added) + padding


def write_models_with_tokens(folder: Path) -> Path:
    for number, (model, (ordinary, added, _)) in enumerate(TOKENS.items()):
        path, rng = folder / model, np.random.default_rng(20 + number)
        path.mkdir(parents=True)
        rows = {n: rng.standard_normal((rows_of(model), 8)) for n in ("model.embed_tokens.weight", "lm_head.weight")}
        values = tensors(model) | {name: value.astype(np.float32) for name, value in rows.items()}
        save_file(values, path / "model.safetensors", {"format": "pt"})
        (path / "config.json").write_text(json.dumps({**CONFIG, "vocab_size": rows_of(model), "bos_token_id": 6}))
        flags = {"single_word": False, "lstrip": False, "rstrip": False}
        entries = [
            {"id": len(ordinary) + n, "content": token, **flags, "normalized": not special, "special": special}
            for n, (token, special) in enumerate(added)
        ]
        step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        bpe = {"type": "BPE", "vocab": {token: n for n, token in enumerate(ordinary)}, "merges": [["t", "0"]]}
        tokenizer = {
            "version": "1.0", "added_tokens": entries, "normalizer": None, "pre_tokenizer": step, "decoder": step,
            "post_processor": step, "model": bpe,
        }  # fmt: skip
        (path / "tokenizer.json").write_text(json.dumps(tokenizer))
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": f"{{{{ '{model[0]}' }}}}"}
        (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
