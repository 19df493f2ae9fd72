"""What a real loader runs, `wb scan` never calls data.

Inputs are made by a grammar from a seed and loaded by real loaders in sandboxed children (`loaders.py`). Whatever acted
there is scanned: a verdict of data only, or no verdict, is a failure. The same seed makes the same inputs.

    python -m tests.fuzz.differential.judge --seconds 60 --seed 1 [--loader pickle ...] [--python PATH ...]
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.fuzz.differential import containers, hdf5, policy, templates, texts
from tests.fuzz.differential.pickles import Grammar
from tests.reports.scan import vectors

from weighbridge.containers import PICKLED
from weighbridge.containers.sniff.archive import TARS, ZIPS
from weighbridge.io.decompress import CODECS
from weighbridge.io.source import BytesSource
from weighbridge.reports.scan.engine import scan_source
from weighbridge.reports.scan.model import ScanVerdict
from weighbridge.reports.scan.pickle import probe
from weighbridge.reports.scan.pickle.allowlist import CALLS, VALUES

WORKER: Final = Path(__file__).with_name("loaders.py")
QUIET: Final = (ScanVerdict.DATA_ONLY, ScanVerdict.NOT_SCANNED)
# Where the scan sees no pickle the loader has failed: it asked for as much memory as a length in the file says.
BOMBS: Final = ("memory", "late")
_SEEDS: Final = [c.data for c in vectors.PICKLES if len(c.data) < 1500 and "pickle/bomb" not in c.rules]
Made = tuple[bytes, str]  # the bytes, and a name under which loaders are given them


def _pickles(rng: random.Random) -> Iterator[Made]:
    grammar = Grammar(rng, _SEEDS)
    names = ("pytorch_model.bin", "data.pkl", "m.pt", "m.ckpt", "m.model", "m.dat", "m.pth", "m.joblib", "data")
    while True:
        yield grammar.pickle(), rng.choice(names)


#: What each loader is given.
SOURCES: Final[dict[str, Callable[[random.Random], Iterator[Made]]]] = {
    "pickle": _pickles,
    "pickle-stub": _pickles,
    "torch": lambda rng: containers.torch(rng, _SEEDS),
    "joblib": lambda rng: containers.joblib(rng, _SEEDS),
    "numpy": lambda rng: containers.numpy(rng, _SEEDS),
    "zip": lambda rng: containers.zips(rng, _SEEDS),
    "tar": lambda rng: containers.tars(rng, _SEEDS),
    "yaml": texts.yamls,
    "jinja": templates.templates,
    "hdf5": hdf5.files,
    "policy": policy.programs,
    "offsets": policy.offsets,
}
#: Inputs a batch; fewer where a load takes long.
BATCH: Final = {loader: 400 for loader in SOURCES} | {"torch": 100, "joblib": 25, "jinja": 50}


class Worker:
    """A process that loads batches."""

    def __init__(self, loader: str, python: str, names: Path, warm: Sequence[bytes]) -> None:
        self.process = subprocess.Popen([python, str(WORKER), loader, str(names)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)  # fmt: skip
        self._send(warm)

    def _send(self, batch: Sequence[bytes]) -> None:
        assert self.process.stdin is not None
        parts = [len(batch).to_bytes(4, "little")]
        parts += [part for data in batch for part in (len(data).to_bytes(4, "little"), data)]
        self.process.stdin.write(b"".join(parts))
        self.process.stdin.flush()

    def load(self, batch: Sequence[bytes]) -> list[str]:
        """What each input did."""
        self._send(batch)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the worker is gone")
        answer: list[str] = json.loads(line)
        return answer

    def close(self) -> None:
        self.process.communicate()


@dataclass
class Tally:
    """`kinds`: what inputs did, by the first word. `silent`: the input, its name, what it did, the verdict."""

    inputs: int = 0
    executions: int = 0
    acting: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    silent: list[tuple[bytes, str, str, str]] = field(default_factory=list)

    def take(self, loader: str, made: Made, did: list[str]) -> None:
        data, name = made
        first = next((d for d in did if d), "")
        if not first or (loader in ENDLESS and first.startswith("crash")):
            return
        self.acting += 1
        self.kinds[first.partition(" ")[0]] += 1
        report = scan_source(BytesSource(data, name), name)
        if _is_prose(data, name, first) or _is_prose_inside(report.kind, first):
            return
        bomb = first.partition(" ")[0] in BOMBS
        if (verdict := report.verdict) in QUIET and not (bomb and report.kind not in PICKLED):
            self.silent.append((data, name, first, verdict.value))


def _is_prose(data: bytes, name: str, did: str) -> bool:
    """Whether a text, under a name that text has, only imports a module whose name is no identifier: lines of prose are
    read as such, and it takes a file of that name on the search path to run anything."""
    kind, _, asked = did.partition(" ")
    package = asked.rpartition(" ")[0].partition(".")[0]
    prose = probe.may_be_text(name) and probe.is_text(BytesSource(data))
    return kind == "name" and not package.isidentifier() and prose


def _is_prose_inside(kind: str, did: str) -> bool:
    """The same of a member of an archive, whose name the loader doesn't report."""
    word, _, asked = did.partition(" ")
    package = asked.rpartition(" ")[0].partition(".")[0]
    return word == "name" and kind in ZIPS | TARS | frozenset(CODECS) and not package.isidentifier()


