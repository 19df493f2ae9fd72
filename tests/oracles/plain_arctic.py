"""Arctic written out in torch, apart from the table under test. See plain.py."""

from __future__ import annotations

from typing import Any

from tests.oracles.plain import Config, Plain, Weights, rms_norm, rotate


def _gated(x: Any, w: Weights, at: str) -> Any:
    from torch.nn.functional import silu

    gate, up, down = (w[f"{at}.{name}.weight"].T for name in ("w1", "w3", "w2"))
    return (silu(x @ gate) * (x @ up)) @ down


def _experts(config: Config, x: Any, w: Weights, at: str) -> Any:
    import torch

    shares, chosen = (x @ w[f"{at}.gate.weight"].T).softmax(-1).topk(config["num_experts_per_tok"])
    shares = shares / shares.sum(-1, keepdim=True)
    made = torch.zeros_like(x)
    for t, (numbers, own) in enumerate(zip(chosen.tolist(), shares, strict=True)):
        made[t] = sum(share * _gated(x[t], w, f"{at}.experts.{e}") for e, share in zip(numbers, own, strict=True))
    return made


def arctic(config: Config, w: Weights, ids: Any) -> Any:
    """modeling_arctic.py of snowflake-arctic-instruct: the experts take what the attention takes, under their norm."""
    from torch.nn.functional import scaled_dot_product_attention

    epsilon, theta = config["rms_norm_eps"], config["rope_theta"]
    width = config["hidden_size"] // config["num_attention_heads"]
    x = w["model.embed_tokens.weight"][ids]
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}"
        normed = rms_norm(x, w[f"{at}.input_layernorm.weight"], epsilon)
        q, k, v = (
            (normed @ w[f"{at}.self_attn.{part}_proj.weight"].T).reshape(len(ids), -1, width).transpose(0, 1)
            for part in "qkv"
        )
        q, k = rotate(q, theta), rotate(k, theta)
        made = scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, enable_gqa=True)[0]
        attended = x + made.transpose(0, 1).reshape(len(ids), -1) @ w[f"{at}.self_attn.o_proj.weight"].T
        dense = _gated(rms_norm(attended, w[f"{at}.residual_layernorm.weight"], epsilon), w, f"{at}.residual_mlp")
        normed = rms_norm(x, w[f"{at}.post_attention_layernorm.weight"], epsilon)
        x = attended + dense + _experts(config, normed, w, f"{at}.block_sparse_moe")
    return rms_norm(x, w["model.norm.weight"], epsilon) @ w["lm_head.weight"].T


MODELS: dict[str, Plain] = {"ArcticForCausalLM": Plain(arctic)}
