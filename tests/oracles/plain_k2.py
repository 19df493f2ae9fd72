"""K2 Horizon written out in torch, apart from the table under test. See plain.py."""

from __future__ import annotations

from typing import Any

from tests.oracles.plain import Config, Plain, Weights


def _normed(x: Any, groups: int, epsilon: float) -> Any:
    """x over the root mean square of each of so many groups of its width."""
    parts = x.reshape(*x.shape[:-1], groups, -1)
    return (parts * (parts.square().mean(-1, keepdim=True) + epsilon).rsqrt()).reshape(x.shape)


def _turned(x: Any, config: Config) -> Any:
    """The rotary embedding of the first part of each head of [heads, tokens, width]."""
    import torch

    width = config.get("rope_head_dim") or x.shape[-1]
    half = width // 2
    angles = torch.arange(x.shape[1])[:, None] / config["rope_theta"] ** (torch.arange(half) / half)
    a, b, rest = x[..., :half], x[..., half:width], x[..., width:]
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin(), rest), -1)


def _shares(x: Any, config: Config, w: Weights, at: str, used: int) -> Any:
    """[tokens, experts]: the share of each chosen expert, 0 of the others. A bias only chooses."""
    import torch

    scores = x @ w[f"{at}.weight"].T
    scores = scores.sigmoid() if config.get("scoring_func", "sigmoid") == "sigmoid" else scores.softmax(-1)
    chosen = (scores + w.get(f"{at}.bias", 0)).topk(used).indices
    shares = torch.zeros_like(scores).scatter(-1, chosen, scores.gather(-1, chosen))
    if config["norm_topk_prob"]:
        shares = shares / shares.sum(-1, keepdim=True)
    return shares * config.get("router_scaling_factor", 1.0)


def _swiglu(x: Any, w: Weights, at: str) -> Any:
    from torch.nn.functional import silu

    gate, up, down = (w[f"{at}.{part}_proj.weight"].T for part in ("gate", "up", "down"))
    return (silu(x @ gate) * (x @ up)) @ down


def _values(x: Any, config: Config, w: Weights, at: str) -> Any:
    from torch.nn.functional import silu

    if f"{at}.v_proj.weight" in w:
        return x @ w[f"{at}.v_proj.weight"].T
    shares = _shares(x, config, w, f"{at}.v_router", config["mova_num_experts_per_tok"])
    made = (silu(x @ w[f"{at}.v_experts.{e}.weight"].T) * shares[:, e, None] for e in range(shares.shape[1]))
    return sum(made)


def _attended(x: Any, config: Config, w: Weights, at: str) -> Any:
    from torch.nn.functional import scaled_dot_product_attention

    count, width = len(x), config["head_dim"]
    q, k = (x @ w[f"{at}.{part}_proj.weight"].T for part in "qk")
    if f"{at}.q_norm.weight" in w:
        q, k = (
            _normed(t, t.shape[-1] // width, config["rms_norm_eps"]) * w[f"{at}.{part}_norm.weight"]
            for t, part in ((q, "q"), (k, "k"))
        )
    q, k, v = (t.reshape(count, -1, width).transpose(0, 1) for t in (q, k, _values(x, config, w, at)))
    q, k = _turned(q, config), _turned(k, config)
    made = scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, enable_gqa=True)[0]
    made = made.transpose(0, 1).reshape(count, -1)
    if f"{at}.attn_gate_proj.weight" in w:
        gate = x @ w[f"{at}.attn_gate_proj.weight"].T
        made = made * (1 + 2**gate).log2()
    return made @ w[f"{at}.o_proj.weight"].T


def k2_horizon(config: Config, w: Weights, ids: Any) -> Any:
    """src/models/k2-horizon.cpp of llama.cpp b11549; the publisher's code isn't public in transformers."""
    groups, epsilon = config["layernorm_num_groups"], config["rms_norm_eps"]
    x = w["model.embed_tokens.weight"][ids]
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}"
        normed = _normed(x, groups, epsilon) * w[f"{at}.input_layernorm.weight"]
        x = x + _attended(normed, config, w, f"{at}.self_attn")
        normed = _normed(x, groups, epsilon) * w[f"{at}.post_attention_layernorm.weight"]
        if f"{at}.mlp.gate.weight" not in w:
            x = x + _swiglu(normed, w, f"{at}.mlp")
            continue
        shares = _shares(normed, config, w, f"{at}.mlp.gate", config["num_experts_per_tok"])
        experts = range(shares.shape[1])
        x = x + sum(_swiglu(normed, w, f"{at}.mlp.experts.{e}") * shares[:, e, None] for e in experts)
        if f"{at}.mlp.shared_experts.up_proj.weight" in w:
            x = x + _swiglu(normed, w, f"{at}.mlp.shared_experts")
    normed = _normed(x, groups, epsilon) * w["model.norm.weight"]
    head = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    return normed @ w[head].T


MODELS: dict[str, Plain] = {"K2HorizonForCausalLM": Plain(k2_horizon)}
