"""Runs the tests of the `safetensors` package, unmodified, against `weighbridge.safetensors` under its name.

    python tests/peers/run_safetensors_tests.py                 downloads the source distribution through pip
    python tests/peers/run_safetensors_tests.py --source DIR    an unpacked one, or its .tar.gz

A package called `safetensors` that is our drop-in is laid before the installed one; pytest then runs the reference's
test files in a folder of their own. The result is written to `docs/peers-safetensors.md`. 1 if a test fails for a
reason that `EXPLAINED` does not give, or one listed there passes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

VERSION = "0.8.0"
ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".oracle" / f"safetensors-{VERSION}"
PAGE = ROOT / "docs" / "peers-safetensors.md"
# Whole files that can't be collected without another framework, which the oracles of this project don't include.
LEFT_OUT: Mapping[str, str] = {
    "test_flax_comparison.py": "needs jax and flax",
    "test_tf_comparison.py": "needs tensorflow and h5py",
}
# Tests that fail, each with the reason.
EXPLAINED: Mapping[str, str] = {}
# The reasons that the tests themselves give for skipping, in our words.
SKIPPED: Mapping[str, str] = {
    "Cuda": "no CUDA device",
    "MPS": "no Apple GPU",
    "Mlx": "the test runs on macOS only",
    "Npu": "no NPU",
    "HPU": "no HPU",
    "Only 1 device": "no second CUDA device",
    "Paddle": "needs paddle",
    "s3": "the test is switched off by its authors",
}


class Outcome(NamedTuple):
    test: str
    verdict: str
    reason: str = ""


def obtain() -> Path:
    """The unpacked source distribution, downloaded on first use into a folder that git ignores."""
    if (CACHE / "bindings" / "python" / "tests").is_dir():
        return CACHE
    CACHE.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE.parent) as folder:
        options = ["--no-deps", "--no-clean", "--no-binary", "safetensors", "-d", folder]
        command = [sys.executable, "-m", "pip", "download", "-q", *options, f"safetensors=={VERSION}"]
        # Without a Rust toolchain and its registry pip fails after unpacking, and `--no-clean` leaves the files.
        done = subprocess.run(command, env={**os.environ, "TMPDIR": folder}, capture_output=True, text=True)
        archives = list(Path(folder).glob("safetensors-*.tar.gz"))
        trees = [p.parent for p in Path(folder).rglob("PKG-INFO") if (p.parent / "bindings").is_dir()]
        if not archives and not trees:
            raise SystemExit(f"pip gave no source distribution:\n{done.stderr[-2000:]}")
        tree = trees[0] if trees else unpacked(archives[0], Path(folder))
        shutil.move(tree, CACHE)
    return CACHE


def unpacked(source: Path, folder: Path) -> Path:
    """A source distribution as a folder."""
    if source.is_dir():
        return source
    with tarfile.open(source) as tar:
        # By attribute: `filter=` as an argument came with Python 3.11.4, and Debian 12 has 3.11.2.
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(folder)
    return next(p.parent for p in folder.rglob("PKG-INFO") if (p.parent / "bindings").is_dir())


# So that no result is one of the real core, which may be installed, too.
# The package under the reference's name: the import name is all that the tests get of it.
_PACKAGE = """\
import sys

import weighbridge.safetensors as ours
import weighbridge.safetensors.mlx
import weighbridge.safetensors.numpy
import weighbridge.safetensors.torch

sys.modules["safetensors"] = ours
for name in ("mlx", "numpy", "torch"):
    sys.modules[f"safetensors.{name}"] = sys.modules[f"weighbridge.safetensors.{name}"]
"""
_CONFTEST = """\
import safetensors
from safetensors import numpy, torch

