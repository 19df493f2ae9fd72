"""Qwen 2 with the mixing of RWKV 6 or 7 in the place of attention, written out in torch, apart from the tables under
test. See plain.py. After src/models/rwkv6-base.cpp and rwkv7-base.cpp of llama.cpp b11549."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.oracles.plain import Config, Plain, Weights, rms_norm


def _steps(x: Any) -> Any:
    """The difference of each token's numbers from those of the one before it."""
    import torch

    return torch.cat((torch.zeros_like(x[:1]), x[:-1])) - x


def _linear(x: Any, w: Weights, name: str) -> Any:
    out = x @ w[f"{name}.weight"].T
    return out + w[f"{name}.bias"] if f"{name}.bias" in w else out


def _gated_state(config: Config, w: Weights, x: Any, at: str) -> Any:
    """RWKV 6's mixing, whose state a gate of the decay's complement writes."""
    import torch

    count, heads = len(x), config["num_attention_heads"]
    size = config["hidden_size"] // heads
    before = _steps(x)
    low = torch.tanh((x + before * w[f"{at}.time_maa_x"][0]) @ w[f"{at}.time_maa_w1"])
    more = low.reshape(count, 5, -1).transpose(0, 1) @ w[f"{at}.time_maa_w2"]
    mixed = {p: x + before * (w[f"{at}.time_maa_{p}"][0] + m) for p, m in zip("rkvwg", more, strict=True)}
    q, k, v = (_linear(mixed[p], w, f"{at}.{n}_proj").reshape(count, -1, size) for p, n in ("rq", "kk", "vv"))
    k, v = (t.repeat_interleave(heads // t.shape[1], 1) for t in (k, v))
    decay = torch.tanh(mixed["w"] @ w[f"{at}.time_decay_w1"]) @ w[f"{at}.time_decay_w2"] + w[f"{at}.time_decay"][0]
    decay = torch.exp(-torch.exp(decay)).reshape(count, heads, size)
    k = k * (1 - decay)
    state, rows = torch.zeros(heads, size, size), []
    for t in range(count):
        state = state * decay[t][:, :, None] + k[t][:, :, None] * v[t][:, None]
        rows.append((q[t][:, None] @ state)[:, 0] * size**-0.5)
    gate = _linear(mixed["g"], w, f"{at}.gate").sigmoid()
    return _linear(torch.stack(rows).reshape(count, -1) * gate, w, f"{at}.o_proj")


def _mended_state(config: Config, w: Weights, x: Any, at: str, first: list[Any]) -> Any:
    """RWKV 7's mixing. `first`: the first layer's values, which it adds."""
    import torch
    from torch.nn.functional import normalize

    width, size = config["hidden_size"], config["head_size"]
    heads, before = width // size, _steps(x)
    parts = "rwkvag" if config["wkv_has_gate"] else "rwkva"
    mixed = {p: x + before * w[f"{at}.x_{p}"][0] for p in parts}

    def low_rank(part: str, between: Callable[[Any], Any] = lambda t: t) -> Any:
        return (
            between(mixed[part] @ w[f"{at}.{part}1"]) @ w[f"{at}.{part}2"] + w.get(f"{at}.{part}0", torch.zeros(1))[0]
        )

    names = ("receptance", "key", "value")
    r, k, v = (_linear(mixed[p], w, f"{at}.{name}") for p, name in zip("rkv", names, strict=True))
    if first:
        v = v + (first[0] - v) * low_rank("v").sigmoid()
    else:
        first.append(v)
    decay = torch.exp(-0.606531 * low_rank("w", torch.tanh).sigmoid())
    rate = low_rank("a").sigmoid()
    key = normalize((k * w[f"{at}.k_k"][0]).reshape(-1, heads, size), dim=-1)
    k = k * (1 + (rate - 1) * w[f"{at}.k_a"][0])
    r, k, v, decay, rate = (t.reshape(-1, heads, size) for t in (r, k, v, decay, rate))
    state, rows = torch.zeros(heads, size, size), []
    for t in range(len(x)):
        gone = (state @ -key[t][:, :, None]) @ (key[t] * rate[t])[:, None]
        state = state * decay[t][:, None] + gone + v[t][:, :, None] @ k[t][:, None]
        rows.append((state @ r[t][:, :, None])[..., 0])
    out = torch.stack(rows) + (r * k * w[f"{at}.r_k"]).sum(-1, keepdim=True) * v
    out = out.reshape(-1, width)
    return _linear(out * low_rank("g", torch.sigmoid) if config["wkv_has_gate"] else out, w, f"{at}.output")


def _model(config: Config, w: Weights, ids: Any, mix: Callable[[Any, str], Any]) -> Any:
    from torch.nn.functional import silu

    epsilon = config["rms_norm_eps"]
    x = w["model.embed_tokens.weight"][ids]
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}"
        x = x + mix(rms_norm(x, w[f"{at}.input_layernorm.weight"], epsilon), f"{at}.self_attn")
        normed = rms_norm(x, w[f"{at}.post_attention_layernorm.weight"], epsilon)
        gated = silu(_linear(normed, w, f"{at}.mlp.gate_proj")) * _linear(normed, w, f"{at}.mlp.up_proj")
        x = x + _linear(gated, w, f"{at}.mlp.down_proj")
    return rms_norm(x, w["model.norm.weight"], epsilon) @ w["lm_head.weight"].T


def qrwkv6(config: Config, w: Weights, ids: Any) -> Any:
    return _model(config, w, ids, lambda x, at: _gated_state(config, w, x, at))


def arwkv7(config: Config, w: Weights, ids: Any) -> Any:
    first: list[Any] = []
    return _model(config, w, ids, lambda x, at: _mended_state(config, w, x, f"{at}.time_mixer", first))


MODELS: dict[str, Plain] = {"RWKV6Qwen2ForCausalLM": Plain(qrwkv6), "RwkvHybridForCausalLM": Plain(arwkv7)}
