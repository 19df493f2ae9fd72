"""Small draft models as they are published: EAGLE-3. Their tokenizers lie with the models that they draft for."""

from __future__ import annotations

from typing import Any

from tests.oracles import published_packings, vocabularies
from tests.oracles.case import Case, like, table
from tests.oracles.families.common import BPE, GQA, SPM
from tests.oracles.families.deepseek4 import DEEPSEEK_V4, DSPARK, SPREADS, dspark_shapes

_DRAFTED = vocabularies.BPE_SIZE // 2
_LLAMA3: dict[str, Any] = {
    "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
_EAGLE: dict[str, Any] = GQA | BPE | {
    "model_type": "llama", "num_hidden_layers": 1, "head_dim": 24, "draft_vocab_size": _DRAFTED, "hidden_act": "silu",
    "rope_theta": 2000.0, "rope_scaling": _LLAMA3, "tie_word_embeddings": False,
}  # fmt: skip
# LlamaConfig's, which publishers' classes take theirs from
_LLAMA: dict[str, Any] = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 10000.0,
    "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
    "num_key_value_heads": 32, "head_dim": 128, "target_hidden_size": 4096, "draft_vocab_size": 32000,
}  # fmt: skip
_LAYER: dict[str, tuple[int, ...]] = {
    "input_layernorm.weight": (64,),
    "hidden_norm.weight": (64,),
    "self_attn.q_proj.weight": (96, 128),
    "self_attn.k_proj.weight": (48, 128),
    "self_attn.v_proj.weight": (48, 128),
    "self_attn.o_proj.weight": (64, 96),
    "post_attention_layernorm.weight": (64,),
    "mlp.gate_proj.weight": (96, 64),
    "mlp.up_proj.weight": (96, 64),
    "mlp.down_proj.weight": (64, 96),
}


