"""Small mixtures of experts and text diffusers whose code came with their weights. See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles.case import Case
from tests.oracles.families.common import BPE, GQA
from tests.oracles.families.published import renamed
from tests.oracles.families.wrapped import VOCABULARY, Shapes, decoder, without_ffn

_SAID: dict[str, Any] = GQA | BPE | VOCABULARY | {
    "hidden_act": "silu", "rope_theta": 2000.0, "tie_word_embeddings": False, "rope_scaling": None,
}  # fmt: skip
_ROUTER = ((("mlp.gate.weight",), (0.0, 0.3)),)


def chosen(front: str, *, experts: int = 6, wide: int = 32, shared: int = 0, layers: int = 2) -> Shapes:
    """Experts with gates of every layer, the router in front, and a shared one if it has a width."""
    out: Shapes = {}
    for i in range(layers):
        at = f"{front}layers.{i}.mlp"
        out[f"{at}.gate.weight"] = (experts, 64)
        parts = [(f"experts.{e}", wide) for e in range(experts)] + ([("shared_experts", shared)] if shared else [])
        for part, rows in parts:
            out |= {f"{at}.{part}.{name}_proj.weight": (rows, 64) for name in ("gate", "up")}
            out[f"{at}.{part}.down_proj.weight"] = (64, rows)
    return out


def _ling() -> Shapes:
    out = renamed(without_ffn(decoder()), {"embed_tokens": "word_embeddings", "self_attn.o_proj": "attention.dense"})
    rest = {name: shape for name, shape in out.items() if "self_attn" not in name}
    fused: Shapes = {f"model.layers.{i}.attention.query_key_value.weight": (128, 64) for i in (0, 1)}
    return rest | fused | chosen("model.", shared=64)


_LLADA_NAMES = {
    "model.layers.": "model.transformer.blocks.", "model.embed_tokens": "model.transformer.wte",
    "model.norm": "model.transformer.ln_f", "lm_head": "model.transformer.ff_out", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ff_norm", "self_attn.o_proj": "attn_out", "self_attn.": "", "mlp.gate_proj": "ff_proj",
    "mlp.up_proj": "up_proj", "mlp.down_proj": "ff_out",
}  # fmt: skip
_LLADA: dict[str, Any] = BPE | VOCABULARY | {
    "model_type": "llada", "d_model": 64, "n_heads": 4, "n_kv_heads": 2, "n_layers": 2, "mlp_hidden_size": 96,
    "max_sequence_length": 256, "rms_norm_eps": 3e-3, "rope_theta": 2000.0, "activation_type": "silu",
    "block_type": "llama", "layer_norm_type": "rms", "include_bias": False, "include_qkv_bias": False,
    "weight_tying": False, "mask_token_id": 7, "scale_logits": False, "attention_layer_norm": False,
    "input_emb_norm": False, "alibi": False,
}  # fmt: skip

CASES: dict[str, Case] = {
    case.name: case
    for case in (
        # Ling 1: q, k and v in one tensor, shared experts
        Case(
            "ling1",
            "BailingMoeForCausalLM",
            "bpe",
            _SAID
            | {
                "model_type": "bailing_moe",
                "moe_intermediate_size": 32,
                "num_experts": 6,
                "num_experts_per_tok": 2,
                "num_shared_experts": 2,
                "norm_topk_prob": True,
                "first_k_dense_replace": 0,
                "norm_head": False,
                "norm_softmax": False,
                "use_bias": False,
                "use_qkv_bias": False,
            },
            shapes=_ling(),
            defaults={
                "vocab_size": 30592, "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
                "num_key_value_heads": 0, "hidden_act": "silu", "use_qkv_bias": False, "use_bias": True,
                "rms_norm_eps": 1e-5, "norm_head": False, "norm_softmax": False, "tie_word_embeddings": False,
                "max_position_embeddings": 16384, "rope_theta": 10000.0, "pad_token_id": 126081, "num_experts": 16,
                "num_shared_experts": 0, "num_experts_per_tok": 2, "norm_topk_prob": True, "first_k_dense_replace": 0,
            },
            spreads=_ROUTER,
            recorded=("mlx",),
        ),
        Case(
            "llada",
            "LLaDAModelLM",
            "bpe",
            _LLADA,
            shapes=renamed(decoder(), _LLADA_NAMES),
            defaults={
                "vocab_size": 50257, "d_model": 768, "n_heads": 12, "n_layers": 12, "max_sequence_length": 1024,
                "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "n_kv_heads": 12, "activation_type": "swiglu",
                "block_type": "sequential", "layer_norm_type": "default", "include_bias": True,
                "include_qkv_bias": False, "attention_layer_norm": False, "input_emb_norm": False,
                "scale_logits": False, "alibi": False, "weight_tying": True, "mask_token_id": 50256,
            },
            words={"mlp_hidden_size": 3072},
            vocabulary={"tokenizer.ggml.mask_token_id": 7},
        ),
        Case(
            "llada-moe",
            "LLaDAMoEModelLM",
            "bpe",
            _SAID
            | {
                "model_type": "llada",
                "expert_intermediate_size": 32,
                "num_experts": 6,
                "num_experts_per_tok": 2,
                "norm_topk_prob": False,
                "qk_layernorm": True,
            },
            shapes=without_ffn(decoder(head_norms=True)) | chosen("model."),
            defaults={
                "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
                "attention_bias": False, "norm_topk_prob": False, "qk_layernorm": True,
            },
            spreads=_ROUTER,
        ),
    )
}  # fmt: skip
_SCALED: dict[str, Any] = {"rope.rope_type": "dynamic"}
UNSAID: dict[str, dict[str, Any]] = {
    "bailingmoe": _SCALED | {"hidden_act": "gelu", "use_bias": True, "use_qkv_bias": True, "norm_head": True}
    | {"norm_softmax": True, "first_k_dense_replace": 1},
    "llada": _SCALED | {"activation_type": "gelu", "block_type": "sequential", "layer_norm_type": "default"}
    | {"include_bias": True, "include_qkv_bias": True, "scale_logits": True, "alibi": True}
    | {"attention_layer_norm": True, "input_emb_norm": True, "weight_tying": True},
    "llada-moe": _SCALED | {"hidden_act": "gelu", "attention_bias": True, "norm_topk_prob": True}
    | {"qk_layernorm": False, "shared_expert_intermediate_size": 32},
}  # fmt: skip
