"""Models that neither transformers nor a twin of its classes computes: each written out in torch from its publisher's
code, apart from the tables under test."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

Config = dict[str, Any]
Weights = dict[str, Any]


@dataclass(frozen=True)
class Plain:
    """`forward(config, weights, ids)`: logits [tokens, vocabulary] of one text, or hidden states [tokens, width] where
    `encodes`."""

    forward: Callable[[Config, Weights, Any], Any]
    encodes: bool = False
    variant: str = ""  # the key of a config that says it is meant: transformers computes the class without

    def load(self, folder: Path, **settings: Any) -> Callable[..., Any]:
        """The model with a folder's weights in f32, called as transformers' are; `settings` override its config."""
        from safetensors.torch import load_file
        from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput

        config = json.loads((folder / "config.json").read_text()) | settings
        # Copied, so that all are aligned alike: where a mapped file has a number changes the last bits of torch's sums.
        mapped = load_file(folder / "model.safetensors")
        weights = {name: tensor.float().clone() for name, tensor in mapped.items()}

        def run(ids: Any) -> Any:
            found = self.forward(config, weights, ids[0])[None]
            return BaseModelOutput(last_hidden_state=found) if self.encodes else CausalLMOutput(logits=found)

        run.config = SimpleNamespace(is_encoder_decoder=False)  # type: ignore[attr-defined]
        return run


def _layer_norm(x: Any, weights: Weights, name: str, epsilon: float) -> Any:
    from torch.nn.functional import layer_norm

    return layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], epsilon)


def _linear(x: Any, weights: Weights, name: str) -> Any:
    out = x @ weights[f"{name}.weight"].T
    return out + weights[f"{name}.bias"] if f"{name}.bias" in weights else out


def _jina_bert(config: Config, w: Weights, ids: Any) -> Any:
    """modeling_bert.py of jinaai/jina-bert-implementation: ALiBi in both directions (for a power of two of heads), the
    gate's half of `gated_layers` first."""
    import torch

    heads, epsilon, count = config["num_attention_heads"], config["layer_norm_eps"], len(ids)
    slopes = torch.tensor([2.0 ** (-8.0 * (h + 1) / heads) for h in range(heads)])
    places = torch.arange(count)
    bias = -slopes[:, None, None] * (places[:, None] - places[None]).abs()
    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][0]
    x = _layer_norm(x, w, "embeddings.LayerNorm", epsilon)
    for i in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{i}"
        projected = (_linear(x, w, f"{at}.attention.self.{part}") for part in ("query", "key", "value"))
        q, k, v = (t.reshape(count, heads, -1).transpose(0, 1) for t in projected)
        scores = (q @ k.mT / q.shape[-1] ** 0.5 + bias).softmax(-1)
        joined = (scores @ v).transpose(0, 1).reshape(count, -1)
        attended = _linear(joined, w, f"{at}.attention.output.dense")
        x = _layer_norm(x + attended, w, f"{at}.attention.output.LayerNorm", epsilon)
        gate, up = _linear(x, w, f"{at}.mlp.gated_layers").chunk(2, -1)
        made = _linear(torch.nn.functional.gelu(gate) * up, w, f"{at}.mlp.wo")
        x = _layer_norm(x + made, w, f"{at}.mlp.layernorm", epsilon)
    return x


def rms_norm(x: Any, weight: Any, epsilon: float) -> Any:
    from torch.nn import functional

    return functional.rms_norm(x, x.shape[-1:], weight, epsilon)


def _swiglu(x: Any, weights: Weights, at: str) -> Any:
    from torch.nn.functional import silu

    gated = silu(_linear(x, weights, f"{at}.gate_proj")) * _linear(x, weights, f"{at}.up_proj")
    return _linear(gated, weights, f"{at}.down_proj")


