"""Reports of `wb prove --json`, as measurements for a model card."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from weighbridge.base.errors import FormatError, RefusedError, UsageError
from weighbridge.base.limits import MIB
from weighbridge.base.records import dataclass
from weighbridge.io.location import open_source
from weighbridge.reports.prove.model import SCHEMA, ProveReport


@dataclass(frozen=True, slots=True)
class MeasuredQuality:
    """The measurements of a file. `source`: the model that it was compared with. `divergence`: mean, in nats.
    `agreement`: share of positions with the same token. `perplexity`: of the file and of the source."""

    source: str
    divergence: float
    agreement: float
    perplexity: tuple[float, float] | None


def measured_quality(reports: Iterable[str | Path], files: Iterable[str]) -> dict[str, MeasuredQuality]:
    """Returns each file's measurements. Raises FormatError for anything except a report of `wb prove --json`,
    RefusedError if the file is a different model, and UsageError for a report without predictions or on other files."""
    names, measurements = set(files), dict[str, MeasuredQuality]()
    for path in map(Path, reports):
        report = _read_report(path)
        name = Path(report.dst).name
        if name not in names:
            raise UsageError(
                f"{path} is about {name}, which isn't shipped", hint=f"shipped: {', '.join(sorted(names))}"
            )
        if report.verdict == "different":
            raise RefusedError(
                f"according to {path}, {name} is another model", hint=f"wb prove {report.src} {report.dst}"
            )
        by_name = {check.name: check.measures for check in report.checks}
        run, text = by_name.get("predictions", {}), by_name.get("perplexity", {})
        if "divergence" not in run or "agreement" not in run:
            raise UsageError(f"{path} has no predictions", hint="leave out --static and --no-run of wb prove")
        perplexity = (text["target"], text["source"]) if {"target", "source"} <= text.keys() else None
        source = Path(report.src).name
        measurements[name] = MeasuredQuality(source, run["divergence"], run["agreement"], perplexity)
    return measurements


def _read_report(path: Path) -> ProveReport:
    with open_source(path) as source:
        if source.size > MIB:
            raise FormatError("the report is too large", path=str(path), expected=f"at most {MIB} bytes")
        data = source.read(0, source.size)
    try:
        report = msgspec.json.decode(data, type=ProveReport)
    except msgspec.DecodeError as error:
        raise FormatError("not a report of wb prove --json", path=str(path), found=str(error)) from None
    if report.schema != SCHEMA:
        raise FormatError("not a report of wb prove --json", path=str(path), field="schema", expected=SCHEMA,
                          found=report.schema)  # fmt: skip
    return report
