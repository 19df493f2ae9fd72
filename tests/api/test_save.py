"""Arrays of any framework to files of any format: what is written is read back by the reference libraries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import jax_process
from tests.reports import makers

import weighbridge as wb
from weighbridge.base.errors import RefusedError, UnsupportedError, UsageError

NOTHING = "NOTHING HERE WAS PROVED: install requirements/oracles.txt"


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "w": rng.normal(size=(4, 256)).astype(np.float32), "odd": rng.normal(size=(3, 5)).astype(np.float32),
        "norm": rng.normal(size=7).astype(np.float32), "ids": np.arange(6, dtype=np.int64),
        "one": np.array(3, np.float32),
    }  # fmt: skip


def _torch(values: Mapping[str, np.ndarray]) -> dict[str, Any]:
    torch = pytest.importorskip("torch", reason=NOTHING)
    return {k: torch.from_numpy(v.copy()) for k, v in values.items()}


def _mlx(values: Mapping[str, np.ndarray]) -> dict[str, Any]:
    mx = pytest.importorskip("mlx.core", reason=NOTHING)
    return {k: mx.array(v) for k, v in values.items()}


MAKERS: dict[str, Callable[[Mapping[str, np.ndarray]], dict[str, Any]]] = {
    "numpy": dict, "torch": _torch, "mlx": _mlx,
}  # fmt: skip


@pytest.mark.parametrize("framework", MAKERS)
def test_safetensors_of_any_framework(framework: str, tmp_path: Path) -> None:
    st = pytest.importorskip("safetensors.numpy", reason=NOTHING)
    wb.save(MAKERS[framework](arrays()), tmp_path / "a.safetensors", metadata={"by": "me"})
    found = st.load_file(tmp_path / "a.safetensors")
    want = arrays()
    assert found.keys() == want.keys()
    for name, array in want.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()
    assert wb.open(tmp_path / "a.safetensors").metadata["by"] == "me"


JAX = """
wb.save({"w": jax.numpy.arange(6, dtype="bfloat16").reshape(2, 3), "i": jax.numpy.arange(3)}, sys.argv[1])
with wb.open(sys.argv[1]) as model:
    assert (model["w"].dtype, model["i"].dtype) == ("BF16", "I32")
    assert model["w"].numpy().astype(float).tolist() == [[0, 1, 2], [3, 4, 5]]
