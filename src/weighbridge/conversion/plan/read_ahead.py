"""Announces what a plan's tasks will read, some way ahead of them: where a read is a round trip, it is over by the time
its task runs, and neighbours travel together."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from weighbridge.base.limits import MIB
from weighbridge.io.ranges import CACHE, CACHED, REQUEST
from weighbridge.io.source import Source
from weighbridge.tensors.nodes.base import Node, RowRange, Stored, walk

if TYPE_CHECKING:
    from weighbridge.conversion.plan.run import Task

#: Bytes, and tasks, that are announced and not yet begun.
AHEAD: Final = 24 * MIB
TASKS: Final = 512
_SEEN: Final = 64

Extent = tuple[Source, int, int]


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
        found = [extent for run in task.reads for extent in extents(*run)]
        size = sum(length for _, _, length in found)
        while waiting and (ahead + size > AHEAD or len(waiting) >= TASKS):
            ready, done = waiting.popleft()
            ahead -= done
            yield ready
        _advise(found)
        waiting.append((task, size))
        ahead += size
    yield from (task for task, _ in waiting)


def extents(node: Node, lo: int, hi: int) -> Iterator[Extent]:
    """The bytes of sources elsewhere that rows lo..hi come from: source, offset, length."""
    todo = [RowRange(node, lo, hi)]
    while todo:
        node, lo, hi = todo.pop()
        if isinstance(node, Stored):
            if node.source.remote:
                width = node.spec.row_bytes
                yield node.source, node.offset + lo * width, (hi - lo) * width
        else:
            todo += node.needs(lo, hi)


def _advise(found: Sequence[Extent]) -> None:
    by_source: dict[int, tuple[Source, list[tuple[int, int]]]] = {}
    for source, offset, length in found:
        by_source.setdefault(id(source), (source, []))[1].append((offset, length))
    for source, ranges in by_source.values():
        source.advise(ranges)
