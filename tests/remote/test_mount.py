"""A mounted model: llama.cpp loads it, its bytes are those that are written, and it comes off cleanly."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import system
from tests.conversion.test_forms import gguf

import weighbridge as wb
from weighbridge.cli.main import main

system.require_package("mfusepy")
UNMOUNT = (system.require("libfuse"), "-u")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf(tmp_path_factory.mktemp("mount"))


@pytest.fixture(scope="module")
def mounted(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    point = tmp_path_factory.mktemp("point")
    words = [sys.executable, "-m", "weighbridge", "mount", str(model), str(point)]
    process = subprocess.Popen([*words, "--form", "Q4_K_M", "--form", "q8_0", "--form", "safetensors"])
    for _ in range(1200):
        if os.path.ismount(point) or process.poll() is not None:
            break
        time.sleep(0.05)
    yield point
    subprocess.run([*UNMOUNT, str(point)], check=True)
    assert process.wait(60) == 0


def test_what_is_there(mounted: Path) -> None:
    files = {p.relative_to(mounted).as_posix() for p in mounted.rglob("*") if p.is_file()}
    assert {"tiny-Q4_K_M.gguf", "tiny-Q8_0.gguf", "safetensors/model.safetensors", "safetensors/config.json"} <= files


@pytest.mark.parametrize("form", ["Q4_K_M", "Q8_0"])
def test_a_file_has_the_digest_of_the_written_one(form: str, mounted: Path, model: Path, tmp_path: Path) -> None:
    wb.quantize(model, tmp_path / "q.gguf", form)
    want = hashlib.sha256((tmp_path / "q.gguf").read_bytes()).hexdigest()
    assert hashlib.sha256((mounted / f"tiny-{form}.gguf").read_bytes()).hexdigest() == want


def test_it_is_read_only(mounted: Path) -> None:
    with pytest.raises(OSError, match="Read-only"):
        (mounted / "new").write_bytes(b"")
    with pytest.raises(OSError, match="Read-only"):
        (mounted / "tiny-Q8_0.gguf").open("r+b")
    assert not (mounted / "nothing").exists()


def test_llama_cpp_runs_it(mounted: Path, model: Path, tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    import numpy as np
    from tests.oracles import llamacpp

    wb.quantize(model, tmp_path / "q.gguf", "Q4_K_M")
    with llamacpp.Model(mounted / "tiny-Q4_K_M.gguf") as one, llamacpp.Model(tmp_path / "q.gguf") as other:
        np.testing.assert_array_equal(one.logits((1, 2, 3)), other.logits((1, 2, 3)))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_leaves_nothing_mounted(number: signal.Signals, model: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "weighbridge", "mount", str(model), str(tmp_path), "--form", "q8_0"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    while not os.path.ismount(tmp_path) and process.poll() is None:
        time.sleep(0.05)
    try:
        assert (tmp_path / "tiny-Q8_0.gguf").read_bytes()[:4] == b"GGUF"
        process.send_signal(number)
        assert process.wait(60) == 0
        assert not os.path.ismount(tmp_path)
    finally:
        process.kill()
        subprocess.run([*UNMOUNT, "-z", str(tmp_path)], check=False, capture_output=True)
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()


@pytest.mark.parametrize("kind", ["not empty", "missing", "a file", "mounted already"])
def test_where_nothing_can_be_mounted(
    kind: str, model: Path, mounted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    point = tmp_path / "p"
    if kind == "not empty":
        (point / "x").mkdir(parents=True)
    elif kind == "a file":
        point.write_bytes(b"")
    elif kind == "mounted already":
        point = mounted
    assert main(["mount", str(model), str(point)]) == 2
    assert "hint" in capsys.readouterr().err
