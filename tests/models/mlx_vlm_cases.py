"""Small models that mlx-vlm reads, as its conversion is recorded in golden/mlx_vlm (`record_mlx_vlm.py`).

They are models of `projector_cases.py` with the configs that their publishers wrote, whose keys mlx-vlm's classes need.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final, TypeAlias
from zlib import crc32

import numpy as np
from tests.models.mistral4_cases import seeing
from tests.models.mlx_vlm_configs import CONFIGS
from tests.models.projector_cases import PREPROCESSOR, golden

from weighbridge.models.arch.registry import family_of_hf
from weighbridge.models.mlxlm.towers import tower_names

#: Tensors and their shapes.
Names: TypeAlias = dict[str, list[int]]

GOLDEN: Final = Path(__file__).parent / "golden" / "mlx_vlm"
GROUP: Final = 32
#: name -> options of the conversion
FORMS: Final[dict[str, dict[str, Any]]] = {
    "plain": {}, "quantized": {"quantize": True, "q_bits": 4, "q_group_size": GROUP}, "bfloat16": {"dtype": "bf16"}
}  # fmt: skip


def _flat(config: dict[str, Any]) -> None:
    """A Qwen VL's config of transformers 4."""
    text = config.pop("text_config")
    config |= {k: v for k, v in text.items() if k not in ("model_type", "layer_types", "rope_parameters")}
    config |= {"rope_theta": 1e6, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}
    config["vision_config"]["model_type"] = config["model_type"]


def _qwen3(config: dict[str, Any]) -> None:
    config["vision_config"]["model_type"] = config["model_type"]
    del config["text_config"]["rope_parameters"]
    scaling = {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [2, 3, 3]}
    config["text_config"] |= {"rope_theta": 1e6, "rope_scaling": scaling}


def _gemma3(config: dict[str, Any]) -> None:
    config["vision_config"]["image_size"] = 224  # the class has 16 x 16 tokens of an image
    config["text_config"] |= {"rope_theta": 1e6, "rope_local_base_freq": 1e4}


def _mistral3(config: dict[str, Any]) -> None:
    config["text_config"] |= {"rope_theta": 1e4, "tie_word_embeddings": True}
    config["vision_config"]["rope_theta"] = 1e4


def _glm4v(config: dict[str, Any]) -> None:
    config["eos_token_id"] = config["text_config"]["eos_token_id"] = [1]


def _gemma4(config: dict[str, Any]) -> None:
    config["text_config"] |= {"num_global_key_value_heads": 2, "attention_k_eq_v": False, "head_dim": 16}
    config["text_config"]["global_head_dim"] = 16


def _qwen3_moe(config: dict[str, Any]) -> None:
    _qwen3(config)
    text = config["text_config"]
    text |= {"num_experts": text.pop("num_local_experts"), "tie_word_embeddings": False}


def _llama4(config: dict[str, Any]) -> None:
    config["vision_config"] |= {"rope_theta": 1e4, "vision_feature_layer": -1}
    config["text_config"] |= {"rope_theta": 5e5}


def _kimi(config: dict[str, Any]) -> None:
    config["vision_config"] |= {"depth": 3, "embed_dim": 64, "num_heads": 4}


def _qwen35(config: dict[str, Any]) -> None:
    rope = {"mrope_interleaved": True, "mrope_section": [11, 11, 10], "rope_type": "default"}
    config["text_config"]["rope_parameters"] |= rope
    config["text_config"] |= {"full_attention_interval": 4, "mtp_num_hidden_layers": 1}
    config["vision_config"]["model_type"] = config["model_type"]


def _cohere2(config: dict[str, Any]) -> None:
    config["text_config"]["rope_theta"] = 1e4


def _nemotron(config: dict[str, Any]) -> None:
    flags = ("attention_bias", "mamba_proj_bias", "mlp_bias", "use_bias")
    config["llm_config"] |= {**dict.fromkeys(flags, False), "use_conv_bias": True, "max_position_embeddings": 256}
    config["vit_hidden_size"] = 64
    config["vision_config"]["args"] = {"cpe_max_size": 112, "register_multiple": 10, "teachers": [{"name": "a"}]}
    config["sound_config"]["projection_hidden_size"] = 80


