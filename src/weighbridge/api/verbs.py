"""A verb from its plan."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, Protocol

from weighbridge.base.closeable import Closing
from weighbridge.conversion.result import Progress, Result


class Runnable(Protocol):
    """A plan that can be carried out."""

    def run(self, progress: Progress | None = None) -> Result: ...


Keywords = ParamSpec("Keywords")


def planned_and_run(plan: Callable[Keywords, Runnable], doc: str) -> Callable[Keywords, Result]:
    """The verb of a `plan_<verb>`: the same arguments, planned and written at once."""

    @wraps(plan)
    def verb(*args: Keywords.args, **keywords: Keywords.kwargs) -> Result:
        planned = plan(*args, **keywords)
        try:
            return planned.run()
        finally:
            if isinstance(planned, Closing):
                planned.close()

    verb.__name__ = verb.__qualname__ = plan.__name__.removeprefix("plan_")
    verb.__doc__ = doc
    return verb
