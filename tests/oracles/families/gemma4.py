"""Small Gemma 4s: those with an embedding for each layer and shared keys, those with experts. See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles import vocabularies
from tests.oracles.case import Case
from tests.oracles.families.common import GQA, SPM, WINDOW

_KINDS = ["sliding_attention", "sliding_attention", "full_attention"]
_ROPE = {
    "full_attention": {"rope_type": "proportional", "rope_theta": 50000.0, "partial_rotary_factor": 0.25},
    "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
}
_GEMMA4: dict[str, Any] = GQA | SPM | {
    "num_hidden_layers": 3, "layer_types": _KINDS, "head_dim": 48, "global_head_dim": 64, "pad_token_id": 0,
    "sliding_window": WINDOW, "rope_parameters": _ROPE, "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": vocabularies.SPM_SIZE,
}  # fmt: skip
# E2B: keys of three layers in six, which are twice as wide
_SMALL: dict[str, Any] = _GEMMA4 | {
    "num_hidden_layers": 6, "layer_types": _KINDS * 2, "num_kv_shared_layers": 3, "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 32, "final_logit_softcapping": 30.0,
}  # fmt: skip
# 26B-A4B: keys are values in the layers that attend to all tokens
_EXPERTS: dict[str, Any] = _GEMMA4 | {
    "attention_k_eq_v": True, "num_global_key_value_heads": 1, "enable_moe_block": True, "num_experts": 6,
    "top_k_experts": 2, "moe_intermediate_size": 32, "tie_word_embeddings": False,
}  # fmt: skip
_EYES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 16, "patch_size": 4, "position_embedding_size": 16,
}  # fmt: skip
_WORDS = {"global_head_dim": 512}
_GENERATION = {"suppress_tokens": [6, 7]}  # which the reference writes of the unified class alone
_NO_PARTS = {"vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 0, "enable_moe_block": False}
_SPREADS = (
    (("router.scale", "per_expert_scale", "layer_scalar"), (1.0, 0.25)),
    (("router.proj.weight",), (0.0, 0.5)),
    (("embed_tokens_per_layer.weight",), (0.0, 0.5)),
)


def _unused(front: str, layer: int, heads: int, width: int) -> dict[str, tuple[int, ...]]:
    """What published files hold of keys and values in a layer that shares those of another."""
    at = f"{front}layers.{layer}.self_attn."
    return {f"{at}k_proj.weight": (heads * width, 64), f"{at}v_proj.weight": (heads * width, 64)} | {
        f"{at}k_norm.weight": (width,)
    }


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        # as transformers writes it, layer by layer
        Case(
            "gemma4", "Gemma4TextConfig", "gemma4", _SMALL, words=_WORDS, spreads=_SPREADS, gelu=True,
            recorded=("mlx",), unheld=frozenset({"per_layer_config"}),
        ),
        Case(
            "gemma4-experts", "Gemma4TextConfig", "gemma4", _EXPERTS, words=_WORDS, spreads=_SPREADS, gelu=True,
            recorded=("mlx",), v4=True, added={"gemma4.final_logit_softcapping": 0.0},
        ),
        # as published: one part of a model that sees, with tensors that nothing computes with
        Case(
            "gemma4-seeing",
            "Gemma4Config",
            "gemma4",
            {
                "text_config": _SMALL | {"use_double_wide_mlp": False, "vocab_size": vocabularies.SPM_SIZE},
                "vision_config": _EYES,
            },
            head="Gemma4ForConditionalGeneration",
            beside=("model.audio_tower.output_proj.weight", "model.embed_audio.embedding_projection.weight"),
            further={
                name: shape
                for layer, width in ((3, 48), (4, 48), (5, 64))
                for name, shape in _unused("model.language_model.", layer, 2, width).items()
            },
            words=_WORDS,
            generation=_GENERATION,
            spreads=_SPREADS,
            gelu=True,
            recorded=("mlx",),
            v4=True,
        ),
        # 12B: what sees and hears has no encoder
        Case(
            "gemma4-unified",
            "Gemma4UnifiedConfig",
            "gemma4",
            {
                "text_config": {k: v for k, v in _GEMMA4.items() if k not in ("hidden_size_per_layer_input",)}
                | {"vocab_size": vocabularies.SPM_SIZE, "final_logit_softcapping": 30.0},
                "vision_config": {"mm_embed_dim": 64, "mm_posemb_size": 16, "patch_size": 4, "pooling_kernel_size": 1},
                "audio_config": {"audio_embed_dim": 32},
            },
            head="Gemma4UnifiedForConditionalGeneration",
            words=_WORDS | _NO_PARTS,
            generation=_GENERATION,
            apart=("model.vision_embedder.", "model.embed_audio."),
            taken="gemma4_text",
            unheld=frozenset({"model_type", "vocab_size_per_layer_input"}),
            spreads=_SPREADS,
            gelu=True,
            recorded=("mlx",),
            v4=True,
        ),
    )
}  # fmt: skip
UNSAID: dict[str, dict[str, Any]] = {
    "gemma4": {
        "hidden_activation": "relu", "attention_bias": True, "rope.rope_type": "linear", "rope.factor": 2.0,
        "rope_sliding.rope_type": "linear", "use_bidirectional_attention": "all", "vocab_size_per_layer_input": 5,
    },
}  # fmt: skip
