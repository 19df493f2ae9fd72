"""A tiny complete model as GGUF bytes, faults in its keys and vocabulary, and faulty sets of shards."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

from weighbridge.base.dtypes import BY_NAME, DType
from weighbridge.base.spec import Spec
from weighbridge.containers.base import Layout
from weighbridge.containers.gguf import container as gguf
from weighbridge.containers.gguf.container import KV

F32: DType = BY_NAME["F32"]
WIDTH, VOCAB = 32, 40

Metadata = dict[str, KV]
Tensors = list[tuple[str, Spec]]


def tensors(dtype: DType = F32) -> Tensors:
    """One llama block. (dims are reversed in the file)"""
    shapes = {
        "token_embd.weight": (VOCAB, WIDTH),
        "output_norm.weight": (WIDTH,),
        "output.weight": (VOCAB, WIDTH),
        "blk.0.attn_norm.weight": (WIDTH,),
        **{f"blk.0.attn_{x}.weight": (WIDTH, WIDTH) for x in ("q", "k", "v", "output")},
        "blk.0.ffn_norm.weight": (WIDTH,),
        "blk.0.ffn_gate.weight": (2 * WIDTH, WIDTH),
        "blk.0.ffn_up.weight": (2 * WIDTH, WIDTH),
        "blk.0.ffn_down.weight": (WIDTH, 2 * WIDTH),
    }
    return [(name, Spec(shape, dtype if len(shape) > 1 else F32)) for name, shape in shapes.items()]


def metadata() -> Metadata:
    words = ["<unk>", "<s>", "</s>", "<0x0A>", *(f"▁{chr(97 + i)}" for i in range(VOCAB - 4))]
    return {
        "general.architecture": KV("str", "llama"),
        "general.name": KV("str", "tiny"),
        "llama.context_length": KV("u32", 64),
        "llama.embedding_length": KV("u32", WIDTH),
        "llama.block_count": KV("u32", 1),
        "llama.feed_forward_length": KV("arr[i32]", [2 * WIDTH]),
        "llama.attention.head_count": KV("u32", 4),
        "llama.attention.layer_norm_rms_epsilon": KV("f32", 1e-5),
        "tokenizer.ggml.model": KV("str", "llama"),
        "tokenizer.ggml.tokens": KV("arr[str]", words),
        "tokenizer.ggml.scores": KV("arr[f32]", [-float(i) for i in range(VOCAB)]),
        "tokenizer.ggml.token_type": KV("arr[i32]", [2, 3, 3, 6] + [1] * (VOCAB - 4)),
        "tokenizer.ggml.bos_token_id": KV("u32", 1),
        "tokenizer.ggml.add_bos_token": KV("bool", True),
    }


def render(layout: Layout, data: Callable[[str, int], bytes] | None = None) -> bytes:
    """The file that a layout describes. Data is noise in (0, 1) as f32 unless given."""
    out = bytearray(layout.size)
    for offset, piece in layout.pieces:
        out[offset : offset + len(piece)] = piece
    for slot in layout.slots:
        out[slot.offset : slot.offset + slot.spec.nbytes] = (data or noise)(slot.name, slot.spec.nbytes)
    return bytes(out)


def noise(name: str, nbytes: int) -> bytes:
    rng = random.Random(name)
    return b"".join(rng.randbytes(3)[:2] + b"\x00\x3e" for _ in range(nbytes // 4))  # f32 near 0.125


def model(change: Callable[[Metadata, Tensors], None] | None = None) -> bytes:
    keys, slots = metadata(), tensors()
    if change:
        change(keys, slots)
    return render(gguf.layout(slots, keys))


class Fault(NamedTuple):
    """A change of the model, the rules that `check(deep=True)` then names, and whether llama.cpp still loads it."""

    name: str
    change: Callable[[Metadata, Tensors], None]
    rules: frozenset[str]
    process: bool = True  # whether it is worth asking llama.cpp


def _set(key: str, kind: str, value: Any) -> Callable[[Metadata, Tensors], None]:
    return lambda keys, slots: keys.update({key: KV(kind, value)})


def _drop(key: str) -> Callable[[Metadata, Tensors], None]:
    def change(keys: Metadata, slots: Tensors) -> None:
        del keys[key]

    return change


def _words(words: dict[int, str]) -> Callable[[Metadata, Tensors], None]:
    def change(keys: Metadata, slots: Tensors) -> None:
        for index, word in words.items():
            keys["tokenizer.ggml.tokens"].value[index] = word

    return change


def _quantized(keys: Metadata, slots: Tensors) -> None:
    slots[:] = tensors(BY_NAME["Q8_0"])


def _fault(name: str, change: Callable[[Metadata, Tensors], None], *rules: str, process: bool = True) -> Fault:
    return Fault(name, change, frozenset(rules), process)


TOKENIZER = "tokenizer.ggml."
FAULTS = [
    _fault("no fault", lambda keys, slots: None),
    _fault("per-layer numbers", _set("llama.attention.head_count", "arr[u32]", [4])),
    _fault("no architecture", _drop("general.architecture"), "no-architecture"),
    _fault("quantized, no version", _quantized, "no-quantization-version", process=False),
    # (llama.cpp aborts where it maps the file; the judge of this table reads it)
    _fault("data at no multiple of 32", _set("general.alignment", "u32", 8), "data-start", process=False),
    _fault("count as u64", _set("llama.context_length", "u64", 64), "key-type"),
    _fault("epsilon as f64", _set("llama.attention.layer_norm_rms_epsilon", "f64", 1e-5), "key-type"),
    _fault("token id as i32", _set(TOKENIZER + "bos_token_id", "i32", 1), "key-type"),
    _fault("flag as u8", _set(TOKENIZER + "add_bos_token", "u8", 1), "key-type"),
    _fault("513 blocks", _set("llama.block_count", "u32", 513), "block-count", "layer-array"),
    _fault("no blocks", _set("llama.block_count", "u32", 0), "block-count", "layer-array"),
    _fault("array of two for one layer", _set("llama.feed_forward_length", "arr[i32]", [64, 64]), "layer-array"),
    _fault("tokens as numbers", _set(TOKENIZER + "tokens", "arr[i32]", [1]), "vocab-type"),
    _fault("scores as f64", _set(TOKENIZER + "scores", "arr[f64]", [0.0] * VOCAB), "vocab-type"),
    _fault("scores as i32", _set(TOKENIZER + "scores", "arr[i32]", [0] * VOCAB)),
    _fault("types as u32", _set(TOKENIZER + "token_type", "arr[u32]", [1] * VOCAB), "vocab-type"),
    _fault("a score too few", _set(TOKENIZER + "scores", "arr[f32]", [0.0] * (VOCAB - 1)), "vocab-short"),
    _fault("a type too many", _set(TOKENIZER + "token_type", "arr[i32]", [1] * (VOCAB + 1)), "vocab-long"),
    _fault("token twice", _words({9: "▁a"}), "token-duplicate"),
    _fault("same up to a NUL", _words({9: "▁a\0"}), "token-duplicate"),
    _fault("named like an empty one", _words({9: "[EMPTY_8]", 8: ""}), "token-duplicate"),
    _fault("two empty tokens", _words({9: "", 8: ""})),
    _fault("token not UTF-8", _words({9: "\udcff"}), "utf8", process=False),
]  # fmt: skip


def shards(count: int = 3) -> list[bytes]:
    return [render(layout) for layout in gguf.split_layouts(tensors(), metadata(), max_tensors=5)][:count]
