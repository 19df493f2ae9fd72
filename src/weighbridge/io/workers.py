"""Thread pools that end soon: if the block that uses one fails, its threads stop waiting for servers.

Without this, Ctrl-C in the main thread would wait for a worker that waits for a server, which may take minutes. In a
browser, where Python can't start threads, a task runs when it is submitted.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from types import TracebackType
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
_current: Final = threading.local()


class _Abandonment:
    """Whether the results of a pool's threads are still wanted; a pool inside another one's thread ends with it."""

    def __init__(self) -> None:
        self._set = threading.Event()
        self._outer: _Abandonment | None = getattr(_current, "abandonment", None)

    def set(self) -> None:
        self._set.set()

    def is_set(self) -> bool:
        return self._set.is_set() or (self._outer is not None and self._outer.is_set())


def is_abandoned() -> bool:
    """Whether this thread belongs to a pool whose results nobody wants any more."""
    abandonment: _Abandonment | None = getattr(_current, "abandonment", None)
    return abandonment is not None and abandonment.is_set()


def run_now(_: Executor, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
    """`Executor.submit` without threads."""
    future: Future[R] = Future()
    try:
        future.set_result(fn(*args, **kwargs))
    except BaseException as error:
        future.set_exception(error)
    return future


class Workers(ThreadPoolExecutor):
    """A pool of threads. If its block raises, it starts no further task, and the waits of running ones end."""

    def __init__(self, count: int, name: str) -> None:
        self._abandonment = _Abandonment()
        super().__init__(count, f"weighbridge-{name}", setattr, (_current, "abandonment", self._abandonment))

    if sys.platform == "emscripten":
        submit = run_now

    def abandon(self) -> None:
        """Ends soon: returns when the threads have."""
        self._abandonment.set()
        self.shutdown(cancel_futures=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.shutdown()
        else:
            self.abandon()
