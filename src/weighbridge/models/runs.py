"""The steps in the folder of a training run, and the one that is read.

    run/checkpoint-500/              transformers' Trainer        run/checkpoint/step-500/    torchtitan
    run/checkpoints/checkpoint_5/    Accelerate                   run/global_step500/         DeepSpeed, and `latest`
    run/epoch=1-step=500.ckpt        Lightning, file or folder    run/iter_0000500/, release/ Megatron
    run/model--step=500/             NeMo 2                       run/500/, run/step_500/       Orbax

`choose` returns the newest complete step, or a given one. A step that was cut off is known by the file that its trainer
writes last, or by its folder's marker, which names the last complete step.

References: transformers 4.57 and 5 (Trainer._save_checkpoint), accelerate 1.15 (checkpointing.py), lightning 2.6
(ModelCheckpoint), torchtitan (components/checkpoint.py), deepspeed 0.19 (engine.save_checkpoint), Megatron-LM
(training/checkpointing.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from weighbridge.base.errors import FormatError, UsageError
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.containers.archive.zip_records import END
from weighbridge.io.location import open_source

_MARKER: Final = 256  # bytes of a marker that are read
_LISTED: Final = 8
_ZIP_TAIL: Final = 22 + (1 << 16)


class StepKind(NamedTuple):
    """How a trainer names its steps. `last`: candidates for the file that it writes last into a step; `markers`:
    files next to the steps that name the last complete one; `inner`: the subfolders that may have a step's weights;
    `signs`: files of which a step has one, if others have such names too."""

    trainer: str
    name: re.Pattern[str]
    last: tuple[str, ...] = ()
    markers: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    file: bool = False
    signs: tuple[str, ...] = ()

    def is_step(self, path: Path) -> bool:
        """Whether a folder or file with a step's name is one."""
        return not self.signs or _UNFINISHED in path.name or any((path / name).is_file() for name in self.signs)


def _named(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII)


# What a step of Orbax has, the first at the end; and how the name of one that is being written goes on.
_ORBAX: Final = ("_CHECKPOINT_METADATA", "_METADATA", "default/_METADATA", "params/_METADATA", "state/_METADATA")
_UNFINISHED: Final = ".orbax-checkpoint-tmp"
#: Trainers and their steps.
KINDS: Final = (
    StepKind("Orbax", _named(rf"(?:[a-z_]+_)?(?P<step>\d{{1,12}})(?:{re.escape(_UNFINISHED)}.*)?"), _ORBAX[:1],
             signs=_ORBAX),
    StepKind("transformers' Trainer", _named(r"checkpoint-(?P<step>\d{1,12})"), ("trainer_state.json",),
             inner=("pytorch_model_fsdp_0",)),
    StepKind("Accelerate", _named(r"checkpoint_(?P<step>\d{1,12})"), ("random_states_0.pkl",),
             inner=("pytorch_model_fsdp_0", "pytorch_model")),
    StepKind("torchtitan", _named(r"step-(?P<step>\d{1,12})"), (".metadata", "model.safetensors.index.json")),
    StepKind("DeepSpeed", _named(r"global_step(?P<step>\d{1,12})(?:_universal)?"),
             markers=("latest", "latest_universal")),
    StepKind("Megatron", _named(r"iter_(?P<step>\d{7,12})"), markers=("latest_checkpointed_iteration.txt",)),
    StepKind("Megatron", _named(r"release(?P<step>)"), markers=("latest_checkpointed_iteration.txt",)),
    StepKind("NeMo", _named(r".*-step=(?P<step>\d{1,12})(?:-consumed_samples=[\d.]+)?(?:-last)?"),
             ("weights/metadata.json", "weights/.metadata")),
    StepKind("Lightning", _named(r"(?:.*[-_])?step=(?P<step>\d{1,12})(?:-v\d+)?\.ckpt"), file=True),
)  # fmt: skip
#: The subfolders of a run that have its steps.
_FOLDERS: Final = ("checkpoints", "checkpoint")


@dataclass(frozen=True)
class TrainingStep:
    """`trouble`: the reason why it isn't complete; empty if it is."""

    number: int
    path: Path
    kind: StepKind
    trouble: str = ""


