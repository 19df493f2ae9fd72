"""The sizes in the configs of a pipeline are those of its tensors, by the classes of diffusers and transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from weighbridge.base.errors import UsageError
from weighbridge.containers.sniff import diffusion
from weighbridge.conversion.pipelines import sizes
from weighbridge.models.diffusion.names import table
from weighbridge.models.diffusion.places import places

torch = pytest.importorskip("torch")
_CLIP = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_hidden_layers": 2}
_LM = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 40,
}  # fmt: skip
_HEADS = {"num_attention_heads": 2, "attention_head_dim": 16}
_VAE = {"block_out_channels": [8, 16], "norm_num_groups": 4, "layers_per_block": 2}
_VAE_2D = {"down_block_types": ["DownEncoderBlock2D"] * 2, "up_block_types": ["UpDecoderBlock2D"] * 2}
_WAN = {**_HEADS, "ffn_dim": 48, "num_layers": 2, "text_dim": 24, "freq_dim": 20}
_WAN_VAE = {"base_dim": 8, "z_dim": 4}
_FLUX = {**_HEADS, "num_layers": 2, "num_single_layers": 3, "joint_attention_dim": 24}
#: Class -> a small config.
CONFIGS: dict[str, dict[str, Any]] = {
    "UNet2DConditionModel": {
        "block_out_channels": [32, 64], "layers_per_block": 2, "cross_attention_dim": 24, "norm_num_groups": 8,
        "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"], "transformer_layers_per_block": [1, 3],
        "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"], "addition_embed_type": "text_time",
        "addition_time_embed_dim": 8, "projection_class_embeddings_input_dim": 40,
    },
    "AutoencoderKL": {**_VAE, **_VAE_2D}, "AutoencoderKLFlux2": {**_VAE, **_VAE_2D},
    "FluxTransformer2DModel": {**_FLUX, "pooled_projection_dim": 20, "axes_dims_rope": (4, 6, 6)},
    "Flux2Transformer2DModel": {**_FLUX, "axes_dims_rope": (4, 4, 4, 4), "timestep_guidance_channels": 12},
    "SD3Transformer2DModel": {
        **_HEADS, "num_layers": 2, "caption_projection_dim": 32, "pooled_projection_dim": 20, "pos_embed_max_size": 6,
    },
    "WanTransformer3DModel": {**_WAN, "image_dim": 28, "added_kv_proj_dim": 32, "pos_embed_seq_len": 6},
    "WanVACETransformer3DModel": {**_WAN, "vace_layers": [0, 1], "vace_in_channels": 12},
    "AutoencoderKLWan": _WAN_VAE, "AutoencoderKLQwenImage": _WAN_VAE,
    "QwenImageTransformer2DModel": {**_HEADS, "num_layers": 2, "joint_attention_dim": 24, "axes_dims_rope": (4, 6, 6)},
    "Lumina2Transformer2DModel": {
        "hidden_size": 32, "num_layers": 2, "num_refiner_layers": 1, "num_attention_heads": 2, "num_kv_heads": 1,
        "axes_dim_rope": (4, 6, 6), "cap_feat_dim": 24,
    },
    "ZImageTransformer2DModel": {
        "dim": 32, "n_layers": 2, "n_refiner_layers": 1, "n_heads": 2, "n_kv_heads": 2, "cap_feat_dim": 24,
        "axes_dims": [4, 6, 6],
    },
    "LTXVideoTransformer3DModel": {**_HEADS, "cross_attention_dim": 32, "num_layers": 2, "caption_channels": 24},
    "AutoencoderKLLTXVideo": {
        "latent_channels": 8, "block_out_channels": [8] * 4, "decoder_block_out_channels": [8] * 4,
        "layers_per_block": [1] * 5, "decoder_layers_per_block": [1] * 5,
    },
    "HunyuanVideoTransformer3DModel": {
        **_HEADS, "num_layers": 2, "num_single_layers": 3, "num_refiner_layers": 1, "text_embed_dim": 24,
        "pooled_projection_dim": 20, "rope_axes_dim": (4, 6, 6),
    },
    "AutoencoderKLHunyuanVideo": {
        **_VAE, "block_out_channels": [8] * 3 + [16], "layers_per_block": 1,
    },
    "CLIPTextModel": {**_CLIP, "vocab_size": 40, "max_position_embeddings": 12},
    "CLIPTextModelWithProjection": {**_CLIP, "vocab_size": 40, "max_position_embeddings": 12},
    "CLIPVisionModel": {**_CLIP, "image_size": 28, "patch_size": 14},
    "CLIPVisionModelWithProjection": {**_CLIP, "image_size": 28, "patch_size": 14},
    "T5EncoderModel": {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4, "vocab_size": 40},
    "UMT5EncoderModel": {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4, "vocab_size": 40},
    "Gemma2Model": _LM, "Qwen3Model": _LM, "Qwen3ForCausalLM": _LM, "LlamaModel": _LM, "LlamaForCausalLM": _LM,
    "Qwen2_5_VLForConditionalGeneration": {
        "text_config": {k: v for k, v in _LM.items() if k != "head_dim"},
        "vision_config": {
            "depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 24, "out_hidden_size": 16,
        },
    },
    "Mistral3ForConditionalGeneration": {
        "text_config": {**_LM, "model_type": "mistral"},
        "vision_config": {**_CLIP, "model_type": "pixtral", "num_hidden_layers": 1, "head_dim": 8},
    },
    "LlavaForConditionalGeneration": {
        "text_config": {**_LM, "model_type": "llama"},
        "vision_config": {**_CLIP, "model_type": "clip_vision_model", "num_hidden_layers": 1},
    },
}  # fmt: skip
#: Settings of the structure that aren't sizes, those that every published model has alike, and sizes that no tensor
#: shows by itself: numbers of heads below a fixed width, and lists that diffusers flattens.
NOT_COMPARED = {
    "norm_num_groups", "only_cross_attention", "dual_cross_attention", "use_linear_projection", "is_residual",
    "class_embeddings_concat", "use_additional_t_cond", "qk_norm", "norm_elementwise_affine", "attention_bias",
    "attention_out_bias", "num_attention_heads", "num_kv_heads", "num_key_value_heads", "multiple_of", "patch_size",
    "num_res_blocks", "vision_config", "spatio_temporal_scaling", "decoder_spatio_temporal_scaling", "sample_size",
    "decoder_block_out_channels", "decoder_layers_per_block", "AutoencoderKLLTXVideo.block_out_channels",
    "image_size", "spatial_compression_ratio", "all_f_patch_size", "upsample_factor", "decoder_causal",
    "decoder_inject_noise",
}  # fmt: skip


def built(class_name: str, config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """The whole config of a class, and the shapes of its tensors."""
    diffusers, transformers = pytest.importorskip("diffusers"), pytest.importorskip("transformers")
    with torch.device("meta"):
        if hasattr(diffusers, class_name) and not hasattr(transformers, class_name):
            model = getattr(diffusers, class_name).from_config(dict(config))  # ignores settings of other versions
            whole = dict(model.config)
        else:
            class_ = getattr(transformers, class_name)
            made = class_.config_class(**config)
            model, whole = class_(made), made.to_dict()
    return whole, {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def refusal(class_name: str, config: Mapping[str, Any], shapes: Mapping[str, Any]) -> str | None:
    model: Any = SimpleNamespace(index=[SimpleNamespace(name=name, shape=shape) for name, shape in shapes.items()])
    try:
        assert sizes.check_sizes(class_name, config, model, Path("config.json"), "the file", "another one")
    except UsageError as error:
        return error.message
    return None


def others(class_name: str, config: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Configs with another value of one number, or of one of a list."""
    for key, value in config.items():
        if not NOT_COMPARED.isdisjoint((key, f"{class_name}.{key}")) or key.startswith("_"):
            continue
        if isinstance(value, dict):
            yield from ((f"{key}.{inner}", {**config, key: changed}) for inner, changed in others(class_name, value))
        elif isinstance(value, bool):
            yield key, {**config, key: not value}
        elif isinstance(value, int) and value > 0:
            yield key, {**config, key: 2 * value}
        elif isinstance(value, (list, tuple)) and value and all(type(each) is int for each in value):
            yield key, {**config, key: [*value[:-1], 2 * value[-1]]}


