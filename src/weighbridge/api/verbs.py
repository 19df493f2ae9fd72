"""Makes a verb of its plan: `convert` of `plan_convert`. Adds a bill of materials to a plan."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

from weighbridge.adapters.remote.schemes import resolve_path, resolve_target
from weighbridge.base.closeable import Closing
from weighbridge.conversion.options import NEXT_TO_TARGET
from weighbridge.io.sink import check_target

if TYPE_CHECKING:
    from weighbridge.conversion.plan.model import Plan
    from weighbridge.models.lora.weights import WeightedAdapter
    from weighbridge.reports.sbom.written import BomSource

Keywords = ParamSpec("Keywords")
Report = TypeVar("Report", covariant=True)
P = TypeVar("P", bound="Plan")


class SbomWriting(Protocol):
    """The options of a function that also writes a bill of materials."""

    @property
    def sbom(self) -> str | os.PathLike[str] | None: ...
    @property
    def jobs(self) -> int | None: ...
    @property
    def overwrite(self) -> bool: ...


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


def with_bill(
    plan: P, options: SbomWriting, models: Iterable[str | os.PathLike[str]], relation: str,
    adapters: Sequence[WeightedAdapter] = (),
) -> P:  # fmt: skip
    """Returns a plan that also writes the bill of materials `options.sbom`, if it is given. Closes the plan on an
    error. `relation`: of the result to `models`, as the Hub calls it (`base_model_relation` of a model card), or
    converted."""
    if options.sbom is None:
        return plan
    path = None if os.fspath(options.sbom) == NEXT_TO_TARGET else options.sbom
    from weighbridge.reports.sbom.written import written_bill

    try:
        sources = tuple(_sources(models, relation, adapters))
        bill = written_bill(
            path, plan.target, sources, folder=plan.folder, jobs=options.jobs, overwrite=options.overwrite
        )
    except BaseException:
        plan.close()
        raise
    return replace(plan, bill=bill)


def _sources(
    models: Iterable[str | os.PathLike[str]], relation: str, adapters: Sequence[WeightedAdapter]
) -> Iterator[BomSource]:
    """Yields the models, and their adapters, each once. A recipe spells a model with adapters MODEL+ADAPTER:WEIGHT."""
    from weighbridge.models.lora.weights import weighted_adapter
    from weighbridge.reports.sbom.written import BomSource

    seen: dict[str, BomSource] = {}
    for model in models:
        name = os.fspath(model)
        path, *others = [name] if "+" not in name or resolve_path(name).exists() else name.split("+")
        seen.setdefault(path, BomSource(path, relation))
        for adapter in map(weighted_adapter, others):
            seen.setdefault(str(adapter.path), BomSource(adapter.path, "adapter"))
    for adapter in adapters:
        seen.setdefault(str(adapter.path), BomSource(adapter.path, "adapter"))
    yield from seen.values()
