"""Compares whole files of `wb quantize` with those of a real llama-quantize, byte by byte: every file type on dense
models, on experts, on odd rows, with an importance matrix and without, then every option.

    python benchmarks/compare_quantize.py                          the tool that the tests compile from its sources
    python benchmarks/compare_quantize.py path/to/llama-quantize   one that was built as usual
    python benchmarks/compare_quantize.py ... --source M.gguf --imatrix I.gguf     a model of yours, every file type

Prints a line for each file and a summary; the exit code is 1 where anything differs. docs/quantize-equality.md has a
log.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.oracles import llama_quantize, quantize_cases  # noqa: E402
from tests.oracles.quantize_cases import FTYPES, NEED_IMATRIX, difference, files_of, ours  # noqa: E402

Job = tuple[str, list[str], list[str], Path, Path]


def jobs_of_cases(folder: Path) -> list[Job]:
    sources = quantize_cases.prepare(folder / "sources")
    jobs = []
    for case in quantize_cases.cases():
        mine, theirs = folder / "ours" / f"{case.name}.gguf", folder / "theirs" / f"{case.name}.gguf"
        commands = [case.command(folder / "sources", sources[case.model], out) for out in (mine, theirs)]
        jobs.append((case.name, *commands, mine, theirs))
    return jobs


def jobs_of_model(folder: Path, source: Path, imatrix: Path | None) -> list[Job]:
    jobs = []
    for ftype in FTYPES:
        for options in ([], ["--imatrix", str(imatrix)]) if imatrix else ([],):
            if not options and ftype in NEED_IMATRIX:
                continue
            name = f"{ftype}{'-imatrix' * bool(options)}"
            mine, theirs = folder / "ours" / f"{name}.gguf", folder / "theirs" / f"{name}.gguf"
            jobs.append((name, *([*options, str(source), str(out), ftype] for out in (mine, theirs)), mine, theirs))
    return jobs


def run_theirs(binary: Path | None, command: Sequence[str]) -> int:
    if binary is None:
        return llama_quantize.quantize(*command)[0]
    return subprocess.run([binary, *command], capture_output=True).returncode


def verdict(mine: Path, theirs: Path, codes: tuple[int, int]) -> str:
    if any(codes):
        return f"exit codes {codes[0]} and {codes[1]}"
    found, expected = files_of(mine), files_of(theirs)
    if len(found) != len(expected) or not found:
        return f"{len(found)} and {len(expected)} files"
    return next((why for pair in zip(found, expected, strict=True) if (why := difference(*pair))), "equal")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", nargs="?", type=Path)
    parser.add_argument("--source", type=Path)
    parser.add_argument("--imatrix", type=Path)
    args = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for part in ("ours", "theirs"):
            (folder / part).mkdir()
        jobs = jobs_of_model(folder, args.source, args.imatrix) if args.source else jobs_of_cases(folder)
        for name, mine_command, their_command, mine, theirs in jobs:
            began = time.perf_counter()
            code = ours(mine_command)
            between = time.perf_counter()
            their_code = run_theirs(args.binary, their_command)
            said = verdict(mine, theirs, (code, their_code))
            wrong += said != "equal"
            size = sum(map(len, files_of(mine)))
            times = f"{between - began:7.2f} s {time.perf_counter() - between:7.2f} s"
            print(f"{name:28} {size:>14,} bytes {times}  {said}", flush=True)
            for path in (*mine.parent.glob("*"), *theirs.parent.glob("*")):
                if path.is_file():
                    path.unlink()
    print(f"{len(jobs)} files, {len(jobs) - wrong} equal")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
