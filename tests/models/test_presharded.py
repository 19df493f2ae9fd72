"""Models whose experts are divided among ranks under one name (Grok 2): joined, they are the model that was divided."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.models.family_judges import golden
from tests.models.record_families import values

import weighbridge as wb
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.models.presharded import AXES

Arrays = dict[str, np.ndarray[Any, Any]]


def whole(model: str) -> Arrays:
    return {name: values(name, tuple(shape)) for name, shape in golden()[model]["hf"].items()}


def divided(folder: Path, model: str, ranks: int, prefix: str = "pytorch_model-") -> Path:
    """The published layout: matrices of experts in shares, gate and up by rows, down by columns."""
    folder.mkdir()
    shares: list[Arrays] = [{} for _ in range(ranks)]
    common: Arrays = {}
    for name, array in whole(model).items():
        if ".experts." not in name and ".moe." not in name:
            common[name] = array
            continue
        axis = int(name.endswith(("w2.weight", "linear_1.weight")))
        for rank, share in enumerate(np.split(array, ranks, axis)):
            shares[rank][name] = np.ascontiguousarray(share)
    first = [*common][: len(common) // 2]
    save_file({n: common[n] for n in first}, folder / f"{prefix}00000-TP-common.safetensors")
    save_file({n: common[n] for n in common if n not in first}, folder / f"{prefix}00001-TP-common.safetensors")
    for rank, arrays in enumerate(shares):
        for part in (0, 1):  # several files a rank
            own = {n: a for i, (n, a) in enumerate(arrays.items()) if i % 2 == part}
            save_file(own, folder / f"{prefix}{2 + part:05}-TP-{rank:03}.safetensors")
    (folder / "config.json").write_text(json.dumps(golden()[model]["config"]))
    return folder


@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize("model", ["grok1", "grok2"])
def test_shares_are_the_whole_model(model: str, ranks: int, tmp_path: Path) -> None:
    """Read, verified, converted: the GGUF's bytes are those of the undivided folder."""
    folder = divided(tmp_path / "shares", model, ranks, prefix=("pytorch_model-", "model-")[ranks == 2])
    arrays = whole(model)
    with wb.open(folder) as opened:
        assert {*opened} == {*arrays}
        assert all(np.array_equal(opened[name].numpy(), array) for name, array in arrays.items())
    assert not [finding for finding in wb.verify(folder).findings if finding.severity == "error"]
    (tmp_path / "whole").mkdir()
    save_file(arrays, tmp_path / "whole" / "model.safetensors")
    shutil.copy(folder / "config.json", tmp_path / "whole" / "config.json")
    for source in (folder, tmp_path / "whole"):
        wb.convert(source, tmp_path / f"{source.name}.gguf", dtype="f16", tokenizer=False, name="same")
    with wb.open(tmp_path / "shares.gguf") as ours, wb.open(tmp_path / "whole.gguf") as theirs:
        assert {*ours} == {*theirs}
        assert all(np.array_equal(np.asarray(ours[name]), np.asarray(theirs[name])) for name in ours)
    wb.convert(folder, tmp_path / "joined", to="safetensors")
    back = load_file(next((tmp_path / "joined").glob("*.safetensors")))
    assert back.keys() == arrays.keys()
    assert all(np.array_equal(back[name], array) for name, array in arrays.items())


def _rewrite(paths: Iterable[Path], change: Callable[[Arrays], Arrays]) -> None:
    for path in list(paths):
        save_file(change(load_file(path)), path)


def _narrow(folder: Path) -> None:
    narrow = lambda arrays: {n: np.ascontiguousarray(a[:, :8]) for n, a in arrays.items()}  # noqa: E731
    _rewrite([next(folder.glob("*00002-TP-001*"))], narrow)


def _other(folder: Path) -> None:
    _rewrite(folder.glob("*00002-TP-00*"), lambda arrays: {**arrays, "model.other": np.zeros((2, 2), "f4")})


@pytest.mark.parametrize(
    ("damage", "error", "words"),
    [
        (lambda f: [p.unlink() for p in f.glob("*-TP-000*")], FormatError, "those of all ranks"),
        (lambda f: [p.unlink() for p in f.glob("*00002-TP-001*")], FormatError, "not every rank has one share"),
        (lambda f: [p.unlink() for p in f.glob("*-TP-0*")], FormatError, "those of all ranks"),
        (_narrow, FormatError, "shapes or types differ"),
        (_other, UnsupportedError, "no rule for how ranks divide model.other"),
        (lambda f: [shutil.copy(p, p.with_name(p.name.replace("00002", "00009"))) for p in f.glob("*00002-TP-001*")],
         FormatError, "not every rank has one share"),
    ],
)  # fmt: skip
def test_shares_that_fit_no_model_are_refused(damage: Any, error: type[Exception], words: str, tmp_path: Path) -> None:
    folder = divided(tmp_path / "shares", "grok2", 2)
    damage(folder)
    with pytest.raises(error, match=words):
        wb.open(folder)
    assert any(f.rule == "shares/ranks" for f in wb.verify(folder).findings)


@pytest.mark.mutation
@pytest.mark.parametrize("end", AXES)
def test_another_axis_shows(end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = "grok2" if end.startswith(".w") else "grok1"
    folder = divided(tmp_path / "shares", model, 2)
    monkeypatch.setattr("weighbridge.models.presharded.AXES", {**AXES, end: 1 - AXES[end]})
    with wb.open(folder) as opened:
        assert any(opened[name].numpy().shape != array.shape for name, array in whole(model).items())
