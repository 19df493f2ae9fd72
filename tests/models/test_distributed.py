"""The model in a distributed checkpoint: every way in gives what the bare weights give, whatever a trainer saved with
them and whatever the chunks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.containers.dcp_files import columns, rows, write
from tests.llama import CONFIG as LLAMA
from tests.llama import llama_tensors, make_folder
from tests.models.test_training_parts import CONFIG, EMA, LEFT, WAYS, WEIGHTS, behind, saved

import weighbridge as wb
from weighbridge.base.errors import UsageError
from weighbridge.conversion.plan.model import Plan

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]


def distributed(folder: Path, value: dict[str, Any]) -> Path:
    import torch.distributed.checkpoint as dcp

    dcp.save(dict(value), checkpoint_id=folder, no_dist=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("dcp")
    for left, value in LEFT.items():
        distributed(top / left, value)
    return top


def equal(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    return found.keys() == expected.keys() and all(np.array_equal(found[name], expected[name]) for name in expected)


#: Every thing that trainers leave, opened; every way in, for one of them.
PAIRS = [*((left, "open") for left in LEFT), *(("compiled", way) for way in WAYS if way != "open")]


@pytest.mark.parametrize(("left", "way"), PAIRS)
def test_the_model_in_it_is_what_the_bare_one_is(folders: Path, tmp_path: Path, left: str, way: str) -> None:
    expected = WAYS[way](saved(tmp_path / "bare", WEIGHTS))
    assert equal(WAYS[way](_linked(folders / left, tmp_path)), expected)


def _linked(folder: Path, into: Path) -> Path:
    """The folder, in a place of its own for the files that are written next to it."""
    place = into / "in"
    place.symlink_to(folder)
    return place


def losses(plan: Plan) -> str:
    plan.close()
    return " ".join(f"{loss.tensor} {loss.message}" for loss in plan.losses)


@pytest.mark.parametrize("left", LEFT)
def test_what_goes_in_comes_out_or_is_listed(folders: Path, tmp_path: Path, left: str) -> None:
    listed = losses(wb.plan_convert(folders / left, tmp_path / "out.safetensors"))
    with wb.open(folders / left, all_parts=True) as whole, wb.open(folders / left) as model:
        assert len(whole) == len(model) + sum(part.tensors for part in model.left_out)
        assert all(part.name in listed for part in model.left_out)
        kept = set(LEFT[left]) - {part.name for part in model.left_out}
        # torch leaves empty dicts out
        assert left in ("bare", "flat") or kept <= {"model", "module", "state_dict", "model_state_dict", "empty"}


def test_the_keys_of_torchtitan_and_lightning(tmp_path: Path) -> None:
    """Weights at the top beside the rest, and an optimizer by its structure, under a key of its own."""
    moments = {name: {"exp_avg": tensor} for name, tensor in WEIGHTS.items()}
    flat = {f"state.{name}.exp_avg": tensor for name, tensor in WEIGHTS.items()}
    rest = {"optimizer": flat, "lr_scheduler": {"last_epoch": 3}, "train_state": {"step": torch.tensor(3)}}
    named = {"model": behind("model.", WEIGHTS), "optimizer_0": {"state": moments, "param_groups": [{"lr": 1.0}]}}
    for name, value, parts in (
        ("titan", {**WEIGHTS, **rest}, {"optimizer": len(WEIGHTS), "train_state": 1, "lr_scheduler": 0}),
        ("lightning", named, {"optimizer_0": len(WEIGHTS)}),
    ):
        with wb.open(distributed(tmp_path / name, value), names="hf") as model:
            assert equal({n: model[n].numpy() for n in model}, {n: t.numpy() for n, t in WEIGHTS.items()})
            assert {part.name: part.tensors for part in model.left_out} == parts


def test_averages_on_request(folders: Path) -> None:
    with wb.open(folders / "compiled", ema=True, names="hf") as model:
        assert equal({n: model[n].numpy() for n in model}, {n: t.numpy() for n, t in EMA.items()})
    with pytest.raises(UsageError, match="no averaged"):
        wb.open(folders / "Lightning", ema=True)


def test_objects_among_the_weights_are_listed(tmp_path: Path) -> None:
    for name, value in {
        "flat": {"w": torch.ones(2), "x": {1}},
        "nested": {"model": {"w": torch.ones(2), "x": {1}}},
    }.items():
        folder = distributed(tmp_path / name, value)
        assert "left out, not tensors: x" in losses(wb.plan_convert(folder, tmp_path / "out.safetensors"))


def test_strip_keeps_the_weights(folders: Path, tmp_path: Path) -> None:
    wb.strip(folders / "torch's tutorial", tmp_path / "out.safetensors")
    with wb.open(tmp_path / "out.safetensors") as model:
        assert equal({n: model[n].numpy() for n in model}, {n: t.numpy() for n, t in WEIGHTS.items()})


def test_a_whole_checkpoint_without_pickles(folders: Path, tmp_path: Path) -> None:
    """The tensors of every part; pickled objects aren't read, and are listed."""
    listed = losses(wb.plan_convert(folders / "timm", tmp_path / "out", to="checkpoint"))
    assert "arch" in listed
    wb.convert(folders / "timm", tmp_path / "out", to="checkpoint")
    state = wb.load_checkpoint(tmp_path / "out", numpy=True)
    assert equal(state["state_dict_ema"], {n: t.numpy() for n, t in EMA.items()})


@pytest.mark.parametrize("target", ["out.gguf", "mlx", "hf"])
def test_chunks_make_no_difference(tmp_path: Path, target: str) -> None:
    """The same bytes as of one file, from rows of three processes and columns of two."""
    plain = make_folder(tmp_path / "plain/model", words=True)  # folders of one name, which becomes the model's
    chunked = tmp_path / "chunked/model"
    layout = {n: (a, columns(a, 2) if a.ndim > 1 and "mlp" in n else rows(a, 3)) for n, a in llama_tensors().items()}
    write(chunked, layout)
    for name in ("config.json", "tokenizer.json"):
        (chunked / name).write_bytes((plain / name).read_bytes())
    assert json.loads((chunked / "config.json").read_text()) == LLAMA
    found = []
    for source in (plain, chunked):
        out = source.parent / target
        wb.convert(source, out, to=None if target.endswith("gguf") else target)
        files = [out] if out.is_file() else sorted(out.iterdir())
        found.append({f.name: f.read_bytes() for f in files})
    assert found[0] == found[1]
