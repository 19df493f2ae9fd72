"""DeepSpeed's checkpoints of every stage, recorded from real runs: the weights are those of zero_to_fp32, bit for bit;
files that aren't one checkpoint are refused, and named by their rules."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.containers.zero_cases import CASES, PARALLEL, RUNS, STEPS, unpack

import weighbridge as wb
from weighbridge.base.errors import FormatError, UsageError
from weighbridge.containers.base import Entry
from weighbridge.containers.torch.zero import files as zero
from weighbridge.containers.torch.zero import join
from weighbridge.containers.torch.zero.parts import JoinedWeight, ZeroPiece

STEP = f"global_step{STEPS}"
#: The frozen weights, and the runs in which DeepSpeed doesn't list them.
FROZEN = {"frozen.weight": (3, 5), "frozen.bias": (3,)}
WITHOUT_FROZEN = frozenset(run for run, case in CASES.items() if case.stage == 1)
EVERY = [(run, step) for run, steps in RUNS.items() for step in steps]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("zero"))


def tensors(path: Path) -> dict[str, np.ndarray]:
    with wb.open(path) as model:
        return {name: model[name].numpy() for name in model}


def same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    return found.keys() == expected.keys() and all(
        (found[n].dtype, found[n].shape, found[n].tobytes()) == (a.dtype, a.shape, a.tobytes())
        for n, a in expected.items()
    )


# ---- recorded by DeepSpeed ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("run", "step"), EVERY)
def test_the_weights_are_those_of_deepspeed(recorded: Path, run: str, step: int) -> None:
    expected = tensors(recorded / f"{run}-global_step{step}.safetensors")
    found = tensors(recorded / run / f"global_step{step}")
    assert len(found) == 9
    if run in WITHOUT_FROZEN:  # zero_to_fp32 omits them
        assert not expected.keys() & FROZEN.keys()
        assert {name: found.pop(name).shape for name in FROZEN} == FROZEN
    assert same(found, expected)


def test_the_steps_differ(recorded: Path) -> None:
    first, last = (tensors(recorded / f"stage3-global_step{step}.safetensors") for step in (1, STEPS))
    assert not same(first, last)


@pytest.mark.parametrize("run", RUNS)
def test_any_rows_are_those_of_the_weight(recorded: Path, run: str) -> None:
    rng = random.Random(run)
    expected = tensors(recorded / f"{run}-{STEP}.safetensors")
    with wb.open(recorded / run / STEP) as model:
        for name, array in expected.items():
            node = model.source.stored[name]
            lo = rng.randrange(node.spec.rows + 1)
            hi = rng.randrange(lo, node.spec.rows + 1)
            width = node.spec.row_bytes
            assert node.read(lo, hi).tobytes() == array.tobytes()[lo * width : hi * width]


@pytest.mark.parametrize("run", RUNS)
def test_honest_checkpoints_pass_verify_and_scan(recorded: Path, run: str) -> None:
    report = wb.verify(recorded / run / STEP, values=True)
    assert (report.verdict, report.findings) == ("ok", ())
    scanned = wb.scan(recorded / run / STEP)
    assert scanned, [f for file in scanned.files for f in file.findings]


@pytest.mark.parametrize("run", RUNS)
def test_identify_and_inspect_read_them(recorded: Path, run: str) -> None:
    found = wb.identify(recorded / run / STEP)
    assert (found.format, found.readable, found.damage) == ("deepspeed", True, ())
    report = wb.inspect(recorded / run / STEP)
    assert {row.name for row in report.tensors} == {*tensors(recorded / f"{run}-{STEP}.safetensors"), *FROZEN}
    assert not report.damage


@pytest.mark.costly
@pytest.mark.parametrize("run", ["stage2", "four"])
def test_conversion_lists_the_rest(recorded: Path, tmp_path: Path, run: str) -> None:
    out = tmp_path / "out.safetensors"
    with wb.plan_convert(recorded / run / STEP, out) as plan:
        losses = {loss.tensor: loss.message for loss in plan.losses}
    assert "optimizer" in losses["optimizer_state_dict"]
    assert any("global_steps" in message for message in losses.values())
    wb.convert(recorded / run / STEP, out)
    assert same(tensors(out), tensors(recorded / f"{run}-{STEP}.safetensors"))


def test_ema_is_refused(recorded: Path) -> None:
    with pytest.raises(UsageError, match="no averaged"):
        wb.open(recorded / "stage3" / STEP, ema=True)


# ---- files that aren't one checkpoint ------------------------------------------------------------------------------


def _optimizer(folder: Path, rank: int) -> Path:
    return next(folder.glob(f"*zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"))


def _lose(rank: int) -> Callable[[Path, Path], None]:
    return lambda folder, recorded: _optimizer(folder, rank).unlink()


def _lose_model(folder: Path, recorded: Path) -> None:
    sorted(folder.glob("*_model_states.pt"))[-1].unlink()


def _other_step(folder: Path, recorded: Path) -> None:
    path = _optimizer(folder, 1)
    shutil.copy(recorded / folder.name / "global_step1" / path.name, path)


def _other_step_of_model(folder: Path, recorded: Path) -> None:
    path = sorted(folder.glob("*_model_states.pt"))[-1]
    shutil.copy(recorded / folder.name / "global_step1" / path.name, path)


def _other_world(folder: Path, recorded: Path) -> None:
    path = _optimizer(folder, 1)
    shutil.copy(_optimizer(recorded / "four" / STEP, 1), path)


def _more_processes(folder: Path, recorded: Path) -> None:
    shutil.copy(_optimizer(folder, 1), folder / "zero_pp_rank_7_mp_rank_00_optim_states.pt")


def _second_part(folder: Path, recorded: Path) -> None:
    shutil.copy(_optimizer(folder, 1), folder / "zero_pp_rank_1_mp_rank_01_optim_states.pt")


def _cut(folder: Path, recorded: Path) -> None:
    path = _optimizer(folder, 0)
    path.write_bytes(path.read_bytes()[:-700])


def _other_model(folder: Path, recorded: Path) -> None:
    """The weights of a run whose groups have other sizes."""
    for path in sorted(folder.glob("*_model_states.pt")):
        path.unlink()
    other = "stage1" if folder.name == "stage2" else "stage3"
    for path in (recorded / other / STEP).glob("*_model_states.pt"):
        shutil.copy(path, folder)


FAULTS = [
    ("stage2", _lose(0), "zero/missing", "process 0 of 2"),
    ("stage2", _lose(1), "zero/missing", "process 1 of 2"),
    ("four", _lose(3), "zero/missing", "process 3 of 4"),
    ("stage3", _lose_model, "zero/missing", "1 of 2 files of model states"),
    ("stage2", _other_step, "zero/step", "after 1 steps"),
    ("stage3", _other_step_of_model, "zero/step", "step 1"),
    ("stage3", _other_world, "zero/mixed", "stage 3 of 4 processes"),
    ("stage2", _more_processes, "zero/mixed", "of process 7"),
    ("stage2", _second_part, "zero/mixed", "states fewer parts"),
]


@pytest.mark.parametrize(("run", "fault", "rule", "words"), FAULTS)
def test_faults_are_named_and_refused(
    recorded: Path, tmp_path: Path, run: str, fault: Callable[[Path, Path], None], rule: str, words: str
) -> None:
    folder = tmp_path / run
    shutil.copytree(recorded / run / STEP, folder)
    fault(folder, recorded)
    report = wb.verify(folder)
    assert rule in {f.rule for f in report.findings}
    assert any(words in f.message for f in report.findings), report.findings
    assert report.verdict == "failed"
    with pytest.raises(FormatError, match=words):
        wb.open(folder)
    target = tmp_path / "out.safetensors"
    with pytest.raises(FormatError):
        wb.convert(folder, target)
    assert not target.exists()
    assert any(words in note.message for note in wb.inspect(folder).notes)


def test_a_file_that_is_cut_off(recorded: Path, tmp_path: Path) -> None:
    folder = tmp_path / "stage2"
    shutil.copytree(recorded / "stage2" / STEP, folder)
    _cut(folder, recorded)
    assert "zero/unread" in {f.rule for f in wb.verify(folder).findings}
    with pytest.raises(FormatError, match="optim_states"):
        wb.open(folder)


def test_weights_without_a_file_of_a_universal_checkpoint(recorded: Path, tmp_path: Path) -> None:
    folder = tmp_path / "u"
    shutil.copytree(recorded / "stage2-universal" / STEP, folder)
    shutil.rmtree(folder / "zero" / "up.weight")
    with pytest.raises(FormatError, match=r"up\.weight"):
        wb.open(folder)


# ---- other kinds of parallelism ------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [run for run, case in PARALLEL.items() if case.universal])
def test_parallel_parts_are_joined_as_by_deepspeed(recorded: Path, run: str) -> None:
    right = tensors(recorded / f"{run}-universal.safetensors")
    found = tensors(recorded / run / "global_step1")
    if run == "pipeline":  # DeepSpeed's universal form omits these
        copied = {
            f"{n}.{name}": shape for n in (1, 2, 3) for name, shape in (("scale", (6,)), ("frozen.weight", (6, 6)))
        }
        assert {name: found.pop(name).shape for name in copied} == copied
    assert same(found, right)


def test_the_frozen_weights_of_a_pipeline_are_those_of_its_layers(recorded: Path) -> None:
    torch = pytest.importorskip("torch")
    with wb.open(recorded / "pipeline" / "global_step1") as model:
        for number in (1, 2, 3):
            layer = torch.load(recorded / "pipeline" / "global_step1" / f"layer_{number:02}-model_states.pt")
            frozen = model.source.stored[f"{number}.frozen.weight"]
            assert frozen.spec.dtype.name == "BF16"
            assert frozen.read(0, 6).tobytes() == layer["frozen.weight"].view(torch.uint8).numpy().tobytes()
            assert np.array_equal(model[f"{number}.scale"].numpy(), layer["scale"].float().numpy())


def test_experts_have_the_numbers_of_the_whole_model(recorded: Path) -> None:
    torch = pytest.importorskip("torch")
    folder = recorded / "experts" / "global_step1"
    found = tensors(folder)
    files = sorted(folder.glob("layer_*_expert_*"))
    assert len(files) == 4
    for file in files:
        for name, values in torch.load(file).items():  # copies in 16 bits
            assert torch.equal(torch.from_numpy(found[name].copy()).bfloat16(), values), name
    assert len(found) == 3 + 2 * len(files)


@pytest.mark.parametrize("run", PARALLEL)
def test_honest_parallel_checkpoints_pass_verify_and_scan(recorded: Path, run: str) -> None:
    report = wb.verify(recorded / run / "global_step1", values=True)
    assert (report.verdict, report.findings) == ("ok", ())
    assert wb.scan(recorded / run / "global_step1")


def test_a_universal_pipeline_names_its_missing_buffers(recorded: Path) -> None:
    folder = recorded / "pipeline-universal" / "global_step1"
    assert same(tensors(folder), tensors(recorded / "pipeline-universal.safetensors"))
    with wb.open(folder) as model:
        assert {"1.scale", "2.scale", "3.scale"} <= {part.name for part in model.left_out}


def _less(*patterns: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for pattern in patterns:
            for path in folder.glob(pattern):
                path.unlink()

    return change


PARALLEL_FAULTS = {
    "stage": ("pipeline", _less("*mp_rank_01*"), "mp_rank_01 are missing"),
    "first stage": ("pipeline", _less("*mp_rank_00*"), "mp_rank_00 are missing"),
    "part": ("tensor", _less("*mp_rank_01*"), "mp_rank_01 are missing"),
    "process": ("tensor3", _less("*rank_1_mp_rank_01_optim*"), "process 1 of 2"),
    "experts": ("experts", _less("*rank_3_*"), "process 3 of 4"),
}


@pytest.mark.parametrize("fault", PARALLEL_FAULTS)
def test_parallel_files_that_are_missing_are_named(recorded: Path, tmp_path: Path, fault: str) -> None:
    run, damage, words = PARALLEL_FAULTS[fault]
    folder = tmp_path / run
    shutil.copytree(recorded / run / "global_step1", folder)
    damage(folder)
    assert "zero/missing" in {f.rule for f in wb.verify(folder).findings}
    with pytest.raises(FormatError, match=words):
        wb.convert(folder, tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()


# ---- the arithmetic, without files ---------------------------------------------------------------------------------


def _vector(count: int, number: int = 0) -> Entry:
    from weighbridge.base.dtypes import F32

    return Entry("flat", F32, (count,), 0, 4 * count, number)


def _part(
    stage: int,
    sizes: list[list[int]],
    shapes: dict[str, tuple[int, ...]],
    gaps: tuple[tuple[int, ...], ...] | None = None,
) -> list[join.ZeroPart]:
    """One tensor-parallel part; the files of its model states come first."""
    count = len(sizes) if stage == 3 else 1
    models = tuple(zero.ModelStates("model", n, (shapes,), {}, {}, {}, {}, {}) for n in range(count))
    states = {
        n: zero.OptimizerStates(f"rank{n}", count + n, stage, len(sizes), tuple(map(_vector, parts)), gaps)
        for n, parts in enumerate(sizes)
    }
    return [join.ZeroPart(0, models, states)]


def _pieces(weight: JoinedWeight) -> list[tuple[int, int, int]]:
    return [(piece.file, piece.start, piece.length) for piece in weight.parts[0].pieces]


SHAPES: dict[str, tuple[int, ...]] = {"a": (3,), "b": (5,)}


def test_stages_1_and_2_cut_a_vector_of_all_weights() -> None:
    found = join.join(_part(2, [[4], [4]], SHAPES))
    assert _pieces(found["a"]) == [(1, 0, 3)]
    assert _pieces(found["b"]) == [(1, 3, 1), (2, 0, 4)]


def test_stage_3_cuts_each_weight() -> None:
    found = join.join(_part(3, [[5], [5]], SHAPES))
    assert _pieces(found["a"]) == [(2, 0, 2), (3, 0, 1)]
    assert _pieces(found["b"]) == [(2, 2, 3), (3, 2, 2)]
    several = join.join(_part(3, [[3, 2], [3, 2]], SHAPES))  # vectors that end inside a weight
    assert _pieces(several["b"]) == [(2, 2, 1), (2, 0, 2), (3, 2, 1), (3, 0, 1)]


def test_padding_between_weights_is_skipped() -> None:
    found = join.join(_part(1, [[4], [4]], {"a": (3,), "b": (2,)}, ((1, 2),)))
    assert _pieces(found["b"]) == [(2, 0, 2)]


def test_a_part_with_too_many_elements() -> None:
    piece = ZeroPiece(0, _vector(4), 0, 4)
    with pytest.raises(FormatError, match="too many"):
        join.weight("a", (3,), [piece], "file")


@pytest.mark.parametrize(
    ("stage", "sizes"), [(2, [[4], [8]]), (2, [[2], [2]]), (2, [[4, 1], [4]]), (3, [[5], [6]]), (3, [[4], [4]])]
)
def test_sizes_that_disagree(stage: int, sizes: list[list[int]]) -> None:
    with pytest.raises(FormatError):
        join.join(_part(stage, sizes, SHAPES))


def test_every_stage_and_form_is_recorded() -> None:
    assert {case.stage for case in CASES.values()} == {1, 2, 3}
    assert {case.ranks for case in CASES.values()} == {1, 2, 3, 4}
