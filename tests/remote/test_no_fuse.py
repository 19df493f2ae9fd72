"""`wb mount` where nothing can be mounted says what to install, before anything else."""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import sys
from pathlib import Path

import pytest
from tests.conversion.test_forms import gguf

from weighbridge.cli.main import main


@pytest.fixture
def model(tmp_path: Path) -> Path:
    made = gguf(tmp_path)
    made.with_name("point").mkdir()
    return made


def fails(model: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["mount", str(model), str(model.with_name("point"))]) == 2
    return capsys.readouterr().err


def test_without_the_device(model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, *rest, **more: path != "/dev/fuse" and access(path, *rest, **more))
    assert "wb serve" in fails(model, capsys)


@pytest.mark.parametrize(("lacking", "install"), [("package", "weighbridge[mount]"), ("library", "install fuse3")])
def test_without_libfuse(
    lacking: str, install: str, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if lacking == "package":
        monkeypatch.setitem(sys.modules, "mfusepy", None)
    elif importlib.util.find_spec("mfusepy"):
        monkeypatch.delitem(sys.modules, "mfusepy", raising=False)
        monkeypatch.delenv("FUSE_LIBRARY_PATH", raising=False)
        monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    else:
        pytest.skip("mfusepy isn't installed")
    monkeypatch.setattr(os, "access", lambda *_, **__: True)
    printed = fails(model, capsys)
    assert install in printed
    assert "files at" not in printed
