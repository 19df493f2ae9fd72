"""Training checkpoints as torch, Lightning, timm and CompVis write them, and what is left of each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.oracles.ours import report_of

import weighbridge as wb
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.cli.main import main
from weighbridge.models import training_parts as strip
from weighbridge.models.training_parts import KEYS, MOMENTS, SHAPES, Extra

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.oracle


def trained() -> tuple[Any, Any, Any]:
    """A model after a step of Adam, its optimizer and its scheduler."""
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, amsgrad=True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    model(torch.randn(4, 6)).square().sum().backward()
    optimizer.step()
    scheduler.step()
    return model, optimizer, scheduler


MODEL, OPTIMIZER, SCHEDULER = trained()
WEIGHTS = MODEL.state_dict()
EMA = {name: t.double().mul(0.5).to(t.dtype) for name, t in WEIGHTS.items()}
RNG = {"cpu": torch.get_rng_state(), "cuda": [torch.get_rng_state()]}
CHECKPOINTS: dict[str, Any] = {
    "torch's tutorial": {"model_state_dict": WEIGHTS, "optimizer_state_dict": OPTIMIZER.state_dict(), "epoch": 3,
                         "loss": torch.tensor(0.5), "rng_state": RNG},
    "other names": {"net": WEIGHTS, "D_optim": OPTIMIZER.state_dict(), "plan": SCHEDULER.state_dict(),
                    "history": [torch.ones(3)]},
    "Lightning": {"state_dict": WEIGHTS, "optimizer_states": [OPTIMIZER.state_dict()], "epoch": 1, "global_step": 7,
                  "lr_schedulers": [SCHEDULER.state_dict()], "callbacks": {"x": {"best": torch.tensor(1.0)}}},
    "timm": {"state_dict": WEIGHTS, "state_dict_ema": EMA, "optimizer": OPTIMIZER.state_dict(), "arch": "x"},
    "flat": {**WEIGHTS, **{f"{n}.exp_avg": t for n, t in WEIGHTS.items()}, "optimizer.state.0.step": torch.tensor(1.0)},
    "nothing to remove": WEIGHTS,
}  # fmt: skip


def equal(path: Path, expected: dict[str, Any]) -> None:
    loaded = torch.load(path, weights_only=True)
    assert loaded.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(loaded[name], tensor), name


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_the_weights_are_left(tmp_path: Path, name: str, legacy: bool) -> None:
    source, target = tmp_path / "in.pt", tmp_path / "out.pt"
    torch.save(CHECKPOINTS[name], source, _use_new_zipfile_serialization=not legacy)
    report = report_of(wb.plan_strip(source, target))
    equal(target, WEIGHTS)
    assert report.tensors == len(WEIGHTS)
    assert report.bytes == target.stat().st_size
    assert report.saved == source.stat().st_size - target.stat().st_size
    everything = wb.open(source, all_parts=True).source.index
    assert report.tensors + sum(d.tensors for d in report.dropped) == len(everything)
    assert bool(report.notes) == (name == "nothing to remove")


def test_what_was_left_out_is_told_with_the_reason(tmp_path: Path) -> None:
    torch.save(CHECKPOINTS["other names"], tmp_path / "in.pt")
    report = wb.plan_strip(tmp_path / "in.pt", tmp_path / "out.safetensors").report
    assert not (tmp_path / "out.safetensors").exists()
    assert [(d.name, d.part, d.why) for d in report.dropped] == [
        ("D_optim", "optimizer", "it has param_groups and state"),
        ("history", "history", "the key 'history'"),
        ("plan", "scheduler", "it has _step_count and last_epoch"),
    ]
    assert report.wrapper == "net"
    assert report.dropped[0].tensors == 4 * len(list(MODEL.parameters()))
    assert report.dropped[0].bytes == sum(
        t.nbytes for s in OPTIMIZER.state_dict()["state"].values() for t in s.values()
    )


def test_averages(tmp_path: Path) -> None:
    source = tmp_path / "in.pt"
    torch.save(CHECKPOINTS["timm"], source)
    assert report_of(wb.plan_strip(source, tmp_path / "ema.pt", ema_as_weights=True)).ema_used == len(WEIGHTS)
    equal(tmp_path / "ema.pt", EMA)
    wb.strip(source, tmp_path / "both.pt", keep_ema=True)
    both = {**{f"state_dict_ema.{n}": t for n, t in EMA.items()}, **WEIGHTS}
    loaded = torch.load(tmp_path / "both.pt", weights_only=True)
    assert loaded.keys() == both.keys()
    torch.save(CHECKPOINTS["Lightning"], source)
    with pytest.raises(UsageError, match="no averaged"):
        wb.strip(source, tmp_path / "x.pt", ema_as_weights=True)
    torch.save({"model": WEIGHTS, "ema": {"shadow_params": [*EMA.values()]}}, source)
    with pytest.raises(UnsupportedError, match="names don't match"):
        wb.strip(source, tmp_path / "x.pt", ema_as_weights=True)


def test_averages_as_compvis_names_them(tmp_path: Path) -> None:
    """LitEma: inside the state dict, without dots, counted from below the wrapped model."""
    weights = {f"model.diffusion_model.{n}": t for n, t in WEIGHTS.items()}
    averages = {"model_ema." + f"diffusion_model.{n}".replace(".", ""): t for n, t in EMA.items()}
    extra = {"model_ema.decay": torch.tensor(0.9), "first_stage_model.loss.net.weight": torch.ones(2)}
    torch.save({"state_dict": {**weights, **averages, **extra}, "global_step": 1}, tmp_path / "in.ckpt")
    report = report_of(wb.plan_strip(tmp_path / "in.ckpt", tmp_path / "out.pt", ema_as_weights=True))
    kept = {"first_stage_model.loss.net.weight": torch.ones(2)}
    equal(tmp_path / "out.pt", {f"model.diffusion_model.{n}": t for n, t in EMA.items()} | kept)
    assert [(d.name, d.part, d.tensors) for d in report.dropped] == [
        ("state_dict.model_ema", "ema", len(EMA) + 1),
        ("global_step", "value", 0),
    ]


def test_a_state_dict_whose_names_begin_alike_keeps_them(tmp_path: Path) -> None:
    state = {f"model.{n}": t for n, t in WEIGHTS.items()}
    torch.save(state, tmp_path / "in.pt")
    wb.strip(tmp_path / "in.pt", tmp_path / "out.pt")
    equal(tmp_path / "out.pt", state)
    torch.save({"module": state, "extra": {"optimizer": {"w": torch.ones(1)}}}, tmp_path / "two.pt")
    wb.strip(tmp_path / "two.pt", tmp_path / "out2.pt")
    equal(tmp_path / "out2.pt", state)


def test_safetensors_with_an_optimizer(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    state = {"model.w": torch.ones(3), "optimizer.w": torch.ones(4), "h.momentum_buffer": torch.ones(2)}
    save_file(state, tmp_path / "in.safetensors", {"note": "kept"})
    report = report_of(wb.plan_strip(tmp_path / "in.safetensors", tmp_path / "out.safetensors"))
    assert list(load_file(tmp_path / "out.safetensors")) == ["model.w"]
    assert wb.open(tmp_path / "out.safetensors").metadata == {"note": "kept"}
    assert {d.part for d in report.dropped} == {"optimizer"}


def test_a_trainers_folder(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    folder = tmp_path / "checkpoint-5"
    folder.mkdir()
    save_file({"w": torch.ones(3)}, folder / "model.safetensors")
    torch.save(OPTIMIZER.state_dict(), folder / "optimizer.pt")
    for name in ("config.json", "trainer_state.json", "training_args.bin", "rng_state.pth", "tokenizer.json"):
        (folder / name).write_text("{}")
    report = report_of(wb.plan_strip(folder, tmp_path / "out"))
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert [d.name for d in report.dropped] == [
        "optimizer.pt",
        "rng_state.pth",
        "trainer_state.json",
        "training_args.bin",
    ]
    with pytest.raises(UsageError, match="no model weights, only optimizer"):
        wb.strip(folder / "optimizer.pt", tmp_path / "x.pt")


def test_hostile_parts_are_not_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
            return (Path.touch, (tmp_path / "touched",))

    torch.save({"model": WEIGHTS, "hparams": Evil(), "optimizer": OPTIMIZER.state_dict()}, tmp_path / "in.pt")
    wb.strip(tmp_path / "in.pt", tmp_path / "out.pt")
    equal(tmp_path / "out.pt", WEIGHTS)
    assert not (tmp_path / "touched").exists()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = str(tmp_path / "in.pt"), str(tmp_path / "out.pt")
    torch.save(CHECKPOINTS["timm"], source)
    assert main(["strip", source, target, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    told = (answer["schema"], answer["wrapper"], answer["tensors"])
    assert told == ("weighbridge/strip/1", "state_dict", len(WEIGHTS))
    assert main(["strip", source, target]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["strip", source, str(tmp_path / "y.pt"), "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "state_dict_ema" in out
    assert f"would have {len(WEIGHTS)} tensors" in out


# ---- every row of the tables is one that matters --------------------------------------------------------------


def parts(tmp_path: Path, value: Any) -> list[str]:
    torch.save(value, tmp_path / "row.pt")
    with wb.open(tmp_path / "row.pt", all_parts=True) as model:
        judged = strip.judge(model.source.index)
    return [judged.verdicts[name].part for name in judged.verdicts]


@pytest.mark.parametrize("key", KEYS)
def test_every_key(tmp_path: Path, key: str) -> None:
    value = {"model": {"w": torch.ones(1)}, key: {"x": torch.ones(1)}}
    assert parts(tmp_path, value) == [Extra.WEIGHTS, KEYS[key]]


@pytest.mark.mutation
@pytest.mark.parametrize("key", KEYS)
def test_a_key_that_is_not_there_is_missed(tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strip, "KEYS", {k: v for k, v in KEYS.items() if k != key})
    assert parts(tmp_path, {"model": {"w": torch.ones(1)}, key: {"x": torch.ones(1)}}) == [Extra.WEIGHTS] * 2


@pytest.mark.parametrize("word", sorted(MOMENTS))
def test_every_moment(tmp_path: Path, word: str) -> None:
    value = {"w": torch.ones(1), f"w.{word}": torch.ones(1)}
    assert parts(tmp_path, value) == [Extra.WEIGHTS, Extra.OPTIMIZER]


@pytest.mark.parametrize(("keys", "part"), SHAPES)
def test_every_shape(tmp_path: Path, keys: frozenset[str], part: Extra) -> None:
    for inside in ({k: torch.ones(1) for k in keys}, [{k: torch.ones(1) for k in keys}]):
        found = parts(tmp_path, {"m": {"w": torch.ones(1)}, "x": inside})
        assert set(found[1:]) == {part}
        lacking = {k: torch.ones(1) for k in sorted(keys)[1:]}
        assert set(parts(tmp_path, {"m": {"w": torch.ones(1)}, "x": lacking})) == {Extra.WEIGHTS}


def test_values_that_are_not_written_are_listed(tmp_path: Path) -> None:
    """Also where they lie among the weights, and nothing else is left out."""
    torch.save({**WEIGHTS, "epoch": 3, "loss": 0.5, "lr": 1e-3, "plan": SCHEDULER.state_dict()}, tmp_path / "in.pt")
    with wb.plan_strip(tmp_path / "in.pt", tmp_path / "out.safetensors") as plan:
        assert [(d.name, d.part, d.tensors) for d in plan.report.dropped] == [
            ("epoch", "value", 0),
            ("loss", "history", 0),
            ("lr", "value", 0),
            ("plan", "scheduler", 0),
        ]
        assert not plan.report.notes
