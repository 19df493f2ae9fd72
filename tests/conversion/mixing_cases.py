"""Recipes of mixtures and the small models that they mix, for mergekit-moe (`record_mixing.py`) and for the tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

CONFIG: Mapping[str, Any] = {
    "vocab_size": 80, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8, "tie_word_embeddings": False, "torch_dtype": "float32",
    "rms_norm_eps": 1e-5, "hidden_act": "silu", "max_position_embeddings": 64, "rope_theta": 10000.0,
    "bos_token_id": 3, "eos_token_id": 4, "pad_token_id": None,
}  # fmt: skip
#: model_type -> class of config.json
DENSE = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM",
         "qwen3": "Qwen3ForCausalLM"}  # fmt: skip
MODELS = ("base", "one", "two", "three")
_VOCAB = ["t", "0", "t0", *(f"x{i}" for i in range(77))]
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_SPECIAL = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
TOKENIZER = {
    "version": "1.0", "normalizer": None, "pre_tokenizer": _BYTES, "decoder": _BYTES, "post_processor": _BYTES,
    "added_tokens": [{"id": n, "content": token, **_SPECIAL} for n, token in enumerate(_VOCAB) if n > 2],
    "model": {"type": "BPE", "vocab": {t: i for i, t in enumerate(_VOCAB)}, "merges": [["t", "0"]]},
}  # fmt: skip


def shapes(kind: str) -> dict[str, tuple[int, ...]]:
    rows: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (80, 16), "model.norm.weight": (16,)}
    parts: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (16, 16), "self_attn.k_proj.weight": (8, 16), "self_attn.v_proj.weight": (8, 16),
        "self_attn.o_proj.weight": (16, 16), "mlp.gate_proj.weight": (24, 16), "mlp.up_proj.weight": (24, 16),
        "mlp.down_proj.weight": (16, 24), "input_layernorm.weight": (16,), "post_attention_layernorm.weight": (16,),
    }  # fmt: skip
    if kind == "qwen2":
        parts |= {"self_attn.q_proj.bias": (16,), "self_attn.k_proj.bias": (8,), "self_attn.v_proj.bias": (8,)}
    if kind == "qwen3":
        parts |= {"self_attn.q_norm.weight": (8,), "self_attn.k_norm.weight": (8,)}
    rows |= {f"model.layers.{n}.{name}": shape for n in range(2) for name, shape in parts.items()}
    return {**rows, "lm_head.weight": (80, 16)}


def tensors(model: str, kind: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(10 + MODELS.index(model))
    return {n: (0.3 * rng.standard_normal(s) + ("norm" in n)).astype(np.float32) for n, s in shapes(kind).items()}


def write_model(folder: Path, values: Mapping[str, np.ndarray], kind: str, config: Mapping[str, Any] = CONFIG) -> Path:
    folder.mkdir(parents=True)
    settings = {**config, "model_type": kind, "architectures": [DENSE[kind]]}
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    texts = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": _VOCAB[3], "eos_token": _VOCAB[4]}
    (folder / "tokenizer_config.json").write_text(json.dumps(texts))
    save_file(dict(values), folder / "model.safetensors", {"format": "pt"})
    return folder


def write_models(folder: Path) -> Path:
    for kind in DENSE:
        for model in MODELS:
            write_model(folder / kind / model, tensors(model, kind), kind)
    return folder


def expert(model: str, *positive: str, **more: Any) -> dict[str, Any]:
    return {"source_model": model, "positive_prompts": list(positive), **more}


THREE = [
    expert("one", "t0t0", "0t"),
    expert("two", "x1x2", negative_prompts=["ttt", "x7"]),
    expert("three", "x40 x50", residual_scale=0.5),
]
#: Name -> the folder of its models, and the recipe.
RECIPES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "mixtral": ("llama", {"base_model": "base", "gate_mode": "cheap_embed", "experts": THREE}),
    "mixtral of mistral, one expert for a token": (
        "mistral", {"base_model": "base", "gate_mode": "cheap_embed", "experts": THREE[:2], "experts_per_token": 1},
    ),
    "deepseek": (
        "llama",
        {"base_model": "base", "gate_mode": "cheap_embed", "experts": THREE, "architecture": "deepseek",
         "shared_experts": [{"source_model": "base", "residual_scale": 0.1}]},
    ),
    "qwen": (
        "qwen2",
        {"base_model": "base", "gate_mode": "cheap_embed", "experts": THREE,
         "shared_experts": [expert("base", "x9", residual_scale=0.2)]},
    ),
    "qwen of llama, which has no biases": (
        "llama",
        {"base_model": "base", "gate_mode": "cheap_embed", "experts": THREE, "architecture": "qwen",
         "shared_experts": [expert("two", "x9", "x9")]},
    ),
    "qwen3": ("qwen3", {"base_model": "base", "gate_mode": "cheap_embed", "experts": THREE}),
    "hidden": ("llama", {"base_model": "base", "gate_mode": "hidden", "experts": THREE}),
}  # fmt: skip
