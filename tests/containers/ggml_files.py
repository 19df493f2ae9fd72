"""Files of before GGUF, made as the programs of the time wrote them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from tests.containers import whisper_files

LLAMA = {"n_vocab": 300, "n_embd": 64, "n_mult": 32, "n_head": 4, "n_layer": 2, "n_rot": 16, "ftype": 0}
N_FF, N_KV = 96, 32
MAGICS = {"ggml": b"lmgg", "ggmf1": b"fmgg\1\0\0\0", "ggjt1": b"tjgg\1\0\0\0", "ggjt2": b"tjgg\2\0\0\0",
          "ggjt3": b"tjgg\3\0\0\0"}  # fmt: skip
IDS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q4_2": 4, "Q4_3": 5, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q6_K": 14}
# bytes of a block in each generation, and its elements
SIZES = {
    1: {"Q4_0": 20, "Q4_1": 24, "Q4_2": 10, "Q4_3": 12, "Q5_0": 22, "Q5_1": 24, "Q8_0": 36},
    2: {"Q4_0": 20, "Q4_1": 24, "Q5_0": 22, "Q5_1": 24, "Q8_0": 36},
    3: {"Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q8_0": 34, "Q6_K": 210},
}
BLOCK = {"Q4_2": 16, "Q4_3": 16, "Q6_K": 256}
PLAIN = {"F32": 4, "F16": 2}


def vocabulary(count: int) -> list[tuple[bytes, float]]:
    special = [b"<unk>?", b"", b""]
    words = [b" w%d x" % i for i in range(max(count - 260, 0))]
    items = [*special, *(bytes([i]) for i in range(256)), b"", *words][:count]
    return [(w, -float(i) / 3) for i, w in enumerate(items)]


def blocks(name: str, generation: int, elements: int, seed: int) -> bytes:
    """Random blocks whose scales are small numbers."""
    size, n = SIZES[generation][name], elements // BLOCK.get(name, 32)
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, (n, size), dtype=np.uint8)
    wide = generation < 3 and name in ("Q4_0", "Q4_1", "Q8_0")
    count = 2 if name in ("Q4_1", "Q4_3", "Q5_1") else 1
    scales = rng.uniform(0.01, 0.1, (n, count)).astype(np.float32 if wide else np.float16)
    at = size - 2 if name == "Q6_K" else 0
    raw[:, at : at + scales.nbytes // n] = scales.view(np.uint8)
    return raw.tobytes()


def data_of(name: str, generation: int, shape: tuple[int, ...], seed: int) -> bytes:
    elements = int(np.prod(shape))
    if name in PLAIN:
        kind = np.float32 if name == "F32" else np.float16
        return np.random.default_rng(seed).normal(0, 0.2, elements).astype(kind).tobytes()
    return blocks(name, generation, elements, seed)


def record(name: str, kind: str, shape: tuple[int, ...], data: bytes, at: int, align: bool) -> bytes:
    raw = name.encode()
    head = struct.pack(f"<3I{len(shape)}I", len(shape), len(raw), IDS[kind], *reversed(shape)) + raw
    return head + bytes(-(at + len(head)) % 32 if align else 0) + data


def llama_shapes(sizes: dict[str, int]) -> dict[str, tuple[int, ...]]:
    e, v = sizes["n_embd"], sizes["n_vocab"]
    shapes: dict[str, tuple[int, ...]] = {"tok_embeddings.weight": (v, e), "norm.weight": (e,), "output.weight": (v, e)}
    for i in range(sizes["n_layer"]):
        for name, shape in {
            "attention.wq": (e, e), "attention.wk": (N_KV, e), "attention.wv": (N_KV, e), "attention.wo": (e, e),
            "attention_norm": (e,), "feed_forward.w1": (N_FF, e), "feed_forward.w2": (e, N_FF),
            "feed_forward.w3": (N_FF, e), "ffn_norm": (e,),
        }.items():  # fmt: skip
            shapes[f"layers.{i}.{name}.weight"] = shape
    return shapes


def llama(form: str, kind: str = "F32", ftype: int = 0, **sizes: int) -> bytes:
    """A whole llama; its matrices of type `kind`."""
    hp = {**LLAMA, "ftype": ftype, **sizes}
    out = bytearray(MAGICS[form] + struct.pack("<7I", *hp.values()))
    for word, score in vocabulary(hp["n_vocab"]):
        out += struct.pack("<I", len(word)) + word + (b"" if form == "ggml" else struct.pack("<f", score))
    generation = int(form[-1]) if form.startswith("ggjt") else 1
    for seed, (name, shape) in enumerate(llama_shapes(hp).items()):
        own = kind if len(shape) > 1 else "F32"
        out += record(name, own, shape, data_of(own, generation, shape, seed), len(out), form.startswith("ggjt"))
    return bytes(out)


def gpt2(kind: str = "F16", ftype: int = 1, generation: int = 3) -> bytes:
    out = bytearray(b"lmgg" + struct.pack("<7I", 5, 8, 32, 4, 1, ftype, 5))
    for word in (b"a", b"", b"\xff", b"hello", b"x"):
        out += struct.pack("<I", len(word)) + word
    for name, own, shape in (("model/wte", kind, (5, 32)), ("model/ln_f/g", "F32", (32,))):
        out += record(name, own, shape, data_of(own, generation, shape, 1), len(out), False)
    return bytes(out)


def whisper() -> bytes:
    """A whole Whisper of one layer each, with tokens and filters of no meaning."""
    sizes = dict(zip(whisper_files.HEADER, (6, 10, 8, 2, 1, 12, 8, 2, 1, 80), strict=True))
    arrays = {whisper_files.openai_name(name): array for name, array in whisper_files.weights(sizes).items()}
    filters = np.arange(240, dtype=np.float32).tobytes()
    return whisper_files.reference([*(sizes[key] for key in whisper_files.HEADER)], arrays, filters,
                                   strings=(b"a", b"b", b"cc", b""))  # fmt: skip


def named(words: Sequence[bytes]) -> bytes:
    return struct.pack("<I", len(words)) + b"".join(struct.pack("<I", len(word)) + word for word in words)


def parakeet() -> bytes:
    """As whisper.cpp's convert-parakeet-to-ggml.py writes one: a window and durations between filters and tokens."""
    out = bytearray(b"lmgg" + struct.pack("<15I", 4, 10, 8, 2, 1, 80, 1, 512, 8, 4, 3, 16, 2, 5, 10))
    out += struct.pack("<2I", 80, 3) + np.arange(240, dtype=np.float32).tobytes()
    out += struct.pack("<I", 6) + np.arange(6, dtype=np.float32).tobytes() + struct.pack("<5I", 0, 1, 2, 3, 4)
    out += named((b"<unk>", b"a", b"", b"cc"))
    for name, own, shape in (("encoder.pre_encode.out.weight", "F16", (2, 4)), ("joint.enc.bias", "F32", (4,))):
        out += record(name, own, shape, data_of(own, 3, shape, 2), len(out), False)
    return bytes(out)