def _minimax(config: dict[str, Any]) -> None:
    config["text_config"] |= {"rope_theta": 5e6}


def _qwen4(config: dict[str, Any]) -> None:
    text = config["text_config"]
    text["layer_types"] = ["full_attention" if kind == "indexed_attention" else kind for kind in text["layer_types"]]
    text["rope_parameters"] |= {"mrope_section": [11, 11, 10], "type": "default", "partial_rotary_factor": 1.0}
    config["vision_config"]["model_type"] = config["model_type"]


def _glm4v_moe(config: dict[str, Any]) -> None:
    _glm4v(config)
    text = config["text_config"]
    text |= {"head_dim": 16, "use_qk_norm": False, "partial_rotary_factor": 0.5}
    text |= {"rope_theta": 1e4, "rope_scaling": {"rope_type": "default", "mrope_section": [1, 1, 2]}}
    del text["rope_parameters"]


def _glm_ocr(config: dict[str, Any]) -> None:
    """The class refuses keys that it doesn't know."""
    del config["vision_config"]["rope_parameters"]
    config["text_config"] |= {"head_dim": 16, "dtype": "float32"}


def _lfm2(config: dict[str, Any]) -> None:
    text = config["text_config"]
    text |= {"block_dim": 64, "conv_dim": 64, "conv_dim_out": 64, "block_ff_dim": text.pop("intermediate_size")}
    text["rope_theta"] = 1e6


def _minicpm(config: dict[str, Any]) -> None:
    config["text_config"]["full_attention_interval"] = 4


def _paddle(config: dict[str, Any]) -> None:
    text = config.pop("text_config")
    config |= {k: v for k, v in text.items() if k not in ("model_type", "rope_parameters")}
    config |= {"rope_theta": 1e6, "rope_scaling": {"type": "default", "mrope_section": [2, 3, 3]}}
    config["vision_config"]["model_type"] = config["model_type"]


def _kimi25(config: dict[str, Any]) -> None:
    config["vision_config"] |= {"depth": 3, "embed_dim": 64, "num_heads": 4, "model_type": "moonvit"}


def _hunyuan(config: dict[str, Any]) -> None:
    text = config["text_config"]
    text |= {"rope_theta": 1e4, "rope_scaling": {"alpha": 1e3, "type": "xdrope", "xdrope_section": [2, 2, 2, 2]}}
    del text["rope_parameters"]
    config["vision_config"]["model_type"] = "hunyuan_vl"


def _internvl(config: dict[str, Any]) -> None:
    config["text_config"] |= {"rope_theta": 1e4, "head_dim": 16, "tie_word_embeddings": True}


def _phi4(config: dict[str, Any]) -> None:
    """mlx-vlm's class has the published model's sizes by default, and reads others only here."""
    keys = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    config["text_config"] = {k: config[k] for k in (*keys, "vocab_size", "rms_norm_eps", "rope_theta")}


def _gemma4_unified(config: dict[str, Any]) -> None:
    _gemma4(config)
    config["vision_config"]["model_patch_size"] = 12


#: The towers of DeepSeek-OCR have one size, which `record_mlx_vlm` replaces.
SAM: Final[dict[str, Any]] = {"width": 48, "layers": 3, "heads": 4, "global_attn_indexes": (2,), "net": (32, 64)}


def _deepseek_ocr(config: dict[str, Any]) -> None:
    """Published folders have the language model's settings twice, and mlx-vlm's class reads the second."""
    text = {k: v for k, v in config.items() if k not in ("model_type", "vision_config", "architectures")}
    config["language_config"] = {"architectures": ["DeepseekV2ForCausalLM"], **text, "q_lora_rank": None}
    vision = config["vision_config"]
    if clip := vision["width"].get("clip-l-14-224"):
        clip["image_size"] = 224  # the only size that mlx-vlm's class knows
        vision |= {"hidden_size": clip["width"], "intermediate_size": 4 * clip["width"], "layers": clip["layers"]}
        vision["num_attention_heads"] = clip["heads"]
    width = 128 if clip else 64
    config["projector_config"] = {"projector_type": "linear", "n_embed": 64, "input_dim": width}


