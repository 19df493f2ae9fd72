"""Models whose config's multipliers are in the weights of their GGUF, and of most folders that come back from it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_ONES = ("attention_in", "attention_out", "embedding", "key", "lm_head", "ssm_in", "ssm_out")


def of(tensors: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """A model's tensors under which it computes the same with every multiplier 1."""
    return {"falcon_h1": falcon_h1, "jais": jais, "dots3_note_text": dots3_note}[config["model_type"]](tensors, config)


def dots3_note(tensors: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """Norms of latent vectors times the factor by which these are rescaled, and over it again."""
    out = dict(tensors)
    for name, tensor in tensors.items():
        if name.endswith(("q_a_layernorm.weight", "kv_a_layernorm.weight")):
            factor = (config["hidden_size"] / len(tensor)) ** 0.5
            out[name] = tensor * factor / factor
    return out


def jais(tensors: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """The factors of a Jais's embedding and logits, the latter's one number, in the matrices (modeling_jais.py)."""
    embedding = config.get("mup_embeddings_scale", config.get("embeddings_scale"))
    output = config.get("width_scale") or config["mup_output_alpha"] * config["mup_width_scale"]
    own = tensors["transformer.wte.weight"]
    head = tensors.get("lm_head.weight", own)
    return tensors | {"transformer.wte.weight": own * embedding, "lm_head.weight": head * output}


def falcon_h1(tensors: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """Tensors of a Falcon-H1 under which it computes the same with every multiplier 1: each activation's number moved
    into the matrix before or behind it (transformers 5.23, modeling_falcon_h1.py), one number after another."""
    by = {key: float(config[f"{key}_multiplier"]) for key in _ONES}
    gate, down = config["mlp_multipliers"]
    heights = [config["mamba_d_ssm"]] * 2 + [config["mamba_n_groups"] * config["mamba_d_state"]] * 2
    parts = [*heights, config["mamba_n_heads"]]
    whole = {
        "embed_tokens.weight": (by["embedding"],),
        "lm_head.weight": (by["lm_head"],),
        "q_proj.weight": (by["attention_in"],),
        "k_proj.weight": (by["key"], by["attention_in"]),
        "v_proj.weight": (by["attention_in"],),
        "o_proj.weight": (by["attention_out"],),
        "in_proj.weight": (by["ssm_in"],),
        "out_proj.weight": (by["ssm_out"],),
        "gate_proj.weight": (gate,),
        "down_proj.weight": (down,),
    }
    out = {}
    for name, tensor in tensors.items():
        last = ".".join(name.split(".")[-2:])
        for factor in whole.get(last, ()):
            tensor = tensor * factor
        if last == "in_proj.weight":
            for part, factor in zip(tensor.split(parts), config["ssm_multipliers"], strict=True):
                part *= factor
        out[name] = tensor
    return out


def with_ones(arrays: dict[str, Any], config: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arrays of a Falcon-H1 with all multipliers, and its config without."""
    import torch

    held = falcon_h1({name: torch.from_numpy(array.copy()) for name, array in arrays.items()}, config)
    lists = {key: [1.0] * len(config[key]) for key in ("ssm_multipliers", "mlp_multipliers")}
    ones = {**config, **{f"{key}_multiplier": 1.0 for key in _ONES}, **lists}
    return {name: tensor.numpy() for name, tensor in held.items()}, ones


def at_length_1(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Baichuan 2's output as llama.cpp's own instructions want it before it is converted: each row over its length."""
    return rows / np.sqrt(np.square(rows, dtype=np.float64).sum(axis=1, keepdims=True)).astype(np.float32)


def spread(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """A matrix of BitNet that comes back from a GGUF, which has it rounded to its mean magnitude: three values whose
    mean magnitude is that of the matrix."""
    mean = np.abs(matrix).mean(dtype=np.float64)
    signs = np.clip(np.rint(matrix / mean), -1, 1)
    return (signs * mean / np.abs(signs).mean()).astype(np.float32)
