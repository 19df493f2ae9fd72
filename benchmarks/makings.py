"""Inputs of the benchmarks, made by hand from the formats' definitions: whoever reads them wrote none of them.

Run as a script in a process of its own (`makings.py NAME PATH NUMBERS...`): peak memory that the system reports of a
program is never less than that of the one that started it, so the one that starts them all stays small.

Weights are normal numbers (a run of zeros would flatter whoever compresses or skips), repeated per megabytes: no reader
looks for repetitions, and making fresh ones takes longer than everything that is measured.
"""

from __future__ import annotations

import argparse
import json
import pickle
import random
import shutil
import struct
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

_BLOCK = 1 << 24  # bytes of weights before they repeat

Spans = list[tuple[str, str, tuple[int, ...]]]  # name, safetensors type, shape
_WIDTH = {"F32": 4, "BF16": 2, "F16": 2}


def weights(dtype: str) -> bytes:
    """_BLOCK bytes of normal numbers of a type."""
    values = np.random.default_rng(3).normal(0, 0.02, _BLOCK // _WIDTH[dtype]).astype(np.float32)
    if dtype == "BF16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return values.astype({"F32": np.float32, "F16": np.float16}[dtype]).tobytes()


def _size(dtype: str, shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64)) * _WIDTH[dtype]


def safetensors(path: Path, spans: Spans) -> Path:
    """8 bytes of length, the JSON header, the data."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, dtype, shape in spans:
        end = at + _size(dtype, shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for chunk in _chunks(at, weights(spans[0][1])):
            out.write(chunk)
    return path


def _chunks(total: int, block: bytes) -> Iterator[bytes]:
    for at in range(0, total, len(block)):
        yield block[: total - at]


def large(path: Path, gigabytes: float) -> Path:
    """F32 matrices of 64 MiB."""
    count = max(1, round(gigabytes * 1e9 / (1 << 26)))
    return safetensors(path, [(f"layers.{i}.weight", "F32", (4096, 4096)) for i in range(count)])


def many(path: Path, count: float) -> Path:
    """A header of `count` tensors with names as models have them, and little data."""
    roles = ("self_attn.q_proj", "self_attn.k_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    names = (
        f"model.layers.{i // 640}.block_sparse_moe.experts.{i // 5 % 128}.{roles[i % 5]}" for i in range(int(count))
    )
    return safetensors(path, [(f"{name}.weight", "F32", (4, 4)) for name in names])


def experts(folder: Path, layers: float, count: float) -> Path:
    """A Mixtral folder of so many layers and experts; every matrix as small as can be."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {"q": (32, 32), "k": (32, 32), "v": (32, 32), "o": (32, 32)}
    spans: Spans = [("model.embed_tokens.weight", "BF16", (32, 32)), ("lm_head.weight", "BF16", (32, 32))]
    spans.append(("model.norm.weight", "BF16", (32,)))
    for layer in (f"model.layers.{i}." for i in range(int(layers))):
        spans += [(f"{layer}{norm}_layernorm.weight", "BF16", (32,)) for norm in ("input", "post_attention")]
        spans += [(f"{layer}self_attn.{name}_proj.weight", "BF16", shape) for name, shape in sizes.items()]
        spans.append((f"{layer}block_sparse_moe.gate.weight", "BF16", (int(count), 32)))
        for e in range(int(count)):
            spans += [(f"{layer}block_sparse_moe.experts.{e}.w{w}.weight", "BF16", (32, 32)) for w in (1, 2, 3)]
    config = _config(int(layers), 32) | {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
    config |= {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2}
    config |= {"num_local_experts": int(count), "num_experts_per_tok": 2}
    (folder / "config.json").write_text(json.dumps(config))
    safetensors(folder / "model.safetensors", spans)
    return folder


def small(path: Path) -> Path:
    return safetensors(path, [(f"layers.{i}.weight", "F32", (64, 64)) for i in range(20)])


# --- a GGUF that is mostly vocabulary --------------------------------------------------------------------------------

_STRING, _ARRAY = 8, 9  # enum gguf_type
_TYPES = {str: _STRING, int: 4, float: 6, bool: 7}
_PACK = {4: "<I", 6: "<f", 7: "<B"}


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> bytes:
    """Type and value as GGUF v3 stores them."""
    if isinstance(value, list):
        kind = _TYPES[type(value[0])]
        body = b"".join(map(_string, value)) if kind == _STRING else np.array(value, "<u4").tobytes()
        return struct.pack("<IIQ", _ARRAY, kind, len(value)) + body
    kind = _TYPES[type(value)]
    return struct.pack("<I", kind) + (_string(value) if kind == _STRING else struct.pack(_PACK[kind], value))


def gguf_vocabulary(path: Path, tokens: float, merges: float) -> Path:
    """The keys of a Llama 3: tokens, their types, merges; no tensors."""
    letters = random.Random(5)
    words = [
        "".join(letters.choices("abcdefghijklmnopqrstuvwxyz", k=letters.randint(1, 11))) for _ in range(int(tokens))
    ]
    pairs = [f"{letters.choice(words)} {letters.choice(words)}" for _ in range(int(merges))]
    keys: Mapping[str, Any] = {
        "general.architecture": "llama",
        "general.name": "Synthetic",
        "llama.block_count": 32,
        "llama.context_length": 8192,
        "llama.rope.freq_base": 500000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": [f"Ġ{word}" if i % 2 else word for i, word in enumerate(words)],
        "tokenizer.ggml.token_type": [1] * int(tokens),
        "tokenizer.ggml.merges": pairs,
        "tokenizer.ggml.bos_token_id": 128000,
        "tokenizer.ggml.add_bos_token": True,
    }
    body = b"".join(_string(key) + _value(value) for key, value in keys.items())
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys)) + body)
    return path


