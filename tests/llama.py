"""A small Llama as a folder, written by our own writer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from weighbridge.base.dtypes import BY_NUMPY
from weighbridge.containers.safetensors import container as safetensors
from weighbridge.tensors import nodes

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 80, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 128, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip


def llama_tensors(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (80, 64), "lm_head.weight": (80, 64)}
    shapes["model.norm.weight"] = (64,)
    for layer in range(2):
        p = f"model.layers.{layer}."
        shapes |= {p + f"{x}.weight": (64,) for x in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {p + f"self_attn.{x}_proj.weight": (64, 64) for x in "qo"}
        shapes |= {p + f"self_attn.{x}_proj.weight": (32, 64) for x in "kv"}
        shapes |= {p + f"mlp.{x}_proj.weight": (96, 64) for x in ("gate", "up")}
        shapes[p + "mlp.down_proj.weight"] = (64, 96)
    return {k: rng.normal(0, 0.3, s).astype(np.float32).astype(ml_dtypes.bfloat16) for k, s in shapes.items()}


def write(path: Path, arrays: dict[str, np.ndarray]) -> None:
    members = {k: nodes.const(a, BY_NUMPY[a.dtype.name]) for k, a in arrays.items()}
    layout = safetensors.layout([(k, v.spec) for k, v in members.items()], {"format": "pt"})
    data = bytearray(layout.size)
    for offset, piece in layout.pieces:
        data[offset : offset + len(piece)] = piece
    for slot in layout.slots:
        data[slot.offset : slot.offset + slot.spec.nbytes] = members[slot.name].read_all().tobytes()
    path.write_bytes(data)


#: The smallest byte-level vocabulary there can be.
VOCAB = ["t", "0", "t0", *(f"x{i}" for i in range(77))]


def tokenizer() -> dict[str, object]:
    gpt2 = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": {t: i for i, t in enumerate(VOCAB)}, "merges": [["t", "0"]]}
    return {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": gpt2, "decoder": gpt2,
            "post_processor": gpt2, "model": model}  # fmt: skip


def make_folder(
    path: Path,
    config: Mapping[str, Any] = CONFIG,
    tensors: dict[str, np.ndarray] | None = None,
    *,
    words: bool = False,
) -> Path:
    """A model's folder, with a tokenizer if it has `words`."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    if words:
        (path / "tokenizer.json").write_text(json.dumps(tokenizer()))
    write(path / "model.safetensors", llama_tensors() if tensors is None else tensors)
    return path