def _attention(q: Any, k: Any, v: Any, *, causal: bool = True, window: int | None = None) -> Any:
    """Attention of [heads, tokens, width], as [tokens, heads * width]; keys and values may be shared. `window`: of how
    many tokens, the own one included, a query sees the keys."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    if window is None:
        out = scaled_dot_product_attention(q[None], k[None], v[None], is_causal=causal, enable_gqa=True)[0]
    else:
        seen = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).tril().triu(1 - window)
        out = scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=seen, enable_gqa=True)[0]
    return out.transpose(0, 1).reshape(q.shape[1], -1)


def _deci(config: Config, w: Weights, ids: Any) -> Any:
    """modeling_decilm.py of Llama-3_1-Nemotron-51B-Instruct: a Llama whose blocks lack parts."""
    import torch
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    heads, width, epsilon = config["num_attention_heads"], config["hidden_size"], config["rms_norm_eps"]
    scaling = {"rope_theta": config["rope_theta"], **(config["rope_scaling"] or {"rope_type": "default"})}
    settings = LlamaConfig(
        hidden_size=width, num_attention_heads=heads, rope_parameters=scaling,
        max_position_embeddings=config["max_position_embeddings"],
    )  # fmt: skip
    x = w["model.embed_tokens.weight"][ids]
    cos, sin = LlamaRotaryEmbedding(settings)(x[None], torch.arange(len(ids))[None])
    for i, block in enumerate(config["block_configs"]):
        at, own = f"model.layers.{i}", block["attention"]
        if not own["no_op"]:
            normed = rms_norm(x, w[f"{at}.input_layernorm.weight"], epsilon)
            if own["replace_with_linear"]:
                x = x + _linear(normed, w, f"{at}.self_attn.linear_attn")
            else:
                projected = (_linear(normed, w, f"{at}.self_attn.{part}_proj") for part in "qkv")
                q, k, v = (t.reshape(len(ids), -1, width // heads).transpose(0, 1)[None] for t in projected)
                q, k = apply_rotary_pos_emb(q, k, cos, sin)
                x = x + _linear(_attention(q[0], k[0], v[0]), w, f"{at}.self_attn.o_proj")
        if not block["ffn"]["no_op"]:
            normed = rms_norm(x, w[f"{at}.post_attention_layernorm.weight"], epsilon)
            x = x + _swiglu(normed, w, f"{at}.mlp")
    return _linear(rms_norm(x, w["model.norm.weight"], epsilon), w, "lm_head")


def _experts(config: Config, w: Weights, x: Any, at: str) -> Any:
    """The chosen experts, each weighed by its share of a softmax over all, and the shared ones."""
    import torch

    shares = torch.softmax(_linear(x, w, f"{at}.gate"), -1)
    weights, chosen = torch.topk(shares, config["num_experts_per_tok"])
    weights = weights / weights.sum(-1, keepdim=True) if config["norm_topk_prob"] else weights
    rows = [
        sum(share * _swiglu(row, w, f"{at}.experts.{e}") for share, e in zip(own, which.tolist(), strict=True))
        for row, own, which in zip(x, weights, chosen, strict=True)
    ]
    shared = _swiglu(x, w, f"{at}.shared_experts") if f"{at}.shared_experts.up_proj.weight" in w else 0
    return torch.stack(rows) + shared


def _deepseek(config: Config, w: Weights, ids: Any) -> Any:
    """modeling_deepseek.py of deepseek-moe-16b-base: a Llama with experts."""
    import torch
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    heads, width, epsilon = config["num_attention_heads"], config["hidden_size"], config["rms_norm_eps"]
    settings = LlamaConfig(
        hidden_size=width, num_attention_heads=heads, max_position_embeddings=config["max_position_embeddings"],
        rope_parameters={"rope_theta": config["rope_theta"], "rope_type": "default"},
    )  # fmt: skip
    x = w["model.embed_tokens.weight"][ids]
    cos, sin = LlamaRotaryEmbedding(settings)(x[None], torch.arange(len(ids))[None])
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}"
        normed = rms_norm(x, w[f"{at}.input_layernorm.weight"], epsilon)
        projected = (_linear(normed, w, f"{at}.self_attn.{part}_proj") for part in "qkv")
        q, k, v = (t.reshape(len(ids), -1, width // heads).transpose(0, 1)[None] for t in projected)
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        x = x + _linear(_attention(q[0], k[0], v[0]), w, f"{at}.self_attn.o_proj")
        normed = rms_norm(x, w[f"{at}.post_attention_layernorm.weight"], epsilon)
        dense = i < config["first_k_dense_replace"]
        x = x + (_swiglu(normed, w, f"{at}.mlp") if dense else _experts(config, w, normed, f"{at}.mlp"))
    return _linear(rms_norm(x, w["model.norm.weight"], epsilon), w, "lm_head")


def _llama_bidirectional(config: Config, w: Weights, ids: Any) -> Any:
    """llama_bidirectional_model.py of llama-embed-nemotron-8b: a Llama without a causal mask, and its last states."""
    from transformers import LlamaConfig, LlamaModel

    settings = {key: value for key, value in config.items() if key not in ("architectures", "model_type")}
    model = LlamaModel(LlamaConfig(**settings, attn_implementation="eager")).eval()
    model.load_state_dict(w)
    for layer in model.layers:
        layer.self_attn.is_causal = False
    import torch

    seen = torch.zeros(1, 1, len(ids), len(ids))
    with torch.no_grad():
        return model(input_ids=ids[None], attention_mask=seen).last_hidden_state[0]


def _clamped(config: Config, w: Weights, x: Any, names: Sequence[str]) -> Any:
    gate, up, down = names
    limit = config["swiglu_limit"]
    g, u = _linear(x, w, gate).clamp(max=limit), _linear(x, w, up).clamp(-limit, limit)
    return _linear((u + 1) * g * (g * config["swiglu_alpha"]).sigmoid(), w, down)


def _minimax_experts(config: Config, w: Weights, x: Any, at: str) -> Any:
    import torch

    scores = _linear(x, w, f"{at}.gate").sigmoid()
    chosen = torch.topk(scores + w[f"{at}.e_score_correction_bias"], config["num_experts_per_tok"]).indices
    shares = scores.gather(-1, chosen)
    shares = shares / shares.sum(-1, keepdim=True) * config["routed_scaling_factor"]
    rows = [
        sum(
            share * _clamped(config, w, row, [f"{at}.experts.{e}.{part}" for part in ("w1", "w3", "w2")])
            for share, e in zip(own, which.tolist(), strict=True)
        )
        for row, own, which in zip(x, shares, chosen, strict=True)
    ]
    shared = [f"{at}.shared_experts.{part}_proj" for part in ("gate", "up", "down")]
    return torch.stack(rows) + _clamped(config, w, x, shared)


def _minimax_m3(config: Config, w: Weights, ids: Any) -> Any:
    """modeling_minimax_m3_vl.py of transformers 5.23, under the published names, of a text so short that every block of
    keys is picked."""
    import torch
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, rotate_half

    dim, turns, epsilon, count = config["head_dim"], config["rotary_dim"], config["rms_norm_eps"], len(ids)
    settings = LlamaConfig(head_dim=turns, rope_parameters={"rope_theta": config["rope_theta"], "rope_type": "default"})
    x = w["model.embed_tokens.weight"][ids]
    cos, sin = (t[0] for t in LlamaRotaryEmbedding(settings)(x[None], torch.arange(count)[None]))

    def rotated(t: Any) -> Any:
        turned, rest = t[..., :turns], t[..., turns:]
        return torch.cat([turned * cos + rotate_half(turned) * sin, rest], -1)

    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}"
        normed = rms_norm(x, 1 + w[f"{at}.input_layernorm.weight"], epsilon)
        q, k, v = (
            _linear(normed, w, f"{at}.self_attn.{p}_proj").reshape(count, -1, dim).transpose(0, 1) for p in "qkv"
        )
        norms = (1 + w[f"{at}.self_attn.{part}_norm.weight"] for part in "qk")
        q, k = (rotated(rms_norm(t, norm, epsilon)) for t, norm in zip((q, k), norms, strict=True))
        x = x + _linear(_attention(q, k, v), w, f"{at}.self_attn.o_proj")
        normed = rms_norm(x, 1 + w[f"{at}.post_attention_layernorm.weight"], epsilon)
        dense = [f"{at}.mlp.{p}_proj" for p in ("gate", "up", "down")]
        sparse = f"{at}.block_sparse_moe.gate.weight" in w
        made = _minimax_experts(config, w, normed, f"{at}.block_sparse_moe") if sparse else None
        x = x + (_clamped(config, w, normed, dense) if made is None else made)
    return _linear(rms_norm(x, 1 + w["model.norm.weight"], epsilon), w, "lm_head")


def rotate(x: Any, theta: float) -> Any:
    """The rotary embedding of [heads, tokens, width] at positions from 0, with the halves of each head apart."""
    import torch

    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[1])[:, None] / theta ** (torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1)


def _ling(config: Config, w: Weights, ids: Any) -> Any:
    """modeling_bailing_moe.py of Ling-lite: a DeepSeek MoE whose chosen experts' shares may add up to one."""
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    epsilon, theta = config["rms_norm_eps"], config["rope_theta"]
    x = w["model.word_embeddings.weight"][ids]
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}"
        normed = rms_norm(x, w[f"{at}.input_layernorm.weight"], epsilon)
        joined = _linear(normed, w, f"{at}.attention.query_key_value")
        split = joined.reshape(len(ids), heads + 2 * groups, -1).transpose(0, 1)
        q, k, v = split.split((heads, groups, groups))
        x = x + _linear(_attention(rotate(q, theta), rotate(k, theta), v), w, f"{at}.attention.dense")
        normed = rms_norm(x, w[f"{at}.post_attention_layernorm.weight"], epsilon)
        x = x + _experts(config, w, normed, f"{at}.mlp")
    return _linear(rms_norm(x, w["model.norm.weight"], epsilon), w, "lm_head")


