"""What some work costs, in figures that a busy machine doesn't change: calls of functions, and memory."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass


@dataclass
class Memory:
    """Bytes that Python allocated in a `with` block: the most at a time, and those still held at its end."""

    peak: int = 0
    held: int = 0


@contextmanager
def traced_memory() -> Iterator[Memory]:
    memory = Memory()
    tracemalloc.start()
    try:
        yield memory
    finally:
        memory.held, memory.peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()


def calls(work: Callable[[], object], *expected: type[Exception]) -> int:
    """How many functions of Python the work calls, whether or not it ends in an expected error."""
    count = 0

    def counted(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        with suppress(*expected):
            work()
    finally:
        sys.setprofile(before)
    return count


def lines(work: Callable[[], object]) -> int:
    """How many lines of Python the work runs: loops that call nothing count, too."""
    count = 0

    def traced(frame: object, event: str, argument: object) -> object:
        nonlocal count
        count += event == "line"
        return traced

    before = sys.gettrace()
    sys.settrace(traced)  # type: ignore[arg-type]
    try:
        work()
    finally:
        sys.settrace(before)
    return count
