"""`wb scan` beside the scanners that people use, over hostile and honest files: who is silent on what, who is loud, how
long it takes. Nothing of the files is ever loaded by us; peers run in processes of their own, from their own folder.

    python benchmarks/scanners.py --corpora FOLDER --peers VENV/bin [--wrap "unshare -n"] [--only NAME ...] [--out FILE]

FOLDER holds checkouts of the repositories in `scanners.toml`; our own vectors come from tests/reports/scan, honest
files are also made here by torch (every save option and dtype). A file counts as found where a scanner says that
something is wrong with it, by the exit code that it documents for that. A crash, an error or a time-out finds nothing:
these are counted apart. Times are those of a forked process
a file, what a scanner imports at its start left out.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
WORKER: Final = Path(__file__).with_name("scanner_worker.py")


@dataclass(frozen=True)
class Sample:
    """A file with what it is: "hostile", "crafted" or "honest"."""

    corpus: str
    kind: str
    name: str
    path: Path


@dataclass(frozen=True)
class Scanner:
    """`entry` is the function of its console script, given `arguments` and the file; the exit codes by which it says
    that something is wrong, and that it is not (`quiet`). Any other code is an error."""

    name: str
    python: str
    entry: str
    arguments: tuple[str, ...]
    found: frozenset[int] = frozenset({1})
    quiet: frozenset[int] = frozenset({0})


@dataclass(frozen=True)
class Outcome:
    """`said`: found, quiet, error or time-out."""

    said: str
    seconds: float
    code: int


def scanners(peers: Path) -> tuple[Scanner, ...]:
    """Ours, and the others with their documented exit codes. modelscan: 3 where it scanned nothing."""
    python = str(peers / "python")
    return (
        Scanner("weighbridge", sys.executable, "weighbridge.cli.main:main", ("scan",)),
        Scanner("picklescan", python, "picklescan.cli:main", ("-p",)),
        Scanner("picklescan --strict", python, "picklescan.cli:main", ("--strict", "-p")),
        Scanner("fickling", python, "fickling.__main__:main", ("--check-safety",)),
        Scanner("modelscan", python, "modelscan.cli:main", ("-p",), quiet=frozenset({0, 3})),
        Scanner("modelaudit", python, "modelaudit.__main__:_run", ("scan", "--no-cache")),
    )


_ALARM: Final = 128 + 14


def run(scanner: Scanner, samples: Sequence[Sample], wrap: Sequence[str]) -> list[Outcome]:
    """One scanner on all files, each in a process and a folder of its own."""
    env = {**os.environ, "PROMPTFOO_DISABLE_TELEMETRY": "1", "NO_ANALYTICS": "1", "DO_NOT_TRACK": "1"}
    ours = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    env["PYTHONPATH"] = ours if scanner.python == sys.executable else ""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*wrap, scanner.python, str(WORKER), scanner.entry, *scanner.arguments], cwd=folder,
            env=env | {"HOME": folder}, check=True, text=True, capture_output=True,
            input="\n".join(str(s.path.resolve()) for s in samples),
        )  # fmt: skip
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"code"')]
    return [_outcome(scanner, row["code"], row["seconds"]) for row in rows]


def _outcome(scanner: Scanner, code: int, seconds: float) -> Outcome:
    said = "found" if code in scanner.found else "quiet" if code in scanner.quiet else "error"
    return Outcome("time-out" if code == _ALARM else said, seconds, code)


# ---- files ----


def public(corpora: Path) -> Iterator[Sample]:
    """The files of the checkouts below `corpora`."""
    for corpus, row in tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8")).items():
        root = corpora / row["root"]
        for kind in ("hostile", "honest"):
            left_out = {p for pattern in row.get("neither", ()) for p in root.glob(pattern)}
            paths = {p for pattern in row[kind] for p in root.glob(pattern) if p.is_file()}
            for path in sorted(paths - left_out):
                yield Sample(corpus, kind, path.relative_to(root).as_posix(), path)


def crafted(folder: Path) -> Iterator[Sample]:
    """Our own vectors, one folder each, as some have files beside them."""
    from tests.reports.scan import file_vectors, vectors

    files: list[tuple[str, str, Mapping[str, bytes]]] = [
        (case.id, "case.pt", {"case.pt": case.data})
        for case in (*vectors.PICKLES, *vectors.ZIPS)
        if case.verdict in ("dangerous", "malformed", "unknown-code")
    ]
    files += [(f"{v.name} ({v.rule})", v.name, {v.name: v.data, **v.beside}) for v in file_vectors.VECTORS]
    for number, (name, first, contents) in enumerate(files):
        place = folder / f"{number:03}"
        place.mkdir()
        for file, data in contents.items():
            (place / file).write_bytes(data)
        yield Sample("our vectors", "crafted", name, place / first)


def honest(folder: Path) -> Iterator[Sample]:
    """Files that torch writes: each dtype by each way to save."""
    import torch

    options: dict[str, dict[str, Any]] = {
        "zip": {}, "legacy": {"_use_new_zipfile_serialization": False}, "protocol 4": {"pickle_protocol": 4},
        "protocol 5": {"pickle_protocol": 5}, "legacy protocol 4": {"_use_new_zipfile_serialization": False,
                                                                    "pickle_protocol": 4},
    }  # fmt: skip
    dtypes = [d for d in vars(torch).values() if isinstance(d, torch.dtype)]
    number = 0
    for dtype in sorted(set(dtypes), key=str):
        try:
            value: Any = {"w": torch.zeros(16, dtype=torch.uint8).view(dtype), "step": 3}
        except (RuntimeError, TypeError):
            continue
        for option, keywords in options.items():
            path = folder / f"{number:03}.pt"
            try:
                torch.save(value, path, **keywords)
            except (RuntimeError, NotImplementedError, TypeError, KeyError, AttributeError):
                continue
            number += 1
            yield Sample("torch", "honest", f"{dtype}, {option}", path)
    yield from _trained(folder, options)


def _trained(folder: Path, options: Mapping[str, dict[str, Any]]) -> Iterator[Sample]:
    """A training checkpoint with all that people put in one."""
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    w = torch.arange(12.0).reshape(3, 4)
    values: dict[str, Any] = {
        "state": model.state_dict(),
        "training": {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 1, "loss": 0.5,
                     "rng": torch.get_rng_state()},
        "parameter": torch.nn.Parameter(w), "views": {"a": w, "t": w.t(), "e": w[:1].expand(5, 4), "c": w[1:, ::2]},
        "sparse": w.to_sparse(), "csr": w.to_sparse_csr(), "conj": torch.view_as_complex(w.reshape(6, 2)).conj(),
        "quantized": torch.quantize_per_tensor(w, 0.1, 0, torch.qint8), "size": w.shape, "dtype": torch.float16,
    }  # fmt: skip
    for name, value in values.items():
        for option, keywords in options.items():
            path = folder / f"{name}-{option.replace(' ', '-')}.pt"
            torch.save(value, path, **keywords)
            yield Sample("torch", "honest", f"{name}, {option}", path)


# ---- the table ----


def table(samples: Sequence[Sample], results: Mapping[str, Mapping[Path, Outcome]]) -> list[str]:
    """Markdown: a row for each scanner and corpus."""
    groups = list(dict.fromkeys((s.kind, s.corpus) for s in samples))
    counts = Counter((s.kind, s.corpus) for s in samples)
    wrong = {"hostile": "quiet", "crafted": "quiet", "honest": "found"}
    head = ["scanner", *(f"{corpus}: {kind}, {counts[kind, corpus]}" for kind, corpus in groups), "errors", "time-outs",
            "median s a file"]  # fmt: skip
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for name, outcomes in results.items():
        cells = []
        for kind, corpus in groups:
            said = [outcomes[s.path].said for s in samples if (s.kind, s.corpus) == (kind, corpus)]
            cells.append(str(said.count(wrong[kind])))
        said = [o.said for o in outcomes.values()]
        median = statistics.median(o.seconds for o in outcomes.values())
        lines.append(
            f"| {' | '.join([name, *cells, str(said.count('error')), str(said.count('time-out'))])} | {median:.2f} |"
        )
    return lines


def missed(samples: Sequence[Sample], results: Mapping[str, Mapping[Path, Outcome]]) -> Iterator[str]:
    """For each scanner the files on which it was silent, loud, or failed."""
    words = {("hostile", "quiet"): "silent", ("crafted", "quiet"): "silent", ("honest", "found"): "loud"}
    for name, outcomes in results.items():
        for sample in samples:
            outcome = outcomes[sample.path]
            word = words.get((sample.kind, outcome.said)) or (
                outcome.said if outcome.said in ("error", "time-out") else ""
            )
            if word:
                yield f"{name}: {word}: {sample.corpus}: {sample.name} (exit {outcome.code})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--corpora", type=Path, required=True, help="folder of the checkouts")
    parser.add_argument("--peers", type=Path, required=True, help="bin folder of the environment with the peers")
    parser.add_argument("--wrap", default="", help="a command to run every scanner under")
    parser.add_argument("--only", nargs="*", help="scanners")
    parser.add_argument("--out", type=Path, help="outcomes, as JSON; scanners that are in it are not run again")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        made = [Path(temporary, name) for name in ("crafted", "honest")]
        for folder in made:
            folder.mkdir()
        samples = [*public(args.corpora), *crafted(made[0]), *honest(made[1])]
        results: dict[str, dict[Path, Outcome]] = {}
        before = json.loads(args.out.read_text()) if args.out and args.out.exists() else {}
        for scanner in scanners(args.peers):
            if args.only and scanner.name not in args.only:
                continue
            rows = before.get(scanner.name)
            outcomes = [Outcome(**r) for r in rows] if rows else run(scanner, samples, shlex.split(args.wrap))
            results[scanner.name] = dict(zip((s.path for s in samples), outcomes, strict=True))
            if args.out:
                before[scanner.name] = [vars(o) for o in outcomes]
                args.out.write_text(json.dumps(before))
            print(f"{scanner.name}: {Counter(o.said for o in results[scanner.name].values())}", flush=True)
    print(f"\n{date.today()}, Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores\n")
    print("\n".join([*table(samples, results), "", *missed(samples, results)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
