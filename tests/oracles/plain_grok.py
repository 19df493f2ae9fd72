"""Grok 1 and 2 written out in torch, apart from the tables under test. See plain.py."""

from __future__ import annotations

from typing import Any

from tests.oracles.plain import Config, Plain, Weights, rms_norm

# A layer's parts in each class: norms in their order, q, k, v, o, the router, an expert's front, gate, up, down.
_TWO = (
    "model.layers.{}.", ("pre_attn_norm", "post_attn_norm", "pre_moe_norm", "post_moe_norm"),
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    ("block_sparse_moe.gate", "block_sparse_moe.experts.{}.", "w1", "w3", "w2"),
)  # fmt: skip
_ONE = (
    "transformer.decoder_layer.{}.", ("rms_norm", "rms_norm_1", "rms_norm_2", "rms_norm_3"),
    tuple(f"multi_head_attention.{part}" for part in ("query", "key", "value", "linear")),
    ("router", "moe.{}.", "linear", "linear_v", "linear_1"),
)  # fmt: skip


def _rotation(config: Config, count: int, width: int) -> Any:
    """cos and sin; "original" and "yarn" are both yarn, as the reference converter takes them."""
    import torch
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    scaling = {"rope_type": "default"}
    if "rope_type" in config:
        scaling = {"rope_type": "yarn", "factor": config["scaling_factor"]}
        scaling |= {key: config[key] for key in ("beta_fast", "beta_slow", "original_max_position_embeddings")}
    rope = {"rope_theta": config["rope_theta"], **scaling}
    settings = LlamaConfig(head_dim=width, rope_parameters=rope, max_position_embeddings=256)
    cos, sin = LlamaRotaryEmbedding(settings)(torch.zeros(1), torch.arange(count)[None])
    return cos[0], sin[0]


def _attended(config: Config, w: Weights, x: Any, names: tuple[str, ...]) -> Any:
    import torch
    from transformers.models.llama.modeling_llama import rotate_half

    count, heads, cap = len(x), config["num_attention_heads"], config.get("attn_logit_softcapping", 30.0)
    q, k, v = (x @ w[f"{name}.weight"].T for name in names[:3])
    width = q.shape[1] // heads
    q, k, v = (t.reshape(count, -1, width).transpose(0, 1) for t in (q, k, v))
    cos, sin = _rotation(config, count, width)
    q, k = (t * cos + rotate_half(t) * sin for t in (q, k))
    k, v = (t.repeat_interleave(heads // len(t), 0) for t in (k, v))
    scores = cap * (q @ k.mT * config.get("attn_output_multiplier", width**-0.5) / cap).tanh()
    scores = scores + torch.full((count, count), float("-inf")).triu(1)
    return (scores.softmax(-1) @ v).transpose(0, 1).reshape(count, -1) @ w[f"{names[3]}.weight"].T


def _gated(w: Weights, x: Any, gate: str, up: str, down: str) -> Any:
    from torch.nn.functional import gelu

    made = gelu(x @ w[f"{gate}.weight"].T, approximate="tanh") * (x @ w[f"{up}.weight"].T)
    return made @ w[f"{down}.weight"].T


def _mixed(config: Config, w: Weights, x: Any, at: str, names: tuple[str, ...]) -> Any:
    import torch

    router, front, *parts = names
    shares = (x @ w[f"{at}{router}.weight"].T).softmax(-1)
    kept = shares.topk(config["num_experts_per_tok"])
    shares = torch.zeros_like(shares).scatter(-1, kept.indices, kept.values)
    shares = shares / shares.sum(-1, keepdim=True)
    fronts = [at + front.format(e) for e in range(shares.shape[1])]
    made = sum(_gated(w, x, *(f + part for part in parts)) * shares[:, e, None] for e, f in enumerate(fronts))
    if f"{at}mlp.up_proj.weight" not in w:
        return made
    return (made + _gated(w, x, *(f"{at}mlp.{part}_proj" for part in ("gate", "up", "down")))) / 2**0.5


def grok(config: Config, w: Weights, ids: Any) -> Any:
    """src/models/grok.cpp of llama.cpp b11549, which follows xai-org's code but caps no router's logits."""
    one = "transformer.in_out_embed.weight" in w
    layer, norms, attention, moe = _ONE if one else _TWO
    first, last = ("transformer.in_out_embed", "transformer.rms_norm") if one else ("model.embed_tokens", "model.norm")
    epsilon = config["rms_norm_eps"]
    x = w[f"{first}.weight"][ids] * config["embedding_multiplier_scale"]
    for i in range(config["num_hidden_layers"]):
        at = layer.format(i)
        before, after, inner, outer = (w[f"{at}{norm}.weight"] for norm in norms)
        made = _attended(config, w, rms_norm(x, before, epsilon), tuple(at + name for name in attention))
        x = x + rms_norm(made, after, epsilon)
        x = x + rms_norm(_mixed(config, w, rms_norm(x, inner, epsilon), at, moe), outer, epsilon)
    head = w["lm_head.weight" if "lm_head.weight" in w else f"{first}.weight"]
    logits = rms_norm(x, w[f"{last}.weight"], epsilon) @ head.T
    logits = logits * config["output_multiplier_scale"]
    cap = config.get("final_logit_softcapping")
    return cap * (logits / cap).tanh() if cap else logits


MODELS: dict[str, Plain] = {"Grok1ForCausalLM": Plain(grok), "GrokForCausalLM": Plain(grok)}
