"""Runs tasks in processes of this machine, or on a cluster. A runner maps a function over tasks, and yields each task
with its result in any order; None if the process died each time.

Tasks come from an iterator and only a window of them is in progress, so memory doesn't grow with their number.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from multiprocessing.connection import Connection
from types import FrameType
from typing import Final, Protocol, TypeVar, cast

from weighbridge.fleets.parts import ModelParts, PartTask, make_part
from weighbridge.fleets.work import BatchTask, ItemLine, Summary, dead_line, run_batch, run_item, settle
from weighbridge.io.options import cores

T = TypeVar("T")
R = TypeVar("R")
Results = Iterator[tuple[T, R | None]]
_AHEAD: Final = 2  # queued tasks per process
_DIED: Final = "its process died (out of memory, or a crash in native code)"


class Runner(Protocol):
    """Maps a function over tasks."""

    def map(self, function: Callable[[T], R], tasks: Iterable[T]) -> Results[T, R]:
        """Yields each task and its result, in any order."""


class LocalRunner:
    """Processes of this machine. After one dies, the tasks in progress run one by one, which reveals the task at fault,
    and a new pool continues."""

    def __init__(self, processes: int | None = None) -> None:
        self.processes = processes or cores()

    def map(self, function: Callable[[T], R], tasks: Iterable[T]) -> Results[T, R]:
        rest = iter(tasks)
        while True:
            suspects: list[T] = []
            yield from self._map_pooled(function, rest, suspects)
            if not suspects:
                return
            for task in suspects:
                result = None
                with suppress(BrokenProcessPool), _processes(1) as submit:
                    result = submit(function, task).result()
                yield task, result

    def _map_pooled(self, function: Callable[[T], R], rest: Iterator[T], suspects: list[T]) -> Results[T, R]:
        """Yields results until all tasks are done, or a process dies; tasks in progress then are `suspects`."""
        pending: dict[Future[R], T] = {}
        try:
            with _processes(self.processes) as submit:
                while True:
                    for task in islice(rest, self.processes * (1 + _AHEAD) - len(pending)):
                        pending[submit(function, task)] = task
                    if not pending:
                        return
                    for future in wait(pending, return_when=FIRST_COMPLETED).done:
                        task = pending[future]
                        result = future.result()
                        del pending[future]
                        yield task, result
        except BrokenProcessPool:
            suspects += pending.values()


@contextmanager
def _processes(count: int) -> Iterator[Callable[[Callable[[T], R], T], Future[R]]]:
    """Yields a function that runs a task in one of `count` processes. If the block raises, or this process dies, they
    end: their tasks unwind, so that no partial file remains."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(count, context, _end_with, (receiver,))
    try:
        yield lambda function, task: pool.submit(_run_or_end, function, task)
    except BaseException:
        sender.close()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        sender.close()
        receiver.close()


_ENDED: Final = 128 + signal.SIGTERM
_ending: Final = threading.Event()  # in a process of the pool


def _end_with(parent: Connection) -> None:
    """Starts a process that ends when the sender of `parent` is closed. Ctrl-C, which a terminal sends to all
    processes, is handled by the parent."""

    def unwind(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)
        _ending.set()
        raise SystemExit(_ENDED)

    def watch() -> None:
        parent.poll(None)
        os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, unwind)
    threading.Thread(target=watch, daemon=True).start()


def _run_or_end(function: Callable[[T], R], task: T) -> R:
    """Runs a task. If the process is to end, it exits as soon as the task has unwound."""
    try:
        return function(task)
    finally:
        if _ending.is_set():
            os._exit(_ENDED)


class RayRunner:
    """Tasks of Ray Core, on the nodes with `labels` of the cluster at `address` ("auto": this machine's cluster)."""

    def __init__(self, address: str | None = None, labels: Mapping[str, str] | None = None) -> None:
        self.address, self.labels = address, labels or {}

    def map(self, function: Callable[[T], R], tasks: Iterable[T]) -> Results[T, R]:
        from weighbridge.adapters import ray

        yield from ray.mapped(function, tasks, address=self.address, labels=self.labels)


def perform(task: BatchTask | PartTask) -> Summary | tuple[ItemLine, ...]:
    """Performs a task in its process."""
    return make_part(task) if isinstance(task, PartTask) else run_batch(task)


def run_all(runner: Runner, tasks: Iterable[BatchTask | PartTask], parts: ModelParts) -> Generator[Summary, None, None]:
    """Runs every task, writes its record, and publishes complete models. If a batch kills its process, each item runs
    separately."""
    for task, result in runner.map(perform, tasks):
        if isinstance(task, PartTask):
            errors = (dead_line(task.whole.batch.items[0], _DIED),) if result is None else result
            yield from parts.finish_part(task, cast(tuple[ItemLine, ...], errors))
        else:
            yield cast(Summary, result) if result is not None else _run_separately(runner, task)
    yield from parts.publish_ready()


def _run_separately(runner: Runner, task: BatchTask) -> Summary:
    batch = task.batch
    singles = [task._replace(batch=replace(batch, items=(item,))) for item in batch.items]
    lines: dict[str, ItemLine] = {}
    for single, line in runner.map(run_item, singles):
        item = single.batch.items[0]
        lines[item.name] = dead_line(item, _DIED) if line is None else line
    return settle(task, [lines[item.name] for item in batch.items])
