"""A verb from its plan."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import ParamSpec, Protocol

from weighbridge.adapters.remote.schemes import resolve_target
from weighbridge.base.closeable import Closing
from weighbridge.conversion.result import Progress, Result
from weighbridge.io.sink import check_target


class Runnable(Protocol):
    """A plan that can be carried out."""

    def run(self, progress: Progress | None = None) -> Result: ...


Keywords = ParamSpec("Keywords")


def planned_and_run(plan: Callable[Keywords, Runnable], doc: str) -> Callable[Keywords, Result]:
    """The verb of a `plan_<verb>`: the same arguments, planned and written at once. A target that can't be written is
    an error before the source is read."""

    parameters = signature(plan)

    @wraps(plan)
    def verb(*args: Keywords.args, **keywords: Keywords.kwargs) -> Result:
        if "dst" in parameters.parameters:
            dst, options = parameters.bind(*args, **keywords).arguments["dst"], keywords
            overwrite = any(options.get(name) for name in ("overwrite", "replace_folder"))
            parents, resume = bool(options.get("parents")), bool(options.get("resume"))
            check_target(resolve_target(dst), overwrite=overwrite, parents=parents, resume=resume)
        planned = plan(*args, **keywords)
        try:
            return planned.run()
        finally:
            if isinstance(planned, Closing):
                planned.close()

    verb.__name__ = verb.__qualname__ = plan.__name__.removeprefix("plan_")
    verb.__doc__ = doc
    return verb
