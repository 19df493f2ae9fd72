"""Divides a large model into several tasks. Each writes a range of the output into one object, or one file of
a shared file system. The driver with the last task publishes it. The target lists its finished ranges, so that another
driver can write the missing ones. The record equals that of a model written by one task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import field
from typing import NamedTuple

from weighbridge.adapters.remote.schemes import resolve_target
from weighbridge.base.errors import UsageError, WeighbridgeError
from weighbridge.base.limits import MIB
from weighbridge.base.records import dataclass
from weighbridge.containers import by_target
from weighbridge.conversion.plan.fingerprint import key_of
from weighbridge.conversion.plan.model import Plan
from weighbridge.conversion.plan.run import run, run_part
from weighbridge.fleets.job import ItemBatch
from weighbridge.fleets.manifest import FOLDER
from weighbridge.fleets.operations import OPERATIONS, check_pin, write_outcome
from weighbridge.fleets.work import (
    BatchTask,
    ItemLine,
    Summary,
    dead_line,
    outcome_line,
    record_of,
    retry,
    settle,
)
from weighbridge.io.sink import FileRange, ParallelTarget, ParallelWrite, Records, parallel_target, records_at


class PartTask(NamedTuple):
    """A range of the output of a batch with a single item."""

    whole: BatchTask
    part: FileRange


def check_task_size(size: int, to: str) -> None:
    """Raises UsageError if tasks are too small, or if the first bytes of the format depend on the last ones."""
    if size < MIB:
        raise UsageError(f"--task-size {size:,} is less than {MIB:,} bytes", hint="name a larger size, such as 4GiB")
    form = by_target(to)
    if form is not None and form.layout([], {}).fixups is not None:
        raise UsageError(f"--task-size doesn't apply to {to}, whose checksums precede the data",
                         hint="leave it out, or choose safetensors or gguf")  # fmt: skip


def make_part(task: PartTask) -> tuple[ItemLine, ...]:
    """Writes the range. Returns a dead letter's line if that failed."""
    item = task.whole.batch.items[0]

    def work() -> None:
        check_pin(task.whole.batch.job, item)
        with _plan_parts(task.whole) as (plan, target):
            if target.missing([task.part]):
                run_part(plan, target.sink(task.part))
        check_pin(task.whole.batch.job, item)

    try:
        retry(work)
    except Exception as error:  # of any kind: the other tasks continue
        return (dead_line(item, error),)
    return ()


@contextmanager
def _plan_parts(task: BatchTask) -> Iterator[tuple[Plan, ParallelTarget]]:
    """Plans a batch with a single item, with a target that several processes write to."""
    batch, item = task.batch, task.batch.items[0]
    planner = OPERATIONS[batch.job.op].plan
    if planner is None:
        raise UsageError(f"{batch.job.op} writes no output to divide")
    with closing(planner(item, batch.job.options, task.target, task.options)) as plan:
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
    """Returns the folder for records that processes share."""
    return f"{FOLDER}/{task.batch.job.id}/parts/{task.batch.id}"


def _begun_name(task: BatchTask) -> str:
    """Returns the record of a model that may have temporary files."""
    return f"{_place(task)}/begun"


def _finish(task: BatchTask, target: ParallelTarget) -> None:
    """Removes the temporary files of a model."""
    target.finish()
    _records(task).remove(_begun_name(task))


@dataclass
class _Model:
    """A model in progress. `missing`: the ranges that were unwritten when this driver began. `waiting`: unfinished
    tasks of this driver. `errors`: the dead letters' lines of failed tasks."""

    task: BatchTask
    target: ParallelTarget
    ranges: list[FileRange]
    key: Mapping[str, str]
    missing: frozenset[FileRange] = frozenset()
    waiting: int = 0
    errors: list[ItemLine] = field(default_factory=list)


class ModelParts:
    """The models of a run that are written in ranges of about `least` bytes; None disables that."""

    def __init__(self, least: int | None) -> None:
        self.least = least
        self._models: dict[str, _Model] = {}
        self._ready: list[_Model] = []

    def _applies(self, batch: ItemBatch) -> bool:
        op, items = OPERATIONS[batch.job.op], batch.items
        large = len(items) == 1 and self.least is not None and items[0].size * op.writes > self.least
        return large and op.plan is not None

    def tasks(self, task: BatchTask, mine: Callable[[int], bool]) -> Iterator[BatchTask | PartTask]:
        """Yields the tasks of a batch that belong to this share, those whose number is `mine`."""
        model = self._begin(task) if self._applies(task.batch) else None
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
        """Removes the temporary files of a driver that died after it wrote the record of a batch."""
        if self._applies(task.batch) and _records(task).read(_begun_name(task)) is not None:
            with suppress(Exception), _plan_parts(task) as (_, target):
                _finish(task, target)

    def _begin(self, task: BatchTask) -> _Model | None:
        """Begins the target of a model. Returns None if a single task writes it, or reports why it can't be planned."""
        try:
            check_pin(task.batch.job, task.batch.items[0])
            with _plan_parts(task) as (plan, target):
                ranges, key = target.ranges(self.least or 1), key_of(plan)
                if len(ranges) < 2 or any(file.layout.fixups is not None for file in plan.files):
                    return None
        except Exception:  # the single task repeats and reports it
            return None
        model = _Model(task, target, ranges, key)
        try:
            _records(task).put(_begun_name(task), b"")
            retry(target.begin)
            model.missing = frozenset(retry(lambda: target.missing(ranges)))
        except Exception as error:
            model.errors.append(dead_line(task.batch.items[0], error))
        return model

    def finish_part(self, task: PartTask, errors: Iterable[ItemLine]) -> Iterator[Summary]:
        """Notes the end of a task, and publishes complete models."""
        model = self._models[task.whole.batch.id]
        model.waiting -= 1
        model.errors += errors
        if not model.waiting:
            self._ready.append(model)
        yield from self.publish_ready()

    def publish_ready(self) -> Iterator[Summary]:
        """Publishes the models for which neither this driver nor another share has tasks left."""
        while self._ready:
            model = self._ready.pop()
            del self._models[model.task.batch.id]
            if (summary := self._close(model)) is not None:
                yield summary

    def _close(self, model: _Model) -> Summary | None:
        """Publishes a model, and writes its record or dead letter. Returns None if other shares aren't done."""
        task, item, summary = model.task, model.task.batch.items[0], None
        try:
            summary = retry(lambda: self._publish(model))
        except Exception as error:
            model.errors.append(dead_line(item, error))
        if record_of(task) is not None:
            _finish(task, model.target)
            return summary or Summary(task.batch.id, 1, 0, item.size, 0)
        if not model.errors:
            return summary
        try:
            check_pin(task.batch.job, item)
        except WeighbridgeError:  # the source changed, so nobody can continue
            with suppress(Exception):
                model.target.abort()
                _records(task).remove(_begun_name(task))
        return settle(task, model.errors[:1])

    def _publish(self, model: _Model) -> Summary | None:
        """Publishes the model, then writes its record."""
        task, item = model.task, model.task.batch.items[0]
        if model.errors or model.target.missing(model.ranges):
            return None
        check_pin(task.batch.job, item)
        with _plan_parts(task) as (plan, target):
            if key_of(plan) != model.key:
                raise WeighbridgeError(
                    f"{item.source} has changed since it was listed", hint="plan again with --replan"
                )
            result = run(plan, into=target.sink(None))
        check_pin(task.batch.job, item)
        return settle(task, [outcome_line(task, item, write_outcome(str(plan.target), result))])
