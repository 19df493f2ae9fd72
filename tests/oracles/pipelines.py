"""Small diffusers pipelines as folders, and the tensors of each part as diffusers reads them from a whole single file.
No code of ours takes part."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.oracles import pictures

Tensors = dict[str, Any]
Parts = dict[str, Tensors]

_STEM = "diffusion_pytorch_model"
_T5_CONFIG: dict[str, Any] = {
    "architectures": ["T5EncoderModel"], "model_type": "t5", "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1,
    "num_heads": 4, "vocab_size": 96, "feed_forward_proj": "gated-gelu", "is_gated_act": True,
}  # fmt: skip
_UMT5_CONFIG = _T5_CONFIG | {"architectures": ["UMT5EncoderModel"], "model_type": "umt5", "num_layers": 2}


def clip(projection: bool = False, seed: int = 1) -> Tensors:
    """CLIP's text encoder under the names of transformers 4."""
    tensors = pictures.DIFFUSERS["open-clip"](pictures.values(pictures.open_clip(), seed=seed))
    return {name: t for name, t in tensors.items() if projection or name != "text_projection.weight"}


def t5(blocks: int = 1) -> Tensors:
    """T5's encoder; with several blocks UMT5's, each of which has a bias of positions."""
    shapes: dict[str, tuple[int, ...]] = {"shared.weight": (96, 32), "encoder.final_layer_norm.weight": (32,)}
    for block in (f"encoder.block.{number}.layer" for number in range(blocks)):
        shapes |= {f"{block}.0.SelfAttention.{part}.weight": (32, 32) for part in "qkvo"}
        shapes |= {f"{block}.0.SelfAttention.relative_attention_bias.weight": (32, 4)}
        shapes |= {f"{block}.{n}.layer_norm.weight": (32,) for n in (0, 1)}
        shapes |= {f"{block}.1.DenseReluDense.{part}.weight": (64, 32) for part in ("wi_0", "wi_1")}
        shapes |= {f"{block}.1.DenseReluDense.wo.weight": (32, 64)}
    return pictures.values(shapes, seed=3)


def denoiser(model: str) -> Tensors:
    return pictures.DIFFUSERS[model](pictures.values(pictures.MODELS[model]()))


def vae() -> Tensors:
    return pictures.DIFFUSERS["vae"](pictures.values(pictures.vae(), seed=2))


#: The tensors of the parts with weights, as their folders have them.
PIPELINES: dict[str, Callable[[], Parts]] = {
    "sd1": lambda: {"unet": denoiser("sd1"), "vae": vae(), "text_encoder": clip()},
    "sd2": lambda: {"unet": denoiser("sd2"), "vae": vae(), "text_encoder": clip()},
    "sdxl": lambda: {"unet": denoiser("sdxl"), "vae": vae(), "text_encoder": clip(), "text_encoder_2": clip(True, 5)},
    "sdxl-refiner": lambda: {"unet": denoiser("sdxl-refiner"), "vae": vae(), "text_encoder_2": clip(True, 5)},
    "sd3": lambda: {
        "transformer": denoiser("sd3"), "vae": vae(), "text_encoder": clip(True), "text_encoder_2": clip(True, 5),
        "text_encoder_3": t5(),
    },
    "flux": lambda: {"transformer": denoiser("flux"), "vae": vae(), "text_encoder": clip(), "text_encoder_2": t5()},
}  # fmt: skip
#: Pipelines that no single file holds.
FOLDERS: dict[str, Callable[[], Parts]] = {
    "wan": lambda: {"transformer": denoiser("wan"), "transformer_2": denoiser("wan"), "text_encoder": t5(2)},
    "qwen-image": lambda: {"transformer": denoiser("qwen-image"), "vae": vae(), "text_encoder": t5()},
}

_CLASSES = {"unet": "UNet2DConditionModel", "transformer": "FluxTransformer2DModel", "vae": "AutoencoderKL"}


def flattened(parts: Parts) -> Parts:
    """The parts as transformers 5 saves them: CLIP's names without `text_model.`."""
    return {
        part: {name.removeprefix("text_model."): t for name, t in tensors.items()} for part, tensors in parts.items()
    }


