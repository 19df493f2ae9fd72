"""ruGPT-3 XL written out in torch, apart from the table under test. See plain.py."""

from __future__ import annotations

from typing import Any

from tests.oracles.plain import Config, Plain, Weights


def rugpt3xl(config: Config, w: Weights, ids: Any) -> Any:
    """modeling_rugpt3xl.py of evilfreelancer/ruGPT3XL, with dense attention, which is that of its sparse layers for a
    text within one window of blocks."""
    from torch.nn.functional import gelu, layer_norm, scaled_dot_product_attention

    def linear(x: Any, name: str) -> Any:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x: Any, name: str) -> Any:
        return layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], config["layer_norm_eps"])

    count, heads = len(ids), config["num_attention_heads"]
    x = w["model.embed_tokens.weight"][ids] + w["model.embed_positions.weight"][:count]
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}"
        normed = norm(x, f"{at}.input_layernorm")
        q, k, v = (linear(normed, f"{at}.self_attn.{p}_proj").reshape(count, heads, -1).transpose(0, 1) for p in "qkv")
        made = scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
        x = x + linear(made.transpose(0, 1).reshape(count, -1), f"{at}.self_attn.o_proj")
        normed = norm(x, f"{at}.post_attention_layernorm")
        x = x + linear(gelu(linear(normed, f"{at}.mlp.up_proj"), approximate="tanh"), f"{at}.mlp.down_proj")
    return norm(x, "model.norm") @ w["lm_head.weight"].T


MODELS: dict[str, Plain] = {"RuGPT3XLForCausalLM": Plain(rugpt3xl)}