def silero(layers: int = 2) -> bytes:
    """As whisper.cpp's convert-silero-vad-to-ggml.py writes one: sizes by layer, no tokens, a scalar at the end."""
    name = b"silero-16k"
    out = bytearray(b"lmgg" + struct.pack("<I", len(name)) + name + struct.pack("<5I", 6, 2, 0, 512, 64))
    out += struct.pack("<I", layers) + struct.pack("<3I", 129, 128, 3) * layers + struct.pack("<4I", 128, 128, 128, 1)
    for own, kind, shape in (("_model.stft.basis", "F16", (2, 1, 4)), ("_model.decoder.decoder.2.bias", "F32", ())):
        out += record(own, kind, shape, data_of(kind, 3, shape, 2), len(out), False)
    return bytes(out)


def expected(kind: str, generation: int, data: bytes, count: int) -> Any:
    """The numbers of old blocks, element by element, after ggml.c of the time."""
    size, n = SIZES[generation][kind], BLOCK.get(kind, 32)
    out = []
    for at in range(0, count // n * size, size):
        b = data[at : at + size]
        wide = kind in ("Q4_0", "Q4_1", "Q8_0")
        width, code = (4, "<f") if wide else (2, "<e")
        d = np.float32(struct.unpack_from(code, b, 0)[0])
        m = np.float32(struct.unpack_from(code, b, width)[0]) if kind in ("Q4_1", "Q4_3", "Q5_1") else None
        at_q = width * (1 if m is None else 2)
        bits = 0
        if kind.startswith("Q5"):
            bits, at_q = int.from_bytes(b[at_q : at_q + 4], "little"), at_q + 4
        for i in range(n):
            if kind == "Q8_0":
                q = struct.unpack_from("b", b, at_q + i)[0]
            elif generation == 1:
                q = b[at_q + i // 2] >> 4 * (i % 2) & 15
            else:
                q = b[at_q + i % (n // 2)] >> 4 * (i // (n // 2)) & 15
            q |= (bits >> i & 1) << 4
            zero = {"Q4_0": 8, "Q4_2": 8, "Q5_0": 16}.get(kind, 0)
            out.append(np.float32(q - zero) * d + (np.float32(0) if m is None else m))
    return np.array(out, np.float32)
