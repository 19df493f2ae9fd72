"""Granite Switch written out in torch, apart from the table under test. See plain.py."""

from __future__ import annotations

from typing import Any

from tests.oracles.plain import Config, Plain, Weights, rms_norm, rotate


def _slots(config: Config, ids: Any) -> Any:
    """Of each token the adapter that is on, 0 for none: attention of one head, whose keys are the gain for a token that
    switches an adapter on and minus the gain for others, and whose values are the adapters' numbers."""
    import torch

    numbers = {token: n for n, token in enumerate(config["adapter_token_ids"], 1)}
    values = torch.tensor([float(numbers.get(int(token), 0)) for token in ids])
    scores = torch.where(values > 0, 1.0, -1.0) * config.get("control_token_gain", 15.0)
    seen = scores[None].repeat(len(ids), 1) + torch.full((len(ids), len(ids)), float("-inf")).triu(1)
    return (seen.softmax(-1) @ values).round().long()


def _adapted(x: Any, w: Weights, at: str, slots: Any, ends: tuple[str, ...]) -> Any:
    """A matrix of several parts and each part's adapter, token by token."""
    import torch

    parts = []
    for end in ends:
        a, b = w[f"{at}.lora_A{end}"][:, 0], w[f"{at}.lora_B{end}"][:, 0]
        made = [b[n - 1] @ (a[n - 1] @ row) if n else row.new_zeros(len(b[0])) for row, n in zip(x, slots, strict=True)]
        parts.append(torch.stack(made))
    return x @ w[f"{at}.base_layer.weight"].T + torch.cat(parts, -1)


def switch(config: Config, w: Weights, ids: Any) -> Any:
    """src/models/granite-switch.cpp of llama.cpp b11549."""
    from torch.nn.functional import scaled_dot_product_attention, silu

    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    width, epsilon, slots = config["hidden_size"] // heads, config["rms_norm_eps"], _slots(config, ids)
    other = dict(zip(config["adapter_token_ids"], config["adapter_substitute_token_ids"], strict=True))
    slices = tuple(f"_slices.{n}" for n in range(3))
    x = w["model.embed_tokens.weight"][[other.get(int(i), int(i)) for i in ids]] * config["embedding_multiplier"]
    for layer in range(config["num_hidden_layers"] - 1):
        at = f"model.layers.{layer}"
        normed = rms_norm(x, w[f"{at}.input_layernorm.weight"], epsilon)
        qkv = _adapted(normed, w, f"{at}.self_attn.qkv_proj", slots, slices)
        q, k, v = (
            t.reshape(len(ids), -1, width).transpose(0, 1)
            for t in qkv.split((heads * width, groups * width, groups * width), -1)
        )
        q, k = rotate(q, config["rope_theta"]), rotate(k, config["rope_theta"])
        made = scaled_dot_product_attention(
            q[None], k[None], v[None], is_causal=True, enable_gqa=True, scale=config["attention_multiplier"]
        )[0]
        made = made.transpose(0, 1).reshape(len(ids), -1)
        x = x + _adapted(made, w, f"{at}.self_attn.o_proj", slots, ("",)) * config["residual_multiplier"]
        normed = rms_norm(x, w[f"{at}.post_attention_layernorm.weight"], epsilon)
        gate, up = _adapted(normed, w, f"{at}.shared_mlp.input_linear", slots, slices[:2]).chunk(2, -1)
        made = _adapted(silu(gate) * up, w, f"{at}.shared_mlp.output_linear", slots, ("",))
        x = x + made * config["residual_multiplier"]
    normed = rms_norm(x, w["model.norm.weight"], epsilon)
    return normed @ w["model.embed_tokens.weight"].T / config["logits_scaling"]


MODELS: dict[str, Plain] = {"GraniteSwitchForCausalLM": Plain(switch)}
