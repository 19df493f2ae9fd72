"""Models elsewhere, against a server on loopback with 20 ms of latency a request and 1 Gbit/s for all connections:
requests, bytes, and time against the bound that latency and bandwidth set. Ratios hold within one run.

    python benchmarks/remote.py [FOLDER]        a folder for the (sparse) files, else a temporary one
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.remote import servers

LATENCY = 0.020
RATE = 125_000_000  # bytes a second
SHARDS = 30
REPEATS = 5


class Measured(NamedTuple):
    requests: int
    bytes: int
    seconds: float


class Throttle:
    """One link: bytes of all connections pass one after the other."""

    def __init__(self) -> None:
        self.lock, self.free = threading.Lock(), 0.0

    def take(self, count: int) -> None:
        with self.lock:
            self.free = max(self.free, time.monotonic()) + count / RATE
            until = self.free
        time.sleep(max(until - time.monotonic(), 0))


@contextmanager
def serving(folder: Path) -> Iterator[servers.Hub]:
    """A Hub that serves its files itself, with latency and throttled."""
    link, read = Throttle(), servers._read

    def throttled(found: bytes | Path, start: int, end: int) -> bytes:
        link.take(end - start)
        return read(found, start, end)

    servers.LFS, servers._read = 1 << 62, throttled  # no redirect: a request a range
    hub = servers.Hub(folder, sparse=True)
    git_id, servers.git_id = servers.git_id, lambda data: "0" * 40
    hub.hub.faults.latency = LATENCY
    try:
        with hub.running():
            yield hub
    finally:
        servers._read, servers.git_id = read, git_id


def llama_70b(folder: Path) -> Path:
    """Llama 3's 70B as published: 30 shards, their headers true and their tensors holes."""
    folder.mkdir(parents=True)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (128256, 8192)}
    for i in range(80):
        for name, shape in {"self_attn.q_proj": (8192, 8192), "self_attn.k_proj": (1024, 8192),
                            "self_attn.v_proj": (1024, 8192), "self_attn.o_proj": (8192, 8192),
                            "mlp.gate_proj": (28672, 8192), "mlp.up_proj": (28672, 8192),
                            "mlp.down_proj": (8192, 28672), "input_layernorm": (8192,),
                            "post_attention_layernorm": (8192,)}.items():  # fmt: skip
            shapes[f"model.layers.{i}.{name}.weight"] = shape
    shapes |= {"model.norm.weight": (8192,), "lm_head.weight": (128256, 8192)}
    names, where = list(shapes), dict[str, str]()
    for s in range(SHARDS):
        part = names[len(names) * s // SHARDS : len(names) * (s + 1) // SHARDS]
        file, at, header = f"model-{s + 1:05d}-of-{SHARDS:05d}.safetensors", 0, dict[str, Any]()
        for name in part:
            size = 2 * int(__import__("math").prod(shapes[name]))
            header[name] = {"dtype": "BF16", "shape": shapes[name], "data_offsets": [at, at + size]}
            at += size
        text = json.dumps(header).encode()
        with (folder / file).open("wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            out.truncate(8 + len(text) + at)
        where |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192, "vocab_size": 128256,
              "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64, "rms_norm_eps": 1e-5,
              "num_key_value_heads": 8, "max_position_embeddings": 131072, "tie_word_embeddings": False}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_bytes(b" " * 9_085_657)  # as long as the published one
    return folder


def gguf_128k(folder: Path) -> Path:
    """A GGUF with as long a header as Llama 3's: 128,256 tokens, 280,147 merges, 7.8 MB, and 4 GB of data."""
    folder.mkdir(parents=True)

    def string(text: bytes) -> bytes:
        return struct.pack("<Q", len(text)) + text

    def strings(key: bytes, values: list[bytes]) -> bytes:
        head = string(key) + struct.pack("<IIQ", 9, 8, len(values))
        return head + b"".join(map(string, values))

    tokens = [f"token-{i:09d}".encode()[: 8 + i % 16] for i in range(128_256)]
    merges = [f"merge {i:06d}".encode()[: 5 + i % 12] for i in range(280_147)]
    types = string(b"tokenizer.ggml.token_type") + struct.pack("<IIQ", 9, 5, len(tokens)) + bytes(4 * len(tokens))
    keys = [string(b"general.architecture") + struct.pack("<I", 8) + string(b"llama"),
            strings(b"tokenizer.ggml.tokens", tokens), types, strings(b"tokenizer.ggml.merges", merges)]  # fmt: skip
    tensor = string(b"output.weight") + struct.pack("<IQQIQ", 2, 4096, 262_144, 0, 0)
    data = b"GGUF" + struct.pack("<IQQ", 3, 1, len(keys)) + b"".join(keys) + tensor
    with (folder / "model.gguf").open("wb") as out:
        out.write(data)
        out.truncate(-(-len(data) // 32) * 32 + 4 * 4096 * 262_144)
    return folder


_CODE = """
import sys, time
import weighbridge as wb, huggingface_hub, httpx2, numpy
from weighbridge.reports.inspect.report import inspect
huggingface_hub.HfApi, huggingface_hub.hf_hub_url, huggingface_hub.try_to_load_from_cache
inspect(sys.argv[1], limit=0)
start = time.monotonic()
inspect(sys.argv[2], limit=0)
print(time.monotonic() - start)
"""


def inspected(hub: servers.Hub, address: str, warm: Path) -> Measured:
    """One inspection in a process that has its modules and has inspected something here."""
    env = {**os.environ, "HF_ENDPOINT": hub.endpoint, "HF_HUB_CACHE": "/nonexistent", "HF_HUB_DISABLE_TELEMETRY": "1"}
    hub.clear()
    done = subprocess.run([sys.executable, "-c", _CODE, str(warm), address], env=env, capture_output=True, text=True,
                          check=True)  # fmt: skip
    return Measured(hub.requests, hub.sent, float(done.stdout))


def local(path: Path, warm: Path) -> float:
    """The same inspection of the file on this disk: what parsing costs."""
    done = subprocess.run(
        [sys.executable, "-c", _CODE, str(warm), str(path)], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def report(title: str, hub: servers.Hub, address: str, path: Path, rounds: int) -> None:
    """`rounds`: how many requests must follow each other."""
    best = min((inspected(hub, address, path) for _ in range(REPEATS)), key=lambda m: m.seconds)
    parse = min(local(path, path) for _ in range(3))
    bound = rounds * LATENCY + best.bytes / RATE
    print(f"{title}: {best.requests} requests, {best.bytes / 1e6:.2f} MB, {best.seconds * 1000:.0f} ms")
    print(f"  bound of {rounds} round trips and the bytes: {bound * 1000:.0f} ms, {best.seconds / bound:.2f} of it")
    print(f"  with parsing, {parse * 1000:.0f} ms for the local file: {best.seconds / (bound + parse):.2f} of it")


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
        model, gguf = root / "llama-70b", root / "gguf"
        if not model.exists():
            llama_70b(model)
        if not gguf.exists():
            gguf_128k(gguf)
        with serving(model) as hub:
            report("inspect, 30 shards of 70B", hub, "hf://org/model", model, 3)
        with serving(gguf) as hub:
            report("inspect, GGUF of 128k tokens", hub, "hf://org/model/model.gguf", gguf / "model.gguf", 2)


if __name__ == "__main__":
    main()
