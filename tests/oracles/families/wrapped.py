"""Models of several parts, one of which writes, under their published names: small ones for each class that a family's
table lists (`wrappers`), and classes that lack a prefix or have another head. See __init__.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.oracles import vocabularies
from tests.oracles.case import Case, like, table
from tests.oracles.families.common import BPE, GQA
from tests.oracles.families.experts import GLM_WORDS

Shapes = dict[str, tuple[int, ...]]

VOCABULARY = {"vocab_size": vocabularies.BPE_SIZE}
_TEXT: dict[str, Any] = GQA | BPE | VOCABULARY | {
    "rope_theta": 5000.0, "hidden_act": "silu", "tie_word_embeddings": False, "head_dim": 16,
}  # fmt: skip
LLAMA: dict[str, Any] = _TEXT | {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "mlp_bias": False,
    "attention_bias": False,
}
MISTRAL: dict[str, Any] = _TEXT | {"model_type": "mistral", "sliding_window": None}
QWEN2: dict[str, Any] = _TEXT | {"model_type": "qwen2", "use_sliding_window": False}
QWEN3: dict[str, Any] = _TEXT | {"attention_bias": False, "model_type": "qwen3", "use_sliding_window": False}


COHERE2: dict[str, Any] = GQA | BPE | VOCABULARY | {
    "rope_theta": 5000.0, "hidden_act": "silu", "head_dim": 16, "model_type": "cohere2", "sliding_window": 16,
    "layer_norm_eps": 5e-2, "logit_scale": 0.25, "attention_bias": False, "num_hidden_layers": 4, "rotary_pct": 1.0,
}  # fmt: skip


def _named(config: dict[str, Any], name: str = "") -> dict[str, Any]:
    """A part's config with the name of its class, or without one."""
    rest = {key: value for key, value in config.items() if key != "architectures"}
    return rest | ({"architectures": [name]} if name else {})


def decoder(
    *, biases: bool = False, head_norms: bool = False, head: str = "lm_head.", front: str = "model.", layers: int = 2
) -> Shapes:
    """Names and shapes of a small Llama, with biases of q, k and v or norms of their heads. `front` and `head` stand in
    front of all names and of the output's; without the latter there is none."""
    one: Shapes = {
        "input_layernorm.weight": (64,), "post_attention_layernorm.weight": (64,), "self_attn.q_proj.weight": (64, 64),
        "self_attn.k_proj.weight": (32, 64), "self_attn.v_proj.weight": (32, 64), "self_attn.o_proj.weight": (64, 64),
        "mlp.gate_proj.weight": (96, 64), "mlp.up_proj.weight": (96, 64), "mlp.down_proj.weight": (64, 96),
    }  # fmt: skip
    if biases:
        one |= {f"self_attn.{part}_proj.bias": (rows,) for part, rows in (("q", 64), ("k", 32), ("v", 32))}
    if head_norms:
        one |= {f"self_attn.{part}_norm.weight": (16,) for part in "qk"}
    every = {f"{front}layers.{i}.{name}": shape for i in range(layers) for name, shape in one.items()}
    rows = (vocabularies.BPE_SIZE, 64)
    ends: Shapes = {f"{front}embed_tokens.weight": rows, f"{front}norm.weight": (64,)}
    return every | ends | ({f"{head}weight": rows} if head else {})


def whole(name: str, cls: str, config: dict[str, Any], shapes: Shapes, apart: tuple[str, ...], **more: Any) -> Case:
    """A model of several parts: of each of the others a tensor or two, by how their names begin."""
    others: Shapes = {f"{start}x.weight" if start.endswith(".") else start: (8,) for start in apart}
    return Case(name, cls, "none", config, shapes=shapes | others, apart=apart, **{"head": cls, "runs": False, **more})


