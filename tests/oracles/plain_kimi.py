"""Kimi K3 written out in torch, apart from the table under test. See plain.py."""

from __future__ import annotations

from typing import Any

from tests.oracles.plain import Config, Plain, Weights, rms_norm

_OWN_EPSILON = 1e-6  # of the norms inside the latent attention, and of the lengths of keys


def _situ(config: Config, gate: Any, up: Any) -> Any:
    beta, linear = config["activation_situ_beta"], config["activation_situ_linear_beta"]
    return beta * (gate / beta).tanh() * gate.sigmoid() * linear * (up / linear).tanh()


def _mlp(config: Config, x: Any, w: Weights, names: tuple[str, str, str]) -> Any:
    gate, up, down = (w[f"{name}.weight"] for name in names)
    return _situ(config, x @ gate.T, x @ up.T) @ down.T


def _convolved(x: Any, kernel: Any) -> Any:
    """A causal convolution of each channel, and SiLU. [tokens, channels]"""
    from torch.nn.functional import conv1d, pad, silu

    return silu(conv1d(pad(x.T, (kernel.shape[-1] - 1, 0)), kernel, groups=len(kernel)).T)


def _delta(config: Config, x: Any, w: Weights, at: str) -> Any:
    """Kimi's delta attention, token by token: a state [heads, key, value] that forgets by channel of the key; behind it
    a gate of full rank."""
    import torch

    own, count = config["linear_attn_config"], len(x)
    heads, width = own["num_heads"], own["head_dim"]

    def projected(part: str) -> Any:
        made = _convolved(x @ w[f"{at}.{part}_proj.weight"].T, w[f"{at}.{part}_conv1d.weight"])
        return made.reshape(count, heads, width)

    q, k, v = projected("q"), projected("k"), projected("v")
    q, k = (t * (t.square().sum(-1, keepdim=True) + _OWN_EPSILON).rsqrt() for t in (q, k))
    raw = x @ w[f"{at}.f_a_proj.weight"].T @ w[f"{at}.f_b_proj.weight"].T + w[f"{at}.dt_bias"]
    rate = w[f"{at}.A_log"][:heads, None].exp()
    decay = (own["gate_lower_bound"] * (rate * raw.reshape(count, heads, width)).sigmoid()).exp()
    beta = (x @ w[f"{at}.b_proj.weight"].T).sigmoid()
    state, out = torch.zeros(heads, width, width), []
    for t in range(count):
        state = state * decay[t, :, :, None]
        error = v[t] - torch.einsum("hkv,hk->hv", state, k[t])
        state = state + torch.einsum("hk,hv->hkv", k[t], error * beta[t, :, None])
        out.append(torch.einsum("hkv,hk->hv", state, q[t]) * width**-0.5)
    normed = rms_norm(torch.stack(out), w[f"{at}.o_norm.weight"], config["rms_norm_eps"])
    gate = (x @ w[f"{at}.g_proj.weight"].T).sigmoid()
    return (normed.reshape(count, -1) * gate) @ w[f"{at}.o_proj.weight"].T


def _latent(config: Config, x: Any, w: Weights, at: str) -> Any:
    """Latent attention without rotation, behind a gate."""
    import torch

    heads, nope, rank = config["num_attention_heads"], config["qk_nope_head_dim"], config["kv_lora_rank"]
    small = rms_norm(x @ w[f"{at}.q_a_proj.weight"].T, w[f"{at}.q_a_layernorm.weight"], _OWN_EPSILON)
    q = (small @ w[f"{at}.q_b_proj.weight"].T).reshape(len(x), heads, -1).transpose(0, 1)
    latent, shared = (x @ w[f"{at}.kv_a_proj_with_mqa.weight"].T).tensor_split([rank], -1)
    made = rms_norm(latent, w[f"{at}.kv_a_layernorm.weight"], _OWN_EPSILON) @ w[f"{at}.kv_b_proj.weight"].T
    k, v = made.reshape(len(x), heads, -1).transpose(0, 1).tensor_split([nope], -1)
    k = torch.cat([k, shared.expand(heads, *shared.shape)], -1)
    seen = torch.full((len(x), len(x)), -torch.inf).triu(1)
    out = (q @ k.mT * q.shape[-1] ** -0.5 + seen).softmax(-1) @ v
    gate = (x @ w[f"{at}.g_proj.weight"].T).sigmoid()
    return (out.transpose(0, 1).reshape(len(x), -1) * gate) @ w[f"{at}.o_proj.weight"].T