def write(folder: Path, parts: Mapping[str, Tensors], index: Mapping[str, Any] | None = None) -> Path:
    """Writes the folder, with a scheduler and a tokenizer. `index`: further entries of model_index.json."""
    listed: dict[str, Any] = {
        "_class_name": "SmallPipeline",
        "_diffusers_version": "0.42.1",
        "image_encoder": [None, None],
    }
    for part, tensors in parts.items():
        text = part.startswith("text")
        is_t5, is_umt5 = "shared.weight" in tensors, any(name.startswith("encoder.block.1.") for name in tensors)
        t5_config = _UMT5_CONFIG if is_umt5 else _T5_CONFIG
        text_class = t5_config["architectures"][0] if is_t5 else "CLIPTextModel"
        class_name = text_class if text else _CLASSES.get(part, "Model")
        listed[part] = ["transformers" if text else "diffusers", class_name]
        place = folder / part
        place.mkdir(parents=True)
        config = t5_config if is_t5 else {"architectures": [class_name]} if text else {"_class_name": class_name}
        (place / "config.json").write_text(json.dumps(config))
        stem = "model" if text else _STEM
        pictures.save(place / f"{stem}.safetensors", {name: t.contiguous().clone() for name, t in tensors.items()})
    for part, class_name, name in (
        ("scheduler", "PNDMScheduler", "scheduler_config.json"), ("tokenizer", "CLIPTokenizer", "merges.txt"),
    ):  # fmt: skip
        (folder / part).mkdir()
        (folder / part / name).write_text(f'{{"of": "{part}"}}')
        listed[part] = ["diffusers", class_name]
    (folder / "README.md").write_text("a small pipeline")
    (folder / "model_index.json").write_text(json.dumps({**listed, **(index or {})}, indent=2))
    return folder


def read_single_file(model: str, checkpoint: Tensors) -> Parts:
    """The parts of a whole checkpoint, by diffusers' own functions and the names that they look for."""
    utilities = pytest.importorskip("diffusers.loaders.single_file_utils")
    whole = {name: t.clone() for name, t in checkpoint.items()}
    stripped = {
        name.removeprefix("model.diffusion_model."): t for name, t in whole.items() if "diffusion_model." in name
    }
    main = "unet" if model.startswith(("sd1", "sd2", "sdxl")) else "transformer"
    parts = {main: pictures.DIFFUSERS[model](stripped)}
    levels = {"down_block_types": range(4), "up_block_types": range(4)}
    parts["vae"] = utilities.convert_ldm_vae_checkpoint(dict(whole), levels)
    for part, keys in _TEXT[model].items():
        parts[part] = {"clip": _clip, "open": _open_clip, "t5": _t5}[keys[0]](utilities, whole, keys[1])
    return parts


#: Text encoders: which function of diffusers reads each, and the prefix that diffusers passes to it.
_TEXT: dict[str, dict[str, tuple[str, str]]] = {
    "sd1": {"text_encoder": ("clip", "cond_stage_model.transformer.")},
    "sd2": {"text_encoder": ("open", "cond_stage_model.model.")},
    "sdxl": {
        "text_encoder": ("clip", "conditioner.embedders.0.transformer."),
        "text_encoder_2": ("open", "conditioner.embedders.1.model."),
    },
    "sdxl-refiner": {"text_encoder_2": ("open", "conditioner.embedders.0.model.")},
    "sd3": {
        "text_encoder": ("clip", "text_encoders.clip_l.transformer."),
        "text_encoder_2": ("clip", "text_encoders.clip_g.transformer."),
        "text_encoder_3": ("t5", "text_encoders.t5xxl.transformer."),
    },
    "flux": {
        "text_encoder": ("clip", "text_encoders.clip_l.transformer."),
        "text_encoder_2": ("t5", "text_encoders.t5xxl.transformer."),
    },
}


def _clip(utilities: Any, whole: Tensors, prefix: str) -> Tensors:
    assert f'"{prefix}"' in inspect.getsource(utilities)
    result: Tensors = utilities.convert_ldm_clip_checkpoint(dict(whole), remove_prefix=prefix)
    return result


def _open_clip(utilities: Any, whole: Tensors, prefix: str) -> Tensors:
    width = whole[f"{prefix}ln_final.weight"].shape[0]
    model = SimpleNamespace(config=SimpleNamespace(hidden_size=width))
    result: Tensors = utilities.convert_open_clip_checkpoint(model, dict(whole), prefix=prefix)
    return result


def _t5(utilities: Any, whole: Tensors, prefix: str) -> Tensors:
    result: Tensors = utilities.convert_sd3_t5_checkpoint_to_diffusers(
        {name: t for name, t in whole.items() if name.startswith(prefix)}
    )
    return result
