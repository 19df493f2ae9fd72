"""The walk from a training loop to four files runs, and the guide says what it does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.programs import load_program

pytest.importorskip("torch")
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "linear_regression.py"


def test_every_step_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = load_program(EXAMPLE)
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
    weights = load_program(EXAMPLE).main(tmp_path)
    reader = gguf.GGUFReader(tmp_path / "line.gguf")
    assert {t.name: t.data.reshape(-1).tolist() for t in reader.tensors} == weights
