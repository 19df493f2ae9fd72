"""The walk from a training loop to four files runs, and the guide says what it does."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch")
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "linear_regression.py"


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("linear_regression", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_step_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = example()
    weights = module.main(tmp_path)
    assert weights["weight"] == pytest.approx([3], abs=0.05)
    assert weights["bias"] == pytest.approx([-1], abs=0.05)
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".gguf", ".pt", ".safetensors"]
    shown = capsys.readouterr().out
    guide = (ROOT / "docs" / "guide-pickle.md").read_text("utf-8")
    # What the guide shows of the pickle is what the step shows.
    for line in re.findall(r"^ {5}(?:GLOBAL|BINPERSID|REDUCE) +(.*)$", guide, re.MULTILINE):
        assert line in shown


def test_the_gguf_is_one_that_the_reference_reads(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    weights = example().main(tmp_path)
    reader = gguf.GGUFReader(tmp_path / "line.gguf")
    assert {t.name: t.data.reshape(-1).tolist() for t in reader.tensors} == weights