assert all(m.safe_open.__module__ == "weighbridge.safetensors.reading" for m in (safetensors, numpy, torch))
"""


def build(source: Path, folder: Path, fault: str = "") -> Path:
    """Our drop-in as a package called `safetensors` under `folder/site`, the reference's tests under `folder/work`; the
    latter. `fault`: a line that spoils the drop-in."""
    package = folder / "site" / "safetensors"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"{_PACKAGE}{fault}\n", "utf-8")
    work = folder / "work"
    shutil.copytree(source / "bindings" / "python" / "tests", work / "tests")
    (work / "pytest.ini").write_text("[pytest]\n", "utf-8")
    (work / "conftest.py").write_text(_CONFTEST, "utf-8")
    return work


def run(source: Path, fault: str = "", only: str = "") -> list[Outcome]:
    """What became of every test (of those in the file `only`)."""
    with tempfile.TemporaryDirectory() as folder:
        work = build(source, Path(folder), fault)
        path = os.pathsep.join([str(Path(folder) / "site"), str(ROOT / "src"), str(ROOT)])
        report = Path(folder) / "report.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            f"--junitxml={report}",
            f"tests/{only}",
        ]
        command += [f"--ignore=tests/{name}" for name in LEFT_OUT]
        done = subprocess.run(command, cwd=work, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
        if not report.is_file():
            raise SystemExit(done.stdout[-4000:] + done.stderr[-4000:])
        return sorted(map(outcome, ET.parse(report).iter("testcase")))


def outcome(case: ET.Element) -> Outcome:
    test = f"{case.get('classname', '').removeprefix('tests.')}.{case.get('name')}"
    for verdict, tag in (("failed", "failure"), ("failed", "error"), ("skipped", "skipped")):
        found = case.find(tag)
        if found is not None:
            return Outcome(test, verdict, (found.get("message") or "").splitlines()[0] if found.get("message") else "")
    return Outcome(test, "passed")


INTRODUCTION = f"""\
# The reference's own tests, run against us

<!-- written by tests/peers/run_safetensors_tests.py -->

`weighbridge.safetensors` is a drop-in for the `safetensors` {VERSION} package: `safe_open`, `load_file`, `save_file`,
`save_model` and the rest, for numpy, torch, MLX and JAX. Here the package's own tests, unmodified from its source
distribution, run against it: `import safetensors` gives our module, and nothing of the reference is loaded.

    python tests/peers/run_safetensors_tests.py
"""


def page(outcomes: list[Outcome]) -> str:
    """The document."""
    counts = Counter(o.verdict for o in outcomes)
    files: dict[str, Counter[str]] = {}
    for o in outcomes:
        files.setdefault(o.test.split(".")[0], Counter())[o.verdict] += 1
    rows = [f"| `{f}.py` | {part['passed']} | {part['failed']} | {part['skipped']} |" for f, part in files.items()]
    rows += [f"| `{name}` | not run: {reason} | | |" for name, reason in LEFT_OUT.items()]
    failed = [(o.test, EXPLAINED.get(o.test, o.reason)) for o in outcomes if o.verdict == "failed"]
    skipped = [(o.test, why(o.reason)) for o in outcomes if o.verdict == "skipped"]
    return "\n".join(
        [
            INTRODUCTION,
            f"**{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped.**\n",
            "| file | passed | failed | skipped |\n|---|---|---|---|",
            *rows,
            "\n## Failures\n",
            *(_table(failed) if failed else ["None."]),
            "\n## Skipped by the tests themselves\n",
            *_table(skipped),
            "",
        ]
    )


def _table(rows: list[tuple[str, str]]) -> list[str]:
    return ["| test | reason |\n|---|---|", *(f"| `{test}` | {reason} |" for test, reason in rows)]


def why(reason: str) -> str:
    return next((words for key, words in SKIPPED.items() if key in reason), reason)


def surprises(outcomes: list[Outcome]) -> list[str]:
    """Failures without an explanation, explanations without a failure."""
    failed = {o.test for o in outcomes if o.verdict == "failed"}
    return sorted(failed ^ EXPLAINED.keys())


def main() -> int:
    parser = argparse.ArgumentParser(description="run the reference's tests against us")
    parser.add_argument("--source", type=Path, help="its source distribution, packed or not")
    source = parser.parse_args().source
    with tempfile.TemporaryDirectory() as folder:
        outcomes = run(unpacked(source, Path(folder)) if source else obtain())
    PAGE.write_text(page(outcomes), "utf-8")
    print(", ".join(f"{count} {verdict}" for verdict, count in Counter(o.verdict for o in outcomes).items()))
    for test in surprises(outcomes):
        print(f"not explained: {test}", file=sys.stderr)
    return 1 if surprises(outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
