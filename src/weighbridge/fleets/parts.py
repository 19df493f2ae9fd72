"""One large model as the work of several tasks: each makes a range of the output's bytes, which land in one object, or
in one file of a shared file system; the driver whose task is the last one publishes it. The target knows what is there,
so a driver that follows another one makes what is missing, and the record is that of a model made whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from weighbridge.adapters.remote.schemes import resolve_target
from weighbridge.base.errors import UsageError, WeighbridgeError
from weighbridge.containers import by_target
from weighbridge.conversion.plan.fingerprint import key_of
from weighbridge.conversion.plan.model import Plan
from weighbridge.conversion.plan.run import run, run_part
from weighbridge.fleets.job import BATCH_BYTES, ItemBatch
from weighbridge.fleets.manifest import FOLDER
from weighbridge.fleets.operations import OPERATIONS, written
from weighbridge.fleets.work import (
    BatchTask,
    ItemLine,
    Summary,
    check_pin,
    dead_line,
    line_of,
    record_of,
    settle,
    tried,
)
from weighbridge.io.sink import FileRange, ParallelTarget, ParallelWrite, Records, parallel_target, records_at


class PartTask(NamedTuple):
    """A range of the output of a batch's only item."""

    whole: BatchTask
    part: FileRange


def check_task_size(size: int, to: str) -> None:
    """UsageError for tasks that are too small, and for a format whose first bytes depend on its last ones."""
    if size < BATCH_BYTES:
        words = f"--task-size {size:,} is less than {BATCH_BYTES:,}: models of that size share a task"
        raise UsageError(words, hint="name a larger size, such as 4GiB")
    made = by_target(to)
    if made is not None and made.layout([], {}).fixups is not None:
        raise UsageError(f"--task-size doesn't apply to {to}: its checksums come before the bytes that they are of",
                         hint="leave it out, or choose safetensors or gguf")  # fmt: skip


def make_part(task: PartTask) -> tuple[ItemLine, ...]:
    """Make the range. Returns a dead letter's line where that failed."""
    item = task.whole.batch.items[0]

    def work() -> None:
        check_pin(item)
        with _planned(task.whole) as (plan, target):
            if target.missing([task.part]):
                run_part(plan, target.sink(task.part))
        check_pin(item)

    try:
        tried(work)
    except Exception as error:  # whatever it is, the other tasks go on
        return (dead_line(item, error),)
    return ()


@contextmanager
def _planned(task: BatchTask) -> Iterator[tuple[Plan, ParallelTarget]]:
    """The plan of a batch's only item, and its target as one of several processes."""
    batch, item = task.batch, task.batch.items[0]
    plan_of = OPERATIONS[batch.job.op].plan
    if plan_of is None:
        raise UsageError(f"{batch.job.op} writes nothing that could be made in parts")
    with closing(plan_of(item, batch.job.options, task.target, task.how)) as plan:
        plan.check()
        write = ParallelWrite(
            {f.name if plan.folder else "": f.layout.size for f in plan.files}, key_of(plan),
            agreed=_records(task), place=_place(task),
            folder=plan.folder, names=plan.names, overwrite=plan.write.overwrite, memory=plan.write.memory // 4,
        )  # fmt: skip
        yield plan, parallel_target(plan.target, write)


def _records(task: BatchTask) -> Records:
    return records_at(resolve_target(task.target))


def _place(task: BatchTask) -> str:
    """Where processes agree on what they share."""
    return f"{FOLDER}/{task.batch.job.id}/parts/{task.batch.id}"


def _begun_name(task: BatchTask) -> str:
    """The record of a model that may have something to remove."""
    return f"{_place(task)}/begun"


def _finish(task: BatchTask, target: ParallelTarget) -> None:
    """Remove what a model needed while it was made."""
    target.finish()
    _records(task).remove(_begun_name(task))


@dataclass
class _Model:
    """A model that is being made. `missing`: of its ranges, those that nobody had made when this driver began;
    `waiting`: tasks of this driver that haven't returned; `errors`: the dead letters' lines of those that failed."""

    task: BatchTask
    target: ParallelTarget
    ranges: list[FileRange]
    key: Mapping[str, str]
    missing: frozenset[FileRange] = frozenset()
    waiting: int = 0
    errors: list[ItemLine] = field(default_factory=list)


