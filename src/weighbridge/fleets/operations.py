"""What a fleet does to one item, by the function of the single command; the row of the table says the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from weighbridge.base.errors import RefusedError
from weighbridge.fleets.costs import HEADER
from weighbridge.fleets.job import Item, Job
from weighbridge.io.location import is_remote

if TYPE_CHECKING:
    from weighbridge.conversion.plan.model import Plan
    from weighbridge.conversion.result import Result

    Planned = Callable[[Item, Mapping[str, Any], str, "How"], Plan]

#: What the exit codes of a single command mean here.
FINE, FINDING, UNCHECKED = 0, 1, 2


class How(NamedTuple):
    """What is no part of the result. `jobs`: threads of a task; `overwrite`: replace other writers' outputs; `resume`:
    go on with what an interrupted task left."""

    jobs: int = 1
    overwrite: bool = False
    resume: bool = True

    def writing(self, out: str) -> dict[str, Any]:
        """The keywords of what writes. On a disk an earlier output is this job's, or the manifest was refused."""
        here = not is_remote(out)
        return {"resume": self.resume, "overwrite": self.overwrite or here, "parents": here, "jobs": self.jobs}


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """What became of one item: a function of the descriptor alone. `verdict`: the command's word; `exit`: its exit
    code; `digest`: of the file or all weights; `tensors`: (digest, bytes) of each; `written`: bytes of the output."""

    verdict: str
    exit: int = FINE
    digest: str | None = None
    output: str | None = None
    written: int = 0
    tensors: tuple[tuple[str, int], ...] = ()
    details: dict[str, Any] = {}  # msgspec copies it


def _scan(item: Item, options: Mapping[str, Any], target: str, how: How) -> Outcome:
    from weighbridge.reports.scan import engine
    from weighbridge.reports.scan.model import ScanVerdict

    report = engine.passed(item.source, *item.passed) if item.passed else engine.scan_file(item.source)
    if report.kind == "unreadable":
        raise OSError(report.skipped[0].why)
    if report.verdict is ScanVerdict.DATA_ONLY and report.complete and not report.findings:
        return Outcome(report.verdict.value, details={"kind": report.kind})
    least = options.get("fail_on", "unknown-code")
    bad = engine.failed(
        engine.fold((item.source,), [report]),
        None if least == "never" else ScanVerdict(least),
        allow_unproven=options.get("allow_unproven", False),
        allow_unscanned=options.get("allow_unscanned", False),
    )
    findings = [{"rule": f.rule, "verdict": f.verdict.value, "message": f.message, "members": list(f.members),
                 "offset": f.offset} for f in report.findings]  # fmt: skip
    missed = [{"members": list(s.members), "what": s.what, "why": s.why} for s in report.skipped]
    details = {"kind": report.kind, "findings": findings, "skipped": missed, "more": report.more}
    return Outcome(report.verdict.value, FINDING if bad else FINE, details=details)


def _hash(item: Item, options: Mapping[str, Any], target: str, how: How) -> Outcome:
    from weighbridge.reports.hash import digests

    algo = options.get("algo", "sha256")
    if not options.get("tensors"):
        return Outcome("hashed", digest=digests.hash_file(item.source, algo).digest)
    model = digests.hash_model(item.source, algo=algo, jobs=how.jobs)
    rows = tuple((t.digest, t.bytes) for t in model.tensors)
    return Outcome("hashed", digest=model.digest, tensors=rows, details={"tensors": len(rows)})


def _verify(item: Item, options: Mapping[str, Any], target: str, how: How) -> Outcome:
    import weighbridge as wb
    from weighbridge.containers.base import Severity
    from weighbridge.reports.verify.report import failed

    report = wb.verify(item.source, values=options.get("values", False))
    bad = failed(report, Severity(options.get("fail_on", "error")))
    code = FINDING if bad else UNCHECKED if report.verdict == "not-checked" else FINE
    findings = [{"rule": f.rule, "severity": f.severity.value, "message": f.message} for f in report.findings]
    return Outcome(report.verdict, code, details={"findings": findings})