def run(loader: str, pythons: Sequence[str], seconds: float, seed: int, count: int = 1 << 62,
        report: Callable[[Tally], None] | None = None) -> Tally:  # fmt: skip
    """Load for so long, or so many inputs."""
    tally, until = Tally(), time.monotonic() + seconds
    source = SOURCES[loader](random.Random(seed))
    warm = [next(SOURCES[loader](random.Random(n)))[0] for n in range(0 if loader in ENDLESS else 40)]
    with tempfile.TemporaryDirectory() as folder:
        names = Path(folder, "names.json")
        names.write_text(json.dumps(sorted({*CALLS, *VALUES})))
        workers = [Worker(loader, python, names, warm) for python in pythons]
        while time.monotonic() < until and tally.inputs < count:
            batch = [next(source) for _ in range(BATCH[loader])]
            answers = [worker.load([data for data, _ in batch]) for worker in workers]
            tally.inputs += len(batch)
            tally.executions += len(batch) * len(workers) * RUNS[loader]
            for made, did in zip(batch, zip(*answers, strict=True), strict=True):
                tally.take(loader, made, list(did))
            if report:
                report(tally)
        for worker in workers:
            worker.close()
    return tally


#: Loaders that damage sends into endless loops of their own code, which only a child's limit ends.
ENDLESS: Final = ("hdf5", "offsets")
#: How often each loader runs an input.
RUNS: Final = {"pickle": 3, "pickle-stub": 4, "torch": 3, "joblib": 1, "numpy": 2, "zip": 1, "tar": 2, "yaml": 6,
               "jinja": 1, "hdf5": 1, "policy": 2, "offsets": 5}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="for all loaders together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--loader", action="append", choices=SOURCES)
    parser.add_argument("--python", action="append", help="interpreters for `pickle-stub`; default: this one")
    parser.add_argument("--save", type=Path, help="a folder for what was silent, and a log of the counts")
    options = parser.parse_args()
    loaders = options.loader or list(SOURCES)
    silent = 0
    for loader in loaders:
        pythons = options.python if options.python and loader == "pickle-stub" else [sys.executable]
        saved = _Log(options.save, loader, options.seed) if options.save else None
        tally = run(loader, pythons, options.seconds / len(loaders), options.seed, report=saved)
        print(summary(loader, options.seed, tally), flush=True)
        silent += len(tally.silent)
        for data, name, did, verdict in tally.silent[:10]:
            print(f"  {verdict}: {name} did `{did}`: {data[:400]!r}")
    return bool(silent)


class _Log:
    """The counts of a long run, written again after each batch, and every silent input."""

    def __init__(self, folder: Path, loader: str, seed: int) -> None:
        self.base, self.loader, self.seed, self.saved = folder / f"{loader}-{seed}", loader, seed, 0
        folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, tally: Tally) -> None:
        self.base.with_suffix(".txt").write_text(summary(self.loader, self.seed, tally) + "\n")
        for data, name, did, verdict in tally.silent[self.saved : 200]:
            with self.base.with_suffix(".silent").open("a") as out:
                out.write(json.dumps([data.hex(), name, did, verdict]) + "\n")
        self.saved = len(tally.silent)


def summary(loader: str, seed: int, tally: Tally) -> str:
    kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(tally.kinds.items()))
    return (f"{loader}, seed {seed}: {tally.inputs:,} inputs, {tally.executions:,} executions, {tally.acting:,} act "
            f"({kinds}), {len(tally.silent)} called data")  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
