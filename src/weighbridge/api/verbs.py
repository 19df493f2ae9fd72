"""Makes a verb of its plan: `convert` of `plan_convert`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import ParamSpec, Protocol, TypeVar

from weighbridge.adapters.remote.schemes import resolve_target
from weighbridge.base.closeable import Closing
from weighbridge.io.sink import check_target

Keywords = ParamSpec("Keywords")
Report = TypeVar("Report", covariant=True)


class Runnable(Protocol[Report]):
    """A plan."""

    def run(self) -> Report: ...


def planned_and_run(plan: Callable[Keywords, Runnable[Report]], doc: str) -> Callable[Keywords, Report]:
    """Returns a function that accepts the arguments of a `plan_<verb>`, plans and writes. A target that can't be
    written raises its error before the source is read."""
    parameters = signature(plan)

    @wraps(plan)
    def verb(*args: Keywords.args, **keywords: Keywords.kwargs) -> Report:
        if "dst" in parameters.parameters and not keywords.keys() - parameters.parameters.keys():
            given = parameters.bind(*args, **keywords).arguments
            check_target(
                resolve_target(given["dst"]),
                overwrite=bool(given.get("overwrite") or given.get("replace_folder")),
                parents=bool(given.get("parents")),
                resume=bool(given.get("resume")),
            )
        planned = plan(*args, **keywords)
        try:
            return planned.run()
        finally:
            if isinstance(planned, Closing):
                planned.close()

    verb.__name__ = verb.__qualname__ = plan.__name__.removeprefix("plan_")
    verb.__doc__ = doc
    return verb
