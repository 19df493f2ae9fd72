"""The small models of Gemma 3n. See __init__.py.

llama.cpp's graph has much of it built in (20 layers with keys and values of their own, embeddings of 256 for the
layers, the first 10 layers sparse), so that the smallest that it runs is `DEEP`. The others are as small as the class
allows, and what they say otherwise is a loss each.
"""

from __future__ import annotations

from typing import Any

from tests.oracles import vocabularies
from tests.oracles.case import Case
from tests.oracles.families.common import GQA, SPM, WINDOW

_WIDTH, _INNER, _HEAD, _PER_LAYER, _RANK = 96, 160, 32, 32, 64
_ROTATION = {
    "full_attention": {"rope_type": "default", "rope_theta": 50000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
}
TEXT: dict[str, Any] = GQA | SPM | {
    "pad_token_id": 0,
    "hidden_size": _WIDTH,
    "intermediate_size": _INNER,
    "head_dim": _HEAD,
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": WINDOW,
    "rope_parameters": _ROTATION,
    "vocab_size_per_layer_input": vocabularies.SPM_SIZE,
    "hidden_size_per_layer_input": _PER_LAYER,
    "laurel_rank": _RANK,
    "activation_sparsity_pattern": [0.95, 0.9, 0.0, 0.0],
    "final_logit_softcapping": 25.0,
}  # fmt: skip
# What llama.cpp's graph doesn't take from a key: told where a config says it.
_BUILT_IN = tuple(
    f"config.json: {key}"
    for key in ("hidden_size_per_layer_input", "final_logit_softcapping", "sparse_layers", "unshared_kv_layers")
)
# In the words of transformers 4, and nothing left to its class, as published configs have it.
_SAID: dict[str, Any] = {key: value for key, value in TEXT.items() if key != "rope_parameters"} | {
    "model_type": "gemma3n_text",
    "vocab_size": vocabularies.SPM_SIZE,
    "intermediate_size": [_INNER] * TEXT["num_hidden_layers"],
    "hidden_activation": "gelu_pytorch_tanh",
    "attention_bias": False,
    "rope_theta": 50000.0,
    "rope_local_base_freq": 5000.0,
    "rope_scaling": None,
    "altup_active_idx": 0,
    "altup_coef_clip": 120.0,
    "altup_correct_scale": True,
    "altup_num_inputs": 4,
}
_DEEP: dict[str, Any] = TEXT | {
    "num_hidden_layers": 22,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 11,
    "intermediate_size": 256,
    "hidden_size_per_layer_input": 256,
    "activation_sparsity_pattern": None,
    "final_logit_softcapping": 30.0,
}


def _unused(options: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Keys and values of the layers that take others', which published files hold."""
    count, heads = options["num_hidden_layers"], options["num_key_value_heads"]
    out: dict[str, tuple[int, ...]] = {}
    for layer in range(count - options["num_kv_shared_layers"], count):
        at = f"model.layers.{layer}.self_attn."
        out |= {f"{at}{p}_proj.weight": (heads * _HEAD, options["hidden_size"]) for p in "kv"}
        out[f"{at}k_norm.weight"] = (_HEAD,)
    return out


def _published(options: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The part that writes, as the whole model's files have it."""
    wide, inner, vocabulary = options["hidden_size"], options["intermediate_size"], vocabularies.SPM_SIZE
    count, heads = options["num_hidden_layers"], options["num_attention_heads"]
    layer = {
        **dict.fromkeys(
            [
                "input_layernorm.weight", "post_attention_layernorm.weight", "pre_feedforward_layernorm.weight",
                "post_feedforward_layernorm.weight", "post_per_layer_input_norm.weight",
                "laurel.post_laurel_norm.weight", "altup.router_norm.weight", "altup.correct_output_scale",
            ],
            (wide,),
        ),
        "altup.correction_coefs.weight": (4, 4),
        "altup.prediction_coefs.weight": (16, 4),
        "altup.modality_router.weight": (4, wide),
        "laurel.linear_left.weight": (_RANK, wide),
        "laurel.linear_right.weight": (wide, _RANK),
        "mlp.gate_proj.weight": (inner, wide),
        "mlp.up_proj.weight": (inner, wide),
        "mlp.down_proj.weight": (wide, inner),
        "per_layer_input_gate.weight": (_PER_LAYER, wide),
        "per_layer_projection.weight": (wide, _PER_LAYER),
        "self_attn.q_proj.weight": (heads * _HEAD, wide),
        "self_attn.k_proj.weight": (options["num_key_value_heads"] * _HEAD, wide),
        "self_attn.v_proj.weight": (options["num_key_value_heads"] * _HEAD, wide),
        "self_attn.o_proj.weight": (wide, heads * _HEAD),
        "self_attn.q_norm.weight": (_HEAD,),
        "self_attn.k_norm.weight": (_HEAD,),
    }  # fmt: skip
    whole = {f"layers.{i}.{name}": shape for i in range(count) for name, shape in layer.items()}
    for i in range(3):
        whole |= {f"altup_{way}projections.{i}.weight": (wide, wide) for way in ("", "unembed_")}
    whole |= {
        "embed_tokens.weight": (vocabulary, wide),
        "embed_tokens_per_layer.weight": (vocabulary, count * _PER_LAYER),
        "per_layer_model_projection.weight": (count * _PER_LAYER, wide),
        "per_layer_projection_norm.weight": (_PER_LAYER,),
        "norm.weight": (wide,),
    }
    return {f"model.language_model.{name}": shape for name, shape in whole.items()}


# The router's answer goes through a tanh: it must be neither 0 nor 1.
_SPREADS = ((("altup.correct_output_scale",), (1.0, 0.25)), (("modality_router.weight",), (0.0, 4.0)))
_WORDS = {"intermediate_size": 16384}  # which the class says layer by layer
CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case(
            "gemma3n",
            "Gemma3nTextConfig",
            "gemma",
            TEXT,
            further=_unused(TEXT),
            filled=("gguf", "mlx"),
            whole_mlx="gemma3n-seeing",
            told=_BUILT_IN,
            words=_WORDS,
            runs=False,
            gelu=True,
            spreads=_SPREADS,
        ),
        # an output of its own; the last tokens have no embeddings for the layers; one width for all layers
        Case(
            "gemma3n-padded",
            "Gemma3nTextConfig",
            "none",
            TEXT | {"vocab_size_per_layer_input": vocabularies.SIZES["none"] - 16, "tie_word_embeddings": False},
            further=_unused(TEXT),
            filled=("gguf", "mlx"),
            told=("config.json: vocab_size_per_layer_input", *_BUILT_IN),
            unheld=frozenset({"vocab_size_per_layer_input", "intermediate_size"}),
            said={"intermediate_size": _INNER},
            words=_WORDS,
            runs=False,
            gelu=True,
            spreads=_SPREADS,
        ),
        # as published: one part of a model that sees and hears
        Case(
            "gemma3n-seeing",
            "Gemma3nForConditionalGeneration",
            "gemma",
            {
                "model_type": "gemma3n",
                "text_config": _SAID,
                "vision_config": {"model_type": "gemma3n_vision"},
                "audio_config": {"model_type": "gemma3n_audio"},
            },
            shapes=_published(TEXT),
            beside=(
                "model.vision_tower.timm_model.conv_stem.conv.weight",
                "model.audio_tower.conformer.0.norm.weight",
                "model.embed_vision.embedding.weight",
                "model.embed_audio.embedding.weight",
            ),
            head="Gemma3nForConditionalGeneration",
            recorded=("mlx",),
            told=_BUILT_IN,
            words=_WORDS,
            runs=False,
        ),
    )
}

# 20 layers with keys and values, and one of either kind that takes them. What a layer adds is small beside what comes
# in: a difference of rounding would grow from layer to layer.
_ADDED = (
    "post_attention_layernorm.weight", "post_feedforward_layernorm.weight", "post_laurel_norm.weight",
    "post_per_layer_input_norm.weight",
)  # fmt: skip
DEEP = Case(
    "gemma3n-deep",
    "Gemma3nTextConfig",
    "gemma",
    _DEEP,
    further=_unused(_DEEP),
    gelu=True,
    spreads=(*_SPREADS, (_ADDED, (0.2, 0.1))),
)

UNSAID: dict[str, dict[str, Any]] = {
    "gemma3n": {
        "hidden_activation": "relu",
        "rope.rope_type": "dynamic",
        "attention_bias": True,
        "altup_correct_scale": False,
        "altup_num_inputs": 2,
        "altup_active_idx": 1,
        "laurel_rank": 32,
        "full_attention_every": 3,
    }
}
