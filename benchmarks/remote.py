"""Models elsewhere, against a server on loopback with 20 ms of latency a request and 1 Gbit/s for all connections:
requests, bytes, and time against the bound that latency and bandwidth set. Ratios hold within one run.

    python benchmarks/remote.py [FOLDER]        a folder for the (sparse) files, else a temporary one

Beside it `@huggingface/gguf`, where node is and NODE_PATH names a folder that has it (npm install @huggingface/gguf),
and gguf-parser-go, where GGUF_PARSER names a program that calls its ParseGGUFFileRemote and prints the seconds.
Then quantizations straight through, of 3 GB and of 0.7 GB, and a mounted one, against the same from a file.
"""

from __future__ import annotations

import filecmp
import json
import os
import random
import shutil
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
from benchmarks import makings
from tests.remote import servers

LATENCY = 0.020
RATE = 125_000_000  # bytes a second
SHARDS = 30
REPEATS = 9


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

    tokens = [f"token-{i:09d}".encode()[: 5 + i % 8] for i in range(128_256)]
    merges = [f"merge {i:09d}".encode()[: 5 + i % 12] for i in range(280_147)]
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
import weighbridge as wb, huggingface_hub.constants, numpy
from weighbridge.adapters.remote import hub
from weighbridge.reports.inspect.report import inspect
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


_BARE = r"""
import json, selectors, socket, sys, time

def ask(sock, path, span):
    span = f"Range: {span}\r\n" if span else ""
    sock.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n{span}\r\n".encode())

def receive(socks):
    waiting, heads, left, part = selectors.DefaultSelector(), {}, {}, bytearray(1 << 20)
    for sock in socks:
        waiting.register(sock, selectors.EVENT_READ)
    while len(waiting.get_map()):
        for key, _ in waiting.select():
            sock = key.fileobj
            if sock in left:
                left[sock] -= sock.recv_into(part)
            else:
                heads[sock] = heads.get(sock, b"") + sock.recv(65536)
                head, end, body = heads[sock].partition(b"\r\n\r\n")
                if end:
                    left[sock] = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]) - len(body)
            if left.get(sock) == 0:
                waiting.unregister(sock)

first, *rest = json.loads(sys.argv[2])
start = time.monotonic()
socks = [socket.create_connection(("127.0.0.1", int(sys.argv[1])))]
ask(socks[0], *first)
receive(socks)
socks += [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in rest[1:]]
for sock, one in zip(socks, rest):
    ask(sock, *one)
receive(socks)
print(time.monotonic() - start)
"""


def bare(hub: servers.Hub) -> float:
    """The requests that the server has just got, the first one and then all others at once, over bare sockets and with
    nothing made of the answers: what this server and this machine take for them."""
    asked = json.dumps([(one.path, one.headers.get("range")) for one in hub.hub.log])
    words = [sys.executable, "-c", _BARE, hub.endpoint.rpartition(":")[2], asked]
    return min(float(subprocess.run(words, capture_output=True, text=True, check=True).stdout) for _ in range(REPEATS))


def report(title: str, hub: servers.Hub, address: str, path: Path, rounds: int) -> None:
    """`rounds`: how many requests must follow each other."""
    best = min((inspected(hub, address, path) for _ in range(REPEATS)), key=lambda m: m.seconds)
    sockets = bare(hub)
    parse = min(local(path, path) for _ in range(3))
    bound = rounds * LATENCY + best.bytes / RATE
    print(f"{title}: {best.requests} requests, {best.bytes / 1e6:.2f} MB, {best.seconds * 1000:.0f} ms")
    print(f"  bound of {rounds} round trips and the bytes: {bound * 1000:.0f} ms, {best.seconds / bound:.2f} of it")
    print(f"  with parsing, {parse * 1000:.0f} ms for the local file: {best.seconds / (bound + parse):.2f} of it")
    words = f"{sockets / bound:.2f} of the bound, ours {best.seconds / sockets:.2f} of that"
    print(f"  the same requests over bare sockets: {sockets * 1000:.0f} ms, {words}")


_NODE = """
const { gguf } = require("@huggingface/gguf");
const start = process.hrtime.bigint();
gguf(process.argv[1]).then(() => console.log(Number(process.hrtime.bigint() - start) / 1e9));
"""