_A_LLAMA: dict[str, Any] = {
    "taken": "llama",
    "guesses": ("assuming the class LlamaForCausalLM: a llama GGUF of MistralForCausalLM is the same",),
    "unheld": frozenset({"architectures", "model_type", "sliding_window"}),
}
_TOWER = ("vision_tower.", "multi_modal_projector.")
_AUDIO = ("audio_tower.", "multi_modal_projector.")
_IDEFICS = ("model.vision_model.", "model.connector.")
_OUTER: dict[str, Any] = {"front": "language_model.model.", "head": "language_model.lm_head."}


def experts(front: str, *, fused: bool = False) -> Shapes:
    """Names and shapes of four experts in each of two layers, and of what chooses among them; `fused` into one tensor a
    kind, the other way round than a linear layer."""
    out: Shapes = {}
    for i in (0, 1):
        at = f"{front}layers.{i}.mlp."
        out[f"{at}gate.weight"] = (4, 64)
        if fused:
            out |= {f"{at}experts.gate_up_proj": (4, 64, 64), f"{at}experts.down_proj": (4, 32, 64)}
        for e in () if fused else range(4):
            out |= {f"{at}experts.{e}.{part}_proj.weight": (32, 64) for part in ("gate", "up")}
            out |= {f"{at}experts.{e}.down_proj.weight": (64, 32)}
    return out


def without_ffn(shapes: Shapes) -> Shapes:
    """The shapes without those of a dense feed forward."""
    return {name: shape for name, shape in shapes.items() if not name.endswith(_DENSE)}