# --- a model of some gigabytes ---------------------------------------------------------------------------------------

_HIDDEN, _FFN, _HEADS, _KV = 2048, 8192, 16, 4


def llama(folder: Path, gigabytes: float) -> Path:
    """A Llama folder in BF16 with a real (small) SentencePiece vocabulary, of about that many gigabytes."""
    folder.mkdir(parents=True)
    vocabulary = _vocabulary(folder)
    layers, spans = _text(gigabytes, vocabulary, "model.")
    safetensors(folder / "model.safetensors", spans)
    (folder / "config.json").write_text(json.dumps(_config(layers, vocabulary)))
    return folder


def _text(gigabytes: float, vocabulary: int, prefix: str) -> tuple[int, Spans]:
    """Layers of a Llama of about that many gigabytes, and its tensors."""
    layer: Spans = [(f"{prefix}layers.{{}}.{name}.weight", "BF16", shape) for name, shape in _LAYER]
    layers = max(1, round(gigabytes * 1e9 / sum(_size(dtype, shape) for _, dtype, shape in layer)))
    spans: Spans = [("lm_head.weight", "BF16", (vocabulary, _HIDDEN))]
    spans += [(f"{prefix}embed_tokens.weight", "BF16", (vocabulary, _HIDDEN))]
    spans += [(name.format(i), dtype, shape) for i in range(layers) for name, dtype, shape in layer]
    return layers, [*spans, (f"{prefix}norm.weight", "BF16", (_HIDDEN,))]


