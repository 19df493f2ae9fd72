"""Weights without a config.json beside a model that has one: the same answers as for the whole folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.llama import make_folder

import weighbridge as wb
from weighbridge.base.errors import UnsupportedError, UsageError

KINDS = ("bare", "dcp")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, a tuned model whole, as a bare file and as a distributed checkpoint, and its GGUF."""
    root = tmp_path_factory.mktemp("borrowed")
    make_folder(root / "base", words=True)
    shutil.copytree(root / "base", root / "tuned")
    rng = np.random.default_rng(1)
    weights = load_file(root / "base" / "model.safetensors")
    changed = {n: v + rng.normal(0, 0.1, v.shape).astype(v.dtype) * ("q_proj" in n) for n, v in weights.items()}
    save_file(changed, root / "tuned" / "model.safetensors", {"format": "pt"})
    (root / "bare").mkdir()
    shutil.copy(root / "tuned" / "model.safetensors", root / "bare")
    wb.convert(root / "tuned", root / "dcp", to="dcp")
    wb.convert(root / "tuned", root / "tuned.gguf")
    return root


def borrowed(notes: Any) -> bool:
    return any("has no config.json: read with that of" in note for note in notes)


@pytest.mark.parametrize("kind", KINDS)
def test_a_merge_is_that_of_the_whole_folder(kind: str, root: Path, tmp_path: Path) -> None:
    wb.merge([root / "base", root / "tuned"], tmp_path / "expected", method="slerp", t=0.4)
    with wb.plan_merge([root / "base", root / kind], tmp_path / "got", method="slerp", t=0.4) as plan:
        assert borrowed(plan.notes)
        plan.run()
    expected, got = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("expected", "got"))
    assert expected == got


@pytest.mark.parametrize("kind", KINDS)
def test_a_mixture_is_that_of_the_whole_folder(kind: str, root: Path, tmp_path: Path) -> None:
    for name in ("tuned", kind):
        experts = [{"source_model": str(root / expert)} for expert in ("base", name)]
        recipe = {"base_model": str(root / "base"), "gate_mode": "random", "experts": experts}
        wb.merge(recipe, tmp_path / name)
    expected, got = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("tuned", kind))
    assert expected == got


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", ["base", "tuned", "tuned.gguf"])
def test_a_difference_is_that_of_the_whole_folder(kind: str, other: str, root: Path) -> None:
    whole, report = wb.diff(root / "tuned", root / other), wb.diff(root / kind, root / other)
    assert borrowed(report.notes)
    assert report.counts == whole.counts


@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_is_that_of_the_whole_folder(kind: str, root: Path, tmp_path: Path) -> None:
    for name in ("tuned", kind):
        wb.extract_lora(root / "base", root / name, tmp_path / name, rank=4)
    expected, got = ((tmp_path / name / "adapter_model.safetensors").read_bytes() for name in ("tuned", kind))
    assert expected == got


@pytest.mark.parametrize("kind", KINDS)
def test_the_memory_is_that_of_the_whole_folder(kind: str, root: Path) -> None:
    expected = wb.fit(root / "tuned", device="8GB")
    file = root / "tuned" / "config.json"
    for config in (root / "tuned", file, json.loads(file.read_text())):
        assert wb.fit(root / kind, device="8GB", config=config).memory == expected.memory
    with pytest.raises(UnsupportedError, match=r"config\.json"):
        wb.fit(root / kind, device="8GB")


def test_a_config_that_doesnt_fit_isnt_borrowed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    save_file({"blocks.0.w.weight": np.ones((8, 8), np.float32)}, tmp_path / "part" / "model.safetensors")
    assert not borrowed(wb.diff(tmp_path / "part", root / "base").notes)
    with pytest.raises(UsageError, match="different families"):
        wb.plan_merge([root / "base", tmp_path / "part"], tmp_path / "out", method="linear")
