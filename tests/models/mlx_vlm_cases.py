"""Small models that mlx-vlm reads, as its conversion is recorded in golden/mlx_vlm.json (`record_mlx_vlm.py`).

They are models of `projector_cases.py` with the configs that their publishers wrote, whose keys mlx-vlm's classes need.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import numpy as np
from tests.models.projector_cases import PREPROCESSOR, golden

GOLDEN: Final = Path(__file__).parent / "golden" / "mlx_vlm.json"
GROUP: Final = 32
#: name -> options of the conversion
FORMS: Final[dict[str, dict[str, Any]]] = {
    "plain": {}, "quantized": {"quantize": True, "q_bits": 4, "q_group_size": GROUP}
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


def _unchanged(config: dict[str, Any]) -> None:
    pass


CASES: Final[dict[str, Callable[[dict[str, Any]], None]]] = {
    "qwen2-vl": _flat, "qwen2.5-vl": _flat, "qwen3-vl": _qwen3, "gemma3": _gemma3, "mistral3": _mistral3,
    "smolvlm": _unchanged, "idefics3": _unchanged, "internvl-chat": _unchanged, "dots-ocr": _unchanged,
    "glm-4v": _glm4v, "gemma4": _gemma4, "embedding-gemma2": _unchanged,
    "qwen3-vl-moe": _qwen3_moe, "llama4": _llama4, "kimi-vl": _kimi,
}  # fmt: skip


_TOWER: Final = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
                 "image_size": 56, "patch_size": 14, "projection_dim": 64}  # fmt: skip
_TEXT: Final = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4,
                "num_key_value_heads": 2, "vocab_size": 32, "rms_norm_eps": 1e-6, "rope_theta": 1e4}  # fmt: skip


def _pair(class_: str, kind: str, tower: str, text: str, **more: Any) -> dict[str, Any]:
    return {
        "architectures": [class_], "model_type": kind, "image_token_index": 5, **more,
        "vision_config": {"model_type": tower, "vision_use_head": False, **_TOWER},
        "text_config": {"model_type": text, "head_dim": 16, **_TEXT},
    }  # fmt: skip


#: Cases whose config transformers 5 saves in another spelling, of which mlx-vlm's class gets all keys from the plan.
RESPELLED: Final = ("qwen2-vl", "qwen2.5-vl", "qwen3-vl", "qwen3-vl-moe", "mistral3", "gemma4", "llama4", "kimi-vl")


def respelled(name: str) -> dict[str, Any]:
    """A case with its config as transformers 5 saves it, or as published code has it."""
    found = case(name)
    found["config"] = copy.deepcopy(golden()[name]["config"])
    if name == "qwen3-vl-moe":  # the default of its class
        found["config"]["text_config"]["tie_word_embeddings"] = False
    return found


#: Models that no projector's table has: their configs. Names come from transformers' classes.
CONFIGS: Final[dict[str, dict[str, Any]]] = {
    "llava": _pair("LlavaForConditionalGeneration", "llava", "clip_vision_model", "llama"),
    "llava-next": _pair(
        "LlavaNextForConditionalGeneration",
        "llava_next",
        "clip_vision_model",
        "llama",
        image_grid_pinpoints=[[56, 112]],
    ),
    "paligemma": _pair(
        "PaliGemmaForConditionalGeneration",
        "paligemma",
        "siglip_vision_model",
        "gemma",
        projection_dim=64,
        hidden_size=64,
    ),
    "aya-vision": _pair(
        "AyaVisionForConditionalGeneration",
        "aya_vision",
        "siglip_vision_model",
        "cohere2",
        alignment_intermediate_size=128,
    ),
}
NAMES: Final = GOLDEN.with_name("mlx_vlm_names.json")


def case(name: str) -> dict[str, Any]:
    """A case as `projector_cases.write_folder` takes it."""
    if name in CONFIGS:
        names = json.loads(NAMES.read_text("utf-8"))[name]
        return {"config": copy.deepcopy(CONFIGS[name]), "names": names, "preprocessor": PREPROCESSOR}
    found: dict[str, Any] = copy.deepcopy(golden()[name])
    CASES[name](found["config"])
    if name == "qwen3-vl-moe":  # as published: a linear layer of each expert with the inputs first
        layer = "model.language_model.layers.0.mlp.experts"
        found["names"] |= {f"{layer}.gate_up_proj": [2, 64, 64], f"{layer}.down_proj": [2, 32, 64]}
    if name == "kimi-vl":
        found["names"]["language_model.model.layers.1.mlp.gate.e_score_correction_bias"] = [2]
    if name == "gemma3":
        position = "vision_tower.vision_model.embeddings.position_embedding.weight"
        found["names"] = {n: shape for n, shape in found["names"].items() if ".head." not in n} | {position: [256, 64]}
    return found


#: All cases.
ALL: Final = (*CASES, *CONFIGS)


def summary(tensors: dict[str, np.ndarray]) -> dict[str, str]:
    """Type, shape and checksum of each tensor."""
    return {
        name: f"{array.dtype.str[1:]} {'x'.join(map(str, array.shape))} {crc32(array.tobytes()):08x}"
        for name, array in sorted(tensors.items())
    }


def recorded() -> dict[str, dict[str, dict[str, str]]]:
    """Case -> form -> tensors as mlx-vlm writes them."""
    record: dict[str, dict[str, dict[str, str]]] = json.loads(GOLDEN.read_text("utf-8"))
    return record