class ModelParts:
    """The models of a run that are made in ranges of about `least` bytes; None: none is."""

    def __init__(self, least: int | None) -> None:
        self.least = least
        self._models: dict[str, _Model] = {}
        self._ready: list[_Model] = []

    def _applies(self, batch: ItemBatch) -> bool:
        op, items = OPERATIONS[batch.job.op], batch.items
        large = len(items) == 1 and self.least is not None and items[0].size * op.writes > self.least
        return large and op.plan is not None

    def tasks(self, task: BatchTask, mine: Callable[[int], bool]) -> Iterator[BatchTask | PartTask]:
        """The tasks of a batch that belong to this share: those whose number is `mine`."""
        model = self._begun(task) if self._applies(task.batch) else None
        if model is None:
            if mine(0):
                yield task
            return
        parts = [r for number, r in enumerate(model.ranges) if r in model.missing and mine(number)]
        model.waiting = len(parts)
        self._models[task.batch.id] = model
        if not parts:
            self._ready.append(model)
        yield from (PartTask(task, part) for part in parts)

    def tidy(self, task: BatchTask) -> None:
        """Remove what a driver left that died after the record of a batch."""
        if self._applies(task.batch) and _records(task).read(_begun_name(task)) is not None:
            with suppress(Exception), _planned(task) as (_, target):
                _finish(task, target)

    def _begun(self, task: BatchTask) -> _Model | None:
        """The model with its target begun; None where one task makes it whole, or reports why it can't be planned."""
        try:
            check_pin(task.batch.items[0])
            with _planned(task) as (plan, target):
                ranges, key = target.ranges(self.least or 1), key_of(plan)
                if len(ranges) < 2 or any(file.layout.fixups is not None for file in plan.files):
                    return None
        except Exception:  # the task that makes the batch whole meets it again, and reports it
            return None
        model = _Model(task, target, ranges, key)
        try:
            _records(task).put(_begun_name(task), b"")
            tried(target.begin)
            model.missing = frozenset(tried(lambda: target.missing(ranges)))
        except Exception as error:
            model.errors.append(dead_line(task.batch.items[0], error))
        return model

    def returned(self, task: PartTask, errors: Iterable[ItemLine]) -> Iterator[Summary]:
        """Take note of a task that has ended, and publish the models that are complete."""
        model = self._models[task.whole.batch.id]
        model.waiting -= 1
        model.errors += errors
        if not model.waiting:
            self._ready.append(model)
        yield from self.published()

    def published(self) -> Iterator[Summary]:
        """Publish the models of which this driver has nothing left to make, where no other share has either."""
        while self._ready:
            model = self._ready.pop()
            del self._models[model.task.batch.id]
            found = self._closed(model)
            if found is not None:
                yield found

    def _closed(self, model: _Model) -> Summary | None:
        """The batch's record, or its dead letter; None where other shares aren't done."""
        task, item = model.task, model.task.batch.items[0]
        try:
            found = tried(lambda: self._publish(model))
        except Exception as error:
            model.errors.append(dead_line(item, error))
            found = None
        if record_of(task) is not None:
            _finish(task, model.target)
            return found or Summary(task.batch.id, 1, 0, item.size, 0)
        if model.errors:
            _drop_if_changed(model)
            return settle(task, model.errors[:1])
        return found

    def _publish(self, model: _Model) -> Summary | None:
        """Publish the model, then record it."""
        task, item = model.task, model.task.batch.items[0]
        if model.errors or model.target.missing(model.ranges):
            return None
        check_pin(item)
        with _planned(task) as (plan, target):
            if key_of(plan) != model.key:
                raise WeighbridgeError(
                    f"{item.source} has changed since it was listed", hint="plan again with --replan"
                )
            result = run(plan, into=target.sink(None))
        check_pin(item)
        return settle(task, [line_of(task, item, written(str(plan.target), result))])


def _drop_if_changed(model: _Model) -> None:
    """Remove what nobody can go on with: its source is another one now."""
    try:
        check_pin(model.task.batch.items[0])
    except WeighbridgeError:
        with suppress(Exception):
            model.target.abort()
            _records(model.task).remove(_begun_name(model.task))
