"""A small model as a folder and as a GGUF, and stores in a folder of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.shipping.models import write_folder

import weighbridge as wb


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("ship") / "tiny-llama")


@pytest.fixture(scope="session")
def gguf(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ship") / "tiny-F16.gguf"
    wb.convert(model, path, dtype="f16")
    return path


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