def _d1_omni(config: dict[str, Any]) -> None:
    config["audio_config"] |= {"subsampling_conv_channels": 10, "residual_width": 24}
    config["projector_hidden_size"] = 48
    config["vision_config"]["num_patches"] = 16


def _granite4(config: dict[str, Any]) -> None:
    config["text_config"]["rope_theta"] = 1e4


def _mimo(config: dict[str, Any]) -> None:
    """Published configs have more keys than the tower of llama.cpp needs."""
    config["vision_config"]["out_hidden_size"] = 64
    config["audio_config"] |= {
        "input_local_intermediate_size": 32, "input_local_attn_heads": 4, "input_local_head_dim": 16,
        "out_hidden_size": 64, "speech_vocab_size": "20",
    }  # fmt: skip


def _pixtral(config: dict[str, Any]) -> None:
    config["text_config"]["rope_theta"] = config["vision_config"]["rope_theta"] = 1e4


def _unchanged(config: dict[str, Any]) -> None:
    pass


CASES: Final[dict[str, Callable[[dict[str, Any]], None]]] = {
    "qwen2-vl": _flat, "qwen2.5-vl": _flat, "qwen3-vl": _qwen3, "gemma3": _gemma3, "mistral3": _mistral3,
    "smolvlm": _unchanged, "idefics3": _unchanged, "internvl-chat": _unchanged, "dots-ocr": _unchanged,
    "glm-4v": _glm4v, "gemma4": _gemma4, "embedding-gemma2": _unchanged,
    "qwen3-vl-moe": _qwen3_moe, "llama4": _llama4, "kimi-vl": _kimi,
    "qwen3.5": _qwen35, "qwen3.5-moe": _qwen35, "glm-4v-moe": _glm4v_moe, "glm-ocr": _glm_ocr, "lfm2-vl": _lfm2,
    "minicpm-v-4.6": _minicpm, "gemma3n": _unchanged, "gemma4-audio": _gemma4, "gemma4-clipped": _gemma4,
    "gemma4-experts": _gemma4, "gemma4-shared": _gemma4,
    "mistral4": _unchanged, "embedding-gemma2-audio": _unchanged, "gemma4-unified": _gemma4_unified,
    "muse-glimmer": _unchanged, "hunyuan-vl": _hunyuan, "internvl-silu": _internvl, "phi4-vision": _phi4,
    "step3.7": _unchanged, "paddleocr-vl": _paddle, "youtu-vl": _unchanged, "kimi-k2.5": _kimi25, "glm-5.3": _unchanged,
    "qwen4-exp": _qwen4, "minimax-m3": _minimax, "nemotron-omni": _nemotron,
    "cohere2-vision": _cohere2,
    "deepseek-ocr": _deepseek_ocr, "deepseek-ocr2": _deepseek_ocr, "unlimited-ocr": _deepseek_ocr, "d1-omni": _d1_omni,
    "deepseek-v4-vision": _unchanged, "granite4-vision": _granite4,
    "granite4-vision-tied": _granite4, "deepseek-v4": _unchanged,
    "pixtral": _pixtral, "mimo-v2.5": _mimo,
}  # fmt: skip


NAMES: Final = GOLDEN.with_name("mlx_vlm_names.json")
MODULES: Final = GOLDEN.with_name("mlx_vlm_modules.json")


def _copied(names: Names, old: str, new: str, without: str = "-") -> Names:
    """The names that begin with `old`, with `new` instead; none that have `without`."""
    return {new + n[len(old) :]: shape for n, shape in names.items() if n.startswith(old) and without not in n}