@dataclass(frozen=True)
class TrainingRun:
    """The steps of a run in rising order, and the one that is read: None if none is complete."""

    folder: Path
    steps: tuple[TrainingStep, ...]
    taken: TrainingStep | None

    @property
    def notes(self) -> tuple[str, ...]:
        """The step that is read, the others, and those that were cut off."""
        if self.taken is None:
            return ()
        unread = [str(s.number) for s in self.steps if not s.trouble and s is not self.taken]
        more = f"; --step takes another: {_few(unread)}" if unread else ""
        out = [f"step {self.taken.number} of {self.taken.kind.trainer} is read, {self.taken.path}{more}"]
        return (*out, *(f"step {s.number} is incomplete and skipped: {s.trouble}" for s in self.steps if s.trouble))


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[-_LISTED:]) + more


def run_in(folder: Path) -> TrainingRun | None:
    """The steps in a folder of a run, with the newest complete one chosen; None if there are none."""
    places = [folder, *(folder / name for name in _FOLDERS)]
    steps = [step for place in places if place.is_dir() for step in _steps(place)]
    if not steps:
        return None
    steps.sort(key=lambda step: (step.number, step.path.name))
    complete = [step for step in steps if not step.trouble]
    return TrainingRun(folder, tuple(steps), complete[-1] if complete else None)


def choose(folder: Path, step: int | None = None) -> TrainingRun | None:
    """As `run_in`, with step number `step` chosen. None if the folder has no steps and none is requested. Raises
    UsageError for a step that doesn't exist, FormatError for one that isn't complete, or if none is."""
    run = run_in(folder)
    if run is None:
        if step is not None:
            raise UsageError(f"{folder} has no steps of a training run: --step doesn't apply", hint="leave it out")
        return None
    if step is None and run.taken is None:
        last = run.steps[-1]
        raise FormatError(f"no step is complete; step {last.number}: {last.trouble}", path=str(last.path),
                          hint="use a backup, or name the folder of what is there")  # fmt: skip
    if step is None:
        return run
    matching = [s for s in run.steps if s.number == step]
    if not matching:
        listed = _few([str(s.number) for s in run.steps])
        raise UsageError(f"{folder} has no step {step}", hint=f"it has {plural(len(run.steps), 'step')}: {listed}")
    chosen = next((s for s in reversed(matching) if not s.trouble), matching[-1])
    if chosen.trouble:
        raise FormatError(f"step {step} is incomplete: {chosen.trouble}", path=str(chosen.path),
                          hint="take another step")  # fmt: skip
    return TrainingRun(run.folder, run.steps, chosen)


def _steps(place: Path) -> Iterator[TrainingStep]:
    markers: dict[str, str] = {}
    for marker in (place / name for kind in KINDS for name in kind.markers):
        if marker.is_file():
            with open_source(marker) as source:
                markers[marker.name] = source.head(_MARKER).decode("utf-8", "replace").strip()
    for path in place.iterdir():
        for kind in KINDS:
            match = kind.name.fullmatch(path.name)
            if match is not None and (path.is_dir() or kind.file) and kind.is_step(path):
                number = int(match["step"] or 0)
                if match["step"] or path.name in markers.values():  # Megatron's release has no number
                    yield TrainingStep(number, path, kind, _trouble(kind, path, number, markers))
                break


def _trouble(kind: StepKind, path: Path, number: int, markers: Mapping[str, str]) -> str:
    """The reason why a step isn't complete; "" if it is. `markers`: the contents of the markers that exist."""
    if kind.markers:
        present = [name for name in kind.markers if name in markers]
        if not present:
            return f"{kind.markers[0]} is missing, which is written last"
        numbers = [(name, int(match[0])) for name in present if (match := re.search(r"\d+", markers[name]))]
        if numbers and all(number > last for _, last in numbers):
            return f"{numbers[0][0]} names step {numbers[0][1]}: this one wasn't finished"
        return "" if any(path.iterdir()) else "its folder is empty"
    if _UNFINISHED in path.name:
        return "it was being written"
    if path.is_file():
        return "" if _ends(path) else "the file is cut off"
    if kind.file:  # a folder of Lightning's distributed checkpoints
        return "" if (path / ".metadata").is_file() else ".metadata is missing, which is written last"
    if not any((path / name).exists() for name in kind.last):
        return f"{kind.last[0]} is missing, which is written last"
    return ""


def _ends(path: Path) -> bool:
    """Whether a file of torch.save has the end of its archive; older files have none and pass."""
    with open_source(path) as source:
        if source.head(2) != END[:2]:
            return source.size > 0
        tail = min(source.size, _ZIP_TAIL)
        return END in source.read(source.size - tail, tail)


def weights_of(step: TrainingStep) -> Path:
    """The file or folder of a step with its weights."""
    inner = (step.path / name for name in step.kind.inner)
    return next((path for path in inner if path.is_dir()), step.path)