_DENSE = ("mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight")
_QWEN_UNHELD = frozenset({"architectures", "model_type", "use_sliding_window"})
_MROPE_UNHELD = _QWEN_UNHELD | {"rope"}  # comes back as one of a text
_MROPE = {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}
_INTERLEAVED = {"rope_scaling": {"rope_type": "default", "mrope_section": [3, 3, 2], "mrope_interleaved": True}}
_QWEN_MOE: dict[str, Any] = _TEXT | {"attention_bias": False, 
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True,
    "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip
_NO_HEAD_DIM: dict[str, Any] = {key: value for key, value in QWEN2.items() if key not in ("head_dim", "model_type")}

_LLAMAS = (
    whole(
        "llava",
        "LlavaForConditionalGeneration",
        {"model_type": "llava", "text_config": LLAMA},
        decoder(**_OUTER),
        _TOWER,
        **_A_LLAMA,
    ),
    whole(
        "llava-mistral",
        "LlavaNextForConditionalGeneration",
        {"model_type": "llava_next", "text_config": MISTRAL | {"architectures": ["MistralForCausalLM"]}},
        decoder(**_OUTER),
        (*_TOWER, "image_newline"),
        **_A_LLAMA,
    ),
    whole(
        "voxtral",
        "VoxtralForConditionalGeneration",
        {"model_type": "voxtral", "text_config": LLAMA},
        decoder(**_OUTER),
        _AUDIO,
        **_A_LLAMA,
    ),
    whole(
        "cohere2-vision",
        "Cohere2VisionForConditionalGeneration",
        {"model_type": "cohere2_vision", "text_config": COHERE2 | {"architectures": ["Cohere2ForCausalLM"]}},
        {
            name: shape
            for name, shape in decoder(front="model.language_model.", head="", layers=4).items()
            if "post_att" not in name
        },
        ("model.vision_tower.", "model.multi_modal_projector."),
        unheld=frozenset({"rotary_pct"}),
    ),
    whole(
        "idefics3",
        "Idefics3ForConditionalGeneration",
        {"model_type": "idefics3", "text_config": LLAMA | {"architectures": ["VLlama3ForCausalLM"]}},
        decoder(front="model.text_model."),
        _IDEFICS,
        **_A_LLAMA,
    ),
    whole(
        "smolvlm",
        "SmolVLMForConditionalGeneration",
        {"model_type": "smolvlm", "text_config": LLAMA | {"architectures": ["VLlama3ForCausalLM"]}},
        decoder(front="model.text_model."),
        _IDEFICS,
        **_A_LLAMA,
    ),
    whole(
        "janus",
        "JanusForConditionalGeneration",
        {"model_type": "janus", "text_config": _named(LLAMA)},
        decoder(front="model.language_model."),
        ("model.vision_model.", "model.aligner.", "model.vqmodel.", "model.generation_head."),
        **_A_LLAMA,
    ),
    whole(
        "sarashina2-vision",
        "Sarashina2VisionForCausalLM",
        {"model_type": "sarashina2_vision", "text_config": _named(LLAMA)},
        decoder(front="llm.model.", head="llm.lm_head."),
        ("visual.", "norm."),
        **_A_LLAMA,
    ),
    whole(
        "internvl-llama",
        "InternVLChatModel",
        {"model_type": "internvl_chat", "llm_config": LLAMA},
        decoder(**_OUTER),
        ("vision_model.", "mlp1."),
        **_A_LLAMA,
    ),
)

_GRANITE: dict[str, Any] = {key: value for key, value in _TEXT.items() if key != "head_dim"} | {
    "model_type": "granite", "attention_bias": False, "mlp_bias": False, "attention_multiplier": 0.1,
    "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 8.0,
}  # fmt: skip
_GRANITES = (
    whole(
        "granite-speech",
        "GraniteSpeechForConditionalGeneration",
        {"model_type": "granite_speech", "text_config": _GRANITE | {"architectures": ["GraniteForCausalLM"]}},
        decoder(**_OUTER),
        ("encoder.", "projector."),
    ),
    whole(
        "granite-speech-plus",
        "GraniteSpeechPlusForConditionalGeneration",
        {"model_type": "granite_speech_plus", "text_config": _GRANITE | {"architectures": ["GraniteForCausalLM"]}},
        decoder(**_OUTER),
        ("encoder.", "projector."),
    ),
    whole(
        "granite4-vision",
        "Granite4VisionForConditionalGeneration",
        {
            "model_type": "granite4_vision",
            "deepstack_layer_map": [[-4, 3], [-2, 0]],
            "spatial_target_layers": [1, 2],
            "downsample_rate": "1/2",
            "image_grid_pinpoints": [[384, 384]],
            "vision_config": {"num_hidden_layers": 4},
            "text_config": _GRANITE | {"architectures": ["GraniteForCausalLM"], "num_hidden_layers": 4},
        },
        decoder(front="model.language_model.", layers=4),
        ("model.vision_tower.", "model.layerwise_projectors.", "model.spatial_projectors.", "model.image_newline"),
        unheld=frozenset(  # of the towers
            {"feature_layers", "spatial_offsets", "projector_numbers", "deepstack_mapping", "pinpoints"}
            | {"first_fed_layer", "query_side", "window_side"}
        ),
    ),
)

_MERALION = (
    whole(
        "meralion2",
        "MERaLiON2ForConditionalGeneration",
        {
            "model_type": "meralion2", "speech_mlp_scale_factor": 15,
            "text_config": {key: value for key, value in _TEXT.items() if key != "hidden_act"} | {
                "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "head_dim": 16, "rms_norm_eps": 1e-5,
                "query_pre_attn_scalar": 16, "sliding_window": 64, "attn_logit_softcapping": 50.0,
                "final_logit_softcapping": 30.0, "hidden_activation": "gelu_pytorch_tanh", "rope_theta": 1e4,
                "tie_word_embeddings": True,
            },
        },
        {
            **{name: shape for name, shape in decoder(front="text_decoder.model.").items() if name != "lm_head.weight"},
            **{
                f"text_decoder.model.layers.{i}.{side}_feedforward_layernorm.weight": (64,)
                for i in (0, 1) for side in ("pre", "post")
            },
        },
        ("speech_encoder.", "ln_speech.", "speech_audio_adapter."),
        beyond=("speech_encoder.x.weight", "ln_speech.x.weight", "speech_audio_adapter.x.weight"),
        twin=True, taken="gemma2",
    ),
)  # fmt: skip

_QWENS = (
    whole(
        "qwen2-audio",
        "Qwen2AudioForConditionalGeneration",
        {"model_type": "qwen2_audio", "text_config": QWEN2},
        decoder(biases=True, **_OUTER),
        _AUDIO,
        unheld=_QWEN_UNHELD,
    ),
    whole(
        "audio-flamingo3",
        "AudioFlamingo3ForConditionalGeneration",
        {"model_type": "audioflamingo3", "text_config": QWEN2},
        decoder(biases=True, **_OUTER),
        _AUDIO,
        unheld=_QWEN_UNHELD,
    ),
    whole(
        "dots-ocr",
        "DotsOCRForCausalLM",
        QWEN2 | {"model_type": "dots_ocr", "vision_config": {"model_type": "dots_vit"}},
        decoder(biases=True),
        ("vision_tower.",),
        unheld=_QWEN_UNHELD | {"vision_config"},
        taken="qwen2",
        part_type="qwen2",
    ),
    whole(
        "llava-qwen2",
        "LlavaForConditionalGeneration",
        {"model_type": "llava", "text_config": QWEN2 | {"architectures": ["Qwen2ForCausalLM"]}},
        decoder(biases=True, **_OUTER),
        _TOWER,
        unheld=_QWEN_UNHELD,
    ),
    whole(
        "internvl-qwen2",
        "InternVLChatModel",
        {"model_type": "internvl_chat", "llm_config": QWEN2 | {"architectures": ["Qwen2ForCausalLM"]}},
        decoder(biases=True, **_OUTER),
        ("vision_model.", "mlp1."),
        unheld=_QWEN_UNHELD,
    ),
    whole(
        "internvl-hf",
        "InternVLForConditionalGeneration",
        {"model_type": "internvl", "text_config": QWEN2 | {"architectures": ["Qwen2ForCausalLM"]}},
        decoder(biases=True, front="model.language_model."),
        ("model.vision_tower.", "model.multi_modal_projector."),
        unheld=_QWEN_UNHELD,
    ),
    whole(
        "internvl-qwen3",
        "InternVLChatModel",
        {"model_type": "internvl_chat", "llm_config": QWEN3 | {"architectures": ["Qwen3ForCausalLM"]}},
        decoder(head_norms=True, **_OUTER),
        ("vision_model.", "mlp1."),
        unheld=_QWEN_UNHELD,
    ),
    whole(
        "lighton-ocr",
        "LightOnOCRForConditionalGeneration",
        {"model_type": "lighton_ocr", "text_config": QWEN3 | {"architectures": ["Qwen3ForCausalLM"]}},
        decoder(head_norms=True, front="model.language_model."),
        ("model.vision_encoder.", "model.vision_projection."),
        unheld=_QWEN_UNHELD,
    ),
    whole(
        "step3-vl",
        "StepVLForConditionalGeneration",
        {"model_type": "step_robotics", "text_config": QWEN3 | {"architectures": ["Qwen3ForCausalLM"]}},
        decoder(head_norms=True),
        ("vision_model.", "vit_large_projector."),
        unheld=_QWEN_UNHELD,
    ),
    whole(
        "qwen2-vl",
        "Qwen2VLForConditionalGeneration",
        _NO_HEAD_DIM | _MROPE | {"model_type": "qwen2_vl"},
        decoder(biases=True),
        ("visual.",),
        unheld=_MROPE_UNHELD,
        taken="qwen2",
        part_type="qwen2_vl_text",
    ),
    whole(
        "qwen2.5-vl",
        "Qwen2_5_VLForConditionalGeneration",
        {"model_type": "qwen2_5_vl", "text_config": _NO_HEAD_DIM | _MROPE | {"model_type": "qwen2_5_vl_text"}},
        decoder(biases=True, front="model.language_model."),
        ("model.visual.",),
        unheld=_MROPE_UNHELD,
        taken="qwen2",
    ),
    whole(
        "qwen2.5-omni",
        "Qwen2_5OmniModel",
        {
            "model_type": "qwen2_5_omni",
            "thinker_config": {"text_config": _NO_HEAD_DIM | _MROPE | {"model_type": "qwen2_5_omni_text"}},
        },
        decoder(biases=True, front="thinker.model.", head="thinker.lm_head."),
        ("thinker.visual.", "thinker.audio_tower.", "talker.", "token2wav."),
        unheld=_MROPE_UNHELD,
        taken="qwen2",
    ),
    whole(
        "qwen3-vl",
        "Qwen3VLForConditionalGeneration",
        {
            "model_type": "qwen3_vl",
            "text_config": _TEXT | {"attention_bias": False} | _INTERLEAVED | {"model_type": "qwen3_vl_text"},
            "vision_config": {"deepstack_visual_indexes": [1, 2, 3]},
        },
        decoder(head_norms=True, front="model.language_model."),
        ("model.visual.",),
        unheld=_QWEN_UNHELD,
        taken="qwen3",
    ),
    whole(
        "qwen3-asr",
        "Qwen3ASRForConditionalGeneration",
        {
            "model_type": "qwen3_asr",
            "thinker_config": {
                "model_type": "qwen3_asr",
                "text_config": QWEN3 | _INTERLEAVED | {"model_type": "qwen3_asr_text"},
            },
        },
        decoder(head_norms=True, front="thinker.model.", head="thinker.lm_head."),
        ("thinker.audio_tower.",),
        unheld=_QWEN_UNHELD,
        taken="qwen3",
    ),
    whole(
        "qwen3-vl-moe",
        "Qwen3VLMoeForConditionalGeneration",
        {
            "model_type": "qwen3_vl_moe",
            "text_config": _QWEN_MOE | _INTERLEAVED | {"model_type": "qwen3_vl_moe_text"},
            "vision_config": {"deepstack_visual_indexes": [1, 2]},
        },
        without_ffn(decoder(head_norms=True, front="model.language_model."))
        | experts("model.language_model.", fused=True),
        ("model.visual.",),
        unheld=_QWEN_UNHELD | {"num_experts", "num_local_experts"},
        taken="qwen3_moe",
    ),
    like(
        "qwen3-vl-moe",
        "qwen3-vl-moe-unseeing",
        options={
            "model_type": "qwen3_vl_moe",
            "text_config": _QWEN_MOE | _INTERLEAVED | {"model_type": "qwen3_vl_moe_text"},
        },
    ),
    whole(
        "qwen3-omni",
        "Qwen3OmniMoeForConditionalGeneration",
        {
            "model_type": "qwen3_omni_moe",
            "thinker_config": {"text_config": _QWEN_MOE | _INTERLEAVED | {"model_type": "qwen3_omni_moe_text"}},
        },
        without_ffn(decoder(head_norms=True, front="thinker.model.", head="thinker.lm_head."))
        | experts("thinker.model."),
        ("thinker.audio_tower.", "thinker.visual.", "talker.", "code2wav."),
        unheld=_MROPE_UNHELD | {"num_experts"},
        taken="qwen3_moe",
    ),
)

_RND1 = {
    "hidden_act": "silu", "attention_bias": False, "decoder_sparse_step": 1, "norm_topk_prob": True,
    "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
}  # fmt: skip

# Without `model.`, and under other classes' names.
_BARE = (
    Case(
        "llama-bare",
        "LlamaModel",
        "none",
        LLAMA | {"architectures": ["LlamaModel"]},
        shapes=decoder(front="", head=""),
        runs=False,
        head="LlamaModel",
        **{**_A_LLAMA, "taken": "", "unheld": _A_LLAMA["unheld"] | {"tie_word_embeddings"}},
    ),
    Case(
        "qwen2-bare",
        "Qwen2Model",
        "none",
        QWEN2,
        shapes=decoder(front="", head="", biases=True),
        runs=False,
        head="Qwen2Model",
        unheld=_QWEN_UNHELD | {"tie_word_embeddings"},
    ),
    Case(
        "qwen3-bare",
        "Qwen3Model",
        "none",
        QWEN3,
        shapes=decoder(front="", head="", head_norms=True),
        runs=False,
        head="Qwen3Model",
        unheld=_QWEN_UNHELD | {"tie_word_embeddings"},
    ),
    Case(
        "kormo",
        "KORMoForCausalLM",
        "none",
        _TEXT | {"model_type": "kormo"},
        shapes={
            name.replace("input_layernorm", "pre_attention_layernorm").replace(
                "post_attention_layernorm", "pre_mlp_layernorm"
            ): shape
            for name, shape in decoder().items()
        },
        runs=False,
        head="KORMoForCausalLM",
        unheld=_QWEN_UNHELD,
        defaults={"hidden_act": "silu", "rope_theta": 500000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": False},
    ),
    Case(
        "rnd1",
        "RND1",
        "none",
        _QWEN_MOE | {"model_type": "rnd1", "mask_token_id": 7},
        shapes=without_ffn(decoder(head_norms=True)) | experts("model."),
        runs=False,
        defaults=_RND1,
        unheld=frozenset({"num_experts", "mlp_only_layers"}),
    ),
)

_HUNYUAN: dict[str, Any] = _TEXT | {
    "attention_bias": False, "tie_word_embeddings": True, "max_position_embeddings": 32768, "num_experts": 1,
    "eod_token_id": vocabularies.BPE_SIZE - 2, "rope_theta": 10000.0,
}  # fmt: skip
_HUNYUAN_NAMES = {"q_norm": "query_layernorm", "k_norm": "key_layernorm"}
_HUNYUAN_UNHELD = frozenset({
    "architectures", "model_type", "eod_token_id", "num_experts", "tie_word_embeddings", "rope", "ntk_alpha_base",
})  # fmt: skip


def _hunyuan(front: str) -> Shapes:
    shapes = decoder(head_norms=True, front=front, head="")
    for theirs, ours in _HUNYUAN_NAMES.items():
        shapes = {name.replace(theirs, ours): shape for name, shape in shapes.items()}
    return shapes


_HUNYUANS = (
    # HunyuanOCR as it is published
    whole(
        "hunyuan-ocr",
        "HunYuanVLForConditionalGeneration",
        _HUNYUAN
        | {
            "model_type": "hunyuan_vl",
            "rope_scaling": {"type": "xdrope", "alpha": 1000.0, "factor": 1.0, "xdrope_section": [2, 2, 2, 2]},
        },
        _hunyuan("model."),
        ("vit.",),
        hparams=_HUNYUAN
        | {
            "rope_parameters": None,
            "rope_scaling": {"type": "xdrope", "alpha": 1000.0, "factor": 1.0, "xdrope_section": [2, 2, 2, 2]},
            "text_config": None,
        },
        unheld=_HUNYUAN_UNHELD,
        taken="hunyuan_v1_dense",
        part_type="hunyuan_vl_text",
    ),
    # ... without a factor, which transformers refuses, and the reference takes for 1
    like(
        "hunyuan-ocr",
        "hunyuan-ocr-silent",
        more={"rope_scaling": {"type": "xdrope", "alpha": 1000.0, "xdrope_section": [2, 2, 2, 2]}},
        hparams=_HUNYUAN
        | {
            "rope_parameters": None,
            "rope_scaling": {"type": "xdrope", "alpha": 1000.0, "xdrope_section": [2, 2, 2, 2]},
            "text_config": None,
        },
    ),
    # ... and as transformers writes it
    whole(
        "hunyuan-vl",
        "HunYuanVLForConditionalGeneration",
        {
            "model_type": "hunyuan_vl",
            "text_config": _HUNYUAN
            | {
                "model_type": "hunyuan_vl_text",
                "rope_parameters": {
                    "rope_type": "dynamic",
                    "factor": 1.5,
                    "alpha": 50.0,
                    "rope_theta": 10000.0,
                    "mrope_section": [2, 2, 2, 2],
                },
            },
        },
        _hunyuan("model.language_model."),
        ("model.vision_tower.",),
        unheld=_HUNYUAN_UNHELD,
        taken="hunyuan_v1_dense",
    ),
)


def _recorded(model: str) -> dict[str, Any]:
    """What is recorded of another case: its config, and names and shapes."""
    golden = Path(__file__).parents[2] / "models" / "golden" / "families" / f"{model}.json"
    return dict(json.loads(golden.read_text("utf-8")))


def _nemotron(name: str, cls: str, inner: str, pattern: str, apart: tuple[str, ...]) -> Case:
    """A recorded Nemotron-H inside of a model that sees, with the letters of published configs for its layers."""
    recorded = _recorded(inner)
    text = {key: value for key, value in recorded["config"].items() if key not in _UNPUBLISHED[inner]}
    text["hybrid_override_pattern"], text["num_hidden_layers"] = pattern, len(pattern)
    shapes = {f"language_model.{key}": tuple(shape) for key, shape in recorded["hf"].items() if "mtp." not in key}
    return whole(name, cls, {"model_type": cls, "llm_config": text}, shapes, apart, unheld=_NEMOTRON_UNHELD)


_TIMES = ("time_step_limit", "layers_block_type", "mtp_layers_block_type")
_UNPUBLISHED = {
    "nemotron-h": (*_TIMES, "num_experts_per_tok", "n_routed_experts", "n_group", "topk_group"),
    "nemotron-h-moe": _TIMES,
}
_NEMOTRON_UNHELD = frozenset(
    {
        "max_position_embeddings",
        "layers_block_type",
        "hybrid_override_pattern",
        "num_hidden_layers",
        "intermediate_size",
    }
)
_RADIO = ("vision_model.radio_model.", "mlp1.")
_NEMOTRONS = (
    _nemotron("nemotron-nano-vl", "NemotronH_Nano_VL_V2", "nemotron-h", "M-*-M", _RADIO),
    _nemotron(
        "nemotron-nano-omni", "NemotronH_Nano_Omni_Reasoning_V3", "nemotron-h-moe", "ME*E",
        (*_RADIO, "sound_encoder.encoder.", "sound_projection."),
    ),
)  # fmt: skip

_GLM5 = _recorded("glm5")
_GLMS = (
    whole(
        "glm-5.2-vision",
        "Glm5vForConditionalGeneration",
        {"model_type": "glm5v", "text_config": _GLM5["config"]},
        {name: tuple(shape) for name, shape in _GLM5["hf"].items()},
        ("vision_tower.", "mm_projector."),
        words=GLM_WORDS,
        unheld=frozenset({"scoring_func", "mlp_layer_types", "bos_token_id"}),
        # the reference looks for it before it takes the settings out of `text_config`
        hparams={"num_hidden_layers": _GLM5["config"]["num_hidden_layers"]},
    ),
)

CASES = table(*_LLAMAS, *_GRANITES, *_MERALION, *_QWENS, *_HUNYUANS, *_NEMOTRONS, *_GLMS, *_BARE)

_SCALED = {"hidden_act": "relu", "rope.rope_type": "dynamic"}
UNSAID: dict[str, dict[str, Any]] = {
    "kormo": _SCALED,
    "hunyuan-vl": _SCALED | {"attention_bias": True},
    "qwen3omni": _SCALED | {"attention_bias": True, "norm_topk_prob": False},
    "rnd1": _SCALED | {"norm_topk_prob": False},
    "qwen2vl": _SCALED | {"use_sliding_window": True},
    "qwen3vl": _SCALED | {"attention_bias": True},
    "qwen3vlmoe": _SCALED | {"attention_bias": True, "decoder_sparse_step": 2, "mlp_only_layers": [1]},
}
