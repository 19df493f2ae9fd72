"""The folders of training runs: the newest complete step is read, `step` takes another, and a step that was cut off is
named and never taken, for every trainer."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from tests.containers.dcp_files import rows, write
from tests.containers.zero_cases import unpack

import weighbridge as wb
from weighbridge.base.errors import FormatError, UsageError
from weighbridge.models import runs
from weighbridge.reports.statistics.tensor import TensorStatistics

STEPS = (9, 10, 100)  # not in the order of their names
Write = Callable[[Path, int], Path]


def array(step: int) -> np.ndarray:
    return np.full((4, 2), step, np.float32)


def safetensors(folder: Path, step: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    wb.save({"w": array(step)}, folder / "model.safetensors", overwrite=True)
    return folder


def dcp(folder: Path, step: int) -> Path:
    return write(folder, {"w": (array(step), rows(array(step), 2))})


def trainer(run: Path, step: int) -> Path:
    folder = safetensors(run / f"checkpoint-{step}", step)
    (folder / "trainer_state.json").write_text("{}")
    return folder


def trainer_fsdp(run: Path, step: int) -> Path:
    folder = dcp(run / f"checkpoint-{step}" / "pytorch_model_fsdp_0", step).parent
    dcp(folder / "optimizer_0", step)
    (folder / "trainer_state.json").write_text("{}")
    return folder


def accelerate(run: Path, step: int) -> Path:
    folder = safetensors(run / "checkpoints" / f"checkpoint_{step}", step)
    (folder / "random_states_0.pkl").write_bytes(b"\x80\x04}.")
    return folder


def accelerate_fsdp(run: Path, step: int) -> Path:
    folder = dcp(run / "checkpoints" / f"checkpoint_{step}" / "pytorch_model_fsdp_0", step).parent
    (folder / "random_states_0.pkl").write_bytes(b"\x80\x04}.")
    return folder


def torchtitan(run: Path, step: int) -> Path:
    return dcp(run / "checkpoint" / f"step-{step}", step)


def lightning(run: Path, step: int) -> Path:
    path = run / "checkpoints" / f"epoch=0-step={step}.ckpt"
    path.parent.mkdir(parents=True, exist_ok=True)
    wb.save({"w": array(step)}, path.with_suffix(".pt"))
    return path.with_suffix(".pt").rename(path)


def lightning_fsdp(run: Path, step: int) -> Path:
    return dcp(run / "checkpoints" / f"epoch=0-step={step}.ckpt", step)


def megatron(run: Path, step: int) -> Path:
    folder = dcp(run / f"iter_{step:07d}", step)
    (run / "latest_checkpointed_iteration.txt").write_text(f"{step}\n")
    return folder


def nemo(run: Path, step: int) -> Path:
    folder = run / f"model--val_loss=1.25-step={step}-consumed_samples=64.0"
    dcp(folder / "weights", step)
    return folder


def _without(name: str) -> Callable[[Path], None]:
    return lambda step: (step / name).unlink()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _unmarked(folder: Path) -> None:
    (folder.parent / "latest_checkpointed_iteration.txt").write_text("10")


class Trainer(NamedTuple):
    write: Write
    cut_off: Callable[[Path], None]
    reason: str


TRAINERS = {
    "Trainer": Trainer(trainer, _without("trainer_state.json"), "trainer_state.json"),
    "Trainer FSDP": Trainer(trainer_fsdp, _without("trainer_state.json"), "trainer_state.json"),
    "Accelerate": Trainer(accelerate, _without("random_states_0.pkl"), "random_states_0.pkl"),
    "Accelerate FSDP": Trainer(accelerate_fsdp, _without("random_states_0.pkl"), "random_states_0.pkl"),
    "torchtitan": Trainer(torchtitan, _without(".metadata"), ".metadata"),
    "Lightning": Trainer(lightning, _cut, "cut off"),
    "Lightning FSDP": Trainer(lightning_fsdp, _without(".metadata"), ".metadata"),
    "Megatron": Trainer(megatron, _unmarked, "names step 10"),
    "NeMo": Trainer(nemo, _without("weights/.metadata"), "weights/metadata.json is missing"),
}


@pytest.fixture(params=TRAINERS)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Trainer, dict[int, Path]]:
    trained = TRAINERS[request.param]
    folder = tmp_path / "run"
    return folder, trained, {step: trained.write(folder, step) for step in STEPS}


Run = tuple[Path, Trainer, dict[int, Path]]


def step_of(folder: Path, step: int | None = None) -> float:
    with wb.open(folder, step=step) as model:
        assert list(model) == ["w"]
        return float(model["w"].numpy()[3, 1])


def test_the_newest_step_is_read_or_the_one_that_is_asked_for(run: Run) -> None:
    folder, _, _ = run
    assert step_of(folder) == 100
    assert [step_of(folder, step) for step in STEPS] == list(STEPS)


def test_every_report_says_which_step_it_is(run: Run) -> None:
    folder, _, _ = run
    found = wb.identify(folder)
    assert (found.format, found.readable) == ("training-run", True)
    assert (found.detail["step"], found.detail["steps"]) == (100, [9, 10, 100])
    for notes in (wb.inspect(folder).notes, wb.verify(folder).findings):
        (note,) = [n.message for n in notes if n.rule == "run/step"]
        assert "step 100" in note
        assert "9, 10" in note
    assert wb.verify(folder).verdict == "ok"
    assert any("step 100 of 9, 10, 100" in entry.name for entry in wb.ls([folder]).entries)


def test_a_step_that_was_cut_off_is_named_and_never_taken(run: Run) -> None:
    folder, trained, steps = run
    trained.cut_off(steps[100])
    assert step_of(folder) == 10
    for notes in (wb.inspect(folder).notes, wb.verify(folder).findings):
        (note,) = [n.message for n in notes if n.rule == "run/unfinished"]
        assert "step 100" in note
        assert trained.reason in note
    found = wb.identify(folder)
    assert found.detail["step"] == 10
    assert trained.reason in found.detail["incomplete"]["100"]
    with pytest.raises(FormatError, match=r"step 100 is incomplete"):
        wb.open(folder, step=100)
    assert step_of(folder, 9) == 9


def test_a_run_without_a_complete_step_is_refused(run: Run) -> None:
    folder, trained, steps = run
    for step in (9, 10):
        shutil.rmtree(steps[step]) if steps[step].is_dir() else steps[step].unlink()
    trained.cut_off(steps[100])
    single_file = trained.write is lightning  # a folder with one file is that file
    with pytest.raises(FormatError, match=None if single_file else "no step is complete"):
        wb.open(folder)


def test_a_step_that_does_not_exist(run: Run) -> None:
    with pytest.raises(UsageError, match="has no step 11") as error:
        wb.open(run[0], step=11)
    assert "9, 10, 100" in str(error.value)


def test_converted_by_step(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    wb.convert(run[0], out, step=9)
    assert step_of(out) == 9


def test_every_command_takes_a_step(run: Run, tmp_path: Path) -> None:
    folder, _, steps = run
    assert "step 9 " in wb.inspect(folder, step=9).notes[0].message
    assert float(wb.get(f"{folder}::w", step=10)[0, 0]) == 10
    statistics = wb.stats(f"{folder}::w", step=9)
    assert isinstance(statistics, TensorStatistics)
    assert statistics.mean == 9
    report = wb.verify(folder, step=9)
    assert (report.verdict, report.path) == ("ok", str(steps[9]))
    wb.export_view(folder, tmp_path / "page.html", step=9)
    for act in (wb.inspect, wb.verify):
        with pytest.raises(UsageError, match="has no step 11"):
            act(folder, step=11)


def test_the_config_of_the_run(run: Run) -> None:
    folder, _, steps = run
    (folder / "config.json").write_text('{"model_type": "llama"}')
    with wb.open(folder) as model:
        assert model.source.place.folder == folder
    if steps[100].is_dir():
        (steps[100] / "config.json").write_text("{}")
        with wb.open(folder) as model:
            assert model.source.place.folder == steps[100]


def test_weights_next_to_the_steps_come_first(tmp_path: Path) -> None:
    trainer(tmp_path, 5)
    safetensors(tmp_path, 77)
    assert step_of(tmp_path) == 77
    assert step_of(tmp_path, 5) == 5


def test_step_applies_to_runs_only(tmp_path: Path) -> None:
    folder = safetensors(tmp_path / "model", 1)
    with pytest.raises(UsageError, match="no steps"):
        wb.open(folder, step=1)
    with pytest.raises(UsageError, match="is a file"):
        wb.open(folder / "model.safetensors", step=1)


def test_deepspeed_by_its_marker(tmp_path: Path) -> None:
    folder = unpack(tmp_path) / "stage3"
    taken = runs.choose(folder)
    assert taken is not None
    assert taken.taken is not None
    assert taken.taken.number == 2
    (folder / "latest").write_text("global_step1")
    run = runs.run_in(folder)
    assert run is not None
    assert run.taken is not None
    assert (run.taken.number, [s.number for s in run.steps if s.trouble]) == (1, [2])
    with pytest.raises(FormatError, match="latest names step 1"):
        wb.open(folder, step=2)
    (folder / "latest").unlink()
    with pytest.raises(FormatError, match="latest is missing"):
        wb.open(folder)


def test_deepspeed_inside_a_step_of_the_trainer(tmp_path: Path) -> None:
    step = tmp_path / "run" / "checkpoint-2"
    shutil.copytree(unpack(tmp_path) / "stage2", step)
    (step / "trainer_state.json").write_text("{}")
    with wb.open(tmp_path / "run") as model, wb.open(tmp_path / "stage2-global_step2.safetensors") as expected:
        assert {n: model[n].numpy().tobytes() for n in model} == {n: expected[n].numpy().tobytes() for n in expected}
