"""The functions that look, and what an unknown name is answered with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.llama import CONFIG, llama_tensors, write

import weighbridge as wb
from weighbridge.base.errors import UsageError
from weighbridge.cli.main import COMMANDS

NORM = "model.norm.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text(json.dumps(CONFIG))
    write(tmp_path / "m" / "model.safetensors", llama_tensors())
    return tmp_path / "m"


def test_every_command_that_answers_is_a_function() -> None:
    """Those that start a program, or print a table of ours, are the command line's alone."""
    alone = {"plan", "du", "dedupe", "arch", "fleet", "serve", "mount", "completion"}
    assert {row.name.replace("-", "_") for row in COMMANDS} - alone <= set(wb.__all__)


def test_one_tensor(folder: Path) -> None:
    values = wb.get(f"{folder}::{NORM}")
    assert np.array_equal(values, wb.open(folder)[NORM].numpy().astype(values.dtype))
    assert np.array_equal(wb.get(f"{folder}::{NORM}", slice="[2:5]", dtype=np.float64), values[2:5].astype("f8"))
    with pytest.raises(UsageError, match="names no tensor"):
        wb.get(folder)


def test_statistics_of_a_tensor_and_of_a_model(folder: Path) -> None:
    of_tensor: Any = wb.stats(f"{folder}::{NORM}", bins=3)
    assert of_tensor == wb.stats(folder, tensor=NORM, bins=3)
    assert len(of_tensor.histogram.counts) == 3
    of_model: Any = wb.stats(folder, statistic="bits")
    assert of_model.statistic == "bits"
    for wrong in ({"bins": 3}, {"statistic": "nix"}, {"tensor": NORM, "statistic": "rms"}):
        with pytest.raises(UsageError):
            wb.stats(folder, **wrong)


def test_models_of_a_folder(folder: Path) -> None:
    assert [entry.name for entry in wb.ls([folder.parent]).entries]
    assert not wb.ls([folder.parent], include=["nix*"]).entries


@pytest.mark.parametrize(
    "ask",
    [
        lambda m: wb.open(m)["model.nrom.weight"],
        lambda m: wb.provider(m).tensor("nrom.weight"),
        lambda m: wb.provider(m).get("nrom.weight"),
        lambda m: wb.provider(m).buffer("nrom.weight"),
        lambda m: wb.provider(m).fuse("norm.weight", "nrom.weight"),
        lambda m: wb.provider(m).shape("nrom.weight"),
        lambda m: wb.provider(m).quantization("nrom.weight"),
    ],
)
def test_an_unknown_name_is_answered_with_similar_ones(ask: Callable[[Path], Any], folder: Path) -> None:
    with pytest.raises(KeyError) as error:
        ask(folder)
    assert "norm.weight" in str(error.value)
    assert "did you mean" in str(error.value)
    assert wb.open(folder).get("nix") is None


def test_what_reads_a_weight_has_its_shape(folder: Path) -> None:
    weights = wb.provider(folder)
    for name in weights:
        node = weights.tensor(name)
        assert (node.shape, node.dtype) == (weights.shape(name), node.spec.dtype)
    k, v = (f"layers.0.attention.{part}.weight" for part in "kv")
    assert weights.fuse(k, v).tensor.shape[0] == 2 * weights.shape(k)[0]


@pytest.mark.parametrize("path", ["model", "nix", 3])
def test_what_is_no_checkpoint_is_said(path: Any, folder: Path) -> None:
    with pytest.raises(UsageError, match="checkpoint") as error:
        wb.load_checkpoint(path if path == 3 else folder.parent / str(path) if path == "nix" else folder)
    assert "wb.load" in str(error.value.hint)
