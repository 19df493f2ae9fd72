"""Small random models of several parts, as transformers saves them: vision and audio towers, heads, tied weights,
buffers that older versions saved, tensors that nobody knows."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

_TEXT: Final[dict[str, Any]] = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "vocab_size": 64, "max_position_embeddings": 64, "head_dim": 16, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
_LAYERS: Final = {key: _TEXT[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers",
                                              "num_attention_heads")}  # fmt: skip
_VISION: Final = _LAYERS | {"image_size": 16, "patch_size": 8}
_BERT: Final = _LAYERS | {"vocab_size": 64, "max_position_embeddings": 64}
_MROPE: Final = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
_AUDIO: Final = {
    "d_model": 32, "vocab_size": 64, "num_mel_bins": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 3, "suppress_tokens": None, "begin_suppress_tokens": None, "max_source_positions": 32,
    "max_target_positions": 32,
    **{f"{side}_{key}": value for side in ("encoder", "decoder")
       for key, value in (("layers", 2), ("attention_heads", 2), ("ffn_dim", 64))},
}  # fmt: skip

#: Name -> class of transformers, class of its config, the config, tensors that are added: name -> shape.
_Row = tuple[str, str, dict[str, Any], dict[str, tuple[int, ...]]]
_LLAMA: Final = ("LlamaForCausalLM", "LlamaConfig")
MODELS: Final[dict[str, _Row]] = {
    "llava": ("LlavaForConditionalGeneration", "LlavaConfig", {
        "text_config": {"model_type": "llama", **_TEXT}, "image_token_index": 60,
        "vision_config": {"model_type": "clip_vision_model", "projection_dim": 32, **_VISION}}, {}),
    "qwen2vl": ("Qwen2VLForConditionalGeneration", "Qwen2VLConfig", {
        "text_config": {**_TEXT, "head_dim": None, "rope_parameters": _MROPE},
        "vision_config": {"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "patch_size": 8,
                          "mlp_ratio": 2}}, {}),
    "gemma3": ("Gemma3ForConditionalGeneration", "Gemma3Config", {
        "text_config": {**_TEXT, "num_hidden_layers": 6, "sliding_window": 16, "query_pre_attn_scalar": 16},
        "vision_config": _VISION, "mm_tokens_per_image": 4}, {}),
    "idefics3": ("Idefics3ForConditionalGeneration", "Idefics3Config", {
        "text_config": {"model_type": "llama", **_TEXT}, "vision_config": _VISION, "scale_factor": 2,
        "image_token_id": 60}, {}),
    "whisper": ("WhisperForConditionalGeneration", "WhisperConfig", _AUDIO, {}),
    "clip": ("CLIPModel", "CLIPConfig", {
        "text_config": {**_BERT, "max_position_embeddings": 16, "bos_token_id": 1, "eos_token_id": 2,
                        "projection_dim": 32},
        "vision_config": {**_VISION, "projection_dim": 32}, "projection_dim": 32}, {}),
    "classifier": ("LlamaForSequenceClassification", "LlamaConfig", {**_TEXT, "num_labels": 3}, {}),
    "tokens": ("LlamaForTokenClassification", "LlamaConfig", {**_TEXT, "num_labels": 3}, {}),
    "reward": ("Qwen2ForSequenceClassification", "Qwen2Config", {
        **{k: v for k, v in _TEXT.items() if k != "head_dim"}, "num_labels": 1}, {}),
    "bert": ("BertForSequenceClassification", "BertConfig", {**_BERT, "num_labels": 3}, {
        "bert.embeddings.position_ids": (1, 64)}),
    "masked": ("BertForMaskedLM", "BertConfig", _BERT, {}),
    "tied": (*_LLAMA, {**_TEXT, "tie_word_embeddings": True}, {}),
    "buffers": (*_LLAMA, _TEXT, {f"model.layers.{n}.self_attn.rotary_emb.inv_freq": (8,) for n in (0, 1)}),
    "masks": ("GPT2LMHeadModel", "GPT2Config", {
        "n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 64, "n_positions": 16, "bos_token_id": 1,
        "eos_token_id": 2}, {f"transformer.h.{n}.attn.{end}": shape for n in (0, 1)
                             for end, shape in (("bias", (1, 1, 16, 16)), ("masked_bias", ()))}),
    "stranger": (*_LLAMA, _TEXT, {"nobody.knows.me": (3, 5)}),
}  # fmt: skip
#: Files that lie beside the weights, small ones that belong to the model and one that doesn't.
COPIED: Final = {"LICENSE": b"free", "notes.yaml": b"a: 1\n", "merges.txt": b"#version\n"}
LEFT: Final = {"filters.npz": b"PK", "onnx/model.onnx": b"\x08"}


def make(name: str, folder: Path) -> Path:
    """The model in a folder, with the files beside it."""
    import torch
    import transformers
    from safetensors.torch import load_file, save_file

    kind, config_class, config, added = MODELS[name]
    torch.manual_seed(len(name))
    config = getattr(transformers, config_class)(**config)
    getattr(transformers, kind)(config).save_pretrained(folder)
    if added:
        tensors = load_file(folder / "model.safetensors")
        own = {key: torch.randn(shape) if "ids" not in key else torch.arange(shape[-1]).reshape(shape)
               for key, shape in added.items()}  # fmt: skip
        save_file(tensors | own, folder / "model.safetensors", {"format": "pt"})
    for file, data in (COPIED | LEFT).items():
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_bytes(data)
    return folder


def class_of(folder: Path) -> Any:
    """The class of transformers that a folder's config names."""
    import transformers

    return getattr(transformers, json.loads((folder / "config.json").read_text())["architectures"][0])


def elements(path: Path) -> dict[str, int]:
    """How many elements each tensor of a file or a folder has, by its format's own reader."""
    files = sorted(f for f in path.rglob("*") if f.suffix in _READERS) if path.is_dir() else [path]
    return {name: count for file in files for name, count in _READERS[file.suffix](file).items()}


def _safetensors(file: Path) -> dict[str, int]:
    from safetensors import safe_open

    with safe_open(file, "pt") as opened:
        return {name: opened.get_tensor(name).numel() for name in opened.keys()}  # noqa: SIM118 (not a mapping)


def _gguf(file: Path) -> dict[str, int]:
    from gguf import GGUFReader

    return {tensor.name: int(tensor.n_elements) for tensor in GGUFReader(file).tensors}


def _torch(file: Path) -> dict[str, int]:
    import torch

    return {name: tensor.numel() for name, tensor in torch.load(file, weights_only=True).items()}


def _npz(file: Path) -> dict[str, int]:
    import numpy as np

    with np.load(file) as arrays:
        return {name: array.size for name, array in arrays.items()}


def _flax(file: Path) -> dict[str, int]:
    """Through our reader, which tests/containers/test_frameworks.py compares with Flax's."""
    import weighbridge as wb

    with wb.open(file) as model:
        return {name: math.prod(model[name].shape) for name in model}


_READERS: Final[dict[str, Callable[[Path], dict[str, int]]]] = {
    ".safetensors": _safetensors, ".gguf": _gguf, ".bin": _torch, ".npz": _npz, ".msgpack": _flax,
}  # fmt: skip
