"""Apple MLX's `.npz`, against MLX: every command reads the arrays that `mx.savez` writes, and a folder with weights.npz
converts as the one with safetensors."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.models.family_judges import golden

import weighbridge as wb
from weighbridge.base.errors import FormatError, RefusedError, WeighbridgeError

mx: Any = pytest.importorskip("mlx.core")
TYPES = ("bool_", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "bfloat16",
         "float32", "complex64")  # fmt: skip
SAVERS: dict[str, Callable[..., None]] = {"stored": mx.savez, "deflated": mx.savez_compressed}
NO_TOKENIZER: dict[str, Any] = {"tokenizer": False}


def arrays() -> dict[str, Any]:
    out = {f"types.{name}": mx.arange(6).reshape(2, 3).astype(getattr(mx, name)) for name in TYPES}
    out |= {f"turned.{name}": mx.arange(24).reshape(2, 3, 4).T.astype(getattr(mx, name)) for name in TYPES[:-1]}
    return out | {"scalar": mx.array(3.0), "empty": mx.zeros((0, 3))}


def stored(value: Any) -> bytes:
    """The values of an MLX array in C order; of bfloat16 as floats."""
    return np.array(value.astype(mx.float32) if value.dtype == mx.bfloat16 else value).tobytes()


def same(path: Path, saved: dict[str, Any]) -> None:
    """MLX reads the same arrays from a file."""
    loaded = mx.load(str(path))
    assert loaded.keys() == saved.keys()
    for name, value in saved.items():
        assert (loaded[name].dtype, loaded[name].shape) == (value.dtype, value.shape), name
        assert stored(loaded[name]) == stored(value), name


@pytest.mark.oracle
@pytest.mark.parametrize("saver", SAVERS)
def test_every_command_reads_what_mlx_writes(saver: str, tmp_path: Path) -> None:
    path, saved = tmp_path / "weights.npz", arrays()
    SAVERS[saver](str(path), **saved)
    found = wb.identify(path)
    assert (found.format, found.readable, found.damage) == ("npz", True, ())
    report = wb.inspect(path)
    assert {t.name: tuple(t.shape) for t in report.tensors} == {n: tuple(a.shape) for n, a in saved.items()}
    assert {t.name: t.dtype for t in report.tensors}["types.bfloat16"] == "BF16"
    assert wb.verify(path).ok
    scanned = wb.scan(path)
    assert (scanned.verdict, scanned.complete) == ("data-only", True)
    for name, value in saved.items():
        assert wb.get(f"{path}::{name}").tobytes() == stored(value), name
    wb.convert(path, tmp_path / "out.safetensors")
    same(tmp_path / "out.safetensors", saved)


@pytest.mark.oracle
@pytest.mark.parametrize("saver", SAVERS)
def test_a_folder_with_an_npz_is_a_model(saver: str, tmp_path: Path) -> None:
    case = golden()["smollm3"]
    rng = np.random.default_rng(3)
    hf, mlx, npz = (tmp_path / name / "model" for name in ("hf", "mlx", "npz"))
    for folder in (hf, mlx.parent, npz):
        folder.mkdir(parents=True)
    wb.save({n: rng.standard_normal(s, "f4") for n, s in case["hf"].items()}, hf / "model.safetensors")
    (hf / "config.json").write_text(json.dumps(case["config"]))
    forms: list[dict[str, Any]] = [{}, {"q_bits": 4, "q_group_size": 32}]
    for q in forms:
        wb.convert(hf, mlx, to="mlx", replace_folder=True, dtype="bf16" if not q else None, **q)
        SAVERS[saver](str(npz / "weights.npz"), **mx.load(str(mlx / "model.safetensors")))
        (npz / "config.json").write_bytes((mlx / "config.json").read_bytes())
        for target, source in (("theirs.gguf", mlx), ("mine.gguf", npz)):
            wb.convert(source, tmp_path / target, overwrite=True, **NO_TOKENIZER)
        assert (tmp_path / "mine.gguf").read_bytes() == (tmp_path / "theirs.gguf").read_bytes()


def npy(descr: str, shape: str, data: bytes, order: str = "True") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


#: A hostile array, the error and words in it.
HOSTILE: dict[str, tuple[bytes, type[WeighbridgeError], str]] = {
    "cut off": (npy("'<V2'", "(2, 3)", bytes(11)), FormatError, "cut off"),
    "too large": (npy("'<V2'", f"({2**40}, {2**40})", bytes(12)), FormatError, "cut off"),
    "overflow": (npy("'<V2'", f"({2**63}, 3)", bytes(12)), FormatError, "impossible"),
    "a pickle": (npy("'|O'", "(2,)", b"cos\nsystem\n(S'id'\ntR."), RefusedError, "pickle"),
    "no order": (npy("'<V2'", "(2, 3)", bytes(12), "1"), FormatError, "fortran_order"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_arrays_are_named_errors(name: str, tmp_path: Path) -> None:
    data, error, words = HOSTILE[name]
    path = tmp_path / "weights.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", data)
    for command in (wb.open, wb.inspect, lambda p: wb.convert(p, tmp_path / "out.safetensors")):
        with pytest.raises(error, match=words):
            command(path)
    assert not wb.verify(path).ok or name == "a pickle"
    assert not (tmp_path / "out.safetensors").exists()
    assert wb.scan(path).verdict == ("dangerous" if name == "a pickle" else "data-only")
