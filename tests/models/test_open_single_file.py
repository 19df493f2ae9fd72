"""The short way to a model in one file gives what the long way gives, and is not taken to what isn't one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weighbridge as wb
from weighbridge.base.errors import WeighbridgeError
from weighbridge.io.location import StoredPath
from weighbridge.models import locate, model, open

ALONE = ["model.safetensors", "a b.gguf", ".safetensors", "model.index.safetensors"]
OTHERS = [
    "model-00001-of-00001.gguf", "model-rank-0-of-1.safetensors", "modelfile.safetensors", "MODELFILE.gguf",
    "model.safetensors.index.json", "model.npz", "pytorch_model.bin", "model",
]  # fmt: skip


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The steps of the long way that are taken."""
    taken: list[str] = []
    for module, name in ((open, "find_ranks"), (model, "locate"), (model, "prepare")):
        whole: Callable[..., Any] = getattr(module, name)

        def noted(*given: Any, name: str = name, real: Callable[..., Any] = whole) -> Any:
            taken.append(name)
            return real(*given)

        monkeypatch.setattr(module, name, noted)
    return taken


@pytest.mark.parametrize("name", ALONE)
def test_a_file_alone_is_opened_the_short_way(name: str, tmp_path: Path, steps: list[str]) -> None:
    arrays = {"a.weight": np.arange(64, dtype=np.float32), "b.bias": np.ones(2, np.float32)}
    kind = "gguf" if name.endswith("gguf") else "safetensors"
    wb.save(arrays, tmp_path / f"x.{kind}", metadata={"general.architecture": "mine"} if kind == "gguf" else None)
    os.rename(tmp_path / f"x.{kind}", tmp_path / name)
    steps.clear()
    with wb.open(tmp_path / name) as short, model.open_weights(tmp_path / name) as long:
        assert steps == ["locate", "prepare"]  # those of the second
        assert short.source.place == long.place
        assert {n: t.numpy().tobytes() for n, t in short.items()} == {n: a.tobytes() for n, a in arrays.items()}


@pytest.mark.parametrize("name", OTHERS)
def test_other_names_go_the_long_way(name: str, tmp_path: Path) -> None:
    assert not locate.stands_alone(tmp_path / name)
    assert not locate.stands_alone(StoredPath(tmp_path / "model.gguf"))  # of a store, with adapters


@pytest.mark.parametrize("name", ["model.safetensors", "model.gguf"])
def test_folders_and_absent_files_are_the_long_ways(name: str, tmp_path: Path, steps: list[str]) -> None:
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        wb.open(tmp_path / name)
    assert steps == ["find_ranks", "locate"]
    wb.save({"w": np.ones(4, np.float32)}, tmp_path / name / "model.safetensors")
    with wb.open(tmp_path / name) as model:
        assert list(model) == ["w"]


def test_a_broken_file_is_closed(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 99)
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else None
    for _ in range(3):
        with pytest.raises(WeighbridgeError) as caught:
            wb.open(tmp_path / "model.safetensors")
        assert "model.safetensors" in str(caught.value)
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) == before
