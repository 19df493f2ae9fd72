"""One task: the items of a batch, one after the other, and their record. It runs in any process on any machine that
reaches the sources and the target; what it returns is small."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from msgspec.structs import asdict

from weighbridge.adapters.remote.schemes import resolve_target
from weighbridge.base.errors import RemoteError, WeighbridgeError
from weighbridge.fleets.job import Item, ItemBatch, canonical
from weighbridge.fleets.manifest import FOLDER
from weighbridge.fleets.operations import OPERATIONS, How, Outcome
from weighbridge.fleets.sources import state_of
from weighbridge.io.sink import records_at

T = TypeVar("T")
#: Tries of an item whose error may pass.
TRIES: Final = 3
_PASSING: Final = (OSError, RemoteError, MemoryError)


class BatchTask(NamedTuple):
    """A batch, where its record goes, how many threads it may use, and whether it may replace others' outputs."""

    batch: ItemBatch
    target: str
    jobs: int
    overwrite: bool = False

    @property
    def how(self) -> How:
        return How(self.jobs, self.overwrite)


class Summary(NamedTuple):
    """What a task says to the driver: no bytes of models, nothing that grows with a file."""

    batch: str
    items: int
    failed: int
    bytes: int
    written: int


class ItemLine(NamedTuple):
    """What became of an item: its line of the record, whether it failed, and the bytes that it wrote."""

    data: bytes
    failed: bool
    written: int


def run_batch(task: BatchTask) -> Summary:
    """Do the work of every item, then write the record."""
    return settle(task, [item_line(task, item) for item in task.batch.items])


def run_item(task: BatchTask) -> ItemLine:
    """The line of a batch of one item, without a record: for an item that may kill its process."""
    return item_line(task, task.batch.items[0])


def item_line(task: BatchTask, item: Item) -> ItemLine:
    """What became of an item. An error is one, too."""
    try:
        return line_of(task, item, tried(lambda: _done(task, item)))
    except Exception as error:  # whatever it is, the other items go on
        return dead_line(item, error)


def line_of(task: BatchTask, item: Item, found: Outcome) -> ItemLine:
    """The line of an item's outcome."""
    row = {"source": item.source, "name": item.name, "bytes": item.size, "op": task.batch.job.op, **asdict(found)}
    return ItemLine(canonical(row) + b"\n", False, found.written)


def tried(work: Callable[[], T]) -> T:
    """Do what may fail for reasons that pass."""
    for _ in range(TRIES - 1):
        try:
            return work()
        except _PASSING:
            continue
    return work()


def _done(task: BatchTask, item: Item) -> Outcome:
    """The outcome; an error where the source isn't the one that was listed, which must be known before it is written
    to a target."""
    job = task.batch.job
    op = OPERATIONS[job.op]
    if op.plan is not None:
        check_pin(item)
    found = op.run(item, job.options, task.target, task.how)
    check_pin(item)
    return found


def check_pin(item: Item) -> None:
    """WeighbridgeError where the source isn't the one that was listed."""
    if item.passed is None and (found := state_of(item.source)[1]) != item.pin:
        words = f"{item.source} has changed since it was listed"
        raise WeighbridgeError(words, hint=f"plan again with --replan ({item.pin}, now {found})")


def dead_line(item: Item, error: BaseException | str) -> ItemLine:
    """The line of an item that failed: the error, and its traceback."""
    text = error if isinstance(error, str) else f"{type(error).__name__}: {getattr(error, 'message', error)}"
    trace = "" if isinstance(error, str) else "".join(traceback.format_exception(error))
    row = {"source": item.source, "name": item.name, "bytes": item.size, "error": text, "traceback": trace}
    return ItemLine(canonical(row) + b"\n", True, 0)


def record_of(task: BatchTask) -> bytes | None:
    """The record of a batch that is finished; None where there is none."""
    return records_at(resolve_target(task.target)).read(f"{FOLDER}/{task.batch.job.id}/journal/{task.batch.record}")


def settle(task: BatchTask, lines: Sequence[ItemLine]) -> Summary:
    """Write a batch's record: once to the journal where all went well, else to the dead letters."""
    batch, failed = task.batch, sum(line.failed for line in lines)
    records = records_at(resolve_target(task.target))
    name = f"{FOLDER}/{batch.job.id}/{'dead' if failed else 'journal'}/{batch.record}"
    (records.put if failed else records.add)(name, b"".join(line.data for line in lines))
    return Summary(batch.id, len(lines), failed, batch.size, sum(line.written for line in lines))
