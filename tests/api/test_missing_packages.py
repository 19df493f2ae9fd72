"""Without a framework, what needs it names the package and the command that installs it."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.architecture.house import ROOT
from tests.llama import CONFIG, llama_tensors, write

import weighbridge as wb
from weighbridge.base.errors import UnsupportedError

NAME = "model.norm.weight"
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
#: Package -> calls that need it, of a model folder and a saved training state.
CALLS: dict[str, list[Callable[[Path, Path], Any]]] = {
    "torch": [
        lambda model, _: wb.open(model)[NAME].torch(),
        lambda model, _: wb.open(model)[NAME].torch(device="cuda:0"),
        lambda model, _: wb.provider(model, device="torch").get("norm.weight"),
        lambda model, _: wb.provider(model, device="cuda:0").get("norm.weight"),
        lambda _, state: wb.load_checkpoint(state),
    ],
    "jax": [lambda model, _: wb.provider(model, device="jax").get("norm.weight")],
    "mlx": [lambda model, _: wb.provider(model, device="mlx").get("norm.weight")],
}  # fmt: skip


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    torch = pytest.importorskip("torch")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    write(tmp_path / "model" / "model.safetensors", llama_tensors())
    wb.save_checkpoint(tmp_path / "state", model={"w": torch.ones(2)})
    return tmp_path / "model", tmp_path / "state"


@pytest.mark.parametrize(("package", "number"), [(p, i) for p, calls in CALLS.items() for i in range(len(calls))])
def test_what_is_missing_is_named(
    package: str, number: int, places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [package, *(name for name in sys.modules if name.startswith(f"{package}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UnsupportedError, match=f"needs the package {package}") as error:
        CALLS[package][number](*places)
    assert error.value.hint == f'pip install "weighbridge[{package}]"'
    assert package in EXTRAS


def test_arrays_of_numpy_need_nothing(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert wb.load_checkpoint(places[1], numpy=True)["model"]["w"].tolist() == [1, 1]
    save_file({"a": np.ones(3, np.float32)}, places[0] / "one.safetensors")
    assert wb.open(places[0] / "one.safetensors")["a"].numpy().sum() == 3
