"""Small Whispers, and whisper.cpp's converter and quantizer by their rules: models/convert-pt-to-ggml.py,
models/convert-h5-to-ggml.py, examples/quantize and examples/common-ggml.cpp. Nothing here comes from `weighbridge`."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

#: Sizes that K-quants fit. `special`: end, start, 99 languages, 6 others, 1501 timestamps.
STATE, MELS, AUDIO, TEXT, SPECIAL = 256, 80, 250, 32, 1608
TOKENS = 320
ROWS = TOKENS + SPECIAL
_PAIRS = [(a, b) for a in b"abcdefgh" for b in b"abcdefgh"]
#: Byte strings by rank: all bytes, in GPT-2's order of printable characters first, then pairs.
BYTES = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
BYTES += [b for b in range(256) if b not in BYTES]
STRINGS = [bytes([b]) for b in BYTES] + [bytes(pair) for pair in _PAIRS]
_PRINTED = {b: chr(b) if i < 188 else chr(256 + i - 188) for i, b in enumerate(BYTES)}

CONFIG: dict[str, Any] = {
    "architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "vocab_size": ROWS,
    "num_mel_bins": MELS, "d_model": STATE, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 4 * STATE, "decoder_ffn_dim": 4 * STATE,
    "max_source_positions": AUDIO, "max_target_positions": TEXT, "activation_function": "gelu",
    "scale_embedding": False, "tie_word_embeddings": True, "pad_token_id": TOKENS, "bos_token_id": TOKENS,
    "eos_token_id": TOKENS, "decoder_start_token_id": TOKENS + 1, "dtype": "float32",
}  # fmt: skip
HEADER = ("vocab_size", "max_source_positions", "d_model", "encoder_attention_heads", "encoder_layers",
          "max_target_positions", "d_model", "decoder_attention_heads", "decoder_layers", "num_mel_bins")  # fmt: skip
DIMS = ("n_vocab", "n_audio_ctx", "n_audio_state", "n_audio_head", "n_audio_layer", "n_text_ctx", "n_text_state",
        "n_text_head", "n_text_layer", "n_mels")  # fmt: skip
# convert-h5-to-ggml.py, `conv_map`
CONV_MAP = {
    "self_attn.k_proj": "attn.key", "self_attn.q_proj": "attn.query", "self_attn.v_proj": "attn.value",
    "self_attn.out_proj": "attn.out", "self_attn_layer_norm": "attn_ln", "encoder_attn.q_proj": "cross_attn.query",
    "encoder_attn.v_proj": "cross_attn.value", "encoder_attn.out_proj": "cross_attn.out",
    "encoder_attn_layer_norm": "cross_attn_ln", "encoder_attn.k_proj": "cross_attn.key", "fc1": "mlp.0",
    "fc2": "mlp.2", "final_layer_norm": "mlp_ln", "encoder.layer_norm.bias": "encoder.ln_post.bias",
    "encoder.layer_norm.weight": "encoder.ln_post.weight",
    "encoder.embed_positions.weight": "encoder.positional_embedding",
    "decoder.layer_norm.bias": "decoder.ln.bias", "decoder.layer_norm.weight": "decoder.ln.weight",
    "decoder.embed_positions.weight": "decoder.positional_embedding",
    "decoder.embed_tokens.weight": "decoder.token_embedding.weight",
}  # fmt: skip
F32_ONLY = ("encoder.conv1.bias", "encoder.conv2.bias", "encoder.positional_embedding", "decoder.positional_embedding")
GGML_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11,
              "Q4_K": 12, "Q5_K": 13, "Q6_K": 14}  # fmt: skip
FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2002, "Q4_1": 2003, "Q8_0": 2007, "Q5_0": 2008, "Q5_1": 2009, "Q2_K": 2010,
              "Q3_K": 2011, "Q4_K": 2012, "Q5_K": 2013, "Q6_K": 2014}  # fmt: skip

Arrays = dict[str, np.ndarray[Any, Any]]
Shapes = dict[str, tuple[int, ...]]


def weights(config: Mapping[str, Any] = CONFIG) -> Arrays:
    """The tensors of transformers' state dict, in its order, of values that F16 holds."""
    state, rows = config["d_model"], config["vocab_size"]
    shapes: Shapes = {
        "encoder.conv1.weight": (state, config["num_mel_bins"], 3), "encoder.conv1.bias": (state,),
        "encoder.conv2.weight": (state, state, 3), "encoder.conv2.bias": (state,),
        "encoder.embed_positions.weight": (config["max_source_positions"], state),
    }  # fmt: skip

    def attention(name: str) -> Shapes:
        parts: Shapes = {f"{name}.k_proj.weight": (state, state)}
        for part in ("v_proj", "q_proj", "out_proj"):
            parts |= {f"{name}.{part}.weight": (state, state), f"{name}.{part}.bias": (state,)}
        return parts | norm(f"{name}_layer_norm")

    def norm(name: str) -> Shapes:
        return {f"{name}.weight": (state,), f"{name}.bias": (state,)}

    for stack in ("encoder", "decoder"):
        if stack == "decoder":
            shapes |= {"decoder.embed_tokens.weight": (rows, state),
                       "decoder.embed_positions.weight": (config["max_target_positions"], state)}  # fmt: skip
        for i in range(config[f"{stack}_layers"]):
            block = attention("self_attn") | (attention("encoder_attn") if stack == "decoder" else {})
            block |= {"fc1.weight": (4 * state, state), "fc1.bias": (4 * state,), "fc2.weight": (state, 4 * state),
                      "fc2.bias": (state,)} | norm("final_layer_norm")  # fmt: skip
            shapes |= {f"{stack}.layers.{i}.{name}": shape for name, shape in block.items()}
        shapes |= norm(f"{stack}.layer_norm")
    random = np.random.RandomState(7)
    return {
        f"model.{name}": (random.standard_normal(shape) * 0.05 + name.endswith("norm.weight"))
        .astype("<f2")
        .astype("<f4")
        for name, shape in shapes.items()
    }


