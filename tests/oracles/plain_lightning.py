"""MiniMax Text-01 and M1 written out in torch, apart from the table under test. See plain.py."""

from __future__ import annotations

from typing import Any

from tests.oracles.plain import Config, Plain, Weights, rms_norm, rotate


def _lightning(config: Config, x: Any, w: Weights, at: str, layer: int) -> Any:
    """Linear attention, token by token: a state [heads, key, value] that forgets at a rate of each head and layer."""
    import torch
    from torch.nn.functional import silu

    heads, count = config["num_attention_heads"], len(x)
    made = silu(x @ w[f"{at}.qkv_proj.weight"].T).reshape(count, heads, -1)
    q, k, v = made.chunk(3, -1)
    slopes = 2.0 ** (-8.0 / heads * torch.arange(1, heads + 1))
    decay = (-slopes * (1 - layer / (config["num_hidden_layers"] - 1) + 1e-5)).exp()
    state, out = torch.zeros(heads, q.shape[-1], q.shape[-1]), []
    for t in range(count):
        state = state * decay[:, None, None] + k[t, :, :, None] * v[t, :, None]
        out.append(torch.einsum("hk,hkv->hv", q[t], state).flatten())
    normed = rms_norm(torch.stack(out), w[f"{at}.norm.weight"], config["rms_norm_eps"])
    gate = (x @ w[f"{at}.output_gate.weight"].T).sigmoid()
    return (gate * normed) @ w[f"{at}.out_proj.weight"].T


def _softmax(config: Config, x: Any, w: Weights, at: str) -> Any:
    """Attention of which the first part of each head rotates."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    turns, theta = config["rotary_dim"], config["rope_theta"]
    q, k, v = (
        (x @ w[f"{at}.{part}_proj.weight"].T).reshape(len(x), -1, config["head_dim"]).transpose(0, 1) for part in "qkv"
    )
    q, k = (torch.cat([rotate(t[..., :turns], theta), t[..., turns:]], -1) for t in (q, k))
    out = scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, enable_gqa=True)[0]
    return out.transpose(0, 1).reshape(len(x), -1) @ w[f"{at}.o_proj.weight"].T


def _experts(config: Config, x: Any, w: Weights, at: str) -> Any:
    """Mixtral's: the chosen experts' shares add up to one."""
    import torch
    from torch.nn.functional import silu

    shares, chosen = (x @ w[f"{at}.gate.weight"].T).softmax(-1).topk(config["num_experts_per_tok"])
    shares = shares / shares.sum(-1, keepdim=True)
    made = torch.zeros_like(x)
    for t, (numbers, own) in enumerate(zip(chosen.tolist(), shares, strict=True)):
        for e, share in zip(numbers, own, strict=True):
            gate, up, down = (w[f"{at}.experts.{e}.{name}.weight"] for name in ("w1", "w3", "w2"))
            made[t] += share * (silu(x[t] @ gate.T) * (x[t] @ up.T)) @ down.T
    return made


def minimax(config: Config, w: Weights, ids: Any) -> Any:
    """modeling_minimax_text_01.py: each part adds to its norm's result, times a factor (`postnorm`)."""
    epsilon = config["rms_norm_eps"]
    x = w["model.embed_tokens.weight"][ids]
    for i, attends in enumerate(config["attn_type_list"]):
        at = f"model.layers.{i}"
        normed = rms_norm(x, w[f"{at}.input_layernorm.weight"], epsilon)
        own = f"{at}.self_attn"
        made = _softmax(config, normed, w, own) if attends else _lightning(config, normed, w, own, i)
        kind = "full" if attends else "linear"
        x = normed * config[f"layernorm_{kind}_attention_alpha"] + made
        normed = rms_norm(x, w[f"{at}.post_attention_layernorm.weight"], epsilon)
        x = normed * config["layernorm_mlp_alpha"] + _experts(config, normed, w, f"{at}.block_sparse_moe")
    return rms_norm(x, w["model.norm.weight"], epsilon) @ w["lm_head.weight"].T


MODELS: dict[str, Plain] = {name: Plain(minimax) for name in ("MiniMaxText01ForCausalLM", "MiniMaxM1ForCausalLM")}
