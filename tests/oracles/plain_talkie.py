"""Talkie written out in torch, apart from the table under test. See plain.py."""

from __future__ import annotations

from typing import Any

from tests.oracles.plain import Config, Plain, Weights


def _normed(x: Any) -> Any:
    """A norm without weights, with the epsilon that torch takes by itself."""
    from torch.nn.functional import rms_norm

    return rms_norm(x, x.shape[-1:])


def _turned(x: Any, theta: float) -> Any:
    """The rotary embedding of [heads, tokens, width] in the other direction."""
    import torch

    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[1])[:, None] / theta ** (torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angles.cos() + b * angles.sin(), b * angles.cos() - a * angles.sin()), -1)


def talkie(config: Config, w: Weights, ids: Any) -> Any:
    """modeling_talkie.py of lewtun/talkie-1930-13b-it-hf; mlx-lm's talkie.py computes the same."""
    from torch.nn.functional import scaled_dot_product_attention, silu

    heads, theta = config["num_attention_heads"], config["rope_theta"]
    x = first = _normed(w["model.embed.weight"][ids])
    for i in range(config["num_hidden_layers"]):
        at = f"model.blocks.{i}"
        normed = _normed(x)
        q, k, v = (
            (normed @ w[f"{at}.attn.attn_{part}.weight"].T).reshape(len(ids), heads, -1).transpose(0, 1)
            for part in ("query", "key", "value")
        )
        q, k = (_normed(_turned(t, theta)) for t in (q, k))
        q = q * w[f"{at}.attn.head_gain.head_g"][:, None, None]
        made = scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
        made = made.transpose(0, 1).reshape(len(ids), -1) @ w[f"{at}.attn.attn_resid.weight"].T
        x = x + made * w[f"{at}.attn_gain.a_g"]
        normed = _normed(x)
        gate, up, down = (w[f"{at}.mlp.mlp_{part}.weight"].T for part in ("gate", "linear", "resid"))
        x = x + (silu(normed @ gate) * (normed @ up)) @ down * w[f"{at}.mlp_gain.a_g"]
        x = x + first * w[f"{at}.embed_skip.a_g"]
    return _normed(x) @ w["lm_head"].T * w["lm_head_gain.w_g"]


MODELS: dict[str, Plain] = {"TalkieForCausalLM": Plain(talkie)}
