"""The config of a folder without a config.json, by the names and shapes of its tensors: Pocket TTS, as
conversion/pockettts.py reads it (llama.cpp b11549)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from weighbridge.base.errors import FormatError
from weighbridge.base.spec import Shape
from weighbridge.models.model import POCKET

_TEXTS: Final = "flow_lm.conditioner.embed.weight"
_VOICE: Final = "flow_lm.bos_before_voice"
_HEAD: Final = 64  # elements of a head in every published model
_LAYER: Final = re.compile(r"(.+\.layers)\.\d+\.norm1\.weight")


def config_of_shapes(shapes: Mapping[str, Shape]) -> dict[str, Any] | None:
    """Returns the config that the reference converter derives; None for other models. Raises FormatError if a tensor
    that it needs is missing."""
    if POCKET not in shapes:
        return None
    rows, width = _shape(shapes, _TEXTS, 2)
    inputs = ["<|pad|>", *(["<|bos_before_voice|>"] if _VOICE in shapes else []), "<|audio_bos|>"]
    tokens = rows + len(inputs) - 1  # the embedding has a row that pads
    return {
        "architectures": ["PocketTTSModel"], "model_type": "pockettts", "vocab_size": tokens, "text_rows": rows, "input_names": inputs,
        "hidden_size": width,
        "max_position_embeddings": 4096, "rope_theta": 10000.0, "layer_norm_eps": 1e-5,
        "latent_size": _shape(shapes, POCKET, 1)[0], **_sizes(shapes, "flow_lm.transformer.layers", width),
    }  # fmt: skip


def _sizes(shapes: Mapping[str, Shape], start: str, width: int) -> dict[str, int]:
    """The sizes of one of its transformers."""
    layers = sum(match[1] == start for name in shapes if (match := _LAYER.fullmatch(name)))
    return {
        "num_hidden_layers": layers, "intermediate_size": _shape(shapes, f"{start}.0.linear1.weight", 2)[0],
        "num_attention_heads": max(1, width // _HEAD),
    }  # fmt: skip


def _shape(shapes: Mapping[str, Shape], name: str, dimensions: int) -> Shape:
    if len(shape := shapes.get(name, ())) != dimensions:
        raise FormatError(
            "a Pocket TTS needs this tensor", field=name, expected=f"{dimensions} dimensions", found=list(shape)
        )
    return shape