def _inspect(item: Item, options: Mapping[str, Any], target: str, how: How) -> Outcome:
    import weighbridge as wb

    report = wb.inspect(item.source, limit=0)
    details = {"format": report.format, "architecture": report.model.architecture, "tensors": report.tensor_count,
               "parameters": report.parameters, "bits_per_weight": report.bits_per_weight,
               "dtypes": [asdict(row) for row in report.dtypes]}  # fmt: skip
    return Outcome("ok" if report else "damaged", FINE if report else FINDING, details=details)


def _convert_plan(item: Item, options: Mapping[str, Any], target: str, how: How) -> Plan:
    import weighbridge as wb

    given = {name: value for name, value in options.items() if name not in ("to", "suffix")}
    out = output_of(item, options, target)
    return wb.plan_convert(item.source, out, to=options["to"], **given, **how.writing(out))


def _quantize_plan(item: Item, options: Mapping[str, Any], target: str, how: How) -> Plan:
    import weighbridge as wb

    given = {name: value for name, value in options.items() if name not in ("ftype", "suffix")}
    out = output_of(item, options, target)
    plan = wb.plan_quantize(item.source, out, options["ftype"], **given, **how.writing(out))
    plan.check()
    return plan


def _convert(item: Item, options: Mapping[str, Any], target: str, how: How) -> Outcome:
    return _written(_convert_plan, item, options, target, how)


def _quantize(item: Item, options: Mapping[str, Any], target: str, how: How) -> Outcome:
    return _written(_quantize_plan, item, options, target, how)


def written(out: str, result: Result) -> Outcome:
    """The outcome of a write."""
    losses = [f"{x.tensor}: {x.message}" if x.tensor else x.message for x in result.losses]
    return Outcome("written", output=out, written=result.bytes, details={"losses": losses})


def _written(planned: Planned, item: Item, options: Mapping[str, Any], target: str, how: How) -> Outcome:
    """Write an output that may be there from a run that ended before its record: with the same bytes, so it is written
    again here, and recognised elsewhere. Where another process is at it, both write, each on its own."""
    out = output_of(item, options, target)
    try:
        with planned(item, options, target, how) as plan:
            return written(out, plan.run())
    except RefusedError:
        if is_remote(out):
            raise
    with planned(item, options, target, how._replace(resume=False)) as plan:
        return written(out, plan.run())


def output_of(item: Item, options: Mapping[str, Any], target: str) -> str:
    """Where the output of an item goes: its name below the target, with the suffix of the format."""
    from weighbridge.containers import model_suffixes

    stem = item.name
    for suffix in model_suffixes():
        stem = stem.removesuffix(suffix)
    return f"{target.rstrip('/')}/{stem}{options['suffix']}"


@dataclass(frozen=True)
class Operation:
    """`by_file`: its items are files, else models. `rate`: bytes of the source that one core takes a second, roughly
    (docs/guide-fleet.md; a calibration replaces it). `reads`: the share of the source that it reads, None where that
    is headers alone. `writes`: bytes written for each byte read. `plan`: of the output, where there is one."""

    run: Callable[[Item, Mapping[str, Any], str, How], Outcome]
    by_file: bool
    rate: float
    reads: float | None = 1.0
    writes: float = 0.0
    plan: Planned | None = None


OPERATIONS: Final[Mapping[str, Operation]] = MappingProxyType(
    {
        "scan": Operation(_scan, True, 500e6),
        "hash": Operation(_hash, True, 1000e6),
        "verify": Operation(_verify, False, 500e6, None),
        "inspect": Operation(_inspect, False, 500e6, None),
        "convert": Operation(_convert, False, 300e6, writes=1.0, plan=_convert_plan),
        "quantize": Operation(_quantize, False, 50e6, writes=0.28, plan=_quantize_plan),
    }
)


def bytes_read(job: Job, items: int, size: int) -> int:
    """What a job reads of so many items of `size` bytes in all."""
    headers = OPERATIONS[job.op].reads is None and not job.options.get("values")
    return min(size, items * HEADER) if headers else size
