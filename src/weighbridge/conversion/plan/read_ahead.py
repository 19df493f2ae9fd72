"""Announces what a plan's tasks will read, some way ahead of them: where a read is a round trip, it is over by the time
its task runs, and neighbours travel together."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from weighbridge.io import ranges
from weighbridge.io.ranges import CACHE, REQUEST
from weighbridge.tensors.nodes.base import Node, Stored, walk
from weighbridge.tensors.prefetch import SourceRange, by_source, source_ranges

if TYPE_CHECKING:
    from weighbridge.conversion.plan.run import Task

#: Tasks that are announced and not yet begun, at most.
TASKS: Final = 512
_SEEN: Final = 64


def reads_elsewhere(nodes: Iterable[Node]) -> bool:
    """Whether nodes are made of files elsewhere, by the first of them."""
    return any(
        isinstance(below, Stored) and below.source.remote for node in islice(nodes, _SEEN) for below in walk(node)
    )


def room(memory: int) -> int:
    """Bytes that are read ahead, of a budget of `memory`: a quarter."""
    return min(CACHE, memory // 4)


def announced(tasks: Iterator[Task], nodes: Iterable[Node], memory: int, begun: int) -> Iterator[Task]:
    """The tasks in their order, their reads announced; as they are where nothing lies elsewhere. What is read ahead
    takes at most a quarter of `memory` bytes. `begun`: the tasks that are taken and not yet finished, at most."""
    if not reads_elsewhere(nodes):
        return tasks
    ranges.CACHED.restrict(room(memory))
    return _announced(tasks, room(memory) * 7 // 8, begun)


def _announced(tasks: Iterator[Task], most: int, begun: int) -> Iterator[Task]:
    """`most`: bytes that are announced and not yet read. Announcements wait until they make a request, so that the
    reads of neighbouring tasks travel together."""
    taken: deque[int] = deque(maxlen=begun)
    waiting: deque[tuple[Task, int]] = deque()
    pending: list[SourceRange] = []
    ahead, gathered, silent = 0, 0, 0  # bytes of all that wait, and of those not announced; how many these are
    for task in tasks:
        found = [e for run in task.reads for e in source_ranges(*run) if e.source.remote]
        size = sum(extent.length for extent in found)
        while waiting and (sum(taken) + ahead + size > most or len(waiting) >= TASKS):
            if len(waiting) <= silent:
                gathered = silent = _advise(pending)
            ready, done = waiting.popleft()
            ahead -= done
            taken.append(done)
            yield ready
        pending += found
        waiting.append((task, size))
        ahead, gathered, silent = ahead + size, gathered + size, silent + 1
        if gathered >= min(REQUEST, most // 4):
            gathered = silent = _advise(pending)
    _advise(pending)
    yield from (task for task, _ in waiting)


def _advise(pending: list[SourceRange]) -> int:
    """Announce what is pending, and forget it. Returns what is left: nothing."""
    for source, extents in by_source(pending):
        source.advise(extents)
    pending.clear()
    return 0