def idefics3(folder: Path, gigabytes: float) -> Path:
    """A folder of Idefics 3 in BF16: the tower of SigLIP so400m (0.8 GB) and a Llama of about that many gigabytes."""
    folder.mkdir(parents=True)
    vocabulary, scale = _vocabulary(folder), 3
    width, inner, depth, patch, image = 1152, 4304, 27, 14, 378
    layers, text = _text(gigabytes, vocabulary, "model.text_model.")
    matrices = {"mlp.fc1": (inner, width), "mlp.fc2": (width, inner)}
    matrices |= {f"self_attn.{name}": (width, width) for name in ("k_proj", "out_proj", "q_proj", "v_proj")}
    shapes: dict[str, tuple[int, ...]] = {"embeddings.patch_embedding.weight": (width, 3, patch, patch)}
    shapes |= {"embeddings.patch_embedding.bias": (width,)}
    shapes |= {"embeddings.position_embedding.weight": ((image // patch) ** 2, width)}
    for layer in (f"encoder.layers.{i}." for i in range(depth)):
        shapes |= {f"{layer}{name}.weight": shape for name, shape in matrices.items()}
        shapes |= {f"{layer}{name}.bias": shape[:1] for name, shape in matrices.items()}
        shapes |= {f"{layer}layer_norm{n}.{part}": (width,) for n in (1, 2) for part in ("weight", "bias")}
    shapes |= {f"post_layernorm.{part}": (width,) for part in ("weight", "bias")}
    spans: Spans = [(f"model.vision_model.{name}", "BF16", shape) for name, shape in shapes.items()]
    spans += [("model.connector.modality_projection.proj.weight", "BF16", (_HIDDEN, width * scale**2))]
    safetensors(folder / "model.safetensors", spans + text)
    vision = {
        "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": depth, "num_attention_heads": 16,
        "image_size": image, "patch_size": patch, "layer_norm_eps": 1e-6, "model_type": "idefics3_vision",
    }  # fmt: skip
    config = {
        "architectures": ["Idefics3ForConditionalGeneration"], "model_type": "idefics3", "scale_factor": scale,
        "text_config": _config(layers, vocabulary), "vision_config": vision, "image_token_id": 3,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    preprocessor = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": {"longest_edge": 4 * image}}
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    return folder


def flux(path: Path, gigabytes: float) -> Path:
    """A single file of FLUX.1's denoiser in BF16, of its width and with as many layers as fit."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tests.oracles import pictures

    one, two = (sum(_size("BF16", s) for s in pictures.flux(3072, 128, layers).values()) for layers in (1, 2))
    shapes = pictures.flux(3072, 128, 1 + max(0, round((gigabytes * 1e9 - one) / (two - one))))
    return safetensors(path, [(name, "BF16", shape) for name, shape in shapes.items()])


def tuned(folder: Path, seed: float) -> Path:
    """A Llama folder whose weights differ from those of the folder `base` next to it by some units of their last
    place."""
    shutil.copytree(folder.with_name("base"), folder)
    path, rng = folder / "model.safetensors", np.random.default_rng(int(seed))
    with path.open("rb") as file:
        header = 8 + int.from_bytes(file.read(8), "little")
    values = np.memmap(path, np.uint16, "r+", offset=header)
    for start in range(0, len(values), 1 << 22):
        part = values[start : start + (1 << 22)]
        part ^= rng.integers(0, 8, len(part), np.uint16)
    values.flush()
    return folder


_LAYER = (
    ("input_layernorm", (_HIDDEN,)),
    ("mlp.down_proj", (_HIDDEN, _FFN)),
    ("mlp.gate_proj", (_FFN, _HIDDEN)),
    ("mlp.up_proj", (_FFN, _HIDDEN)),
    ("post_attention_layernorm", (_HIDDEN,)),
    ("self_attn.k_proj", (_HIDDEN // _HEADS * _KV, _HIDDEN)),
    ("self_attn.o_proj", (_HIDDEN, _HIDDEN)),
    ("self_attn.q_proj", (_HIDDEN, _HIDDEN)),
    ("self_attn.v_proj", (_HIDDEN // _HEADS * _KV, _HIDDEN)),
)


def _vocabulary(folder: Path) -> int:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tests.oracles import vocabularies

    vocabularies.write_sentencepiece(folder)
    return vocabularies.SPM_SIZE


def _config(layers: int, vocabulary: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": _HIDDEN,
        "intermediate_size": _FFN,
        "num_hidden_layers": layers,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV,
        "vocab_size": vocabulary,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }


# --- files to be scanned ---------------------------------------------------------------------------------------------


def pickles(folder: Path, count: float) -> Path:
    """Small pickles of plain values, as trainings leave them: steps, losses, names, histories."""
    folder.mkdir()
    rng = random.Random(7)
    for i in range(int(count)):
        history = OrderedDict((f"layer{k}.norm", [rng.random() for _ in range(8)]) for k in range(6))
        value = {"step": i, "history": history, "name": f"run {i}", "tags": ["a", "b", i], "best": None, "done": False}
        (folder / f"{i:06}.pkl").write_bytes(pickle.dumps(value, (2, 4)[i % 2]))
    return folder


def checkpoints(folder: Path, count: float) -> Path:
    """Small checkpoints of torch: 20 tensors each."""
    import torch

    folder.mkdir()
    for i in range(int(count)):
        torch.save({f"layers.{k}.weight": torch.randn(4, 4) for k in range(20)}, folder / f"{i:06}.pt")
    return folder


def hollow(path: Path, gigabytes: float) -> Path:
    """A checkpoint of 16 MiB tensors whose data were left out: a sparse file of that size."""
    import torch
    from torch.serialization import skip_data

    count = max(1, round(gigabytes * 1e9 / (1 << 24)))
    with skip_data():
        torch.save({f"layers.{i}.weight": torch.empty(2048, 2048) for i in range(count)}, path)
    return path


def torch_large(path: Path, gigabytes: float) -> Path:
    """A checkpoint of F32 matrices of 64 MiB, as torch saves it."""
    import torch

    count = max(1, round(gigabytes * 1e9 / (1 << 26)))
    one = torch.randn(4096, 4096)
    torch.save({f"layers.{i}.weight": one + i for i in range(count)}, path)
    return path


def torch_many(path: Path, count: float) -> Path:
    """A checkpoint of `count` tensors with little data, as torch saves it."""
    import torch

    names = (f"layers.{i // 640}.experts.{i // 5 % 128}.proj_{i % 5}.weight" for i in range(int(count)))
    torch.save({name: torch.ones(4, 4) for name in names}, path)
    return path


# --- training checkpoints --------------------------------------------------------------------------------------------


def _save_shards(rank: int, folder: str, count: int) -> None:
    """A process's part of a distributed checkpoint: half of the rows of each matrix of 64 MiB."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.tensor import DTensor, Shard

    dist.init_process_group("gloo", init_method=f"file://{folder}.meeting", rank=rank, world_size=2)
    mesh = dist.init_device_mesh("cpu", (2,))
    mine = torch.randn(2048, 4096)
    whole = {f"layers.{n}.weight": DTensor.from_local(mine + n, mesh, [Shard(0)]) for n in range(count)}
    dcp.save(whole, checkpoint_id=folder)
    dist.destroy_process_group()


def dcp(folder: Path, gigabytes: float) -> Path:
    """A checkpoint of F32 matrices of 64 MiB, as two processes save it."""
    import torch

    torch.multiprocessing.spawn(_save_shards, (str(folder), max(1, round(gigabytes * 1e9 / (1 << 26)))), 2)
    return folder


def _zero(folder: Path, gigabytes: float, stage: int) -> Path:
    """F32 matrices of 64 MiB in the vectors of four processes, as DeepSpeed cuts them."""
    import torch

    folder.mkdir()
    count, ranks = max(1, round(gigabytes * 1e9 / (1 << 26))), 4
    shapes = {f"layers.{n}.weight": torch.Size((4096, 4096)) for n in range(count)}
    model = {"module": {}, "buffer_names": [], "param_shapes": [shapes], "global_steps": 1, "shared_params": {}}
    key = "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"
    for rank in range(ranks):
        state = {"zero_stage": stage, "partition_count": ranks, key: [torch.randn(count * 4096 * 4096 // ranks)]}
        name = f"zero_pp_rank_{rank}_mp_rank_00"
        torch.save({"optimizer_state_dict": state}, folder / f"{name}_optim_states.pt")
        if stage == 3:
            torch.save(model, folder / f"{name}_model_states.pt")
    if stage != 3:
        torch.save(model, folder / "mp_rank_00_model_states.pt")
    return folder


def zero2(folder: Path, gigabytes: float) -> Path:
    return _zero(folder, gigabytes, 2)


def zero3(folder: Path, gigabytes: float) -> Path:
    return _zero(folder, gigabytes, 3)


def megatron(folder: Path, gigabytes: float) -> Path:
    """Layers of two F32 matrices of 64 MiB each, cut by rows and by columns for two ranks."""
    import torch

    count, ranks = max(1, round(gigabytes * 1e9 / (1 << 27))), 2
    args = argparse.Namespace(
        tensor_model_parallel_size=ranks, pipeline_model_parallel_size=1, num_layers=count, swiglu=False
    )
    first, second = torch.randn(8192 // ranks, 2048), torch.randn(2048, 8192 // ranks)
    for rank in range(ranks):
        model = {}
        for n in range(count):
            model[f"decoder.layers.{n}.mlp.linear_fc1.weight"] = first + n + rank
            model[f"decoder.layers.{n}.mlp.linear_fc2.weight"] = second - n - rank
        (place := folder / f"mp_rank_{rank:02}").mkdir(parents=True)
        torch.save({"args": args, "iteration": 1, "model": model}, place / "model_optim_rng.pt")
    return folder


_TORCH = (checkpoints, hollow, torch_large, torch_many, dcp, zero2, zero3, megatron)
_MAKERS = (large, many, experts, small, gguf_vocabulary, llama, idefics3, flux, tuned, pickles, *_TORCH)
MAKERS: dict[str, Callable[..., Path]] = {m.__name__: m for m in _MAKERS}

if __name__ == "__main__":
    MAKERS[sys.argv[1]](Path(sys.argv[2]), *map(float, sys.argv[3:]))