def _eagle(layer: str, **more: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    layers = {f"{layer}{name}": shape for name, shape in (_LAYER | more).items()}
    return {**layers, "fc.weight": (64, 192), "norm.weight": (64,)}


_NARROW: dict[str, tuple[int, ...]] = {
    "self_attn.q_proj.weight": (64, 128),
    "self_attn.k_proj.weight": (32, 128),
    "self_attn.v_proj.weight": (32, 128),
    "self_attn.o_proj.weight": (64, 64),
}
_OUT = {"d2t": (_DRAFTED,), "lm_head.weight": (_DRAFTED, 64)}
_EMBED = {"embed_tokens.weight": (vocabularies.BPE_SIZE, 64)}

# ---- DFlash: several layers behind a mixture of layers of the target, a block of tokens at a time

_QWEN: dict[str, Any] = GQA | {
    "model_type": "qwen3", "head_dim": 24, "hidden_act": "silu", "rope_theta": 5000.0, "attention_bias": False,
    "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": vocabularies.QWEN_TOKENS - 1,
    "layer_types": ["full_attention"] * 2, "use_sliding_window": False, "sliding_window": None,
}  # fmt: skip
_DFLASH: dict[str, Any] = _QWEN | {
    "block_size": 8, "num_target_layers": 8,
    "dflash_config": {"mask_token_id": vocabularies.QWEN_TOKENS - 2, "target_layer_ids": [1, 3, 6]},
}  # fmt: skip


def _dflash_layer(width: int) -> dict[str, tuple[int, ...]]:
    return {
        "input_layernorm.weight": (64,),
        "self_attn.q_proj.weight": (4 * width, 64),
        "self_attn.k_proj.weight": (2 * width, 64),
        "self_attn.v_proj.weight": (2 * width, 64),
        "self_attn.o_proj.weight": (64, 4 * width),
        "self_attn.q_norm.weight": (width,),
        "self_attn.k_norm.weight": (width,),
        "post_attention_layernorm.weight": (64,),
        "mlp.gate_proj.weight": (96, 64),
        "mlp.up_proj.weight": (96, 64),
        "mlp.down_proj.weight": (64, 96),
    }


def _dflash(**more: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    layer = _dflash_layer(24) | more
    layers = {f"layers.{n}.{name}": shape for n in range(2) for name, shape in layer.items()}
    return {**layers, "fc.weight": (64, 192), "hidden_norm.weight": (64,), "norm.weight": (64,)}


_MUSE = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
_CONVS: dict[str, tuple[int, ...]] = {
    **{f"{part}_conv.base_kernel": (2, 2, 64) for part in ("attention", "mlp")},
    **{f"{part}_conv.kernel_projection.weight": (16, 64) for part in ("attention", "mlp")},
}
_SELECTOR: dict[str, tuple[int, ...]] = {
    "candidate_selector.predecessor_codebook": (vocabularies.QWEN_SIZE, 32),
    "candidate_selector.successor_codebook": (vocabularies.QWEN_SIZE, 32),
    "candidate_selector.hidden_projection.weight": (32, 64),
}
_FEWER = vocabularies.QWEN_SIZE // 2
_MARKOV: dict[str, tuple[int, ...]] = {f"markov_head.markov_w{n}.weight": (vocabularies.QWEN_SIZE, 32) for n in (1, 2)}
_CONFIDENCE: dict[str, tuple[int, ...]] = {
    "confidence_head.proj.weight": (1, 96),
    "confidence_head.proj.bias": (1,),
}

# places of settings, those of training, and what follows from the target or tells of a way to write the same
_UNHELD = frozenset({
    "target", "dflash_config", "num_target_layers", "num_anchors", "use_sliding_window", "sliding_window",
    "max_window_layers",
    "confidence_head_with_markov", "draft_sections", "rope_is_neox_style", "paired_rope",
})  # fmt: skip

_GEMMA: dict[str, tuple[int, ...]] = {
    **{
        f"layers.{n}.{name}": shape
        for n in range(2)
        for name, shape in (
            _dflash_layer(32)
            | {f"{part}_layernorm.weight": (64,) for part in ("pre_feedforward", "post_feedforward")}
            | {"layer_scalar": (1,), "self_attn.k_proj.weight": (32, 64)}
        ).items()
        if "v_proj" not in name
    },
    "fc.weight": (64, 192),
    "hidden_norm.weight": (64,),
    "norm.weight": (64,),
    "lm_head.weight": (vocabularies.SPM_SIZE, 64),
    **{f"markov_head.markov_w{n}.weight": (vocabularies.SPM_SIZE, 32) for n in (1, 2)},
    **_CONFIDENCE,
}

_INSIDE = {key: value for key, value in (DEEPSEEK_V4 | DSPARK).items() if key != "num_nextn_predict_layers"} | {
    "num_hidden_layers": 3, "compress_ratios": [0] * 3, "num_hash_layers": 0,
}  # fmt: skip

#: The models that they draft for, by name.
TARGETS = table(
    Case("llama", "LlamaConfig", "bpe", GQA | BPE | {"num_hidden_layers": 8}),
    Case("qwen3", "Qwen3Config", "qwen", _QWEN | {"num_hidden_layers": 8, "layer_types": ["full_attention"] * 8}),
    Case(
        "gemma2",
        "Gemma2Config",
        "gemma",
        GQA | SPM | {"num_hidden_layers": 8, "head_dim": 32, "pad_token_id": 0, "sliding_window": 24},
    ),
    # of which only config and tokenizer are read
    Case(
        "gemma4",
        "Gemma4ForCausalLM",
        "gemma4",
        GQA | SPM | {"model_type": "gemma4_text", "num_hidden_layers": 8, "head_dim": 24, "pad_token_id": 0},
        shapes={"x.weight": (1, 1)},
    ),
    Case("deepseek4", "DeepseekV4ForCausalLM", "bpe", DEEPSEEK_V4, shapes={"x.weight": (1, 1)}),
    Case(
        "muse-glimmer",
        "MuseGlimmerForConditionalGeneration",
        "bpe",
        {
            "model_type": "muse_glimmer",
            "text_config": GQA
            | BPE
            | {"model_type": "muse_glimmer_text", "num_hidden_layers": 8, "head_dim": 24}
            | {"vocab_size": vocabularies.BPE_SIZE},
        },
        shapes={"x.weight": (1, 1)},
    ),
    Case(
        "qwen3-vl",
        "Qwen3VLForConditionalGeneration",
        "qwen",
        {
            "model_type": "qwen3_vl",
            "vision_config": {"deepstack_visual_indexes": [1, 2, 3]},
            "text_config": _QWEN
            | {
                "num_hidden_layers": 8,
                "layer_types": ["full_attention"] * 8,
                "vocab_size": vocabularies.QWEN_SIZE,
                "model_type": "qwen3_vl_text",
                "rope_scaling": {"rope_type": "default", "mrope_section": [6, 3, 3], "mrope_interleaved": True},
            },
        },
        shapes={"x.weight": (1, 1)},
    ),
)

CASES = table(
    # as SpecForge trains it: the embedding is the target's
    Case(
        "eagle3",
        "LlamaForCausalLMEagle3",
        "bpe",
        _EAGLE,
        shapes=_eagle("midlayer.") | _OUT,
        defaults=_LLAMA | {"num_hidden_layers": 1, "norm_before_residual": False, "norm_before_fc": False},
        head="LlamaForCausalLMEagle3",
        target="llama",
        older=("t2d",),
        alone=("d2t", "embed_tokens.weight"),
        unheld=frozenset({"target"}),
        guesses=(
            "assuming the class LlamaForCausalLMEagle3: a eagle3 GGUF of Eagle3Speculator is the same",
        ),
        runs=False,  # without its target
    ),
    # every token of the target, whose output it has, and a norm of its inputs
    like(
        "eagle3",
        "eagle3-wide",
        config="Eagle3LlamaForCausalLM",
        options={key: value for key, value in _EAGLE.items() if key != "head_dim"}
        | {"draft_vocab_size": vocabularies.BPE_SIZE, "rope_scaling": None, "norm_before_fc": True}
        | {"target_hidden_size": 64, "eagle_aux_hidden_state_layer_ids": [0, 1, 1]},
        shapes=_eagle("midlayer.", **_NARROW) | {"input_norm.weight": (192,)},
    ),
    # as speculators writes it
    like(
        "eagle3",
        "eagle3-speculator",
        config="Eagle3Speculator",
        options={
            "draft_vocab_size": _DRAFTED, "norm_before_residual": True, "target_hidden_size": None,
            "eagle_aux_hidden_state_layer_ids": None, "speculators_model_type": "eagle3",
            "model_type": "speculator_model",
            "transformer_layer_config": _EAGLE | {"vocab_size": vocabularies.BPE_SIZE, "draft_vocab_size": _DRAFTED},
        },
        shapes=_eagle("layers.0.") | _OUT | _EMBED,
    ),
    # as z-lab publishes it, for Qwen 3
    Case(
        "dflash",
        "DFlashDraftModel",
        "qwen",
        _DFLASH,
        shapes=_dflash(),
        head="DFlashDraftModel",
        target="qwen3",
        unheld=_UNHELD,
        alone=("embed_tokens.weight", "d2t"),
        older=("t2d",),
        runs=False,
    ),
    # Muse Glimmer's assistant
    like(
        "dflash",
        "dflash-muse",
        config="MuseGlimmerAssistantModel",
        tokenizer="bpe",
        options=GQA | BPE | {
            "model_type": "muse_glimmer_assistant", "head_dim": 24, "hidden_act": "silu", "sliding_window": 24,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
            "layer_types": ["sliding_attention", "full_attention"], "block_size": 8, "target_layer_ids": [1, 3, 6],
            "mask_token_id": vocabularies.BPE_SIZE - 5,
        },
        shapes={
            _MUSE.get(name, name): shape
            for name, shape in _dflash().items()
        },
        words={"use_sliding_window": True},
        head="MuseGlimmerAssistantModel",
        target="muse-glimmer",
        alone=(),
        older=(),
        taken="qwen3",
        unheld=_UNHELD | {"pad_token_id", "target_layer_ids", "model_type"},
    ),
    # with matrices and a window of its own, for a Gemma, whose graph scales the embedding
    like(
        "dflash",
        "dflash-settings",
        options=_QWEN | {
            "rope_theta": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5},
            "dflash_config": {
                "block_size": 6, "mask_token_id": 4, "target_layer_ids": [1, 3, 6], "attention_value_scale": 0.75,
                "output_multiplier": 0.5, "final_logit_softcapping": 20.0, "use_swa": True, "swa_window_size": 24,
                "causal": True,
            },
        },
        tokenizer="gemma",
        shapes=_dflash(**{"self_attn.sinks": (4,)})
        | {"embed_tokens.weight": (vocabularies.SPM_SIZE, 64), "lm_head.weight": (vocabularies.SPM_SIZE, 64)},
        target="gemma2",
    ),
    # DFlash 2, for a target whose positions have axes
    like(
        "dflash",
        "dflash2",
        config="DFlash2DraftModel",
        options=_QWEN | {
            "layer_types": None, "max_window_layers": 1, "use_sliding_window": True, "sliding_window": 24,
            "is_causal": False, "input_embedding_scale": 2.0,
            "dflash_config": {
                "block_size": 8, "mask_token_id": vocabularies.QWEN_TOKENS - 2, "target_layer_ids": [1, 3, 6],
                "conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 32, "selector_top_k": 4,
            },
        },
        shapes=_dflash(**_CONVS) | _SELECTOR,
        unheld=_UNHELD | {"rope"},
        head="DFlash2DraftModel",
        target="qwen3-vl",
    ),
    # DSpark as DeepSpec trains it
    like(
        "dflash",
        "dspark",
        config="Qwen3DSparkModel",
        options=_QWEN | {
            "block_size": 7, "mask_token_id": vocabularies.QWEN_TOKENS - 2, "target_layer_ids": [1, 3, 6],
            "markov_rank": 32, "markov_head_type": "vanilla", "enable_confidence_head": True,
            "confidence_head_with_markov": True, "num_anchors": 512, "num_target_layers": 8,
        },
        shapes=_dflash() | _MARKOV | _CONFIDENCE | {"lm_head.weight": (vocabularies.QWEN_SIZE, 64)},
        defaults={"markov_rank": 256, "markov_head_type": "vanilla", "draft_vocab_size": 151936},
        part_type="qwen3",
        guesses=("assuming the class Qwen3DSparkModel: a dflash GGUF of DSparkSpeculator is the same",),
        head="Qwen3DSparkModel",
        unkept=("lm_head.weight",),
    ),
    # and with the target's rotation in its config
    like(
        "dspark",
        "dspark-axes",
        {
            "rope_theta": None, "rope_parameters": {
                "rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5, "mrope_section": [2, 2, 2],
                "mrope_interleaved": True,
            },
        },
        unheld=_UNHELD | {"rope"},
        target="qwen3-vl",
    ),
    # for some tokens, and no confidence, as speculators writes it
    like(
        "dspark",
        "dspark-speculator",
        config="DSparkSpeculator",
        options={
            "model_type": "speculator_model", "speculators_model_type": "dspark", "block_size": 7,
            "mask_token_id": vocabularies.QWEN_TOKENS - 2, "aux_hidden_state_layer_ids": [2, 4, 7], "markov_rank": 32,
            "markov_head_type": "vanilla", "enable_confidence_head": False, "draft_vocab_size": _FEWER,
            "transformer_layer_config": _QWEN | {"vocab_size": vocabularies.QWEN_SIZE},
        },
        shapes={
            f"model.{name}": shape
            for name, shape in (
                _dflash() | _MARKOV
                | {"markov_head.markov_w2.weight": (_FEWER, 32), "lm_head.weight": (_FEWER, 64), "d2t": (_FEWER,)}
            ).items()
        },
        older=("model.t2d",),
        alone=("model.d2t",),
        head="DSparkSpeculator",
        unkept=(),
    ),
    # whose adjacent elements rotate, as LiquidAI publishes it
    like(
        "dspark",
        "dspark-pairs",
        config="Lfm2DSparkDraftModel",
        options=_DFLASH | {
            "block_size": 9, "markov_rank": 32, "markov_head_type": "vanilla", "enable_confidence_head": True,
            "rope_is_neox_style": False,
        },
        turned=("q_proj.weight", "k_proj.weight", "q_norm.weight", "k_norm.weight"),
        shapes=_dflash() | _MARKOV | _CONFIDENCE,
        unkept=(),
    ),
    # as SpecForge writes it, past its trained length by yarn
    like(
        "dspark",
        "dspark-flat",
        config="DSparkDraftModel",
        options=_DFLASH | {
            "markov_rank": 32, "markov_head_type": "vanilla", "enable_confidence_head": True,
            "rope_scaling": {
                "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32.0,
                "beta_slow": 1.0,
            },
        },
        shapes=_dflash() | _MARKOV | _CONFIDENCE,
        unkept=(),
        target="qwen3",
        part_type="speculator_model",
    ),
    # a DFlash with DSpark's matrices
    like(
        "dflash",
        "dflash-markov",
        {"markov_rank": 32, "markov_head_type": "vanilla"},
        shapes=_dflash() | _MARKOV,
        unheld=_UNHELD | {"markov_head_type"},
    ),
    # and with Gemma 4's layers
    Case(
        "dspark-gemma4",
        "Gemma4DSparkModel",
        "gemma4",
        GQA | SPM | {
            "model_type": "gemma4_text", "layer_types": ["full_attention"] * 2, "head_dim": 24, "global_head_dim": 32,
            "num_key_value_heads": 2, "num_global_key_value_heads": 1, "attention_k_eq_v": True, "pad_token_id": 0,
            "rope_parameters": {
                "full_attention": {"rope_type": "proportional", "rope_theta": 50000.0, "partial_rotary_factor": 0.25},
                "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
            },
            "hidden_activation": "gelu_pytorch_tanh", "block_size": 7, "mask_token_id": 4,
            "markov_rank": 32, "markov_head_type": "vanilla",
            "enable_confidence_head": True, "enable_moe_block": False,
            "dflash_config": {
                "mask_token_id": 4, "target_layer_ids": [1, 3, 6], "use_swa": True, "swa_window_size": 24,
                "causal": True,
            },
            "attention_bias": False, "final_logit_softcapping": None, "tie_word_embeddings": False,
        },
        shapes=_GEMMA,
        hparams={"global_head_dim": 32, "num_global_key_value_heads": 1, "attention_k_eq_v": True},
        head="Gemma4DSparkModel",
        target="gemma4",
        words={"global_head_dim": 512, "markov_rank": 256, "markov_head_type": "vanilla"}
        | {"speculators_model_type": "dspark", "attention_k_eq_v": False, "enable_moe_block": False}
        | {"layer_types": ["full_attention"] * 30},
        alone=("embed_tokens.weight",),
        older=("t2d",),
        unheld=_UNHELD
        | {"num_key_value_heads", "head_dim", "tie_word_embeddings", "rope_sliding"}
        | {"rope_dim", "sliding_rope_dim"},
        runs=False,
    ),
    # DSpark in DeepSeek V4's folder, seen alone; in floats, which the reference takes of no expert
    Case(
        "dspark-deepseek4",
        "DeepseekV4DSparkModel",
        "bpe",
        _INSIDE,
        shapes=dspark_shapes(3, 3, 32),
        judged=False,
        spreads=SPREADS,
        head="DeepseekV4DSparkModel",
        target="deepseek4",
        older=("mtp.0.ffn.gate.bias_vl", "mtp.2.ffn.gate.bias_vl"),
        alone=("mtp.2.confidence_head.proj.weight",),
        foreign=("vision.norm.weight", "mtp.0.x.weight"),
        vocabulary={"tokenizer.ggml.mask_token_id": DSPARK["dspark_noise_token_id"]},
        unheld=_UNHELD | {"topk_method"},
        runs=False,
    ),
    # ... as it is published
    like(
        "dspark-deepseek4",
        "dspark-deepseek4-published",
        judged=True,
        packed=published_packings.deepseek_v4,
        golden=False,
        returns=False,  # but its matrices in FP8 become Q8_0
    ),
)  # fmt: skip
UNSAID: dict[str, dict[str, Any]] = {
    "dflash-muse": {"hidden_act": "gelu", "rope.rope_type": "dynamic"},
    "dflash": {"hidden_act": "gelu", "tie_word_embeddings": True, "attention_bias": True, "rope.rope_type": "dynamic"}
    | {"markov_head_type": "gated"},
    "dflash-gemma4": {"attention_bias": True, "enable_moe_block": True, "hidden_activation": "silu"}
    | {"final_logit_softcapping": 30.0, "markov_head_type": "gated", "rope.rope_type": "yarn"}
    | {"layer_types": ["full_attention", "sliding_attention"]},
    "eagle3": {"hidden_act": "gelu", "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}
    | {"partial_rotary_factor": 0.5, "rope.rope_type": "dynamic", "num_hidden_layers": 2},
}
