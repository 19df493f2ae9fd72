"""Announces the reads of a plan's tasks some way ahead of them, and joins those of neighbouring tasks into requests.

A remote read takes a round trip, which is over by the time its task runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from weighbridge.tensors.nodes.base import Node, RowRange, Stored, walk
from weighbridge.tensors.prefetch import SourceRange, by_source, source_ranges

if TYPE_CHECKING:
    from weighbridge.io.sink.journal import Piece

#: The most tasks that are announced and not yet started.
TASKS: Final = 512
_EXAMINED: Final = 64  # nodes


class Task(NamedTuple):
    """An independent piece of work: writes its pieces, and returns their crc32 if the file needs it."""

    pieces: tuple[Piece, ...]
    work: Callable[[], int]
    reads: tuple[RowRange, ...] = ()


def reads_remote(nodes: Iterable[Node]) -> bool:
    """Whether nodes read remote files, judging by the first of them."""
    return any(
        isinstance(below, Stored) and below.source.remote for node in islice(nodes, _EXAMINED) for below in walk(node)
    )


def room(memory: int) -> int:
    """The bytes to read ahead within a budget of `memory` bytes: a quarter of it."""
    from weighbridge.io.ranges import CACHE  # late: only plans that read remote files need threads

    return min(CACHE, memory // 4)


def announced(tasks: Iterator[Task], nodes: Iterable[Node], memory: int, running: int) -> Iterator[Task]:
    """Yields the tasks in order, after announcing the reads of later ones; local reads aren't announced.

    Reading ahead takes at most a quarter of `memory` bytes. `running`: the most tasks that are taken and unfinished.
    """
    if not reads_remote(nodes):
        yield from tasks
        return
    from weighbridge.io.ranges import CACHED, REQUEST

    CACHED.restrict(room(memory))
    most = room(memory) * 7 // 8  # bytes announced and not yet read
    taken: deque[int] = deque(maxlen=running)
    waiting: deque[tuple[Task, int]] = deque()
    pending: list[SourceRange] = []
    ahead, gathered, silent = 0, 0, 0  # bytes of all waiting tasks; bytes and number of those not yet announced

    def announce() -> None:
        """Announces the pending reads."""
        nonlocal gathered, silent
        for source, extents in by_source(pending):
            source.advise(extents)
        pending.clear()
        gathered = silent = 0

    for task in tasks:
        extents = [e for run in task.reads for e in source_ranges(*run) if e.source.remote]
        size = sum(extent.length for extent in extents)
        while waiting and (sum(taken) + ahead + size > most or len(waiting) >= TASKS):
            if len(waiting) <= silent:
                announce()
            ready, length = waiting.popleft()
            ahead -= length
            taken.append(length)
            yield ready
        pending += extents
        waiting.append((task, size))
        ahead, gathered, silent = ahead + size, gathered + size, silent + 1
        if gathered >= min(REQUEST, most // 4):
            announce()
    announce()
    yield from (task for task, _ in waiting)
