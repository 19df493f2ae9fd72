"""The config of a model folder without a config.json, as the reference converter derives it: of Pocket TTS by the
shapes of its tensors, of a ModernBERT that decides from those of its parts (conversion/pockettts.py, bert.py
`_load_decision_hparams`, llama.cpp b11549)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import LAYERS
from weighbridge.base.spec import Shape
from weighbridge.models.arch.tables.values import integer

#: A tensor that only Pocket TTS has.
POCKET: Final = "flow_lm.bos_emb"
_TEXTS: Final = "flow_lm.conditioner.embed.weight"
_VOICE: Final = "flow_lm.bos_before_voice"
_HEAD: Final = 64  # elements of a head in every published model
_LAYER: Final = re.compile(r"(.+\.layers)\.\d+\.norm1\.weight")


_ENCODER: Final = "encoder/config.json"
_HEADS: Final = ("julia_config.json", "rl_agent_config.json")
_QUESTIONS: Final = ("choice", "score", "noul")


def derived_config(shapes: Mapping[str, Shape], read: Callable[[str], dict[str, Any] | None]) -> dict[str, Any] | None:
    """Returns the config of a folder without one; None if it is of no known kind. `read`: returns a JSON file's
    object."""
    if POCKET in shapes:
        return _of_shapes(shapes)
    encoder = read(_ENCODER)
    head = next((head for name in _HEADS if (head := read(name)) is not None), None) if encoder else None
    return None if encoder is None or head is None else _of_parts(encoder, head)


def _of_parts(encoder: Mapping[str, Any], head: Mapping[str, Any]) -> dict[str, Any]:
    """An encoder's config with the blocks of a head after its own, which have a width of four times the model's."""
    layers = integer(encoder.get("num_hidden_layers"), "num_hidden_layers", 1, LAYERS)
    blocks = integer(head.get("head_layers"), "head_layers", 1, LAYERS)
    width = integer(encoder.get("hidden_size"), "hidden_size", 1)
    listed = head.get("temperature") or ()
    temperatures = dict(zip(_QUESTIONS, listed, strict=False)) if isinstance(listed, list) else {}
    by_options = head.get("temperature_by_options") or {}
    for name, value in by_options.items() if isinstance(by_options, dict) else ():
        temperatures[name.replace(":", ".").replace("-", "_").rstrip("+")] = value
    decision = {
        "type": "laya", "head_layers": blocks, "head_max_len": head.get("head_max_len", 256),
        "temperature": temperatures,
    }  # fmt: skip
    return {
        **encoder, "architectures": ["ModernBertDecisionModel"], "model_type": "modernbert_decision",
        "num_hidden_layers": layers + blocks, "decision": decision,
        "intermediate_size": [encoder.get("intermediate_size")] * layers + [4 * width] * blocks,
    }  # fmt: skip


def _of_shapes(shapes: Mapping[str, Shape]) -> dict[str, Any]:
    """Raises FormatError if a tensor that it needs is missing."""
    start, (rows, width) = "flow_lm.transformer.layers", _shape(shapes, _TEXTS, 2)
    inputs = ["<|pad|>", *(["<|bos_before_voice|>"] if _VOICE in shapes else []), "<|audio_bos|>"]
    tokens = rows + len(inputs) - 1  # the embedding has a row that pads
    return {
        "architectures": ["PocketTTSModel"], "model_type": "pockettts", "vocab_size": tokens,
        "text_rows": rows, "input_names": inputs, "hidden_size": width,
        "max_position_embeddings": 4096, "rope_theta": 10000.0, "layer_norm_eps": 1e-5,
        "latent_size": _shape(shapes, POCKET, 1)[0], "num_attention_heads": max(1, width // _HEAD),
        "intermediate_size": _shape(shapes, f"{start}.0.linear1.weight", 2)[0],
        "num_hidden_layers": sum(match[1] == start for name in shapes if (match := _LAYER.fullmatch(name))),
    }  # fmt: skip


def _shape(shapes: Mapping[str, Shape], name: str, dimensions: int) -> Shape:
    if len(shape := shapes.get(name, ())) != dimensions:
        raise FormatError(
            "a Pocket TTS needs this tensor", field=name, expected=f"{dimensions} dimensions", found=list(shape)
        )
    return shape
