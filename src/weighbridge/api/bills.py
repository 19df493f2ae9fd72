"""Adds a bill of materials to a plan: which models are the sources, and how the result relates to them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.api.keywords import ConvertKeywords, MergeKeywords, QuantizeKeywords
from weighbridge.conversion.plan.model import Plan

if TYPE_CHECKING:
    from weighbridge.models.lora.weights import WeightedAdapter
    from weighbridge.reports.sbom.written import BomSource

P = TypeVar("P", bound=Plan)
Path = str | os.PathLike[str]

# As the Hub calls them (`base_model_relation` of a model card), except for a conversion.
CONVERTED, QUANTIZED, MERGED, ADAPTER = "converted", "quantized", "merge", "adapter"


def with_bill(
    plan: P, options: ConvertKeywords | QuantizeKeywords | MergeKeywords, models: Iterable[Path], relation: str,
    adapters: Sequence[WeightedAdapter] = (),
) -> P:  # fmt: skip
    """Returns a plan that also writes the bill of materials that `options` ask for. Closes the plan on an error."""
    if options.sbom is None:
        return plan
    from weighbridge.reports.sbom.written import written_bill

    try:
        sources = tuple(_sources(models, relation, adapters))
        bill = written_bill(
            options.sbom, plan.target, sources, folder=plan.folder, jobs=options.jobs, overwrite=options.overwrite
        )
    except BaseException:
        plan.close()
        raise
    return replace(plan, bill=bill)


def _sources(models: Iterable[Path], relation: str, adapters: Sequence[WeightedAdapter]) -> Iterator[BomSource]:
    """Yields the models, and their adapters, each once. A recipe spells a model with adapters MODEL+ADAPTER:WEIGHT."""
    from weighbridge.models.lora.weights import weighted_adapter
    from weighbridge.reports.sbom.written import BomSource

    seen: dict[str, BomSource] = {}
    for model in models:
        name = os.fspath(model)
        path, *others = [name] if "+" not in name or resolve_path(name).exists() else name.split("+")
        seen.setdefault(path, BomSource(path, relation))
        for adapter in map(weighted_adapter, others):
            seen.setdefault(str(adapter.path), BomSource(adapter.path, ADAPTER))
    for adapter in adapters:
        seen.setdefault(str(adapter.path), BomSource(adapter.path, ADAPTER))
    yield from seen.values()
