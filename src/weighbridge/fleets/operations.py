"""The operations of a fleet on one item: each calls the function of the single command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from weighbridge.base.errors import RefusedError, WeighbridgeError
from weighbridge.base.records import dataclass
from weighbridge.conversion.merging.sources import RECIPES
from weighbridge.fleets.costs import HEADER
from weighbridge.fleets.job import Item, Job
from weighbridge.fleets.sources import ItemKind, state_of, state_of_recipe
from weighbridge.io.location import is_remote

if TYPE_CHECKING:
    from weighbridge.conversion.plan.model import Plan
    from weighbridge.conversion.result import Result

    Planner = Callable[[Item, Mapping[str, Any], str, "RunOptions"], Plan]

#: The exit codes of a single command.
FINE, FINDING, UNCHECKED = 0, 1, 2


class RunOptions(NamedTuple):
    """Options that don't affect the result. `jobs`: threads of a task. `overwrite`: replaces outputs of other jobs.
    `resume`: continues the output of an interrupted task."""

    jobs: int = 1
    overwrite: bool = False
    resume: bool = True

    def write_keywords(self, out: str) -> dict[str, Any]:
        """Returns the keywords for writing `out`. An existing local output is this job's, since otherwise the manifest
        would have been refused."""
        local = not is_remote(out)
        return {"resume": self.resume, "overwrite": self.overwrite or local, "parents": local, "jobs": self.jobs}


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The outcome of one item, which depends only on the item and the job. `verdict`: the command's. `exit`: its exit
    code. `digest`: of the file or all weights. `tensors`: (digest, bytes) of each. `written`: bytes of the output."""

    verdict: str
    exit: int = FINE
    digest: str | None = None
    output: str | None = None
    written: int = 0
    tensors: tuple[tuple[str, int], ...] = ()
    details: dict[str, Any] = {}  # msgspec copies the default


def _scan(item: Item, options: Mapping[str, Any], target: str, run: RunOptions) -> Outcome:
    from weighbridge.reports.scan import engine
    from weighbridge.reports.scan.model import ScanVerdict

    libraries = engine.accepted_libraries(options.get("allow_library", ()))
    report = engine.passed(item.source, *item.passed) if item.passed else engine.scan_file(item.source, libraries)
    if report.kind == "unreadable":
        raise OSError(report.skipped[0].why)
    if report.verdict is ScanVerdict.DATA_ONLY and report.complete and not report.findings:
        return Outcome(report.verdict.value, details={"kind": report.kind})
    threshold = options.get("fail_on", "unknown-code")
    failed = engine.failed(
        engine.fold((item.source,), [report]),
        None if threshold == "never" else ScanVerdict(threshold),
        allow_unproven=options.get("allow_unproven", False),
        allow_unscanned=options.get("allow_unscanned", False),
    )
    findings = [{"rule": f.rule, "verdict": f.verdict.value, "message": f.message, "members": list(f.members),
                 "offset": f.offset} for f in report.findings]  # fmt: skip
    skipped = [{"members": list(s.members), "what": s.what, "why": s.why} for s in report.skipped]
    details = {"kind": report.kind, "findings": findings, "skipped": skipped, "more": report.more}
    return Outcome(report.verdict.value, FINDING if failed else FINE, details=details)


def _hash(item: Item, options: Mapping[str, Any], target: str, run: RunOptions) -> Outcome:
    from weighbridge.reports.hash import digests

    algo = options.get("algo", "sha256")
    if not options.get("tensors"):
        return Outcome("hashed", digest=digests.hash_file(item.source, algo).digest)
    model = digests.hash_model(item.source, algo=algo, jobs=run.jobs)
    rows = tuple((t.digest, t.bytes) for t in model.tensors)
    return Outcome("hashed", digest=model.digest, tensors=rows, details={"tensors": len(rows)})


def _verify(item: Item, options: Mapping[str, Any], target: str, run: RunOptions) -> Outcome:
    import weighbridge as wb
    from weighbridge.containers.base import Severity
    from weighbridge.reports.verify.report import failed

    report = wb.verify(item.source, values=options.get("values", False))
    fails = failed(report, Severity(options.get("fail_on", "error")))
    code = FINDING if fails else UNCHECKED if report.verdict == "not-checked" else FINE
    findings = [{"rule": f.rule, "severity": f.severity.value, "message": f.message} for f in report.findings]
    return Outcome(report.verdict, code, details={"findings": findings})


def _inspect(item: Item, options: Mapping[str, Any], target: str, run: RunOptions) -> Outcome:
    import weighbridge as wb

    report = wb.inspect(item.source, limit=0)
    details = {"format": report.format, "architecture": report.model.architecture, "tensors": report.tensor_count,
               "parameters": report.parameters, "bits_per_weight": report.bits_per_weight,
               "dtypes": [asdict(row) for row in report.dtypes]}  # fmt: skip
    return Outcome("ok" if report else "damaged", FINE if report else FINDING, details=details)