def _experts(layer: str, parts: Collection[str] = ("gate", "up", "down")) -> Names:
    return {
        f"{layer}experts.{n}.{p}_proj.weight": [64, 32] if p == "down" else [32, 64] for n in range(2) for p in parts
    }


_LAYER: Final = "model.language_model.layers.{}."


def _gemma3_names(names: Names) -> Names:
    position = "vision_tower.vision_model.embeddings.position_embedding.weight"
    return {n: shape for n, shape in names.items() if ".head." not in n} | {position: [256, 64]}


def _glm_moe_names(names: Names) -> Names:
    first, layer = _LAYER.format(0), _LAYER.format(1)
    shared = {
        f"{layer}mlp.shared_experts.{p}_proj.weight": shape
        for p, shape in (("gate", [32, 64]), ("up", [32, 64]), ("down", [64, 32]))
    }
    router = {f"{layer}mlp.gate.weight": [2, 64], f"{layer}mlp.gate.e_score_correction_bias": [2]}
    return names | _copied(names, first, layer, ".mlp.") | _experts(f"{layer}mlp.") | shared | router


def _nemotron_experts(layer: str) -> Names:
    up, down = [32, 64], [64, 32]
    modules = {"up_proj": up, "down_proj": down}
    experts = {f"experts.{n}.{part}": shape for n in range(2) for part, shape in modules.items()}
    shared = {f"shared_experts.{part}": shape for part, shape in modules.items()}
    mixer = {f"mixer.{name}.weight": shape for name, shape in {**experts, **shared, "gate": [2, 64]}.items()}
    return {layer + n: s for n, s in {**mixer, "norm.weight": [64], "mixer.gate.e_score_correction_bias": [2]}.items()}


def _lfm2_names(names: Names) -> Names:
    layer = _LAYER.format(1)
    conv = {
        f"{layer}conv.{n}.weight": shape
        for n, shape in (("conv", [64, 1, 3]), ("in_proj", [192, 64]), ("out_proj", [64, 64]))
    }
    return names | _copied(names, _LAYER.format(0), layer, ".self_attn.") | conv


def _gemma4_names(names: Names) -> Names:
    added: Names = {}
    for number in range(2):
        layer = _LAYER.format(number)
        norms = ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2")
        added |= {f"{layer}{norm}.weight": [64] for norm in norms}
        added |= {
            f"{layer}router.proj.weight": [2, 64],
            f"{layer}router.scale": [64],
            f"{layer}router.per_expert_scale": [2],
        }
        added |= {f"{layer}experts.gate_up_proj": [2, 64, 64], f"{layer}experts.down_proj": [2, 64, 32]}
    return names | added


def _audio_names(names: Names) -> Names:
    shapes = {
        "input_proj_linear": [64, 256],
        "layer0.conv": [128, 1, 3, 3],
        "layer0.norm": [128],
        "layer1.conv": [8, 128, 3, 3],
    }
    return {
        n: shapes.get(".".join(n.split(".")[:-1]).partition("subsample_conv_projection.")[2], shape)
        for n, shape in names.items()
    }


#: mlx-vlm's Gemma 3n has a tower of one width, which `record_mlx_vlm` divides.
GEMMA3N_DIVISOR: Final = 16


def _gemma3n_names(names: Names) -> Names:
    """A tower twice as wide: mlx-vlm takes one with fewer channels than a kernel's width for a converted one."""
    seen = {n: shape for n, shape in names.items() if ".timm_model." in n or ".embed_vision." in n}
    wide = {
        n: [2 * shape[0], *(size if size in (1, 3) else 2 * size for size in shape[1:2]), *shape[2:]]
        for n, shape in seen.items()
    }
    wide |= {
        n: [shape[0], 128]
        for n, shape in seen.items()
        if n.startswith("model.embed_vision.embedding") and len(shape) == 2
    }
    return names | wide


def _internvl_names(names: Names) -> Names:
    """The names of published folders, which transformers 5 changes."""
    published = {"model.language_model.": "language_model.model.", "model.": "", "lm_head.": "language_model.lm_head."}
    starts = {n: next(start for start in published if n.startswith(start)) for n in names}
    return {published[starts[n]] + n.removeprefix(starts[n]): shape for n, shape in names.items()}


