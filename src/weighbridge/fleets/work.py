"""One task: processes the items of a batch in order, and writes their record. It runs in any process that can access
the sources and the target, and returns a small summary."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from msgspec.structs import asdict

from weighbridge.adapters.remote.schemes import resolve_target
from weighbridge.base.errors import RemoteError
from weighbridge.fleets.job import Item, ItemBatch, canonical
from weighbridge.fleets.manifest import FOLDER
from weighbridge.fleets.operations import OPERATIONS, Outcome, RunOptions, check_pin
from weighbridge.io.sink import records_at

T = TypeVar("T")
#: Tries of an item with a transient error.
TRIES: Final = 3
_TRANSIENT: Final = (OSError, RemoteError, MemoryError)


class BatchTask(NamedTuple):
    """A batch, its target, its number of threads, and whether it replaces outputs of other jobs."""

    batch: ItemBatch
    target: str
    jobs: int
    overwrite: bool = False

    @property
    def options(self) -> RunOptions:
        return RunOptions(self.jobs, self.overwrite)


class Summary(NamedTuple):
    """The result of a task for the driver, whose size doesn't depend on the models."""

    batch: str
    items: int
    failed: int
    bytes: int
    written: int


class ItemLine(NamedTuple):
    """The result of an item: its line of the record, whether it failed, and the bytes written."""

    data: bytes
    failed: bool
    written: int


def run_batch(task: BatchTask) -> Summary:
    """Processes every item, then writes the record."""
    return settle(task, [item_line(task, item) for item in task.batch.items])


def run_item(task: BatchTask) -> ItemLine:
    """Processes a batch of one item, which may kill its process, without writing a record."""
    return item_line(task, task.batch.items[0])


def item_line(task: BatchTask, item: Item) -> ItemLine:
    """Processes an item. Returns the line of its outcome or its error."""
    try:
        return outcome_line(task, item, retry(lambda: _process(task, item)))
    except Exception as error:  # of any kind: the other items continue
        return dead_line(item, error)


def outcome_line(task: BatchTask, item: Item, outcome: Outcome) -> ItemLine:
    row = {"source": item.source, "name": item.name, "bytes": item.size, "op": task.batch.job.op, **asdict(outcome)}
    return ItemLine(canonical(row) + b"\n", False, outcome.written)


def retry(work: Callable[[], T]) -> T:
    """Repeats work after transient errors."""
    for _ in range(TRIES - 1):
        try:
            return work()
        except _TRANSIENT:
            continue
    return work()


def _process(task: BatchTask, item: Item) -> Outcome:
    """Returns the outcome. Raises WeighbridgeError if the source changed since it was listed; operations that write
    check this before they start, too."""
    op = OPERATIONS[task.batch.job.op]
    if op.plan is not None:
        check_pin(task.batch.job, item)
    outcome = op.run(item, task.batch.job.options, task.target, task.options)
    check_pin(task.batch.job, item)
    return outcome


def dead_line(item: Item, error: BaseException | str) -> ItemLine:
    """Returns the line of a failed item: the error, with its traceback."""
    text = error if isinstance(error, str) else f"{type(error).__name__}: {getattr(error, 'message', error)}"
    trace = "" if isinstance(error, str) else "".join(traceback.format_exception(error))
    row = {"source": item.source, "name": item.name, "bytes": item.size, "error": text, "traceback": trace}
    return ItemLine(canonical(row) + b"\n", True, 0)


def record_of(task: BatchTask) -> bytes | None:
    """Returns the record of a finished batch, else None."""
    return records_at(resolve_target(task.target)).read(f"{FOLDER}/{task.batch.job.id}/journal/{task.batch.record}")


def settle(task: BatchTask, lines: Sequence[ItemLine]) -> Summary:
    """Writes a batch's record: to the journal if all items succeeded, else to the dead letters."""
    batch, failed = task.batch, sum(line.failed for line in lines)
    records = records_at(resolve_target(task.target))
    name = f"{FOLDER}/{batch.job.id}/{'dead' if failed else 'journal'}/{batch.record}"
    (records.put if failed else records.add)(name, b"".join(line.data for line in lines))
    return Summary(batch.id, len(lines), failed, batch.size, sum(line.written for line in lines))
