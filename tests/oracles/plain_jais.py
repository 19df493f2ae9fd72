"""Jais written out in torch, apart from the table under test. See plain.py."""

from __future__ import annotations

from typing import Any

from tests.oracles.plain import Config, Plain, Weights


def _normed(x: Any, w: Weights, name: str, epsilon: float) -> Any:
    from torch.nn.functional import layer_norm

    return layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], epsilon)


def _conv(x: Any, w: Weights, name: str) -> Any:
    return x @ w[f"{name}.weight"] + w[f"{name}.bias"]


def jais(config: Config, w: Weights, ids: Any) -> Any:
    """modeling_jais.py: the slopes are tensors of the files, attention is divided by a head's width."""
    import torch
    from torch.nn.functional import silu

    count, heads, epsilon = len(ids), config["n_head"], config["layer_norm_epsilon"]
    embedding = config.get("mup_embeddings_scale", config.get("embeddings_scale"))
    alpha = config.get("mup_output_alpha")
    output = config["width_scale"] if alpha is None else alpha * config["mup_width_scale"]
    distance = torch.arange(count)[None, :] - torch.arange(count)[:, None]
    bias = w["transformer.relative_pe.slopes"].reshape(heads, 1, 1) * distance
    bias = bias + torch.full((count, count), float("-inf")).triu(1)
    x = w["transformer.wte.weight"][ids] * embedding
    for i in range(config["n_layer"]):
        at = f"transformer.h.{i}"
        qkv = _conv(_normed(x, w, f"{at}.ln_1", epsilon), w, f"{at}.attn.c_attn").chunk(3, -1)
        q, k, v = (t.reshape(count, heads, -1).transpose(0, 1) for t in qkv)
        made = ((q @ k.mT / q.shape[-1] + bias).softmax(-1) @ v).transpose(0, 1).reshape(count, -1)
        x = x + _conv(made, w, f"{at}.attn.c_proj")
        normed = _normed(x, w, f"{at}.ln_2", epsilon)
        gated = _conv(normed, w, f"{at}.mlp.c_fc") * silu(_conv(normed, w, f"{at}.mlp.c_fc2"))
        x = x + _conv(gated, w, f"{at}.mlp.c_proj")
    head = w["lm_head.weight" if "lm_head.weight" in w else "transformer.wte.weight"]
    return _normed(x, w, "transformer.ln_f", epsilon) @ head.T * output


MODELS: dict[str, Plain] = {"JAISLMHeadModel": Plain(jais)}