def _d1_names(names: Names) -> Names:
    """With the language model, and without a norm that mlx-vlm's projector lacks."""
    config = _config("d1-omni")
    family = family_of_hf(config)
    text = family.names("hf", family.sizes_from_hf(config))
    seen = {n: shape for n, shape in names.items() if "projector.layer_norm." not in n}
    return seen | {n: list(shape) for n, shape in text.items()}


#: mlx-vlm's encoder has 128 mel bands, as many as its first convolution has channels.
_AUDIO: Final = {"audio_config": {"input_feat_size": 128, "subsampling_conv_channels": [128, 8]}}
#: Keys that a case sets in parts of its model's config ("": at its top).
_SIZES: Final[dict[str, dict[str, dict[str, Any]]]] = {
    "deepseek-v4": {"": {"vision_n_layers": 0}},
    "granite4-vision-tied": {"": {"tie_word_embeddings": True}, "text_config": {"tie_word_embeddings": True}},
    "glm-4v-moe": {"text_config": {"num_hidden_layers": 2}},
    "d1-omni": {"text_config": {"num_hidden_layers": 2, "layer_types": ["full_attention", "conv"]}},
    "lfm2-vl": {"text_config": {"num_hidden_layers": 2, "layer_types": ["full_attention", "conv"]}},
    "gemma4-experts": {
        "text_config": {"enable_moe_block": True, "num_experts": 2, "top_k_experts": 1, "moe_intermediate_size": 32}
    },
    "gemma4-shared": {
        "text_config": {
            "num_hidden_layers": 4, "num_kv_shared_layers": 2,
            "layer_types": 2 * ["sliding_attention", "full_attention"],
        }
    },
    "minimax-m3": {"": {"projector_hidden_size": 64}},
    "nemotron-omni": {
        "llm_config": {
            "hybrid_override_pattern": "ME*", "n_routed_experts": 2, "n_shared_experts": 1,
            "num_experts_per_tok": 1, "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 32,
            "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
        }
    },
    "phi4-vision": {"": {"mm_hidden_size": 64}}, "youtu-vl": {"vision_config": {"out_hidden_size": 64}},
    # mlx-vlm's classes know only square embeddings of positions, and an output that isn't tied
    "kimi-k2.5": {"vision_config": {"init_pos_emb_width": 4}},
    "paddleocr-vl": {"": {"tie_word_embeddings": False}, "text_config": {"tie_word_embeddings": False}},
    "hunyuan-vl": {"vision_config": {"out_hidden_size": 64}},  # transformers reads another key
    "gemma4-audio": _AUDIO, "embedding-gemma2-audio": _AUDIO, "gemma3n": {"vision_config": {"hidden_size": 128}},
}  # fmt: skip
#: Case -> the model of projector_cases.py that it is made of, if its name differs.
BASES: Final = {
    "deepseek-v4": "deepseek-v4-vision",
    "granite4-vision-tied": "granite4-vision",
    "gemma4-experts": "gemma4",
    "gemma4-shared": "gemma4",
}
_NAMES: Final[dict[str, Callable[[Names], Names]]] = {
    "deepseek-v4": lambda names: {
        n: shape for n, shape in names.items() if not n.startswith(("vision.", "aligner.", "image_"))
    },
    "granite4-vision-tied": lambda names: {n: shape for n, shape in names.items() if n != "lm_head.weight"},
    "deepseek-v4-vision": lambda names: names | {  # as published: in the layers with a table of experts, too
        f"layers.{at}.ffn.gate.{bias}": [6] for at in range(4) for bias in ("bias", "bias_vl")
    },
    "d1-omni": _d1_names, "glm-4v-moe": _glm_moe_names, "lfm2-vl": _lfm2_names, "gemma4-experts": _gemma4_names,
    "gemma4-shared": lambda names: names | {
        n: shape for at in range(2) for n, shape in _copied(names, _LAYER.format(at), _LAYER.format(at + 2)).items()
    },
    "gemma4-audio": _audio_names, "embedding-gemma2-audio": _audio_names, "gemma3n": _gemma3n_names,
    "gemma3": _gemma3_names, "internvl-silu": _internvl_names,
    # as published: a linear layer of each expert with the inputs first
    "qwen3-vl-moe": lambda names: names | {
        f"{_LAYER.format(0)}mlp.experts.gate_up_proj": [2, 64, 64],
        f"{_LAYER.format(0)}mlp.experts.down_proj": [2, 32, 64],
    },
    "kimi-k2.5": lambda names: names | {
        "language_model.model.layers.1.mlp.gate.e_score_correction_bias": [2],
        "vision_tower.patch_embed.pos_emb.weight": [4, 4, 64],
    },
    "cohere2-vision": lambda names: {  # as published
        n.replace("model.vision_tower.", "model.vision_tower.vision_model."): shape for n, shape in names.items()
    },
    "nemotron-omni": lambda names: {
        n: s for n, s in names.items() if ".backbone.layers.1.mixer." not in n
    } | _nemotron_experts("language_model.backbone.layers.1."),
    "minimax-m3": lambda names: names | {
        "multi_modal_projector.linear_1.weight": [64, 320], "multi_modal_projector.linear_1.bias": [64],
        "multi_modal_projector.linear_2.weight": [64, 64], "patch_merge_mlp.linear_1.weight": [64, 256],
        "patch_merge_mlp.linear_1.bias": [64], "patch_merge_mlp.linear_2.weight": [64, 64],
    },
    "paddleocr-vl": lambda names: names | {"lm_head.weight": [32, 64]},
    # mlx-vlm's class knows one size of CLIP's images
    "unlimited-ocr": lambda names: names | {"model.vision_model.embeddings.position_embedding.weight": [257, 64]},
    # with the width that mlx-vlm's class has, and a merger without biases, as it is published
    "mimo-v2.5": lambda names: {
        n: shape for n, shape in names.items() if n not in ("visual.merger.mlp.0.bias", "visual.merger.mlp.2.bias")
    }
    | {f"audio_encoder.projection.mlp.{n}.weight": shape for n, shape in ((0, [1024, 256]), (2, [64, 1024]))},
    "kimi-vl": lambda names: names | {"language_model.model.layers.1.mlp.gate.e_score_correction_bias": [2]},
    "glm-ocr": lambda names: {n: shape for n, shape in names.items() if ".layers.16." not in n},
}  # fmt: skip


