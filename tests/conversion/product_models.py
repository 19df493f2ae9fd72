"""Every recorded model as a folder of random numbers, for laws over models and operations."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import copytree
from typing import Any
from zlib import crc32

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.models.family_judges import golden as families
from tests.models.projector_cases import golden as projectors
from tests.models.projector_cases import write_folder
from tests.models.record_families import values

import weighbridge as wb

#: Models of which only a part is recorded: no table has all of their tensors.
PARTS = {"pocket-tts", "pocket-tts-mute", "qwen3-tts", "clef"}
#: One model of each class, and a quarter of the others: a law over all of them takes minutes.
_FIRST = {families()[name]["config"].get("architectures", [name])[0]: name for name in sorted(families(), reverse=True)}
TEXT = sorted(n for n in families().keys() - PARTS if n in _FIRST.values() or crc32(n.encode()) % 4 == 0)
SEEING = sorted(projectors().keys() - PARTS)
#: Models whose tokenizer and some settings are those of another model, which a GGUF of them needs.
DRAFTS = {name for name in TEXT if name.startswith(("eagle3", "dflash", "dspark"))}
#: Tensors of numbers that stay what they are: maps of tokens, slopes.
_FIXED = ("tid2eid", "slopes", "d2t")


def turn(name: str, options: Sequence[str]) -> str:
    """One of the options for a model: each is tried with a share of the models."""
    return options[crc32(name.encode()) % len(options)]


def write_model(name: str, folder: Path, seed: int = 0) -> Path:
    """A text model. The numbers of its name, which BF16 holds; other ones for another seed."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(families()[name]["config"]))
    tensors = {n: _drawn(n, values(n, tuple(shape)), seed) for n, shape in families()[name]["hf"].items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def write_seeing(name: str, folder: Path, seed: int = 0) -> Path:
    """A model that sees or hears, likewise."""
    write_folder(projectors()[name], folder)
    for path in folder.rglob("*.safetensors"):
        drawn = {n: _drawn(n, np.array(tensor), seed) for n, tensor in load_file(path).items()}
        save_file(drawn, path, {"format": "pt"})
    return folder


def _drawn(name: str, tensor: Any, seed: int) -> Any:
    if tensor.dtype != np.float32 or name.endswith(_FIXED):
        return np.array(tensor, order="C")
    if seed:
        noise = np.random.default_rng(crc32(name.encode()) + seed).standard_normal(tensor.shape, np.float32)
        tensor = tensor + noise * np.float32(0.3)
    tensor = np.abs(tensor) if name.endswith("_var") else tensor
    return np.array(tensor.astype(ml_dtypes.bfloat16).astype(np.float32), order="C")


def with_fault(folder: Path, start: Path, name: str) -> tuple[Path, str]:
    """A copy of a model in which the signs of one tensor are changed, and the tensor. `name`: chooses it."""
    copytree(start, folder)
    tensors = load_file(start / "model.safetensors")
    candidates = sorted(n for n, tensor in tensors.items() if tensor.dtype == np.float32 and np.any(tensor))
    chosen = turn(name, candidates)
    tensors[chosen] = -tensors[chosen]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder, chosen


def tensors_of(folder: Path) -> dict[str, Any]:
    """All tensors of a folder's Safetensors files at its top."""
    return {name: tensor for path in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(path).items()}


def assert_equal(found: Mapping[str, Any], expected: Mapping[str, Any], tolerance: float = 0.0) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert found[name].shape == tensor.shape, name
        assert np.allclose(found[name], tensor, rtol=tolerance, atol=tolerance), name


def errors(path: Path) -> set[str]:
    return {f.message for f in wb.verify(path).findings if f.severity.value == "error"}


@contextmanager
def small_models() -> Iterator[None]:
    """GGUFs aren't held to what llama.cpp loads: for a model this small it may have another graph."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("weighbridge.conversion.gguf.loadable.check_loadable", lambda files, source, **options: [])
        patched.setattr("weighbridge.conversion.quantize.plan.check_loadable", lambda files, source: [])
        patched.setattr("weighbridge.conversion.quantize.inputs.check_settings", lambda *_: [])
        yield


def to_gguf(source: Path, target: Path, dtype: str, **options: Any) -> Path:
    """A folder as a GGUF without a tokenizer, which the records don't have."""
    with small_models():
        wb.convert(source, target, to="gguf", dtype=dtype, tokenizer=False, **options)
    return target
