"""A runner in the process of the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


class InlineRunner:
    """Runs tasks one after another, in this process."""

    def map(self, function: Callable[[T], R], tasks: Iterable[T]) -> Iterator[tuple[T, R | None]]:
        yield from ((task, function(task)) for task in tasks)
