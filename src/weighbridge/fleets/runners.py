"""Where tasks run: in processes of this machine, or on a cluster. A runner maps a function over tasks and yields each
task with what came of it, in any order; None where the process that had it died each time.

At most a window of tasks is under way: the tasks themselves come from an iterator, so memory doesn't grow with them.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Final, Protocol, TypeVar, cast

from weighbridge.fleets.parts import ModelParts, PartTask, make_part
from weighbridge.fleets.work import BatchTask, ItemLine, Summary, dead_line, run_batch, run_item, settle

T = TypeVar("T")
R = TypeVar("R")
Results = Iterator[tuple[T, R | None]]
_AHEAD: Final = 2  # tasks that wait for each process
_DIED: Final = "the process that worked on it died (out of memory, or a fault in native code)"


class Runner(Protocol):
    """Maps a function over tasks."""

    def map(self, function: Callable[[T], R], tasks: Iterable[T]) -> Results[T, R]:
        """Each task and its result, in any order."""


class LocalRunner:
    """Processes of this machine. One that dies takes a fresh pool; the tasks that were under way then run one by one,
    so that the one at fault is known."""

    def __init__(self, processes: int | None = None) -> None:
        self.processes = processes or os.cpu_count() or 1

    def map(self, function: Callable[[T], R], tasks: Iterable[T]) -> Results[T, R]:
        rest = iter(tasks)
        while True:
            suspects: list[T] = []
            yield from self._pooled(function, rest, suspects)
            if not suspects:
                return
            for task in suspects:
                yield task, self._alone(function, task)

    def _pool(self, processes: int) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))

    def _pooled(self, function: Callable[[T], R], rest: Iterator[T], suspects: list[T]) -> Results[T, R]:
        """Until the tasks are done, or a process dies: then those under way are `suspects`."""
        pending: dict[Future[R], T] = {}
        pool = self._pool(self.processes)
        try:
            while True:
                for task in islice(rest, self.processes * (1 + _AHEAD) - len(pending)):
                    pending[pool.submit(function, task)] = task
                if not pending:
                    return
                for future in wait(pending, return_when=FIRST_COMPLETED).done:
                    task = pending[future]
                    result = future.result()
                    del pending[future]
                    yield task, result
        except BrokenProcessPool:
            suspects += pending.values()
        finally:
            pool.shutdown(cancel_futures=True)

    def _alone(self, function: Callable[[T], R], task: T) -> R | None:
        with self._pool(1) as pool:
            try:
                return pool.submit(function, task).result()
            except BrokenProcessPool:
                return None


class RayRunner:
    """Tasks of Ray Core, on the cluster at `address` ("auto": the one that this machine belongs to), on its nodes with
    `labels`."""

    def __init__(self, address: str | None = None, labels: Mapping[str, str] | None = None) -> None:
        self.address, self.labels = address, labels or {}

    def map(self, function: Callable[[T], R], tasks: Iterable[T]) -> Results[T, R]:
        from weighbridge.adapters import ray

        yield from ray.mapped(function, tasks, address=self.address, labels=self.labels)


class InlineRunner:
    """This process: for tests, and for few small items."""

    def map(self, function: Callable[[T], R], tasks: Iterable[T]) -> Results[T, R]:
        yield from ((task, function(task)) for task in tasks)


def perform(task: BatchTask | PartTask) -> Summary | tuple[ItemLine, ...]:
    """What a task is, in whatever process it runs."""
    return make_part(task) if isinstance(task, PartTask) else run_batch(task)


def run_all(runner: Runner, tasks: Iterable[BatchTask | PartTask], parts: ModelParts) -> Iterator[Summary]:
    """Run every task, write its record, and publish the models whose parts are there. Of a batch that kills its
    process, each item runs alone."""
    for task, found in runner.map(perform, tasks):
        if isinstance(task, PartTask):
            errors = (dead_line(task.whole.batch.items[0], _DIED),) if found is None else found
            yield from parts.returned(task, cast(tuple[ItemLine, ...], errors))
        else:
            yield cast(Summary, found) if found is not None else _one_by_one(runner, task)
    yield from parts.published()


def _one_by_one(runner: Runner, task: BatchTask) -> Summary:
    batch = task.batch
    singles = [task._replace(batch=type(batch)(batch.job, batch.chunk, (item,))) for item in batch.items]
    found: dict[str, ItemLine] = {}
    for single, line in runner.map(run_item, singles):
        item = single.batch.items[0]
        found[item.name] = dead_line(item, _DIED) if line is None else line
    return settle(task, [found[item.name] for item in batch.items])