def openai_name(name: str) -> str:
    """By convert-h5-to-ggml.py."""
    parts = name.split(".")[1:]
    if parts[1] != "layers":
        return CONV_MAP.get(".".join(parts), ".".join(parts))
    inside = ".".join(parts[3:-1])
    return ".".join([parts[0], "blocks", parts[2], CONV_MAP[inside], parts[-1]])


def printed(token: bytes) -> str:
    return "".join(_PRINTED[b] for b in token)


def folder(path: Path, *, config: Mapping[str, Any] = CONFIG, dtype: str = "<f4", prefix: str = "model.") -> Arrays:
    """A model folder as on the Hub: alphabetical safetensors, vocab.json with the end token, no mel filters."""
    from safetensors.numpy import save_file

    path.mkdir(exist_ok=True)
    arrays = weights(config)
    save_file(
        {prefix + n.removeprefix("model."): a.astype(dtype) for n, a in arrays.items()}, path / "model.safetensors"
    )
    (path / "config.json").write_text(json.dumps(config))
    vocab = {printed(token): i for i, token in enumerate(STRINGS)} | {"<|endoftext|>": TOKENS}
    (path / "vocab.json").write_text(json.dumps(vocab))
    (path / "preprocessor_config.json").write_text(json.dumps({"feature_size": MELS, "n_fft": 400, "hop_length": 160}))
    return arrays


def reference(
    header: Sequence[int], arrays: Arrays, filters: bytes, kind: str = "F16", strings: Sequence[bytes] = STRINGS,
    encode: Callable[[Any, str], bytes] | None = None,
) -> bytes:  # fmt: skip
    """The file of the converter, and of the quantizer for other types than F32 and F16. `arrays`: by OpenAI's names."""
    out = bytearray(struct.pack("<12I", 0x67676D6C, *header, FILE_TYPES[kind]))
    out += struct.pack("<2I", header[9], len(filters) // 4 // header[9]) + filters
    out += struct.pack("<I", len(strings)) + b"".join(struct.pack("<I", len(s)) + s for s in strings)
    for name, array in arrays.items():
        data = array.squeeze()
        if name in F32_ONLY[:2]:
            data = data.reshape(data.shape[0], 1)
        own = "F32" if kind == "F32" or data.ndim < 2 or name in F32_ONLY else "F16"
        data = data.astype("<f4" if own == "F32" else "<f2")
        raw = data.tobytes()
        if kind not in ("F32", "F16") and data.ndim == 2 and name not in F32_ONLY:
            assert encode is not None
            own, raw = kind, encode(data.astype("<f4"), kind)
        out += struct.pack("<3I", data.ndim, len(name), GGML_TYPES[own]) + struct.pack(
            f"<{data.ndim}I", *data.shape[::-1]
        )
        out += name.encode() + raw
    return bytes(out)