@pytest.mark.parametrize("class_name", CONFIGS)
def test_every_size_of_a_config_is_compared(class_name: str) -> None:
    """Whatever number changes the shapes of diffusers' or transformers' own class is refused."""
    whole, shapes = built(class_name, CONFIGS[class_name])
    assert refusal(class_name, whole, shapes) is None
    unseen = []
    of_transformers = "transformers_version" in whole
    for key, changed in others(class_name, CONFIGS[class_name] if of_transformers else whole):
        try:
            _, other = built(class_name, changed)
        except Exception:  # no model has such a config
            continue
        if other != shapes and refusal(class_name, whole, other) is None:
            unseen.append(key)
    assert not unseen


#: Folder of a published part -> its config.json, without settings that change no shape. Source: public repositories
#: that spell them out (sglang, vLLM-Omni, ComfyUI's configs, mirrors of the Hub), read in November 2026.
PUBLISHED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "golden/published_pipelines.json").read_text()
)


def class_of(config: Mapping[str, Any]) -> str:
    return str(config["architectures"][0] if "architectures" in config else config["_class_name"])


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_fits_its_tensors(name: str) -> None:
    """Also without the keys that later versions of diffusers added; and no other config of its class fits."""
    config = PUBLISHED[name]
    arguments = {key: value for key, value in config.items() if not key.startswith("_") and key != "architectures"}
    _, shapes = built(class_of(config), arguments)
    assert refusal(class_of(config), config, shapes) is None
    for number, other in PUBLISHED.items():
        if number != name and class_of(other) == class_of(config):
            assert refusal(class_of(config), other, shapes) is not None, number


def test_every_kind_of_denoiser_has_a_published_config() -> None:
    denoisers = {name.class_name for row in diffusion.table().rows if (name := table(row.id)) and places(row.id)}
    assert denoisers - {class_of(config) for config in PUBLISHED.values()} == set()