def _config(name: str) -> dict[str, Any]:
    """The config that transformers 5 saves, or published code has, of a case."""
    if name == "mistral4":
        config: dict[str, Any] = seeing()["config"]
        return config
    config = copy.deepcopy(golden()[BASES.get(name, name)]["config"])
    for part, added in _SIZES.get(name, {}).items():
        (config[part] if part else config).update(added)
    return config


def case(name: str) -> dict[str, Any]:
    """A case as `projector_cases.write_folder` takes it."""
    if name in CONFIGS:
        names = json.loads(NAMES.read_text("utf-8"))[name]
        return {"config": copy.deepcopy(CONFIGS[name]), "names": names, "preprocessor": PREPROCESSOR}
    found = seeing() if name == "mistral4" else copy.deepcopy(golden()[BASES.get(name, name)])
    found |= {"config": _config(name), "names": _NAMES.get(name, dict)(found["names"])}
    CASES[name](found["config"])
    return found


#: Cases whose config transformers 5 saves in another spelling, of which mlx-vlm's class gets all keys from the plan.
RESPELLED: Final = (
    "qwen2-vl", "qwen2.5-vl", "qwen3-vl", "qwen3-vl-moe", "mistral3", "gemma4", "llama4", "kimi-vl", "qwen3.5",
    "qwen3.5-moe", "glm-4v-moe", "glm-ocr", "lfm2-vl", "minicpm-v-4.6", "gemma4-audio", "gemma4-experts",
    "gemma4-unified", "hunyuan-vl", "internvl-silu", "phi4-vision", "paddleocr-vl", "kimi-k2.5", "qwen4-exp",
    "minimax-m3", "cohere2-vision", "granite4-vision", "pixtral", "qwen3-omni",
    "llama-3.2-vision", "llava-onevision", "granite-vision", "molmo", "minicpm-v-4.7", "minicpm-v-4.7-moe",
    "locate-anything", "llm-jp-vl", "diffusion-gemma",
    "inkling", "molmo-point",
)  # fmt: skip


