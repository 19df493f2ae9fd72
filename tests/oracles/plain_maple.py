"""Maple, written out in torch: a Qwen 3 MoE whose layers with a window alone rotate, and whose experts are clamped."""

from __future__ import annotations

from typing import Any

from tests.oracles.plain import Config, Plain, Weights

_LIMIT = 7.0


def _norm(x: Any, weight: Any, epsilon: float) -> Any:
    return x * (x.square().mean(-1, keepdim=True) + epsilon).rsqrt() * weight


def _attention(x: Any, config: Config, w: Weights, at: str, windowed: bool) -> Any:
    import torch

    width, epsilon, count = config["head_dim"], config["rms_norm_eps"], len(x)
    q, k, v = ((x @ w[f"{at}.{part}_proj.weight"].T).view(count, -1, width).transpose(0, 1) for part in "qkv")
    q, k = (_norm(t, w[f"{at}.{part}_norm.weight"], epsilon) for t, part in ((q, "q"), (k, "k")))
    places = torch.arange(count)
    seen = places[:, None] >= places[None]
    if windowed:
        half = width // 2
        turns = places[:, None] * config["rope_theta"] ** (-torch.arange(half) / half)
        cos, sin = turns.cos().repeat(1, 2), turns.sin().repeat(1, 2)
        q, k = (t * cos + torch.cat([-t[..., half:], t[..., :half]], -1) * sin for t in (q, k))
        seen &= places[:, None] - places[None] < config["sliding_window"]
    groups = len(q) // len(k)
    k, v = (t.repeat_interleave(groups, 0) for t in (k, v))
    scores = (q @ k.mT / width**0.5).masked_fill(~seen, float("-inf")).softmax(-1)
    return (scores @ v).transpose(0, 1).reshape(count, -1) @ w[f"{at}.o_proj.weight"].T


def _experts(x: Any, config: Config, w: Weights, at: str) -> Any:
    import torch
    from torch.nn.functional import silu

    shares = (x @ w[f"{at}.gate.weight"].T).softmax(-1)
    best, chosen = shares.topk(config["num_experts_per_tok"])
    best = best / best.sum(-1, keepdim=True)
    out = torch.zeros_like(x)
    for e in range(config["num_experts"]):
        gate, up, down = (w[f"{at}.experts.{e}.{part}_proj.weight"].T for part in ("gate", "up", "down"))
        one = (silu((x @ gate).clamp(max=_LIMIT)) * (x @ up).clamp(-_LIMIT, _LIMIT)) @ down
        out += one * (best * (chosen == e)).sum(-1, keepdim=True)
    return out


def _maple(config: Config, w: Weights, ids: Any) -> Any:
    epsilon = config["rms_norm_eps"]
    x = w["model.embed_tokens.weight"][ids]
    for i, kind in enumerate(config["layer_types"]):
        at = f"model.layers.{i}"
        normed = _norm(x, w[f"{at}.input_layernorm.weight"], epsilon)
        x = x + _attention(normed, config, w, f"{at}.self_attn", kind == "sliding_attention")
        x = x + _experts(_norm(x, w[f"{at}.post_attention_layernorm.weight"], epsilon), config, w, f"{at}.mlp")
    return _norm(x, w["model.norm.weight"], epsilon) @ w["lm_head.weight"].T


MODELS = {"MapleForCausalLM": Plain(_maple)}
