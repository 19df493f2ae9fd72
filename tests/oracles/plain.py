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

    def load(self, folder: Path) -> Callable[..., Any]:
        """The model with a folder's weights in f32, called as transformers' are."""
        from safetensors.torch import load_file
        from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput

        config = json.loads((folder / "config.json").read_text())
        weights = {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}

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


def _rms_norm(x: Any, weight: Any, epsilon: float) -> Any:
    from torch.nn.functional import rms_norm

    return rms_norm(x, x.shape[-1:], weight, epsilon)


def _swiglu(x: Any, weights: Weights, at: str) -> Any:
    from torch.nn.functional import silu

    gated = silu(_linear(x, weights, f"{at}.gate_proj")) * _linear(x, weights, f"{at}.up_proj")
    return _linear(gated, weights, f"{at}.down_proj")


def _attention(q: Any, k: Any, v: Any) -> Any:
    """Causal attention of [heads, tokens, width], as [tokens, heads * width]; keys and values may be shared."""
    from torch.nn.functional import scaled_dot_product_attention

    out = scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, enable_gqa=True)[0]
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
            normed = _rms_norm(x, w[f"{at}.input_layernorm.weight"], epsilon)
            if own["replace_with_linear"]:
                x = x + _linear(normed, w, f"{at}.self_attn.linear_attn")
            else:
                projected = (_linear(normed, w, f"{at}.self_attn.{part}_proj") for part in "qkv")
                q, k, v = (t.reshape(len(ids), -1, width // heads).transpose(0, 1)[None] for t in projected)
                q, k = apply_rotary_pos_emb(q, k, cos, sin)
                x = x + _linear(_attention(q[0], k[0], v[0]), w, f"{at}.self_attn.o_proj")
        if not block["ffn"]["no_op"]:
            normed = _rms_norm(x, w[f"{at}.post_attention_layernorm.weight"], epsilon)
            x = x + _swiglu(normed, w, f"{at}.mlp")
    return _linear(_rms_norm(x, w["model.norm.weight"], epsilon), w, "lm_head")


def _experts(config: Config, w: Weights, x: Any, at: str) -> Any:
    """The chosen experts, each weighed by its share of a softmax over all, and the shared ones."""
    import torch

    shares = torch.softmax(_linear(x, w, f"{at}.gate"), -1)
    weights, chosen = torch.topk(shares, config["num_experts_per_tok"])
    rows = [
        sum(share * _swiglu(row, w, f"{at}.experts.{e}") for share, e in zip(own, which.tolist(), strict=True))
        for row, own, which in zip(x, weights, chosen, strict=True)
    ]
    return torch.stack(rows) + _swiglu(x, w, f"{at}.shared_experts")


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
        normed = _rms_norm(x, w[f"{at}.input_layernorm.weight"], epsilon)
        projected = (_linear(normed, w, f"{at}.self_attn.{part}_proj") for part in "qkv")
        q, k, v = (t.reshape(len(ids), -1, width // heads).transpose(0, 1)[None] for t in projected)
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        x = x + _linear(_attention(q[0], k[0], v[0]), w, f"{at}.self_attn.o_proj")
        normed = _rms_norm(x, w[f"{at}.post_attention_layernorm.weight"], epsilon)
        dense = i < config["first_k_dense_replace"]
        x = x + (_swiglu(normed, w, f"{at}.mlp") if dense else _experts(config, w, normed, f"{at}.mlp"))
    return _linear(_rms_norm(x, w["model.norm.weight"], epsilon), w, "lm_head")


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
        normed = _rms_norm(x, 1 + w[f"{at}.input_layernorm.weight"], epsilon)
        q, k, v = (
            _linear(normed, w, f"{at}.self_attn.{p}_proj").reshape(count, -1, dim).transpose(0, 1) for p in "qkv"
        )
        norms = (1 + w[f"{at}.self_attn.{part}_norm.weight"] for part in "qk")
        q, k = (rotated(_rms_norm(t, norm, epsilon)) for t, norm in zip((q, k), norms, strict=True))
        x = x + _linear(_attention(q, k, v), w, f"{at}.self_attn.o_proj")
        normed = _rms_norm(x, 1 + w[f"{at}.post_attention_layernorm.weight"], epsilon)
        dense = [f"{at}.mlp.{p}_proj" for p in ("gate", "up", "down")]
        sparse = f"{at}.block_sparse_moe.gate.weight" in w
        made = _minimax_experts(config, w, normed, f"{at}.block_sparse_moe") if sparse else None
        x = x + (_clamped(config, w, normed, dense) if made is None else made)
    return _linear(_rms_norm(x, 1 + w["model.norm.weight"], epsilon), w, "lm_head")


MODELS: dict[str, Plain] = {
    "MiniMaxM3SparseForCausalLM": Plain(_minimax_m3),
    "DeepseekForCausalLM": Plain(_deepseek),
    "JinaBertModel": Plain(_jina_bert, encodes=True),
    "DeciLMForCausalLM": Plain(_deci),
}