def _plan_convert(item: Item, options: Mapping[str, Any], target: str, run: RunOptions) -> Plan:
    import weighbridge as wb

    keywords = {name: value for name, value in options.items() if name not in ("to", "suffix")}
    out = output_of(item, options, target)
    return wb.plan_convert(item.source, out, to=options["to"], **keywords, **run.write_keywords(out))


def _plan_quantize(item: Item, options: Mapping[str, Any], target: str, run: RunOptions) -> Plan:
    import weighbridge as wb

    keywords = {name: value for name, value in options.items() if name not in ("ftype", "suffix")}
    out = output_of(item, options, target)
    return wb.plan_quantize(item.source, out, options["ftype"], **keywords, **run.write_keywords(out))


def _plan_merge(item: Item, options: Mapping[str, Any], target: str, run: RunOptions) -> Plan:
    import weighbridge as wb

    keywords = {name: value for name, value in options.items() if name not in ("to", "suffix")}
    out = output_of(item, options, target)
    return wb.plan_merge(item.source, out, to=options["to"], **keywords, **run.write_keywords(out))


def _write(planner: Planner, item: Item, options: Mapping[str, Any], target: str, run: RunOptions) -> Outcome:
    """Writes an output. A run that ended before its record may have left the same bytes: locally they are written
    again, remotely they are recognised. If another process writes the same output, both write independently."""
    out = output_of(item, options, target)
    try:
        with planner(item, options, target, run) as plan:
            return write_outcome(out, plan.run())
    except RefusedError:
        if is_remote(out):
            raise
    with planner(item, options, target, run._replace(resume=False)) as plan:
        return write_outcome(out, plan.run())


def write_outcome(out: str, result: Result) -> Outcome:
    """`out`: the path of the output. If that is a folder of several files, the details name them."""
    losses = [f"{x.tensor}: {x.message}" if x.tensor else x.message for x in result.losses]
    details: dict[str, Any] = {"losses": losses}
    if len(result.files) > 1:
        details["files"] = list(result.files)
    return Outcome("written", output=out.rstrip("/"), written=result.bytes, details=details)


def output_of(item: Item, options: Mapping[str, Any], target: str) -> str:
    """Returns the path of an item's output: its name below the target, with the suffix of the format, or a slash if
    that is a folder of GGUFs."""
    from weighbridge.containers import model_suffixes

    stem = item.name
    for suffix in (*model_suffixes(), *RECIPES):
        stem = stem.removesuffix(suffix)
    return f"{target.rstrip('/')}/{stem}{options['suffix']}"


@dataclass(frozen=True)
class Operation:
    """`items`: their kind. `rate`: approximate bytes of the source per second and core
    (docs/guide-fleet.md; calibration replaces it). `reads`: the share of the source that it reads, None for headers
    only. `writes`: bytes written per byte read. `plan`: plans the output, if it writes one."""

    run: Callable[[Item, Mapping[str, Any], str, RunOptions], Outcome]
    items: ItemKind
    rate: float
    reads: float | None = 1.0
    writes: float = 0.0
    plan: Planner | None = None


OPERATIONS: Final[Mapping[str, Operation]] = MappingProxyType(
    {
        "scan": Operation(_scan, "file", 500e6),
        "hash": Operation(_hash, "file", 1000e6),
        "verify": Operation(_verify, "model", 500e6, None),
        "inspect": Operation(_inspect, "model", 500e6, None),
        "convert": Operation(partial(_write, _plan_convert), "model", 300e6, writes=1.0, plan=_plan_convert),
        "quantize": Operation(partial(_write, _plan_quantize), "model", 50e6, writes=0.28, plan=_plan_quantize),
        "merge": Operation(partial(_write, _plan_merge), "recipe", 150e6, writes=0.4, plan=_plan_merge),
    }
)


def item_kind(job: Job) -> ItemKind:
    """Returns the kind of a job's items. Digests of tensors need models."""
    return "model" if job.options.get("tensors") else OPERATIONS[job.op].items


def check_pin(job: Job, item: Item) -> None:
    """Raises WeighbridgeError if the source changed since it was listed."""
    state = state_of_recipe if item_kind(job) == "recipe" else state_of
    if item.passed is None and (pin := state(item.source)[1]) != item.pin:
        raise WeighbridgeError(
            f"{item.source} has changed since it was listed", hint=f"plan again with --replan ({item.pin}, now {pin})"
        )


def bytes_read(job: Job, items: int, size: int) -> int:
    """Returns the bytes that a job reads from `items` items with `size` bytes in total."""
    headers = OPERATIONS[job.op].reads is None and not job.options.get("values")
    return min(size, items * HEADER) if headers else size