def report_peers(hub: servers.Hub) -> None:
    """The same header, read by the Hub's own package for JavaScript, and by gguf-parser-go."""
    node, parser = shutil.which("node"), os.environ.get("GGUF_PARSER")
    report_peer(hub, "@huggingface/gguf", [node, "-e", _NODE] if node else None)
    report_peer(hub, "gguf-parser-go", [parser] if parser else None)


def report_peer(hub: servers.Hub, name: str, words: list[str] | None) -> None:
    """Requests, bytes and time of a command that reads the header at its last argument and prints its seconds."""
    if words is None:
        print(f"  {name}: not measured, it is absent")
        return
    hub.clear()
    url = f"{hub.endpoint}/org/model/resolve/{servers.COMMIT}/model.gguf"
    done = subprocess.run([*words, url], capture_output=True, text=True)
    if done.returncode:
        why = next((line for line in (done.stderr + done.stdout).splitlines() if "Error" in line), "it failed")
        print(f"  {name}: not measured, {why}")
        return
    seconds = float(done.stdout.split()[0])
    print(f"  {name}: {hub.requests} requests, {hub.sent / 1e6:.2f} MB, {seconds * 1000:.0f} ms")


def llama_700mb(folder: Path) -> Path:
    """A Llama of 350 million parameters in F16, as a GGUF: its numbers are normally distributed."""
    import numpy as np
    from safetensors.numpy import save_file

    import weighbridge as wb

    hidden, inner, layers, vocab = 2048, 5632, 5, 32_000
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (vocab, hidden), "lm_head": (vocab, hidden)}
    for i in range(layers):
        for name, shape in {"self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (256, hidden),
                            "self_attn.v_proj": (256, hidden), "self_attn.o_proj": (hidden, hidden),
                            "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
                            "mlp.down_proj": (hidden, inner), "input_layernorm": (hidden,),
                            "post_attention_layernorm": (hidden,)}.items():  # fmt: skip
            shapes[f"model.layers.{i}.{name}"] = shape
    shapes["model.norm"] = (hidden,)
    rng = np.random.default_rng(1)
    made = folder.with_name("made")
    made.mkdir(parents=True)
    folder.mkdir(parents=True)
    save_file({f"{n}.weight": (rng.standard_normal(s, np.float32) / 50).astype(np.float16) for n, s in shapes.items()},
              made / "model.safetensors", {"format": "pt"})  # fmt: skip
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "vocab_size": vocab,
              "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": 32, "rms_norm_eps": 1e-5,
              "num_key_value_heads": 4, "max_position_embeddings": 8192, "tie_word_embeddings": False}  # fmt: skip
    (made / "config.json").write_text(json.dumps(config))
    wb.convert(made, folder / "model.gguf", dtype="f16", tokenizer=False)
    shutil.rmtree(made)
    return folder


_QUANTIZE = """
import sys, time, resource
import weighbridge as wb, huggingface_hub.constants, numpy
from weighbridge.adapters.remote import hub
start = time.monotonic()
with wb.plan_quantize(sys.argv[1], sys.argv[2], sys.argv[3], overwrite=True) as plan:
    planned = time.monotonic()
    plan.run()
print(time.monotonic() - start, planned - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def quantized(source: str, target: Path, kind: str, **more: str) -> tuple[float, float, int]:
    """Seconds, those of them before the first byte of a tensor, and the peak of memory in bytes."""
    words = [sys.executable, "-c", _QUANTIZE, source, str(target), kind]
    done = subprocess.run(words, env={**os.environ, **more}, capture_output=True, text=True, check=True)
    seconds, planned, peak = done.stdout.split()
    return float(seconds), float(planned), int(peak) * 1024


_DOWNLOAD = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
from urllib.request import Request, urlopen
url, size, step = sys.argv[1], int(sys.argv[2]), 4 << 20
def part(at):
    return len(urlopen(Request(url, headers={"Range": f"bytes={at}-{min(at + step, size) - 1}"})).read())
start = time.monotonic()
with ThreadPoolExecutor(16) as pool:
    assert sum(pool.map(part, range(0, size, step))) == size
print(time.monotonic() - start)
"""