def _llada(config: Config, w: Weights, ids: Any) -> Any:
    """modeling_llada.py of LLaDA-8B: a Llama without a mask."""
    from torch.nn.functional import silu

    theta, epsilon = config["rope_theta"], config["rms_norm_eps"]
    x = w["model.transformer.wte.weight"][ids]
    for i in range(config["n_layers"]):
        at = f"model.transformer.blocks.{i}"
        normed = rms_norm(x, w[f"{at}.attn_norm.weight"], epsilon)
        projected = (_linear(normed, w, f"{at}.{part}_proj") for part in "qkv")
        q, k, v = (t.reshape(len(ids), -1, config["d_model"] // config["n_heads"]).transpose(0, 1) for t in projected)
        attended = _attention(rotate(q, theta), rotate(k, theta), v, causal=False)
        x = x + _linear(attended, w, f"{at}.attn_out")
        normed = rms_norm(x, w[f"{at}.ff_norm.weight"], epsilon)
        x = x + _linear(
            silu(_linear(normed, w, f"{at}.ff_proj")) * _linear(normed, w, f"{at}.up_proj"), w, f"{at}.ff_out"
        )
    return _linear(rms_norm(x, w["model.transformer.ln_f.weight"], epsilon), w, "model.transformer.ff_out")


def _llada_moe(config: Config, w: Weights, ids: Any) -> Any:
    """modeling_lladamoe.py of LLaDA-MoE-7B-A1B: norms of q's and k's heads, experts in every layer, no mask."""
    theta, epsilon = config["rope_theta"], config["rms_norm_eps"]
    width = config["hidden_size"] // config["num_attention_heads"]
    x = w["model.embed_tokens.weight"][ids]
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}"
        normed = rms_norm(x, w[f"{at}.input_layernorm.weight"], epsilon)
        projected = (_linear(normed, w, f"{at}.self_attn.{part}_proj") for part in "qkv")
        q, k, v = (t.reshape(len(ids), -1, width).transpose(0, 1) for t in projected)
        q, k = (rms_norm(t, w[f"{at}.self_attn.{n}_norm.weight"], epsilon) for t, n in ((q, "q"), (k, "k")))
        attended = _attention(rotate(q, theta), rotate(k, theta), v, causal=False)
        x = x + _linear(attended, w, f"{at}.self_attn.o_proj")
        normed = rms_norm(x, w[f"{at}.post_attention_layernorm.weight"], epsilon)
        x = x + _experts(config, w, normed, f"{at}.mlp")
    return _linear(rms_norm(x, w["model.norm.weight"], epsilon), w, "lm_head")


def _rwkv7(config: Config, w: Weights, ids: Any) -> Any:
    """fla/models/rwkv7, token by token: the state of a head is a matrix of values and keys."""
    import torch
    from torch.nn.functional import normalize, relu

    width, heads, epsilon = config["hidden_size"], config["hidden_size"] // config["head_dim"], config["norm_eps"]

    def low_rank(x: Any, at: str, between: Callable[[Any], Any] = lambda t: t) -> Any:
        return _linear(between(_linear(x, w, f"{at}.lora.0")), w, f"{at}.lora.2")

    x = _layer_norm(w["model.embeddings.weight"][ids], w, "model.layers.0.pre_norm", epsilon)
    first: Any = None
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}.attn"
        normed = _layer_norm(x, w, f"{at}_norm", epsilon)
        before = torch.cat((torch.zeros(1, width), normed[:-1])) - normed
        mixed = {part: normed + before * w[f"{at}.x_{part}"][0] for part in "rwkvag"}
        r, k, v = (_linear(mixed[part], w, f"{at}.{part}_proj") for part in "rkv")
        decay = torch.exp(-0.6065306597126334 * low_rank(mixed["w"], f"{at}.w_lora", torch.tanh).sigmoid())
        first = v if i == 0 else first
        v = v if i == 0 else v + (first - v) * low_rank(mixed["v"], f"{at}.v_lora").sigmoid()
        rate = low_rank(mixed["a"], f"{at}.a_lora").sigmoid()
        gate = low_rank(mixed["g"], f"{at}.g_lora", torch.sigmoid)
        r, v, decay, rate, key = (t.reshape(-1, heads, width // heads) for t in (r, v, decay, rate, k * w[f"{at}.k_k"]))
        key = normalize(key, dim=-1)
        k = (k * (1 + (rate.reshape(-1, width) - 1) * w[f"{at}.k_a"])).reshape(r.shape)
        state, rows = torch.zeros(heads, width // heads, width // heads), []
        for t in range(len(ids)):
            gone = (state @ -key[t][:, :, None]) @ (key[t] * rate[t])[:, None]
            state = state * decay[t][:, None] + gone + v[t][:, :, None] @ k[t][:, None]
            rows.append((state @ r[t][:, :, None])[..., 0])
        out = torch.nn.functional.group_norm(
            torch.stack(rows).reshape(-1, width), heads, w[f"{at}.g_norm.weight"], w[f"{at}.g_norm.bias"], 64 * epsilon
        )
        bonus = ((r * k * w[f"{at}.r_k"]).sum(-1, keepdim=True) * v).reshape(-1, width)
        x = x + _linear((out + bonus) * gate, w, f"{at}.o_proj")
        at = f"model.layers.{i}.ffn"
        normed = _layer_norm(x, w, f"{at}_norm", epsilon)
        before = torch.cat((torch.zeros(1, width), normed[:-1])) - normed
        x = x + _linear(relu(_linear(normed + before * w[f"{at}.x_k"], w, f"{at}.key")) ** 2, w, f"{at}.value")
    return _linear(_layer_norm(x, w, "model.norm", epsilon), w, "lm_head")


def _smallthinker(config: Config, w: Weights, ids: Any) -> Any:
    """modeling_smallthinker.py, within the window: what goes into a layer chooses its experts."""
    import torch
    from torch.nn.functional import relu

    theta, epsilon, used = config["rope_theta"], config["rms_norm_eps"], config["moe_num_active_primary_experts"]
    x = w["model.embed_tokens.weight"][ids]
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}"
        logits = _linear(x, w, f"{at}.block_sparse_moe.primary_router")
        shares = logits.softmax(-1) if config["moe_primary_router_apply_softmax"] else logits.sigmoid()
        weights, chosen = torch.topk(shares, used)
        weights = weights / weights.sum(-1, keepdim=True)
        normed = rms_norm(x, w[f"{at}.input_layernorm.weight"], epsilon)
        projected = (_linear(normed, w, f"{at}.self_attn.{part}_proj") for part in "qkv")
        q, k, v = (t.reshape(len(ids), -1, config["head_dim"]).transpose(0, 1) for t in projected)
        q, k = (rotate(q, theta), rotate(k, theta)) if config["rope_layout"][i] else (q, k)
        x = x + _linear(_attention(q, k, v), w, f"{at}.self_attn.o_proj")
        normed, rows = rms_norm(x, w[f"{at}.post_attention_layernorm.weight"], epsilon), []
        for row, own, which in zip(normed, weights, chosen, strict=True):
            fronts = [f"{at}.block_sparse_moe.experts.{e}" for e in which.tolist()]
            made = [
                _linear(relu(_linear(row, w, f"{f}.gate")) * _linear(row, w, f"{f}.up"), w, f"{f}.down") for f in fronts
            ]
            rows.append(sum(share * one for share, one in zip(own, made, strict=True)))
        x = x + torch.stack(rows)
    return _linear(rms_norm(x, w["model.norm.weight"], epsilon), w, "lm_head")


def _step(config: Config, w: Weights, ids: Any) -> Any:
    """modeling_step3p7.py of transformers 5.23, under the published names and settings."""
    import torch
    from torch.nn.functional import silu
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, rotate_half

    dim, epsilon, count = config["head_dim"], config["rms_norm_eps"], len(ids)
    x = w["model.embed_tokens.weight"][ids]

    def rotated(t: Any, layer: int) -> Any:
        turns = int(dim * config["partial_rotary_factors"][layer])
        full = config["layer_types"][layer] == "full_attention"
        scaling = (config.get("rope_scaling") if full else None) or {"rope_type": "default"}
        settings = LlamaConfig(head_dim=turns, rope_parameters={"rope_theta": config["rope_theta"][layer], **scaling})
        cos, sin = (u[0] for u in LlamaRotaryEmbedding(settings)(x[None], torch.arange(count)[None]))
        turned, rest = t[..., :turns], t[..., turns:]
        return torch.cat([turned * cos + rotate_half(turned) * sin, rest], -1)

    def swiglu(t: Any, parts: Sequence[Any], limit: float | None) -> Any:
        gate, up, down = parts
        bound = limit or float("inf")
        return (silu(t @ gate.T).clamp(max=bound) * (t @ up.T).clamp(-bound, bound)) @ down.T

    def parts(at: str) -> list[Any]:
        return [w[f"{at}.{part}_proj.weight"] for part in ("gate", "up", "down")]

    def limit(key: str, layer: int) -> float | None:
        return (config.get(key) or {layer: None})[layer]

    def experts(t: Any, at: str, layer: int) -> Any:
        scores = _linear(t, w, f"{at}.moe.gate").sigmoid()
        chosen = torch.topk(scores + w[f"{at}.moe.router_bias"], config["moe_top_k"]).indices
        shares = scores.gather(-1, chosen)
        shares = shares / shares.sum(-1, keepdim=True) * config["moe_router_scaling_factor"]
        all_of = parts(f"{at}.moe")
        rows = [
            sum(
                s * swiglu(row, [p[e] for p in all_of], limit("swiglu_limits", layer))
                for s, e in zip(own, which, strict=True)
            )
            for row, own, which in zip(t, shares, chosen.tolist(), strict=True)
        ]
        return torch.stack(rows) + swiglu(t, parts(f"{at}.share_expert"), limit("swiglu_limits_shared", layer))

    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}"
        normed = rms_norm(x, 1 + w[f"{at}.input_layernorm.weight"], epsilon)
        q, k, v = (
            _linear(normed, w, f"{at}.self_attn.{p}_proj").reshape(count, -1, dim).transpose(0, 1) for p in "qkv"
        )
        norms = (1 + w[f"{at}.self_attn.{part}_norm.weight"] for part in "qk")
        q, k = (rotated(rms_norm(t, norm, epsilon), i) for t, norm in zip((q, k), norms, strict=True))
        gates = _linear(normed, w, f"{at}.self_attn.g_proj").sigmoid().repeat_interleave(dim, -1)
        window = None if config["layer_types"][i] == "full_attention" else config["sliding_window"]
        x = x + _linear(_attention(q, k, v, window=window) * gates, w, f"{at}.self_attn.o_proj")
        normed = rms_norm(x, 1 + w[f"{at}.post_attention_layernorm.weight"], epsilon)
        sparse = f"{at}.moe.gate.weight" in w
        x = x + (
            experts(normed, at, i) if sparse else swiglu(normed, parts(f"{at}.mlp"), limit("swiglu_limits_shared", i))
        )
    return _linear(rms_norm(x, 1 + w["model.norm.weight"], epsilon), w, "lm_head")


MODELS: dict[str, Plain] = {
    "Step3p5ForCausalLM": Plain(_step),
    "SmallThinkerForCausalLM": Plain(_smallthinker),
    "MiniMaxM3SparseForCausalLM": Plain(_minimax_m3),
    "RWKV7ForCausalLM": Plain(_rwkv7),
    "BailingMoeForCausalLM": Plain(_ling),
    "LLaDAModelLM": Plain(_llada),
    "LLaDAMoEModelLM": Plain(_llada_moe),
    "DeepseekForCausalLM": Plain(_deepseek),
    "JinaBertModel": Plain(_jina_bert, encodes=True),
    "LlamaBidirectionalModel": Plain(_llama_bidirectional, encodes=True),
    "DeciLMForCausalLM": Plain(_deci),
}
