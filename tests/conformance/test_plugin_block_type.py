"""A block type that a package adds with one entry point is in every command, as a shipped one is."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.models.test_parallel_packed import model
from tests.plugins import environment, installed, toy_block_type, unchanged_types

from weighbridge.base import dtypes
from weighbridge.base.errors import PluginError, UnsupportedError, UsageError

X = np.random.default_rng(3).normal(size=(64, 256)).astype(np.float32)


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    return toy_block_type(tmp_path / "packages")


def wb_(packages: Path, *arguments: str | Path, code: int = 0) -> str:
    """The output of a command in a process with the plug-in."""
    done = subprocess.run(
        [sys.executable, "-m", "weighbridge", *map(str, arguments)], env=environment(packages), capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_every_command_knows_it(packages: Path, tmp_path: Path) -> None:
    """Convert, quantize, inspect, verify, and back."""
    folder, quantized, back = model(tmp_path / "model"), tmp_path / "a.gguf", tmp_path / "back.safetensors"
    wb_(packages, "convert", folder, quantized, "--dtype", "q8_toy", "--no-tokenizer")
    wb_(packages, "convert", folder, tmp_path / "b.gguf", "--dtype", "f32", "--no-tokenizer")
    wb_(packages, "quantize", tmp_path / "b.gguf", tmp_path / "c.gguf", "q8_toy")
    for path in (quantized, tmp_path / "c.gguf"):
        types = json.loads(wb_(packages, "inspect", path, "--json"))["dtypes"]
        assert types[0]["dtype"] == "Q8_TOY"
        assert "error" not in wb_(packages, "verify", "--values", path)
        wb_(packages, "convert", path, back, "--dtype", "f32", "--overwrite")
        name = "blk.0.ffn_up.weight"
        weights = load_file(folder / "model.safetensors")["model.layers.0.mlp.up_proj.weight"].astype(np.float32)
        np.testing.assert_allclose(load_file(back)[name], weights, atol=np.abs(weights).max() / 100)


@pytest.mark.costly
def test_without_the_package_its_files_are_refused(packages: Path, tmp_path: Path) -> None:
    wb_(packages, "convert", model(tmp_path / "model"), tmp_path / "b.gguf", "--dtype", "q8_toy", "--no-tokenizer")
    assert "7000" in wb_(tmp_path, "verify", tmp_path / "b.gguf", code=1)


def test_a_worker_process_knows_it(packages: Path) -> None:
    with unchanged_types(), installed(packages):
        sent = pickle.dumps(dtypes.dtype("q8_toy"))
        code = f"import pickle; print(pickle.loads({sent!r}))"
        done = subprocess.run([sys.executable, "-c", code], env=environment(packages), capture_output=True, check=True)
    assert done.stdout == b"Q8_TOY\n"


WRONG = {
    "register(TOY, CODEC)": ("TOY.name", UnsupportedError, "its module doesn't register Q8_TOY"),
    '"Q8_TOY", 7000': ('"Q8_0", 7000', UnsupportedError, "a number type Q8_0 or with the ggml id 7000 exists already"),
    "return values.reshape(-1)": ("return values[:, :8].reshape(-1)", UnsupportedError, "decodes a block to float32"),
    "    blocks = view": ("    1 / 0; blocks = view", UnsupportedError, "'Q8_TOY' failed: ZeroDivisionError"),
}


@pytest.mark.parametrize("right", WRONG)
def test_a_wrong_block_type_is_refused_when_it_is_loaded(packages: Path, right: str) -> None:
    wrong, error, words = WRONG[right]
    path = packages / "toy_block_type.py"
    text = path.read_text()
    assert right in text
    path.write_text(text.replace(right, wrong))
    with unchanged_types(), installed(packages), pytest.raises(error, match=words):
        dtypes.dtype("q8_toy")


def test_a_failing_codec_is_an_error_that_names_the_plugin(packages: Path) -> None:
    from weighbridge.tensors.reference import registry

    path = packages / "toy_block_type.py"
    path.write_text(path.read_text().replace("    rows = x", "    1 / 0; rows = x"))
    with unchanged_types(), installed(packages):
        dtypes.dtype("q8_toy")
        with pytest.raises(PluginError, match="the plug-in 'Q8_TOY' failed: ZeroDivisionError"):
            registry.ENCODE["Q8_TOY"](X)


def test_no_type_is_called_so() -> None:
    with pytest.raises(UsageError, match="no number type is called 'q8_toy'"):
        dtypes.dtype("q8_toy")