def downloaded(url: str, size: int) -> float:
    """Seconds of a plain download in 16 parallel ranges: what server and network give at this load of the machine."""
    words = [sys.executable, "-c", _DOWNLOAD, url, str(size)]
    return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def report_straight_through(hub: servers.Hub, path: Path, folder: Path, kind: str) -> None:
    """A quantization from the Hub to a file, against the slower of network and kernels. `path`: the weights; of a
    folder all of it is read."""
    whole = path.suffix == ".safetensors"
    here = min(quantized(str(path.parent if whole else path), folder / "here.gguf", kind)[0] for _ in range(3))
    env = {"HF_ENDPOINT": hub.endpoint, "HF_HUB_CACHE": "/nonexistent", "HF_HUB_DISABLE_TELEMETRY": "1"}
    place = "hf://org/model" if whole else f"hf://org/model/{path.name}"
    seconds, planned, peak = min(quantized(place, folder / "there.gguf", kind, **env) for _ in range(3))
    assert filecmp.cmp(folder / "there.gguf", folder / "here.gguf", shallow=False)
    size = path.stat().st_size
    url = f"{hub.endpoint}/org/model/resolve/{servers.COMMIT}/{path.name}"
    network = min(downloaded(url, size) for _ in range(3))
    print(f"straight through, {size / 1e6:.0f} MB to {kind}: {seconds:.2f} s, {peak / 1e6:.0f} MB of memory")
    words = f"a plain download {network:.2f} s ({size / RATE:.2f} s at the rate), the file on this disk {here:.2f} s"
    bound = max(network, here)
    ratio = f"{bound / seconds:.2f} of the slower one's speed, {bound / (seconds - planned):.2f} once it is planned"
    print(f"  {words}: {ratio}")


def _random_read(source: Any, size: int) -> float:
    source.seek(random.randrange(size - (128 << 10)))
    begin = time.monotonic()
    source.read(128 << 10)
    return time.monotonic() - begin


def report_mounted(path: Path, folder: Path, kind: str) -> None:
    """Reading a mounted form from its begin to its end, and here and there, against writing it."""
    here = min(quantized(str(path), folder / "here.gguf", kind)[0] for _ in range(3))
    point = folder / "mounted"
    point.mkdir(exist_ok=True)
    words = [sys.executable, "-m", "weighbridge", "-q", "mount", str(path), str(point), "--form", kind]
    process = subprocess.Popen(words)
    while not os.path.ismount(point):
        if process.poll() is not None:
            print("mounted: not measured, FUSE is absent")
            return
        time.sleep(0.05)
    try:
        (file,) = point.glob("*.gguf")
        size, begin = file.stat().st_size, time.monotonic()
        with file.open("rb", buffering=0) as source:
            while source.read(1 << 20):
                pass
        seconds = time.monotonic() - begin
        with file.open("rb", buffering=0) as source:
            waits = sorted(_random_read(source, size) for _ in range(100))
        print(f"mounted, {size / 1e6:.0f} MB of {kind}: {seconds:.2f} s from begin to end, wb quantize {here:.2f} s: "
              f"{here / seconds:.2f} of its speed")  # fmt: skip
        words = f"median {waits[50] * 1000:.1f} ms, longest {waits[-1] * 1000:.1f} ms"
        print(f"  100 reads of 128 KiB here and there: {words}")
    finally:
        subprocess.run(["fusermount3", "-u", str(point)], check=True)
        process.wait()


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
        model, gguf, real = root / "llama-70b", root / "gguf", root / "llama-700mb"
        if not model.exists():
            llama_70b(model)
        if not gguf.exists():
            gguf_128k(gguf)
        with serving(model) as hub:
            report("inspect, 30 shards of 70B", hub, "hf://org/model", model, 2)
        with serving(gguf) as hub:
            report("inspect, GGUF of 128k tokens", hub, "hf://org/model/model.gguf", gguf / "model.gguf", 2)
            report_peers(hub)
        if not real.exists():
            llama_700mb(real)
        large = root / "3gb" / "model"  # a folder's name is the model's, as the repository's is
        if not large.exists():
            makings.llama(large, 3.0)
        work = Path(temporary)
        for kind in ("Q8_0", "Q4_K_M"):
            with serving(large) as hub:
                report_straight_through(hub, large / "model.safetensors", work, kind)
            with serving(real) as hub:
                report_straight_through(hub, real / "model.gguf", work, kind)
            report_mounted(real / "model.gguf", work, kind)


if __name__ == "__main__":
    main()
