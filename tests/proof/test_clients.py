"""What we write is read by those it is for: safetensors, transformers, MLX, the gguf package, llama.cpp, numpy."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.oracles import gguf_file, llamacpp, models, ours
from tests.oracles.folders import tensors
from tests.oracles.models import probe_of

import weighbridge as api

pytestmark = pytest.mark.oracle

Maker = Callable[[str], Path]
Converter = Callable[[str, str], Path]


@pytest.fixture(scope="module")
def resaved(folder_of: Maker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """llama3 (four shards) as one folder in f16, written by us."""
    return ours.to_folder(folder_of("llama3"), tmp_path_factory.mktemp("clients") / "resaved", "f16")


def test_safetensors_reads_it(resaved: Path, folder_of: Maker) -> None:
    import torch

    found, original = tensors(resaved), tensors(folder_of("llama3"))
    assert sorted(found) == sorted(original)
    assert all(torch.equal(t, original[name].half()) for name, t in found.items())


def test_transformers_reads_it(resaved: Path, folder_of: Maker) -> None:
    found, expected = (models.logits(f, probe_of("llama3")) for f in (resaved, folder_of("llama3")))
    assert models.rms_error(found, expected) < 0.01


def test_transformers_reads_shards(resaved: Path, tmp_path: Path) -> None:
    api.convert(resaved, tmp_path / "shards", to="hf", max_shard_size=100_000)
    assert len(list((tmp_path / "shards").glob("model-*-of-*.safetensors"))) > 1
    found, expected = (models.logits(f, probe_of("llama3")) for f in (tmp_path / "shards", resaved))
    assert np.array_equal(found, expected)


@pytest.mark.costly
def test_mlx_reads_it(folder_of: Maker, tmp_path: Path) -> None:
    """(In transformers 4's spelling: mlx_lm overlooks the rope_parameters of a version 5 config.)"""
    if importlib.util.find_spec("mlx_lm") is None:
        pytest.skip("MLX DID NOT READ WHAT WE WRITE: install requirements/oracles.txt")
    import mlx.core as mx
    import mlx_lm

    folder = ours.to_folder(folder_of("llama3-v4"), tmp_path / "resaved", "f16")
    model, _ = mlx_lm.load(str(folder))
    found = np.array(model(mx.array([probe_of("llama3")]))[0].astype(mx.float32))
    assert models.rms_error(found, models.logits(folder, probe_of("llama3"))) < 0.02


def test_gguf_package_reads_it(gguf_of: Converter) -> None:
    file = gguf_file.read(gguf_of("llama", "q8_0"))
    assert file.architecture == "llama"
    assert {t.type for t in file.tensors.values()} == {"F32", "Q8_0"}


def test_llama_cpp_reads_a_split_set(folder_of: Maker, gguf_of: Converter, tmp_path: Path) -> None:
    """Named and keyed as llama-gguf-split does it: given the first file, llama.cpp finds the others."""
    case = models.CASES["llama3"]
    api.convert(folder_of("llama3"), tmp_path / "split.gguf", dtype="f32", pre=case.pre, max_shard_size=200_000)
    shards = sorted(tmp_path.rglob("*-00001-of-*.gguf"))
    assert len(shards) == 1
    with llamacpp.Model(shards[0]) as split, llamacpp.Model(gguf_of("llama3", "f32")) as whole:
        assert np.array_equal(split.logits(probe_of("llama3")), whole.logits(probe_of("llama3")))


def test_numpy_reads_npz(folder_of: Maker, tmp_path: Path) -> None:
    api.convert(folder_of("bert"), tmp_path / "bert.npz")
    original = tensors(folder_of("bert"))
    with np.load(tmp_path / "bert.npz") as archive:
        assert sorted(archive.files) == sorted(original)
        assert all(np.array_equal(archive[name], tensor.numpy()) for name, tensor in original.items())
