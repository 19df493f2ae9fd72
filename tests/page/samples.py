"""Models that the tests of the page look at."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from math import prod
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 2048, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False,
    "torch_dtype": "float32",
}  # fmt: skip
HOSTILE = (
    "</script><script>window.pwned=1</script><!--", "<img src=x onerror=window.pwned=1>", "a\u202egnp.b", "line\nbreak",
    "a\U0001f600b", "a\U0001f601b", "../../etc/passwd", "tab\there", "\u2028separated", "x" * 300,
    "__proto__.constructor",
)  # fmt: skip
Row = tuple[str, str, Sequence[int]]
_WIDTHS = {"BF16": 2, "F32": 4, "F8_E4M3": 1}


def llama(folder: Path) -> Path:
    """A Llama of three layers, its numbers normally distributed."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    random = np.random.default_rng(17)
    tensors = {
        name: random.normal(0, 0.1, shape).astype(np.float32)
        for name, _, shape in layers(3, hidden=256, inner=512, heads=256, kv=128, vocabulary=64)
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def layers(count: int, *, hidden: int, inner: int, heads: int, kv: int, vocabulary: int) -> Iterable[Row]:
    """The tensors of a Llama."""
    yield "model.embed_tokens.weight", "BF16", (vocabulary, hidden)
    shapes = {
        "self_attn.q_proj": (heads, hidden), "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, heads), "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner), "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
    }  # fmt: skip
    for layer in range(count):
        yield from ((f"model.layers.{layer}.{name}.weight", "BF16", shape) for name, shape in shapes.items())
    yield "model.norm.weight", "BF16", (hidden,)
    yield "lm_head.weight", "BF16", (vocabulary, hidden)


def experts(count: int, each: int) -> Iterable[Row]:
    """The tensors of a mixture of experts in 8-bit floats, with their scales."""
    for layer in range(count):
        for expert in range(each):
            for part in ("gate", "up", "down"):
                name = f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight"
                yield name, "F8_E4M3", (64, 32)
                yield f"{name}_scale_inv", "F32", (1, 1)


#: 100,032 tensors.
MANY = tuple(experts(521, 32))
#: A model of 7 billion parameters.
SEVEN_B = tuple(layers(32, hidden=4096, inner=14336, heads=4096, kv=1024, vocabulary=32000))
#: Its keys of config.json, over `CONFIG`.
SEVEN_B_SIZES = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 32000, "torch_dtype": "bfloat16",
}  # fmt: skip


def sparse(path: Path, rows: Iterable[Row]) -> Path:
    """A safetensors file of zeros that takes no space."""
    header, at = {}, 0
    for name, dtype, shape in rows:
        end = at + prod(shape) * _WIDTHS[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
    return path
