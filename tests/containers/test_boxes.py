"""Boxes cover a tensor: what `tile` joins is the tensor, whatever the boxes; a place that none covers is a hole."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from weighbridge.base.errors import UnsupportedError
from weighbridge.containers.boxes import Box, BoxPart, Hole, Join, Tile, overlap, tile


def within(array: np.ndarray, box: Box) -> np.ndarray:
    place: Any = (*(slice(a, a + n) for a, n in zip(box.starts, box.shape, strict=True)), ...)
    return array[place]


def joined(part: Tile, chunks: list[np.ndarray]) -> np.ndarray:
    if isinstance(part, BoxPart):
        return within(chunks[part.number], Box(part.starts, part.shape))
    return np.concatenate([joined(inner, chunks) for inner in part.parts], part.axis)


def test_any_boxes_that_cover_a_tensor_join_to_it() -> None:
    rng = random.Random(1)
    covered = sum(check_some_boxes(rng) for _ in range(500))
    assert 100 < covered < 400


def check_some_boxes(rng: random.Random) -> bool:
    """Whether they cover their tensor."""
    shape = tuple(rng.randrange(1, 6) for _ in range(rng.randrange(4)))
    whole = np.arange(int(np.prod(shape))).reshape(shape)
    starts = [tuple(rng.randrange(n) for n in shape) for _ in range(rng.randrange(1, 8))]
    boxes = [Box(s, tuple(rng.randrange(n - a + 1) for a, n in zip(s, shape, strict=True))) for s in starts]
    boxes += [Box((0,) * len(shape), shape)] if rng.random() < 0.3 else []
    times = np.zeros(shape, int)
    for box in boxes:
        within(times, box)[...] += 1
    if not times.all():
        with pytest.raises(Hole):
            tile(shape, boxes)
        return False
    assert np.array_equal(joined(tile(shape, boxes), [within(whole, box) for box in boxes]), whole)
    assert overlap(shape, boxes) == (times - 1).sum()
    return True


def test_the_first_of_two_copies_counts() -> None:
    assert tile((2, 2), [Box((0, 0), (2, 2)), Box((0, 0), (2, 2))]) == BoxPart(0, (0, 0), (2, 2))
    part = tile((3,), [Box((1,), (2,)), Box((0,), (2,))])
    assert part == Join(0, (BoxPart(1, (0,), (1,)), BoxPart(0, (0,), (1,)), BoxPart(0, (1,), (1,))))


def test_a_hole_is_named() -> None:
    with pytest.raises(Hole, match=r"\[2, 1\] elements from \[1, 3\] on"):
        tile((3, 4), [Box((0, 0), (1, 4)), Box((1, 0), (2, 3))])


@pytest.mark.costly
def test_many_boxes_take_no_longer_than_sorting() -> None:
    part = tile((50_000, 8), [Box((n, 0), (1, 8)) for n in range(50_000)])
    assert isinstance(part, Join)
    assert len(part.parts) == 50_000


def test_boxes_that_cut_each_other_into_dust_are_refused() -> None:
    size = 600  # a staircase of corners: each has edges of its own in both directions
    boxes = [Box((n, n), (size - n, size - n)) for n in range(size)]
    with pytest.raises(UnsupportedError, match="too many pieces"):
        tile((size, size), boxes[::-1])
    assert tile((size, size), boxes) == BoxPart(0, (0, 0), (size, size))
