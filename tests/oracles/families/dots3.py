"""Small models of dots3-note, as published: transformers reads these names and settings and writes others. See
__init__.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.oracles.case import Case, like, table
from tests.oracles.families.common import BPE, SMALL, WINDOW
from tests.oracles.families.wrapped import VOCABULARY, Shapes

_BPE = VOCABULARY["vocab_size"]
_SWA = ("num_attention_heads", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_CONFIG: dict[str, Any] = SMALL | BPE | VOCABULARY | {
    "model_type": "dots3_note_text", "num_hidden_layers": 4, "num_key_value_heads": 4, "rms_norm_eps": 3e-3,
    "kv_lora_rank": 32, "q_lora_rank": 48, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 24,
    "head_dim": 32, "n_routed_experts": 6, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 32, "routed_scaling_factor": 2.5,
    "norm_topk_prob": True, "first_k_dense_replace": 1, "moe_layer_freq": 1, "scoring_func": "sigmoid",
    "topk_method": "noaux_tc", "n_group": 1, "topk_group": 1, "index_n_heads": 16, "index_head_dim": 128,
    "index_topk": 256, "use_dsa": True, "sliding_window_size": WINDOW, "swa_num_attention_heads": 2,
    "swa_num_key_value_heads": 2, "swa_q_lora_rank": 48, "swa_kv_lora_rank": 40, "swa_head_dim": 40,
    "swa_qk_nope_head_dim": 24, "swa_qk_rope_head_dim": 16, "swa_v_head_dim": 16, "rope_theta": 5000.0,
    "swa_rope_theta": 500.0, "apply_mla_qkv_lora_rescale": True, "tie_word_embeddings": False, "hidden_act": "silu",
    "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention"],
    "attention_gate_type": "headwise", "swa_attention_gate_type": "headwise", "k_rope_only_layernorm": True,
    "num_nextn_predict_layers": 0,
}  # fmt: skip


def _gated(at: str, width: int) -> Shapes:
    return {
        f"{at}.gate_proj.weight": (width, 64), f"{at}.up_proj.weight": (width, 64),
        f"{at}.down_proj.weight": (64, width),
    }  # fmt: skip


def _attention(at: str, *, sliding: bool) -> Shapes:
    heads, queries, latent, nope, rope, value = (_CONFIG[("swa_" if sliding else "") + key] for key in _SWA)
    out: Shapes = {
        "q_a_proj": (queries, 64), "q_a_layernorm": (queries,), "q_b_proj": (heads * (nope + rope), queries),
        "kv_a_proj_with_mqa": (latent + rope, 64), "kv_a_layernorm": (latent,),
        "kv_b_proj": (heads * (nope + value), latent), "o_proj": (64, heads * value), "g_proj": (heads, 64),
        "k_rope_only_layernorm": (rope,),
    }  # fmt: skip
    if not sliding:
        out |= {"indexer.wq_b": (2048, 48), "indexer.wk": (128, 64), "indexer.k_norm": (128,)}
        out |= {"indexer.weights_proj": (16, 64)}
    named = {f"{at}.self_attn.{name}.weight": shape for name, shape in out.items()}
    return named if sliding else named | {f"{at}.self_attn.indexer.k_norm.bias": (128,)}


def _shapes() -> Shapes:
    out: Shapes = {"model.embed_tokens.weight": (_BPE, 64), "model.norm.weight": (64,), "lm_head.weight": (_BPE, 64)}
    for i, kind in enumerate(_CONFIG["layer_types"]):
        at = f"model.layers.{i}"
        out |= {f"{at}.input_layernorm.weight": (64,), f"{at}.post_attention_layernorm.weight": (64,)}
        out |= _attention(at, sliding=kind == "sliding_attention")
        if i < 1:
            out |= _gated(f"{at}.mlp", 96)
            continue
        out |= {f"{at}.mlp.gate.weight": (6, 64), f"{at}.mlp.gate.e_score_correction_bias": (6,)}
        for e in range(6):
            out |= _gated(f"{at}.mlp.experts.{e}", 32)
        out |= _gated(f"{at}.mlp.shared_experts", 32)
    return out


def _further() -> Shapes:
    """A layer that predicts one token more, of the second kind."""
    at = "model.layers.4"
    out: Shapes = {"model.mtp.embed_tokens.weight": (_BPE, 64), f"{at}.eh_proj.weight": (64, 128)}
    names = ("input_layernorm", "post_attention_layernorm", "enorm", "hnorm", "shared_head.norm")
    out |= {f"{at}.{name}.weight": (64,) for name in names}
    return out | _attention(at, sliding=True) | _gated(f"{at}.mlp", 96)


_DEFAULTS: dict[str, Any] = {
    "tie_word_embeddings": False, "hidden_act": "silu", "rope_theta": 80000000.0, "vocab_size": 152064,
    "hidden_size": 5120, "intermediate_size": 13824, "moe_intermediate_size": 1536, "num_hidden_layers": 46,
    "num_attention_heads": 128, "n_shared_experts": 1, "n_routed_experts": 256, "routed_scaling_factor": 1.0,
    "kv_lora_rank": 512, "q_lora_rank": 1024, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128,
    "num_experts_per_tok": 8, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
    "max_position_embeddings": 524288, "rms_norm_eps": 1e-5, "index_topk": 2048, "index_head_dim": 128,
    "index_n_heads": 64, "bos_token_id": 151643, "eos_token_id": 151668, "pad_token_id": 151659,
    "attention_bias": False, "mlp_bias": False, "first_k_dense_replace": 1, "sliding_window_size": 512,
    "swa_num_attention_heads": 64, "swa_q_lora_rank": 1024, "swa_kv_lora_rank": 1024, "swa_head_dim": 256,
    "swa_qk_nope_head_dim": 192, "swa_v_head_dim": 128, "swa_rope_theta": 50000.0,
    "swa_qk_rope_head_dim": 64,
    "layer_types": ["full_attention" if i < 2 or i % 4 == 1 else "sliding_attention" for i in range(46)],
}  # fmt: skip
_SPREADS = ((("mlp.gate.weight",), (0.0, 0.1)), (("q_a_layernorm.weight", "kv_a_layernorm.weight"), (0.6, 0.15)))


def _end_of_turn(folder: Path) -> None:
    """Names a token as the reference converter asks for it."""
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace("<|reserved_special_token_0|>", "<|endofassistant|>"))


_UNHELD = frozenset(
    {"moe_layer_freq", "topk_method", "use_dsa", "attention_gate_type"}
    | {"swa_attention_gate_type", "k_rope_only_layernorm"}
)
CASES = table(
    Case(
        "dots3-note",
        "Dots3NoteForCausalLM",
        "bpe",
        _CONFIG,
        shapes=_shapes(),
        defaults=_DEFAULTS,
        spreads=_SPREADS,
        # as published: transformers 5 has other words for the second kind of layers and for both rotations
        hparams=_CONFIG | {"rope_parameters": {}},
        words={"swa_rope_theta": 50000.0},
        unheld=_UNHELD,
        folded=True,
        finish=_end_of_turn,
        beside=("vision_encoder.x.weight", "audio_encoder.x.weight", "audio_adapter.x.weight"),
    ),
    # ... with a layer that predicts one token more, which published files have and their config doesn't count
    like(
        "dots3-note",
        "dots3-note-further",
        {"num_nextn_predict_layers": 1},
        shapes=_shapes() | _further(),
        further=_further(),
    ),
    # ... of the class that sees and hears, whose config has the text's settings at its top
    like(
        "dots3-note",
        "dots3-note-seeing",
        {"model_type": "dots3_note"},
        config="Dots3NoteForConditionalGeneration",
        tokenizer="none",
        taken="dots3_note_text",
        unheld=_UNHELD | {"architectures", "model_type"},
        finish=None,
        runs=False,
    ),
    # ... with the text's settings in an object, as transformers 5 saves them
    like(
        "dots3-note-seeing",
        "dots3-note-parts",
        hparams=_CONFIG | {"rope_parameters": {}, "text_config": {}},  # laid over, as the reference does
        words={},
        head="Dots3NoteForConditionalGeneration",
        unheld=_UNHELD | {"architectures", "model_type", "num_key_value_heads"},
        options={
            "model_type": "dots3_note",
            "text_config": _CONFIG,
            "vision_config": {"adapter_out_dim": 64},
            "audio_config": {"adapter_out_dim": 64},
        },
    ),
)
UNSAID: dict[str, dict[str, Any]] = {
    "dots3note": {"hidden_act": "gelu", "attention_bias": True, "mlp_bias": True, "n_group": 2, "topk_method": "greedy"}
    | {"scoring_func": "softmax", "use_dsa": False, "k_rope_only_layernorm": False, "normalization": "LayerNorm"}
    | {"final_norm": "LayerNorm", "attention_gate_type": "elementwise", "swa_attention_gate_type": "elementwise"}
    | {
        "use_dynamic_rsf": True,
        "moe_gating_fp32": True,
        "swa_q_lora_rank": 8,
        "moe_shared_expert_intermediate_size": 8,
        "swa_qk_rope_head_dim": 4,
    }
    | {"rope.rope_type": "yarn"},
}
