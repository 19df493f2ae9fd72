"""`wb fleet`: runs a command over many models, on one machine or on a cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import click

from weighbridge.base.errors import UsageError
from weighbridge.base.options import option
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.cli.commands.scan import ScanFailureOptions
from weighbridge.cli.commands.verify import VerifyFailureOptions
from weighbridge.cli.options import DryRunOptions, command, examples, refuse_others
from weighbridge.conversion.option_groups import TowersOptions
from weighbridge.conversion.options import DTypeOptions, FolderOptions, RequantizeOptions
from weighbridge.fleets.costs import Nodes, Prices, Terms
from weighbridge.fleets.options import FleetOptions, TaskSizeOptions
from weighbridge.io.options import cores
from weighbridge.reports.options import FILE_ALGORITHMS, CheckOptions

if TYPE_CHECKING:
    from weighbridge.fleets.report import FleetReport
    from weighbridge.fleets.run import FleetPlan
    from weighbridge.fleets.runners import Runner

_GB: Final = 1e9


@dataclass(frozen=True, kw_only=True)
class FleetCommand(FleetOptions, DryRunOptions):
    pass


@dataclass(frozen=True, kw_only=True)
class FleetScan(ScanFailureOptions, FleetCommand):
    pass


@dataclass(frozen=True, kw_only=True)
class FleetHash(FleetCommand):
    algo: str = option("The digest [sha256].", "sha256", letter="a", choices=FILE_ALGORITHMS)
    tensors: bool = option("Hash the tensors of each model, whatever its container.", False)


@dataclass(frozen=True, kw_only=True)
class FleetVerify(CheckOptions, VerifyFailureOptions, FleetCommand):
    pass


@dataclass(frozen=True, kw_only=True)
class FleetConvert(FleetCommand, DTypeOptions, FolderOptions, TowersOptions, TaskSizeOptions):
    to: str = option("Format of the outputs.", "", kind="format", required=True, section="Target")


@dataclass(frozen=True, kw_only=True)
class FleetQuantize(FleetCommand, RequantizeOptions, FolderOptions, TowersOptions, TaskSizeOptions):
    type: str = option("A type of `wb quantize`, such as Q4_K_M.", "", metavar="TYPE", required=True)


@dataclass(frozen=True, kw_only=True)
class FleetMerge(FleetCommand, DTypeOptions, TaskSizeOptions):
    to: str = option("Format of the outputs.", "", kind="format", required=True, section="Target")


@click.group(
    epilog=examples(
        "wb fleet scan s3://models/ -o ./scan/ --dry-run --nodes 100",
        "wb fleet hash hf://my-org -o s3://reports/hashes --tensors",
        "wb fleet quantize './models/*/' -o ./gguf/ --type Q4_K_M",
        "wb fleet quantize hf://org/Model-405B -o s3://gguf/ --type Q4_K_M --task-size 4GiB --runner ray",
        "wb fleet merge './recipes/*.yaml' -o ./merged/ --to gguf --dtype q8_0",
        "wb fleet verify manifest.jsonl -o ./verified/ --shard 3/16",
    )
)
def fleet() -> None:
    """Scan, hash, verify, inspect, convert, quantize or merge many models.

    A SOURCE is a file, a folder, a glob, a bucket, an organization of the Hub (hf://ORG), or a manifest
    (.jsonl, .parquet). After an interruption the same command continues, on any machine.
    """


def _command(name: str, help: str, kind: type = FleetCommand) -> Callable[[Callable[..., Any]], click.Command]:
    """Adds a command to the group."""
    jobs = {"help": "Threads of each process [1].", "section": "Running"}

    def decorate(function: Callable[..., Any]) -> click.Command:
        sources = click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
        return command(kind, group=fleet, name=name, help=help, changed={"jobs": jobs})(sources(function))

    return decorate


@_command("scan", "Report what each file would do when it is loaded, as `wb scan`.", FleetScan)
def scan(sources: tuple[str, ...], options: FleetScan) -> int:
    always = {name: getattr(options, name) for name in ("fail_on", "allow_unproven", "allow_unscanned")}
    libraries = {"allow_library": sorted(options.allow_library)} if options.allow_library else {}
    return _run("scan", always | libraries, sources, options)


@_command("hash", "Compute digests of each file or each tensor, and list duplicates.", FleetHash)
def hash(sources: tuple[str, ...], options: FleetHash) -> int:
    return _run("hash", {"algo": options.algo, "tensors": options.tensors}, sources, options)


@_command("verify", "Check each model, as `wb verify`.", FleetVerify)
def verify(sources: tuple[str, ...], options: FleetVerify) -> int:
    return _run("verify", {"values": options.values, "fail_on": options.fail_on}, sources, options)


@_command("inspect", "Format, architecture, parameters and types of each model.")
def inspect(sources: tuple[str, ...], options: FleetCommand) -> int:
    return _run("inspect", {}, sources, options)


@_command("convert", "Convert each model to another format, as `wb convert`.", FleetConvert)
def convert(sources: tuple[str, ...], options: FleetConvert) -> int:
    from weighbridge.containers import by_target
    from weighbridge.containers.gguf import container as gguf

    target = by_target(options.to)
    given = _given(options, "dtype", "tokenizer", "with_mmproj")
    suffix = target.suffix if target is not None else ""
    if options.with_mmproj:
        if suffix != gguf.SUFFIX:
            raise UsageError(f"--with-mmproj doesn't apply to --to {options.to}", hint="it applies to --to gguf")
        suffix = "/"
    return _run("convert", {"to": options.to, "suffix": suffix, **given}, sources, options, options.task_size)


@_command("quantize", "Quantize each model to a GGUF, as `wb quantize`.", FleetQuantize)
def quantize(sources: tuple[str, ...], options: FleetQuantize) -> int:
    from weighbridge.conversion.quantize.ftypes import parse_ftype

    row = parse_ftype(options.type)
    name = row.name if row is not None else options.type.upper()
    given = _given(options, "tokenizer", "allow_requantize", "with_mmproj")
    suffix = f"-{name}/" if options.with_mmproj else f"-{name}.gguf"
    return _run("quantize", {"ftype": name, "suffix": suffix, **given}, sources, options, options.task_size)


@_command("merge", "Merge models by each recipe, as `wb merge`.", FleetMerge)
def merge(sources: tuple[str, ...], options: FleetMerge) -> int:
    from weighbridge.containers import by_target

    target = by_target(options.to)
    suffix = target.suffix if target is not None else ""
    job = {"to": options.to, "suffix": suffix, **_given(options, "dtype")}
    return _run("merge", job, sources, options, options.task_size)


# ---- common to all commands ----


def _given(options: FleetCommand, *names: str) -> dict[str, Any]:
    """Those options of `names` that were given: a record names no default."""
    return {name: getattr(options, name) for name in names if name in options.given}


def _run(
    op: str, job: dict[str, Any], sources: tuple[str, ...], options: FleetCommand, task_size: int | None = None
) -> int:
    from weighbridge.cli.render import Progress, emit_json
    from weighbridge.fleets.job import Job
    from weighbridge.fleets.parts import check_task_size
    from weighbridge.fleets.run import Fleet
    from weighbridge.fleets.runners import LocalRunner, RayRunner

    if task_size is not None:
        check_task_size(task_size, job.get("to", "gguf"))
    if not options.dry_run:
        refuse_others("a run", options, ("nodes", "calibrate"), hint="it applies to the plan: add --dry-run")
    fleet_of = Fleet(
        Job(op, job), sources, options.output, replan=options.replan, shard=options.shard, overwrite=options.overwrite,
        task_size=task_size, terms=_terms(options),
    )  # fmt: skip
    runner: Runner
    if options.runner == "local":
        refuse_others("the local runner", options, ("address", "node_label"), hint="--runner ray")
        runner = LocalRunner(options.processes)
    else:
        refuse_others("the Ray runner", options, ("shard", "processes"), hint="Ray places the tasks")
        runner = RayRunner(options.address, dict(options.node_label))
    if options.dry_run:
        planned = fleet_of.plan(options.calibrate)
        emit_json(planned) if options.json else _show_plan(planned)
        return 0
    with Progress() as progress:
        report = fleet_of.run(
            runner,
            options.jobs or 1,
            lambda done, total, failed: progress.count(done, "item", f"of {total:,}, {failed:,} failed"),
        )
    emit_json(report) if options.json else _show_report(report, options.output)
    return report.exit


def _terms(options: FleetCommand) -> Terms:
    if options.egress_price is not None and not options.cross_region:
        raise UsageError("--egress-price doesn't apply: no data leaves its region", hint="add --cross-region")

    def changed(defaults: Any, **values: Any) -> Any:
        return replace(defaults, **{name: value for name, value in values.items() if value is not None})

    network = options.network and options.network * _GB / 8
    machines = changed(Nodes(cores=cores()), count=options.nodes, cores=options.cores,
                       price=options.node_price, network=network)  # fmt: skip
    prices = changed(Prices(), reads=options.read_price, writes=options.write_price, egress=options.egress_price)
    return Terms(machines, prices, options.cross_region)


def _show_plan(plan: FleetPlan) -> None:
    from weighbridge.cli.render import human_bytes, human_time, note, pairs

    estimate, nodes = plan.estimate, plan.terms.nodes
    pairs(
        [
            ("job", plan.job),
            ("target", plan.target),
            ("items", f"{estimate.items:,}"),
            ("read", f"{human_bytes(estimate.bytes_read)} in {plural(estimate.reads, 'request')}"),
            ("written", f"{human_bytes(estimate.bytes_written)} in {plural(estimate.writes, 'request')}"),
            ("nodes", f"{nodes.count:,} of {nodes.cores} cores"),
            ("time", f"{human_time(estimate.seconds)}, bound by the {estimate.bound}"),
            ("cost of nodes", f"${estimate.node_cost:,.2f}"),
            ("cost of requests", f"${estimate.request_cost:,.2f}"),
            ("cost of egress", f"${estimate.egress_cost:,.2f}"),
            ("cost", f"${estimate.cost:,.2f}"),
        ]
    )
    rate = f"{human_bytes(int(plan.calibrated or 0))}/s of a core, as measured here"
    note(f"note: {rate if plan.calibrated else 'speeds of another machine; --calibrate SECONDS measures this one'}")
    note("note: prices are assumptions; check them")
    if plan.planned_before:
        note("note: the manifest is from an earlier run; --replan lists the sources again")


def _show_report(report: FleetReport, target: str) -> None:
    from weighbridge.base.words import plural
    from weighbridge.cli.render import Column, clean, echo, human_bytes, note, table, warn

    table(["verdict", Column("items", right=True)], sorted(report.verdicts.items()))
    for twice in report.duplicates[:5]:
        note(clean(f"{plural(twice.copies, 'copy')} of {human_bytes(twice.bytes)}: {', '.join(twice.sources)}"))
    if report.duplicate_bytes:
        note(f"{human_bytes(report.duplicate_bytes)} are stored more than once")
    for line in report.notes:
        note(f"note: {clean(line)}")
    if report.failed:
        listing = f"_fleet/{report.job}/dead-letters.jsonl; the same command tries them again"
        warn(f"{plural(report.failed, 'item')} failed: {listing}")
    if report.missing:
        note(f"{plural(report.missing, 'item')} of other shares are open")
    sums = f"{plural(report.items, 'item')}, {human_bytes(report.bytes)}, ${report.cost:,.2f}"
    echo(clean(f"{target}/_fleet/{report.job}: {sums}"))