def _experts(config: Config, x: Any, w: Weights, at: str) -> Any:
    """Experts in a narrower space, and shared ones outside of it."""
    import torch

    scores = (x @ w[f"{at}.gate.weight"].T).sigmoid()
    chosen = (scores + w[f"{at}.gate.e_score_correction_bias"]).topk(config["num_experts_per_token"]).indices
    shares = scores.gather(1, chosen)
    shares = shares / shares.sum(-1, keepdim=True) * config["routed_scaling_factor"]
    narrow = x @ w[f"{at}.routed_expert_down_proj.weight"].T
    made = torch.zeros_like(narrow)
    for t, (numbers, own) in enumerate(zip(chosen.tolist(), shares, strict=True)):
        for e, share in zip(numbers, own, strict=True):
            expert = f"{at}.experts.{e}"
            made[t] += share * _mlp(config, narrow[t], w, (f"{expert}.w1", f"{expert}.w3", f"{expert}.w2"))
    made = rms_norm(made, w[f"{at}.routed_expert_norm.weight"], config["rms_norm_eps"])
    shared = tuple(f"{at}.shared_experts.{name}_proj" for name in ("gate", "up", "down"))
    return made @ w[f"{at}.routed_expert_up_proj.weight"].T + _mlp(config, x, w, shared)  # type: ignore[arg-type]


def _mixed(config: Config, blocks: list[Any], current: Any, w: Weights, at: str) -> Any:
    """The states before each block and the current one, weighted by a score of each."""
    import torch

    if not blocks:
        return current
    states = torch.stack([*blocks, current])
    scores = rms_norm(states, w[f"{at}_norm.weight"], config["rms_norm_eps"]) @ w[f"{at}_proj.weight"][0]
    return (scores.softmax(0)[..., None] * states).sum(0)


def kimi_k3(config: Config, weights: Weights, ids: Any) -> Any:
    """modeling_kimi_linear.py of moonshotai/Kimi-K3; mlx-lm's kimi_k3.py computes the same."""
    text, start = config["text_config"], "language_model."
    w = {name.removeprefix(start): tensor for name, tensor in weights.items()}
    epsilon, full = text["rms_norm_eps"], text["linear_attn_config"]["full_attn_layers"]
    x, blocks = w["model.embed_tokens.weight"][ids], list[Any]()
    for i in range(text["num_hidden_layers"]):
        at = f"model.layers.{i}"
        mixed = _mixed(text, blocks, x, w, f"{at}.self_attention_res")
        begins = i % text["attn_res_block_size"] == 0
        blocks += [x] if begins else []
        attend = _latent if i + 1 in full else _delta
        made = attend(text, rms_norm(mixed, w[f"{at}.input_layernorm.weight"], epsilon), w, f"{at}.self_attn")
        x = made if begins else x + made
        mixed = _mixed(text, blocks, x, w, f"{at}.mlp_res")
        mixed = rms_norm(mixed, w[f"{at}.post_attention_layernorm.weight"], epsilon)
        dense = i < text["first_k_dense_replace"]
        names = (f"{at}.mlp.gate_proj", f"{at}.mlp.up_proj", f"{at}.mlp.down_proj")
        x = x + (_mlp(text, mixed, w, names) if dense else _experts(text, mixed, w, f"{at}.block_sparse_moe"))
    x = _mixed(text, blocks, x, w, "model.output_attn_res")
    return rms_norm(x, w["model.norm.weight"], epsilon) @ w["lm_head.weight"].T


MODELS: dict[str, Plain] = {"KimiK3ForConditionalGeneration": Plain(kimi_k3)}
