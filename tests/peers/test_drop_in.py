"""`weighbridge.safetensors` beside the package that it stands in for: the same bytes, tensors and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weighbridge.safetensors as ours
from weighbridge.safetensors import numpy as ours_np

theirs = pytest.importorskip("safetensors", reason="NOTHING HERE WAS PROVED: install requirements/oracles.txt")
NOTHING = "NOTHING HERE WAS PROVED: install requirements/oracles.txt"
ARRAYS: dict[str, Any] = {
    "b": np.arange(12, dtype=np.float32).reshape(3, 4), "a": np.arange(5, dtype=np.int8), "e": np.zeros((0, 3)),
    "t": np.arange(12, dtype=np.float16).reshape(3, 4).T, "s": np.array(2.5),
}  # fmt: skip


def test_the_bytes_are_the_references(tmp_path: Path) -> None:
    from safetensors import numpy as theirs_np

    plain = {k: np.ascontiguousarray(v).reshape(v.shape) for k, v in ARRAYS.items()}
    for metadata in (None, {"k": "v"}):
        assert ours_np.save(plain, metadata) == theirs_np.save(plain, metadata)
    ours_np.save_file(ARRAYS, tmp_path / "x.safetensors")
    found = theirs_np.load_file(tmp_path / "x.safetensors")
    assert all(np.array_equal(found[k], v) for k, v in ARRAYS.items())
    mine = ours_np.load_file(tmp_path / "x.safetensors")
    assert all(np.array_equal(mine[k], v) and mine[k].flags.writeable for k, v in ARRAYS.items())


def test_types_that_numpy_lacks_come_as_ml_dtypes(tmp_path: Path) -> None:
    want: dict[str, Any] = {
        "x": np.arange(4).astype(ml_dtypes.bfloat16),
        "y": np.arange(4).astype(ml_dtypes.float8_e4m3fn),
    }
    ours_np.save_file(want, tmp_path / "x.safetensors")
    for found in (ours_np.load_file(tmp_path / "x.safetensors"), ours_np.load(ours_np.save(want))):
        assert all(found[k].dtype == v.dtype and found[k].tobytes() == v.tobytes() for k, v in want.items())


def test_errors_are_of_the_references_kind(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"\xff" * 32)
    for module, kind in ((ours, ours.SafetensorError), (theirs, theirs.SafetensorError)):
        with pytest.raises(kind):
            module.safe_open(tmp_path / "x.safetensors", "np")
        with pytest.raises(FileNotFoundError, match="No such file"):
            module.safe_open(tmp_path / "no", "np")
    ours_np.save_file(ARRAYS, tmp_path / "x.safetensors")
    with ours.safe_open(tmp_path / "x.safetensors", "np") as file:
        assert sorted(file.offset_keys()) == file.keys() == sorted(ARRAYS)
        assert file.get_slice("b").get_dtype() == "F32"
        with pytest.raises(ours.SafetensorError, match="does not contain"):
            file.get_tensor("zz")
    with pytest.raises(ours.SafetensorError, match="closed"):
        file.keys()
    with pytest.raises(ours.SafetensorError, match="bytes for a tensor"):
        ours.serialize({"a": ours.TensorSpec(dtype="float32", shape=[3], data_ptr=0, data_len=4)})


def test_a_file_that_is_replaced_while_tensors_live(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason=NOTHING)
    from weighbridge.safetensors.torch import load_file, save_file

    path = tmp_path / "x.safetensors"
    save_file({"a": torch.arange(4.0)}, path)
    before = load_file(path)["a"]
    save_file({"a": before + 1}, path)  # the file is a new one; the mapping keeps the old
    assert before.tolist() == [0, 1, 2, 3]
    assert load_file(path)["a"].tolist() == [1, 2, 3, 4]
    before.zero_()
    assert load_file(path)["a"].tolist() == [1, 2, 3, 4]


def test_mlx(tmp_path: Path) -> None:
    mx = pytest.importorskip("mlx.core", reason=NOTHING)
    from weighbridge.safetensors import mlx

    mlx.save_file({"a": mx.array([1.5, 2], mx.bfloat16)}, tmp_path / "m.safetensors")
    assert mx.load(str(tmp_path / "m.safetensors"))["a"].tolist() == [1.5, 2]
    assert mlx.load_file(tmp_path / "m.safetensors")["a"].dtype == mx.bfloat16
    assert mlx.load(mlx.save({"a": mx.array([1])}))["a"].tolist() == [1]
