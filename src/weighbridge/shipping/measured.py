"""Reports of `wb prove --json`, as measurements for a model card."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from weighbridge.base.errors import FormatError, RefusedError, UsageError
from weighbridge.base.limits import MIB
from weighbridge.io.location import open_source
from weighbridge.reports.prove.model import SCHEMA, ProveReport


@dataclass(frozen=True, slots=True)
class MeasuredQuality:
    """What was measured of a file. `source`: the model that it was compared with. `divergence`: mean, nats;
    `agreement`: share of positions with the same token; `perplexity`: of the file and of the source."""

    source: str
    divergence: float
    agreement: float
    perplexity: tuple[float, float] | None


def measured(reports: Iterable[str | Path], files: Iterable[str]) -> dict[str, MeasuredQuality]:
    """Each file's measurements. FormatError for what is no report of `wb prove --json`; RefusedError for one that says
    that the file is another model; UsageError for one without predictions, or of another file."""
    names, found = set(files), dict[str, MeasuredQuality]()
    for path in map(Path, reports):
        report = _read(path)
        name = Path(report.dst).name
        if name not in names:
            raise UsageError(
                f"{path} is about {name}, which isn't shipped", hint=f"shipped: {', '.join(sorted(names))}"
            )
        if report.verdict == "different":
            raise RefusedError(f"{path} says that {name} is another model", hint=f"wb prove {report.src} {report.dst}")
        found[name] = _measures(path, report)
    return found


def _read(path: Path) -> ProveReport:
    with open_source(path) as source:
        if source.size > MIB:
            raise FormatError("the report is too large", path=str(path), expected=f"at most {MIB} bytes")
        data = source.read(0, source.size)
    try:
        report = msgspec.json.decode(data, type=ProveReport)
    except msgspec.DecodeError as error:
        raise FormatError("no report of wb prove --json", path=str(path), found=str(error)) from None
    if report.schema != SCHEMA:
        raise FormatError("no report of wb prove --json", path=str(path), field="schema", expected=SCHEMA,
                          found=report.schema)  # fmt: skip
    return report


def _measures(path: Path, report: ProveReport) -> MeasuredQuality:
    by_name = {check.name: check.measures for check in report.checks}
    run, text = by_name.get("predictions", {}), by_name.get("perplexity", {})
    if "divergence" not in run or "agreement" not in run:
        raise UsageError(f"{path} has no predictions", hint="leave out --static and --no-run of wb prove")
    both = (text["target"], text["source"]) if {"target", "source"} <= text.keys() else None
    return MeasuredQuality(Path(report.src).name, run["divergence"], run["agreement"], both)
