"""Small files of every format, made by hand or by the format's own library where it is part of the test environment.
Writers here know nothing of Weighbridge, so that what they make is evidence.
"""

from __future__ import annotations

import io
import json
import math
import struct
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

SIZES = {
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "U8": 1,
    "I8": 1,
    "I64": 8,
    "F8_E4M3": 1,
    "BOOL": 1,
    "F64": 8,
}
Tensors = Mapping[str, tuple[str, Sequence[int]] | tuple[str, Sequence[int], bytes]]


def safetensors(tensors: Tensors, metadata: Mapping[str, str] | None = None, pad: int = 8) -> bytes:
    """A safetensors file; data is a running pattern of finite f32/f16 numbers unless given."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    data = bytearray()
    for name, (dtype, shape, *given) in tensors.items():
        size = math.prod(shape) * SIZES[dtype]
        body = given[0] if given else (bytes([1, 2, 3, 60]) * (size // 4 + 1))[:size]
        assert len(body) == size
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + size]}
        data += body
    return raw_safetensors(header, bytes(data), pad)


def raw_safetensors(header: Any, data: bytes = b"", pad: int = 8) -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text)) % pad)
    return struct.pack("<Q", len(text)) + text + data


KINDS = {
    "u8": (0, "B"),
    "u16": (2, "H"),
    "i32": (5, "i"),
    "u32": (4, "I"),
    "f32": (6, "f"),
    "bool": (7, "?"),
    "u64": (10, "Q"),
}


def _string(value: str | bytes, order: str, wide: str) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack(order + wide, len(raw)) + raw


def _value(kind: str, value: Any, order: str, wide: str) -> bytes:
    if kind == "str":
        return struct.pack(order + "I", 8) + _string(value, order, wide)
    if kind == "arr[str]":
        body = b"".join(_string(v, order, wide) for v in value)
        return struct.pack(order + "II" + wide, 9, 8, len(value)) + body
    if kind.startswith("arr["):
        number, code = KINDS[kind[4:-1]]
        return struct.pack(f"{order}II{wide}", 9, number, len(value)) + struct.pack(
            f"{order}{len(value)}{code}", *value
        )
    number, code = KINDS[kind]
    return struct.pack(f"{order}I{code}", number, value)


GGML = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q8_0": (8, 32, 34), "Q4_K": (12, 256, 144)}
GGUFTensor = tuple[str, Sequence[int]] | tuple[str, Sequence[int], bytes]


def gguf(
    keys: Mapping[str, tuple[str, Any]],
    tensors: Mapping[str, GGUFTensor] | None = None,
    *,
    version: int = 3,
    order: str = "<",
    alignment: int = 32,
) -> bytes:
    """A GGUF of any version and byte order. Shapes as numpy has them (reversed when stored)."""
    wide = "I" if version == 1 else "Q"
    tensors = tensors or {}
    out = b"GGUF" + struct.pack(f"{order}I2{wide}", version, len(tensors), len(keys))
    for key, (kind, value) in keys.items():
        out += _string(key, order, wide) + _value(kind, value, order, wide)
    data = b""
    for name, (kind, shape, *given) in tensors.items():
        number, block, size = GGML[kind]
        nbytes = math.prod(shape) // block * size
        dims = struct.pack(f"{order}I{len(shape)}{wide}", len(shape), *reversed(shape))
        out += _string(name, order, wide) + dims + struct.pack(f"{order}IQ", number, len(data))
        body = given[0] if given else (bytes([1, 2, 3, 60]) * (nbytes // 4 + 1))[:nbytes]
        assert len(body) == nbytes
        data += body + bytes(-nbytes % alignment)
    return out + bytes(-len(out) % alignment) + data if tensors else out


def zipped(members: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


def torch_saved(value: Any, **options: Any) -> bytes:
    import torch

    out = io.BytesIO()
    torch.save(value, out, **options)
    return out.getvalue()


def npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def tarred(members: Mapping[str, bytes], mode: str = "w") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def field(number: int, payload: bytes | int | float) -> bytes:
    """One protobuf field: varint, 32-bit float or length-delimited."""
    if isinstance(payload, float):
        return bytes([number << 3 | 5]) + struct.pack("<f", payload)
    if isinstance(payload, int):
        return _varint(number << 3) + _varint(payload)
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def imatrix_dat() -> bytes:
    out = struct.pack("<i", 2)
    for name in (b"blk.0.attn_k.weight", b"blk.0.attn_v.weight"):
        out += struct.pack("<i", len(name)) + name + struct.pack("<2i4f", 100, 4, 1.0, 2.0, 3.0, 4.0)
    return out


POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 4702341120\n"
)
ANNEX = b"/annex/objects/SHA256E-s4702341120--" + b"4d" * 32 + b".safetensors\n"
XET = b"# xet version 0\nfilesize = 4702341120\nhash = '" + b"5e" * 32 + b"'\n"
PAGE = b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head><body>...</body></html>\n"

LAYER = {
    "self_attn.q_proj": (8, 8),
    "self_attn.k_proj": (4, 8),
    "self_attn.v_proj": (4, 8),
    "self_attn.o_proj": (8, 8),
    "mlp.gate_proj": (16, 8),
    "mlp.up_proj": (16, 8),
    "mlp.down_proj": (8, 16),
}
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, "intermediate_size": 16,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 32, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 64, "torch_dtype": "float32", "tie_word_embeddings": False,
}  # fmt: skip


def llama_tensors(layers: int = 2) -> dict[str, tuple[str, Sequence[int]]]:
    out: dict[str, tuple[str, Sequence[int]]] = {"model.embed_tokens.weight": ("F32", (32, 8))}
    for i in range(layers):
        out |= {f"model.layers.{i}.{name}.weight": ("F32", shape) for name, shape in LAYER.items()}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            out[f"model.layers.{i}.{norm}.weight"] = ("F32", (8,))
    return out | {"model.norm.weight": ("F32", (8,)), "lm_head.weight": ("F32", (32, 8))}


def llama_folder(folder: Path, shards: int = 2, config: Mapping[str, Any] | None = None) -> Path:
    """A small Llama as Hugging Face writes it: shards, index, config, generation config."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = llama_tensors()
    names = list(tensors)
    (folder / "config.json").write_text(json.dumps(dict(CONFIG if config is None else config)))
    (folder / "generation_config.json").write_text(json.dumps({"_from_model_config": True, "eos_token_id": 2}))
    if shards == 1:
        (folder / "model.safetensors").write_bytes(safetensors(tensors, {"format": "pt"}))
        return folder
    weight_map: dict[str, str] = {}
    for s in range(shards):
        part = names[len(names) * s // shards : len(names) * (s + 1) // shards]
        file = f"model-{s + 1:05d}-of-{shards:05d}.safetensors"
        (folder / file).write_bytes(safetensors({n: tensors[n] for n in part}, {"format": "pt"}))
        weight_map |= dict.fromkeys(part, file)
    total = sum(math.prod(shape) * SIZES[dtype] for dtype, shape in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def ranks(folder: Path, count: int = 2) -> Path:
    """The files of a tensor-parallel set, of a matrix that is shared out and a vector that isn't."""
    split = {"a.weight": {"axis": 0, "parts": [[4 * count, 1]]}, "b": None}
    folder.mkdir(exist_ok=True)
    for rank in range(count):
        said = {"rank": str(rank), "size": str(count), "split": json.dumps(split)}
        data = safetensors(
            {"a.weight": ("F32", (4, 8)), "b": ("F32", (16,))}, {f"tensor_parallel.{k}": v for k, v in said.items()}
        )
        (folder / f"model-rank-{rank}-of-{count}.safetensors").write_bytes(data)
    return folder
