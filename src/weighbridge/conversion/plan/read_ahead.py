"""Announces what a plan's tasks will read, some way ahead of them: where a read is a round trip, it is over by the time
its task runs, and neighbours travel together."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from weighbridge.base.limits import MIB
from weighbridge.io.ranges import CACHE, CACHED, REQUEST
from weighbridge.tensors.nodes.base import Node, Stored, walk
from weighbridge.tensors.prefetch import by_source, source_ranges

if TYPE_CHECKING:
    from weighbridge.conversion.plan.run import Task

#: Bytes, and tasks, that are announced and not yet begun.
AHEAD: Final = 24 * MIB
TASKS: Final = 512
_SEEN: Final = 64


def announced(tasks: Iterator[Task], nodes: Iterable[Node], memory: int) -> Iterator[Task]:
    """The tasks in their order, their reads announced; as they are where nothing lies elsewhere, by the first nodes.
    What is read ahead takes at most a quarter of `memory` bytes."""
    if not any(_is_remote(node) for node in islice(nodes, _SEEN)):
        return tasks
    CACHED.limit = max(min(CACHE, memory // 4), 2 * REQUEST)
    return _announced(tasks)


def _is_remote(node: Node) -> bool:
    return any(isinstance(below, Stored) and below.source.remote for below in walk(node))


def _announced(tasks: Iterator[Task]) -> Iterator[Task]:
    waiting: deque[tuple[Task, int]] = deque()
    ahead = 0
    for task in tasks:
        found = [e for run in task.reads for e in source_ranges(*run) if e.source.remote]
        size = sum(extent.length for extent in found)
        while waiting and (ahead + size > AHEAD or len(waiting) >= TASKS):
            ready, done = waiting.popleft()
            ahead -= done
            yield ready
        for source, ranges in by_source(found):
            source.advise(ranges)
        waiting.append((task, size))
        ahead += size
    yield from (task for task, _ in waiting)
