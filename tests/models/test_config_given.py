"""Weights without a config.json take one from elsewhere: the same model as in its own folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.oracles import models
from tests.oracles.models import CASES

import weighbridge as wb
from weighbridge.base.errors import FormatError, UsageError
from weighbridge.cli.main import main

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.build(CASES["llama"], tmp_path_factory.mktemp("model") / "llama")


@pytest.fixture
def bare(folder: Path, tmp_path: Path) -> Path:
    wb.convert(folder, tmp_path / "bare" / "weights.safetensors", parents=True)
    return tmp_path / "bare" / "weights.safetensors"


@pytest.mark.parametrize("form", ["file", "folder", "dict"])
def test_open_and_provider(folder: Path, bare: Path, form: str) -> None:
    path = folder / "config.json"
    config = {"file": path, "folder": folder, "dict": json.loads(path.read_text())}[form]
    with wb.open(folder, names="canonical") as own, wb.open(bare, names="canonical", config=config) as given:
        assert set(own) == set(given)
        assert all(np.array_equal(own[name].numpy(), given[name].numpy()) for name in own)
        assert own.config == given.config


@pytest.mark.parametrize(("verb", "last"), [("convert", []), ("quantize", ["Q8_0"])])
def test_the_folder_lends_its_tokenizer(folder: Path, bare: Path, tmp_path: Path, verb: str, last: list[str]) -> None:
    own, given = tmp_path / "own.gguf", tmp_path / "given.gguf"
    assert main([verb, str(folder), str(own), *last, "--name", "x"]) == 0
    assert main([verb, str(bare), str(given), *last, "--name", "x", "--config", str(folder)]) == 0
    assert own.read_bytes() == given.read_bytes()


@pytest.mark.parametrize("write", ["convert", "slice"])
def test_a_folder_of_the_weights_has_the_config(folder: Path, bare: Path, tmp_path: Path, write: str) -> None:
    """Without it, the next command would need `--config` again."""
    if write == "convert":
        wb.convert(bare, tmp_path / "out", config=folder)
    else:
        wb.slice(bare, tmp_path / "out", config=folder, layers="0")
    with wb.open(tmp_path / "out", names="canonical") as written:
        assert "layers.0.attention.q.weight" in written
    assert (tmp_path / "out" / "config.json").is_file()


def test_what_does_not_apply_is_refused(folder: Path, bare: Path, tmp_path: Path) -> None:
    wb.convert(folder, tmp_path / "a.gguf", tokenizer=False)
    with pytest.raises(UsageError, match="contains its config"):
        wb.open(tmp_path / "a.gguf", config=folder)
    with pytest.raises(UsageError, match=r"no config\.json"):
        wb.open(bare, config=tmp_path)
    with pytest.raises(FileNotFoundError):
        wb.open(bare, config=tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(FormatError, match=r"bad\.json"):
        wb.open(bare, config=tmp_path / "bad.json")
