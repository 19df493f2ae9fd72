"""MLX gets large tensors as files that it reads into memory of its own, small ones as arrays that it copies."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import weighbridge as wb
from weighbridge.adapters import mlx as adapter
from weighbridge.base.errors import FormatError
from weighbridge.io.source import FileSource

mx = pytest.importorskip("mlx.core", reason="NOTHING HERE WAS PROVED: install requirements/oracles.txt")

TYPES = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32",
         "complex64")  # fmt: skip


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tensor of each type, each large enough to be a file here."""
    monkeypatch.setattr(adapter, "_AS_FILE", 32)
    rng = np.random.default_rng(0)
    wb.save({kind: rng.integers(0, 2, (3, 16)).astype(kind) for kind in TYPES}, tmp_path / "m.safetensors")
    return tmp_path / "m.safetensors"


def test_every_type_arrives(file: Path) -> None:
    with wb.provider(file, device="mlx", names="stored") as weights, wb.open(file) as model:
        for kind in TYPES:
            found = np.array(weights.get(kind))
            assert found.dtype == kind
            assert np.array_equal(found, model[kind].numpy())
        assert np.array_equal(np.array(weights.get("float32", dtype="f16")), model["float32"].numpy("f16"))
        assert weights.get("int32", 1).tolist() == model["int32"][1].tolist()


def test_a_large_tensor_is_in_memory_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read, not mapped, and no array of numpy is made of it."""
    monkeypatch.setattr(FileSource, "map", lambda *_: pytest.fail("mapped"))
    monkeypatch.setattr(adapter, "to_numpy", lambda *_: pytest.fail("copied"))
    with wb.provider(file, device="mlx", names="stored") as weights:
        assert weights.get("int64").shape == (3, 16)


def test_a_file_that_became_shorter_is_an_error(file: Path) -> None:
    """Not an exception in a thread of MLX's, which would end the process."""
    with wb.provider(file, device="mlx", names="stored") as weights:
        os.truncate(file, file.stat().st_size // 2)
        with pytest.raises(FormatError, match="became shorter"):
            [weights.get(kind) for kind in TYPES]
        assert mx.array([1]).item() == 1