def part_of_text(config: dict[str, Any]) -> str:
    """The key of the language model's settings."""
    return "llm_config" if "llm_config" in config else "text_config"


def respelled(name: str) -> dict[str, Any]:
    """A case with its config as transformers 5 saves it, or as published code has it."""
    if name == "qwen3-omni":
        found = case(name)
        for part in (found["config"]["thinker_config"], found["config"]["talker_config"]):
            text = part["text_config"]
            text["rope_parameters"] = {"rope_theta": text.pop("rope_theta"), **text.pop("rope_scaling")}
            del text["head_dim"]
        text["num_local_experts"] = text.pop("num_experts")
        for part in (found["config"]["code2wav_config"], found["config"]["talker_config"]["code_predictor_config"]):
            part["rope_parameters"] = {"rope_theta": part.pop("rope_theta"), "rope_type": "default"}
        return found
    if name in CONFIGS:
        found = case(name)
        if name == "molmo":  # as published: all settings are at the top
            del found["config"]["text_config"]
        elif name == "molmo-point":  # as published: mlx-vlm has the sizes of that tower
            del found["config"]["vision_config"]
        elif name == "inkling":  # as transformers saves it
            text = found["config"]["text_config"]
            text["moe_intermediate_size"] = text.pop("intermediate_size")
            text["intermediate_size"] = text.pop("dense_intermediate_size")
            text["conv_kernel_size"] = text.pop("sconv_kernel_size")
        elif name == "diffusion-gemma":
            text = found["config"]["text_config"]
            full = {"head_dim": text.pop("global_head_dim")}
            text["per_layer_config"] = {"1": {**full, "num_key_value_heads": text.pop("num_global_key_value_heads")}}
        else:
            text = found["config"][part_of_text(found["config"])]
            text["rope_parameters"] = {"rope_theta": text.pop("rope_theta"), "rope_type": "default"}
        return found
    found = case(name) | {"config": _config(name)}
    if name == "qwen3-vl-moe":  # the default of its class
        found["config"]["text_config"]["tie_word_embeddings"] = False
    return found


#: All cases.
ALL: Final = (*CASES, *CONFIGS)
#: Cases with tensors that keep their type if another is requested, and one without.
CAST: Final = ("qwen3.5", "qwen3.5-moe", "qwen4-exp", "glm-5.3", "minimax-m3", "deepseek-v4-vision", "smolvlm",
               "kimi-k3", "mimo-v2.5", "minicpm-v-4.7", "molmo-point")  # fmt: skip
#: Case and form.
RECORDED: Final = [(name, form) for name in ALL for form in FORMS if form != "bfloat16" or name in CAST]