from weighbridge.safetensors import flax
flax.save_file({"a": jax.numpy.arange(3)}, sys.argv[2])
assert flax.load_file(sys.argv[2])["a"].tolist() == flax.load(flax.save({"a": jax.numpy.arange(3)}))["a"].tolist()
print("saved")
"""


@pytest.mark.costly
def test_arrays_of_jax(tmp_path: Path) -> None:
    assert jax_process.run(JAX, str(tmp_path / "a.safetensors"), str(tmp_path / "b.safetensors")) == "saved\n"


def test_bf16_of_torch_and_mlx(tmp_path: Path) -> None:
    torch, mx = pytest.importorskip("torch", reason=NOTHING), pytest.importorskip("mlx.core", reason=NOTHING)
    st = pytest.importorskip("safetensors.torch", reason=NOTHING)
    tensor = torch.randn(3, 4).to(torch.bfloat16)
    wb.save({"t": tensor, "view": tensor.T}, tmp_path / "t.safetensors")
    found = st.load_file(tmp_path / "t.safetensors")
    assert torch.equal(found["t"], tensor)
    assert torch.equal(found["view"], tensor.T)
    wb.save({"m": mx.array([1.5, 2.5], mx.bfloat16)}, tmp_path / "m.safetensors")
    assert st.load_file(tmp_path / "m.safetensors")["m"].dtype == torch.bfloat16


def test_a_gguf_of_an_architecture_that_nobody_knows(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason=NOTHING)
    values = {k: v for k, v in arrays().items() if k not in ("ids", "one")}
    keys = {"general.architecture": "mine", "mine.depth": 3, "mine.names": ["a", "b"]}
    plan = wb.plan_save(values, tmp_path / "m.gguf", metadata=keys, dtype="q8_0")
    assert [loss.tensor for loss in plan.losses] == ["odd", "norm"]
    plan.run()
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    found = {t.name: t for t in reader.tensors}
    assert found["w"].tensor_type == gguf.GGMLQuantizationType.Q8_0
    assert all(t.data_offset % 64 == 0 for t in reader.tensors)
    expected = gguf.quants.quantize(values["w"], gguf.GGMLQuantizationType.Q8_0)
    assert found["w"].data.tobytes() == expected.tobytes()
    assert wb.open(tmp_path / "m.gguf").metadata["mine.depth"] == 3
    with pytest.raises(UsageError, match="architecture"):
        wb.save(values, tmp_path / "x.gguf")
    assert not (tmp_path / "x.gguf").exists()


def test_npz_and_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason=NOTHING)
    wb.save(arrays(), tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as found:
        assert all(np.array_equal(found[k], v) for k, v in arrays().items())
    wb.save(arrays(), tmp_path / "a.pt")
    loaded = torch.load(tmp_path / "a.pt", weights_only=True)
    assert all(np.array_equal(loaded[k].numpy(), v) for k, v in arrays().items())


def test_shards_have_an_index(tmp_path: Path) -> None:
    wb.save(arrays(), tmp_path / "out", max_shard_tensors=2)
    names = {p.name for p in (tmp_path / "out").iterdir()}
    assert "model.safetensors.index.json" in names
    assert len(names) == 4
    with wb.open(tmp_path / "out") as model:
        assert all(np.array_equal(model[k].numpy(), v) for k, v in arrays().items())
    wb.save(arrays(), tmp_path / "plain")
    assert [p.name for p in (tmp_path / "plain").iterdir()] == ["model.safetensors"]


def test_casts_touch_floats_alone(tmp_path: Path) -> None:
    wb.save(arrays(), tmp_path / "a.safetensors", dtype="bf16")
    with wb.open(tmp_path / "a.safetensors") as model:
        assert {t.name: t.dtype for t in model.values()} == {
            "w": "BF16", "odd": "BF16", "norm": "BF16", "ids": "I64", "one": "BF16",
        }  # fmt: skip


def test_tensors_of_wb_open_can_be_saved(tmp_path: Path) -> None:
    wb.save(arrays(), tmp_path / "a.safetensors")
    with wb.open(tmp_path / "a.safetensors") as model:
        wb.save({"x": model["w"], "rows": model["w"].rows(1, 3)}, tmp_path / "b.safetensors")
    with wb.open(tmp_path / "b.safetensors") as model:
        assert np.array_equal(model["rows"].numpy(), arrays()["w"][1:3])


def test_what_cannot_be_saved_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "a.safetensors"
    bad: Any
    for bad in ({"a": [1, 2]}, {1: np.zeros(2)}):
        with pytest.raises(UsageError):
            wb.save(bad, target)
    with pytest.raises(UnsupportedError, match="can't be stored"):
        wb.save({"a": np.array(["text"])}, target)
    with pytest.raises(UsageError, match="isn't a format"):
        wb.save(arrays(), tmp_path / "a.docx")
    with pytest.raises(UnsupportedError):
        wb.save(arrays(), target, dtype="q8_0")  # safetensors has no blocks
    wb.save(arrays(), target)
    with pytest.raises(RefusedError, match="overwrite"):
        wb.save(arrays(), target)
    wb.save({"b": np.zeros(2)}, target, overwrite=True)
    assert list(wb.open(target)) == ["b"]
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]


# `overwrite` onto a folder keeps what the conversion doesn't write.


def test_a_folder_with_foreign_files_is_refused_and_the_plan_names_them(tmp_path: Path) -> None:
    source = makers.llama_folder(tmp_path / "m")
    target = tmp_path / "out"
    wb.convert(source, target)
    wb.convert(source, target, overwrite=True)  # its own files only
    (target / "src").mkdir()
    (target / "src" / "train.py").write_text("mine")
    with wb.plan_convert(source, target, overwrite=True) as plan:
        assert any("src/train.py" in note and "in the way" in note for note in plan.describe()["notes"])
        with pytest.raises(RefusedError, match=r"src/train\.py"):
            plan.run()
    assert (target / "src" / "train.py").read_text() == "mine"
    with wb.plan_convert(source, target, replace_folder=True) as plan:
        assert any("will be deleted: src/train.py" in note for note in plan.describe()["notes"])
        plan.run()
    assert not (target / "src").exists()
