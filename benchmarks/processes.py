"""Whole processes beside llama-quantize, by type, as Markdown: `processes.py ROUNDS [BILLIONS [TYPE ...]]`, the weights
of the model and some of the types. Files are compared. The peer runs once: it takes minutes, and other load hardly
changes the processor's seconds.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import makings  # noqa: E402
from tests.oracles import llama_quantize  # noqa: E402

# Times less of the processor than llama-quantize takes.
SEARCHED = MappingProxyType(
    {**dict.fromkeys(("Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K"), 10), "IQ4_XS": 25, "IQ3_S": 6}
)
PLAIN = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
COPIED, SCALED = 0.8, 1.9  # of the speed of cp + fsync; two threads against one


class Taken(NamedTuple):
    wall: float
    processor: float


def taken(work: Callable[[], object]) -> Taken:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    work()
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Taken(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def ours(source: Path, target: Path, name: str, threads: int) -> Taken:
    target.unlink(missing_ok=True)
    command = [sys.executable, "-m", "weighbridge", "-q", "quantize", source, target, name, "-j", str(threads)]
    return taken(lambda: subprocess.run(command, stdout=subprocess.DEVNULL, check=True))


def theirs(source: Path, target: Path, name: str) -> Taken:
    target.unlink(missing_ok=True)
    job = json.dumps([[str(source), str(target), name, "2"]])
    command = llama_quantize.process()
    return taken(lambda: subprocess.run(command, input=job, text=True, capture_output=True, check=True))


def copied(written: Path) -> Taken:
    target = written.with_suffix(".copy")
    try:
        return taken(lambda: subprocess.run(["sh", "-c", 'cp "$0" "$1" && sync "$1"', written, target], check=True))
    finally:
        target.unlink(missing_ok=True)


def middle(runs: list[Taken]) -> Taken:
    return Taken(*(statistics.median(values) for values in zip(*runs, strict=True)))


def judged(what: str, missed: list[str]) -> str:
    return f"- **missed**: {what}: {', '.join(missed)}" if missed else f"- reached: {what}"


def main(rounds: int, billions: float, names: Sequence[str], work: Path) -> None:
    made = makings.llama(work / "model", 2 * billions)
    source, target, peer = work / "source.gguf", work / "ours.gguf", work / "theirs.gguf"
    command = [sys.executable, "-m", "weighbridge", "-q", "convert", made, source, "--dtype", "bf16"]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    print(f"## quantize-processes\n\nA GGUF of {billions:g} billion weights in bf16, its pages in memory, by whole")
    print("processes on two threads: seconds, and those of the processor. Beside them ours from the folder of the same")
    print("model, and a copy of what is written.\n")
    columns = ("type", "ours, two threads", "processor", "one thread", "from the folder, processor", "llama-quantize",
               "processor", "times less", "cp + fsync")  # fmt: skip
    print(f"| {' | '.join(columns)} |")
    print("|---|" + "--:|" * 8)
    slow, apart, behind = [], [], []
    for name in names:
        runs = [(ours(source, target, name, 2), copied(target), ours(source, target, name, 1)) for _ in range(rounds)]
        two, copy, one = (middle(list(column)) for column in zip(*runs, strict=True))
        other = theirs(source, peer, name)
        if peer.read_bytes() != target.read_bytes():
            raise SystemExit(f"{name}: other bytes than llama-quantize's")
        folder = ours(made, target, name, 2)
        times = other.processor / two.processor
        print(
            f"| {name} | {two.wall:.2f} s | {two.processor:.2f} s | {one.wall:.2f} s | {folder.processor:.2f} s "
            f"| {other.wall:.1f} s | {other.processor:.1f} s | {times:.1f} | {copy.wall:.2f} s |",
            flush=True,
        )
        scale, share = one.wall / two.wall, copy.wall / two.wall
        slow += [f"{name} {times:.1f}x of {SEARCHED[name]}x"] if times < SEARCHED.get(name, 0) else []
        apart += [f"{name} {scale:.2f}"] if name in SEARCHED and scale < SCALED else []
        behind += [f"{name} {share:.2f}"] if name in PLAIN and share < COPIED else []
    print("\n" + judged("10 times less of the processor for K types, 25 for IQ4, 6 for IQ3", slow))
    print(judged(f"two threads at least {SCALED} times as fast as one", apart))
    print(judged(f"plain types at {COPIED} of the speed of cp + fsync of what is written", behind))


if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    rounds, billions, *names = (*sys.argv[1:], *("2", "1")[len(sys.argv) - 1 :])
    with tempfile.TemporaryDirectory(prefix="wb-bench-") as folder:
        main(int(rounds), float(billions), names or [*SEARCHED, *PLAIN], Path(folder))