_LATER: Final = "language_model.model.layers.3.input_layernorm.weight"
#: Further tensors of published folders, which the class drops.
DROPPED: Final[dict[str, Names]] = {
    "deepseek-v4-vision": {"mtp.0.enorm.weight": [64], "layers.4.attn_norm.weight": [64]},
    "qwen3.5": {"mtp.norm.weight": [64], "mtp.fc.weight": [64, 128]},
    "qwen3.5-moe": {"mtp.norm.weight": [64], "mtp.layers.0.mlp.gate.weight": [2, 64]},
    "glm-4v-moe": {"model.language_model.layers.2.input_layernorm.weight": [64]},
    "qwen4-exp": {"mtp.norm.weight": [64]},
    "glm-5.3": {"model.language_model.layers.4.input_layernorm.weight": [64]},
    "step3.7": {"model.layers.4.input_layernorm.weight": [64]},
    "glm-ocr": {n: shape for n, shape in golden()["glm-ocr"]["names"].items() if ".layers.16." in n},
    "mimo-v2.5": {"model.mtp.layers.0.input_layernorm.weight": [64]},
    "ernie-4.5-vl": {f"model.{part}.0.weight": [64, 64] for part in ("mtp_block", "mtp_linear_proj")}
    | {f"model.mtp_{part}_norm.0.weight": [64] for part in ("hidden", "emb")},
    "kimi-k3": {"language_model.model.mtp.norm.weight": [64], _LATER: [64]},
    "florence2": {"language_model.final_logits_bias": [1, 32]},
    "moondream2": {"model.region.size_encoder.bias": [64]},
    "locate-anything": {"language_model.lm_head.weight": [32, 64]},
    "llm-jp-vl": {"vision_backbone.vision_model.head.probe": [1, 1, 64]},
    "diffusion-gemma": {
        "lm_head.weight": [32, 64],
        "model.encoder.language_model.norm.weight": [64],
        "model.encoder.language_model.layers.0.router.scale": [64],
    },
    "inkling": {"model.mtp.layers.0.norm.weight": [64]},
    "deepseek-v4.1": {"mtp.0.norm.weight": [64]},
    "plamo2-vl": {"vision_model.vision_encoder.model.head.probe": [1, 1, 64], "lm_head.weight": [32, 64]},
    "zaya1-vl": {"lm_head.weight": [32, 64]},
    "north-micro-vision": {"lm_head.weight": [32, 64]},
    "nemotron-parse": {
        "encoder.model_encoder.radio_model.summary_idxs": [3],
        "encoder.model_encoder.radio_model.input_conditioner.norm_mean": [3, 1, 1],
    },
    "moondream3": {"model.region.size_encoder.bias": [64]},
    "fastvlm": {
        "lm_head.weight": [32, 64],
        "model.vision_tower.vision_tower.model.conv_exp.bn.num_batches_tracked": [1],
    },
}


#: Parts of names of tensors that MLX computes in another order, so that the last bits differ.
NEAR: Final = ".head_code."


def with_output(name: str) -> dict[str, Any] | None:
    """A case whose config ties the output to the embedding, and whose folder has both; None without these names."""
    found = case(name)
    row, config, names = tower_names(found["config"]), found["config"], found["names"]
    assert row is not None
    embedding, usual = (row.to_hf(f"language_model.{end}.weight") for end in ("model.embed_tokens", "lm_head"))
    if usual.startswith("language_model.") and not embedding.startswith("language_model."):
        usual = "lm_head.weight"
    ends = ("language_model.lm_head.weight", "language_model.model.lm_head.weight")
    stored = (n for n in names if row.to_mlx(n) == "lm_head.weight" or row.to_mlx(n).endswith(ends))
    output = next(stored, usual)
    if output not in names and embedding not in names:
        return None
    names.setdefault(output, names.get(embedding))
    if not row.text_keys:
        for part in ("text_config", "llm_config", "language_config"):
            if part in config:
                config[part]["tie_word_embeddings"] = True
    return {**found, "config": {**config, "tie_word_embeddings": True}}


def summary(tensors: dict[str, np.ndarray]) -> dict[str, str]:
    """Type, shape and checksum of each tensor; if the last bits may differ, the checksum without them."""
    out = {}
    for name, array in sorted(tensors.items()):
        kept = (array.view(np.uint32) + 0x8000) >> 16 if NEAR in name and array.dtype == np.float32 else array
        out[name] = f"{array.dtype.str[1:]} {'x'.join(map(str, array.shape))} {crc32(kept.tobytes()):08x}"
    return out


def recorded() -> dict[str, dict[str, dict[str, str]]]:
    """Case -> form -> tensors as mlx-vlm writes them."""
    return {name: json.loads((GOLDEN / f"{name}.json").read_text("utf-8")) for name in ALL}
