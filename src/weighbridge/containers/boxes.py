"""Covers a tensor with the boxes that several processes stored of it: which part of which box goes where.

    tile((4, 6), [Box((0, 0), (4, 3)), Box((0, 3), (4, 3))])    Join(axis 1, (BoxPart(0 ...), BoxPart(1 ...)))

Any layout is covered: rows, columns, blocks in several dimensions, boxes of different sizes, copies. If boxes overlap,
the first one counts. A place that no box covers is a `Hole`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from weighbridge.base.errors import UnsupportedError
from weighbridge.base.spec import Shape


class Box(NamedTuple):
    """The elements of a tensor from `starts` on, `shape` in each dimension."""

    starts: tuple[int, ...]
    shape: Shape

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    def end(self, axis: int) -> int:
        return self.starts[axis] + self.shape[axis]

    def common(self, other: Box) -> Box:
        """The region of both; without elements if there is none."""
        starts = tuple(map(max, self.starts, other.starts))
        ends = (min(self.end(axis), other.end(axis)) for axis in range(len(starts)))
        return Box(starts, tuple(max(end - start, 0) for start, end in zip(starts, ends, strict=True)))


class BoxPart(NamedTuple):
    """A part of box number `number`: the elements from `starts` on, counted from the box's first one."""

    number: int
    starts: tuple[int, ...]
    shape: Shape


class Join(NamedTuple):
    """Parts next to each other along `axis`."""

    axis: int
    parts: tuple[Tile, ...]


class Hole(Exception):
    """No box covers a region."""

    def __init__(self, region: Box) -> None:
        super().__init__(f"{list(region.shape)} elements from {list(region.starts)} on")


Tile: TypeAlias = BoxPart | Join


def tile(shape: Shape, boxes: Sequence[Box]) -> Tile:
    """The tensor of `shape`, which has elements, as parts of `boxes`, which are inside it. Raises Hole if they don't
    cover it, UnsupportedError if they cut each other into far more pieces than there are boxes."""
    numbers = [number for number, box in enumerate(boxes) if box.elements]
    return _Tiler(boxes, 64 * len(numbers) + 4096).cover(Box((0,) * len(shape), shape), 0, numbers)


def overlap(shape: Shape, boxes: Sequence[Box]) -> int:
    """The elements that boxes store more than once, if they cover a tensor of `shape`."""
    return sum(box.elements for box in boxes) - math.prod(shape)


class _Tiler:
    def __init__(self, boxes: Sequence[Box], budget: int) -> None:
        self.boxes, self.budget = boxes, budget

    def cover(self, region: Box, axis: int, numbers: Sequence[int]) -> Tile:
        """Covers a region by the boxes `numbers`, all of which cover it along the axes before `axis`."""
        self.budget -= 1
        if self.budget < 0:
            raise UnsupportedError("the parts of a tensor cut each other into too many pieces")
        for number in numbers[:1] if axis < len(region.shape) else numbers:
            if self._covers(number, region, axis):
                starts = tuple(a - b for a, b in zip(region.starts, self.boxes[number].starts, strict=True))
                return BoxPart(number, starts, region.shape)
        if axis == len(region.shape):
            raise Hole(region)
        return self._cut(region, axis, numbers)

    def _covers(self, number: int, region: Box, axis: int) -> bool:
        box = self.boxes[number]
        axes = range(axis, len(region.shape))
        return all(box.starts[a] <= region.starts[a] and region.end(a) <= box.end(a) for a in axes)

    def _cut(self, region: Box, axis: int, numbers: Sequence[int]) -> Tile:
        """Cuts a region along `axis` at every edge of a box. Boxes are taken up and dropped in the order of their
        edges, so that many of them cost no more than sorting."""
        low, high = region.starts[axis], region.end(axis)
        spans = [(max(self.boxes[n].starts[axis], low), min(self.boxes[n].end(axis), high), n) for n in numbers]
        waiting = sorted((span for span in spans if span[0] < span[1]), reverse=True)
        edges = sorted({low, high, *(edge for span in waiting for edge in span[:2])})
        active: list[tuple[int, int, int]] = []
        parts: list[Tile] = []
        for a, b in pairwise(edges):
            active = [span for span in active if span[1] > a]
            while waiting and waiting[-1][0] <= a:
                active.append(waiting.pop())
            self.budget -= len(active) // 8
            slab = Box(_replaced(region.starts, axis, a), _replaced(region.shape, axis, b - a))
            parts.append(self.cover(slab, axis + 1, sorted(n for *_, n in active)))
        return parts[0] if len(parts) == 1 else Join(axis, tuple(parts))


def _replaced(values: tuple[int, ...], axis: int, value: int) -> tuple[int, ...]:
    return (*values[:axis], value, *values[axis + 1 :])
