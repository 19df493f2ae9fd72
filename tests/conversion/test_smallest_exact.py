"""`--dtype smallest-exact`: each float tensor gets the narrowest type with exactly its values, and no bit changes."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weighbridge as wb
from weighbridge.base.errors import UsageError
from weighbridge.containers.base import Index
from weighbridge.reports.inspect import width

RNG = np.random.default_rng(0)
BF16 = RNG.standard_normal((40, 64)).astype(ml_dtypes.bfloat16).astype("f4")
BF16[0, 0] = ml_dtypes.bfloat16(1e-30)  # F16 would hold the others too
F16 = RNG.standard_normal((30, 64)).astype("f2").astype("f4")
#: Values, and the type that they get.
CASES = {
    "bf16": (BF16, "BF16"), "f16": (F16, "F16"), "f32": (RNG.standard_normal((4, 5)).astype("f4"), "F32"),
    "f64 of bf16": (BF16.astype("f8"), "BF16"), "f64 of f32": (RNG.standard_normal(9).astype("f4").astype("f8"), "F32"),
    "f64": (np.array([1 / 3]), "F64"), "beyond f16": (np.array([2.0**20, 1e-30], "f4").astype(ml_dtypes.bfloat16)
                                                       .astype("f4"), "BF16"),
    "f16's smallest": (np.array([2.0**-24, 2.0**-24 * 1023], "f4"), "F16"),
    "below f16": (np.array([2.0**-25 * 3, 1 + 2.0**-10], "f4"), "F32"),
    "zeros": (np.array([0.0, -0.0], "f4"), "BF16"), "infinite": (np.array([np.inf, -np.inf], "f4"), "BF16"),
    "nan with data": (np.array([0x7FC00001], "u4").view("f4"), "F32"), "empty": (np.zeros((0, 3), "f4"), "BF16"),
    "integers": (np.arange(3), "I64"), "half": (np.ones(3, "f2"), "F16"),
}  # fmt: skip


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    wb.save({name: array for name, (array, _) in CASES.items()}, path := tmp_path / "wide.safetensors")
    return path


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".npz"])
def test_each_tensor_gets_the_narrowest_type_and_keeps_its_bits(suffix: str, wide: Path, tmp_path: Path) -> None:
    plan = wb.plan_convert(wide, out := tmp_path / f"out{suffix}", dtype="smallest-exact")
    (note,) = [note for note in plan.notes if note.startswith("smallest-exact")]
    assert f"{sum(a.nbytes for a, _ in CASES.values() if a.dtype in ('f4', 'f8')):,} bytes" in note
    wb.convert(wide, out, dtype="smallest-exact")
    with wb.open(out) as model:
        for name, (array, expected) in CASES.items():
            if suffix != ".npz" or expected != "BF16":  # NumPy has no bfloat16
                assert model[name].dtype == expected, name
            back = model[name].numpy().astype(array.dtype)
            assert back.tobytes() == array.tobytes(), name


def test_a_folder_of_one_type_says_so(tmp_path: Path) -> None:
    (folder := tmp_path / "model").mkdir()
    wb.save({"a.weight": BF16, "b.weight": np.ones(8, "f4")}, folder / "model.safetensors")
    (folder / "config.json").write_text('{"model_type": "toy", "torch_dtype": "float32"}')
    wb.convert(folder, out := tmp_path / "out", to="hf", dtype="smallest-exact")
    assert {t.dtype for t in wb.inspect(out).tensors} == {"BF16"}
    assert '"bfloat16"' in (out / "config.json").read_text()


@pytest.mark.parametrize("how", [{"to": "mlx"}, {"to": "gguf", "arch": "toy"}], ids=["mlx", "gguf"])
def test_other_targets_refuse_it(how: dict[str, Any], wide: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="smallest-exact"):
        wb.plan_convert(wide, tmp_path / "out", dtype="smallest-exact", **how)


# ---- wb inspect ----


def notes(array: np.ndarray[Any, Any], folder: Path) -> list[str]:
    wb.save({"w": array}, folder / "w.safetensors", overwrite=True)
    return [note.message for note in wb.inspect(folder / "w.safetensors").notes if note.rule == "dtype/wider"]


def test_inspect_notes_values_of_a_narrower_type(tmp_path: Path) -> None:
    big = RNG.standard_normal((600, 512)).astype("f4")
    assert notes(big, tmp_path) == []
    (told,) = notes(big.astype(ml_dtypes.bfloat16).astype("f4"), tmp_path)
    assert "BF16 holds exactly" in told
    (told,) = notes(big.astype("f2").astype("f4"), tmp_path)
    assert "F16 holds exactly" in told
    assert notes(np.zeros((600, 512), "f4"), tmp_path) == []  # of any type
    assert notes(big[:2].astype("f2").astype("f4"), tmp_path) == []  # too small to matter


@pytest.mark.mutation
def test_the_samples_agree_with_numpy() -> None:
    values = np.concatenate([BF16.ravel(), F16.ravel(), np.array([2.0**-24, 2.0**-26, 1e6, 65504, 65536], "f4")])
    for value in values:
        data = struct.pack("<f", value)
        assert width._is_bf16(data) == (np.float32(ml_dtypes.bfloat16(value)) == value)
        with np.errstate(over="ignore"):
            assert width._is_f16(data) == (np.float32(np.float16(value)) == value)


def test_a_truncated_file_has_no_note() -> None:
    assert list(width.wider(Index("safetensors", (), (), {}))) == []
