"""`wb fleet`: runs a command over many models, on one machine or on a cluster."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import click

from weighbridge.api.keywords import ConvertKeywords, QuantizeKeywords, TransformKeywords
from weighbridge.base.errors import UsageError
from weighbridge.base.words import plural
from weighbridge.cli.commands.hash import FILE_ALGORITHMS
from weighbridge.cli.commands.scan import JUDGING
from weighbridge.cli.commands.verify import CHECKING
from weighbridge.cli.options import (
    Command,
    applied,
    declared,
    dry_run_option,
    examples,
    json_option,
    option,
    overwrite_option,
    refuse_others,
)
from weighbridge.cli.values import OUTPUT, parse_size
from weighbridge.conversion.options import WriteOptions
from weighbridge.fleets.costs import Nodes, Prices, Terms

if TYPE_CHECKING:
    from weighbridge.fleets.report import FleetReport
    from weighbridge.fleets.run import FleetPlan
    from weighbridge.fleets.runners import Runner

_GB: Final = 1e9


class Shard(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3
    """`2/8`: the second of eight shares."""

    name = "i/n"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"(\d{1,7})/(\d{1,7})", str(value))
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            self.fail(f"{value!r} is not a share: write 1/8 to 8/8.", param, ctx)
        return int(match[1]), int(match[2])


class Label(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3
    """`zone=a`: a label of a node."""

    name = "key=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        key, equals, text = str(value).partition("=")
        if not (key and equals and text):
            self.fail(f"{value!r} is not a label: write KEY=VALUE.", param, ctx)
        return key, text


_TASK_SIZE: Final = option(
    "--task-size",
    type=parse_size,
    metavar="SIZE",
    help="Split models with more bytes of output into tasks of about SIZE [one task per model]. "
    "Small models, 256 MiB in all, share one.",
)
_COMMON: Final = (
    click.argument("sources", nargs=-1, required=True, metavar="SOURCE..."),
    option("-o", "--output", type=OUTPUT, metavar="TARGET", required=True, section="Running",
           help="Folder or prefix in a bucket for outputs, records and the report."),
    option("--runner", type=click.Choice(("local", "ray")), default="local", section="Running",
           help="Processes of this machine [local], or tasks of a Ray cluster."),
    option("--address", metavar="ADDRESS", section="Running", help="Ray cluster [this machine's; auto: RAY_ADDRESS]."),
    option("--node-label", type=Label(), multiple=True, metavar="KEY=VALUE", section="Running",
           help="Only nodes of the Ray cluster with this label."),
    option("--shard", type=Shard(), metavar="I/N", section="Running",
           help="Only the I-th of N shares of the work: for arrays of jobs without an engine."),
    option("--processes", type=click.IntRange(1, 1024), metavar="N", section="Running",
           help="Processes of the local runner [all cores]."),
    declared(WriteOptions, "jobs", jobs={"help": "Threads of each process [1].", "section": "Running"}),
    option("--replan", is_flag=True, section="Running", help="List the sources again instead of reusing the manifest."),
    overwrite_option,
    option("--nodes", type=click.IntRange(1), metavar="N", section="Costs", help="Machines of the plan [1]."),
    option("--cores", type=click.IntRange(1), metavar="N", section="Costs", help="Cores of each [this machine's]."),
    option("--network", type=click.FloatRange(0, min_open=True), metavar="GBIT", section="Costs",
           help="Network of each in Gbit/s [25]."),
    option("--node-price", type=click.FloatRange(0), metavar="USD", section="Costs",
           help=f"Price of a machine for an hour [{Nodes.price}]."),
    option("--read-price", type=click.FloatRange(0), metavar="USD", section="Costs",
           help=f"Price of 1,000 reads [{Prices.reads}]."),
    option("--write-price", type=click.FloatRange(0), metavar="USD", section="Costs",
           help=f"Price of 1,000 writes [{Prices.writes}]."),
    option("--egress-price", type=click.FloatRange(0), metavar="USD", section="Costs",
           help=f"Price of a GB that leaves its region [{Prices.egress}]."),
    option("--cross-region", is_flag=True, section="Costs",
           help="The sources are in another region than the machines."),
    option("--calibrate", type=click.FloatRange(0, min_open=True), metavar="SECONDS", section="Costs",
           help="Plan with the speed of this machine, measured on some items for SECONDS [the speeds of the docs]."),
    dry_run_option,
    json_option,
)  # fmt: skip


@click.group(
    epilog=examples(
        "wb fleet scan s3://models/ -o ./scan/ --dry-run --nodes 100",
        "wb fleet hash hf://my-org -o s3://reports/hashes --tensors",
        "wb fleet quantize './models/*/' -o ./gguf/ --type Q4_K_M",
        "wb fleet quantize hf://org/Model-405B -o s3://gguf/ --type Q4_K_M --task-size 4GiB --runner ray",
        "wb fleet verify manifest.jsonl -o ./verified/ --shard 3/16",
    )
)
def fleet() -> None:
    """Scan, hash, verify, inspect, convert or quantize many models.

    A SOURCE is a file, a folder, a glob, a bucket, an organization of the Hub (hf://ORG), or a manifest
    (.jsonl, .parquet). After an interruption the same command continues, on any machine.
    """


def _command(name: str, help: str, *options: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """Adds a command to the group, with `options` and the common ones."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        add = fleet.command(name, cls=Command, help=help)
        command: click.Command = add(applied((_COMMON[0], *options, *_COMMON[1:]))(function))
        return command

    return decorate


@_command(
    "scan", "Report what each file would do when it is loaded, as `wb scan`.",
    *JUDGING,
)  # fmt: skip
def scan(
    fail_on: str, allow_unproven: bool, allow_unscanned: bool, allow_library: tuple[str, ...], **running: Any
) -> int:
    options = {"fail_on": fail_on, "allow_unproven": allow_unproven, "allow_unscanned": allow_unscanned}
    if allow_library:
        options["allow_library"] = sorted(allow_library)
    return _run("scan", options, **running)


@_command(
    "hash", "Compute digests of each file or each tensor, and list duplicates.",
    option("-a", "--algo", type=click.Choice(FILE_ALGORITHMS), default="sha256", help="The digest [sha256]."),
    option("--tensors", is_flag=True, help="Hash the tensors of each model, whatever its container."),
)  # fmt: skip
def hash(algo: str, tensors: bool, **running: Any) -> int:
    return _run("hash", {"algo": algo, "tensors": tensors}, **running)


@_command(
    "verify", "Check each model, as `wb verify`.",
    *CHECKING,
)  # fmt: skip
def verify(values: bool, fail_on: str, **running: Any) -> int:
    return _run("verify", {"values": values, "fail_on": fail_on}, **running)


@_command("inspect", "Format, architecture, parameters and types of each model.")
def inspect(**running: Any) -> int:
    return _run("inspect", {}, **running)


@_command(
    "convert", "Convert each model to another format, as `wb convert`.",
    declared(TransformKeywords, "to", to={"required": True, "help": "Format of the outputs."}),
    declared(ConvertKeywords, "dtype", "tokenizer"),
    _TASK_SIZE,
)  # fmt: skip
def convert(to: str, dtype: str | None, tokenizer: bool | None, **running: Any) -> int:
    from weighbridge.containers import by_target

    target = by_target(to)
    options = {name: value for name, value in (("dtype", dtype), ("tokenizer", tokenizer)) if value is not None}
    return _run("convert", {"to": to, "suffix": target.suffix if target is not None else "", **options}, **running)


@_command(
    "quantize", "Quantize each model to a GGUF, as `wb quantize`.",
    option("--type", metavar="TYPE", required=True, help="A type of `wb quantize`, such as Q4_K_M."),
    declared(QuantizeKeywords, "allow_requantize", "tokenizer"),
    _TASK_SIZE,
)  # fmt: skip
def quantize(type: str, allow_requantize: bool, tokenizer: bool | None, **running: Any) -> int:
    from weighbridge.conversion.quantize.ftypes import parse_ftype

    row = parse_ftype(type)
    name = row.name if row is not None else type.upper()
    options = {"tokenizer": tokenizer} if tokenizer is not None else {}
    options |= {"allow_requantize": True} if allow_requantize else {}
    return _run("quantize", {"ftype": name, "suffix": f"-{name}.gguf", **options}, **running)


# ---- common to all commands ----


def _run(
    op: str, options: dict[str, Any], *, sources: tuple[str, ...], output: str, runner: str, address: str | None,
    shard: tuple[int, int] | None, jobs: int | None, processes: int | None, replan: bool, overwrite: bool,
    dry_run: bool,
    as_json: bool, nodes: int | None, calibrate: float | None, node_label: tuple[tuple[str, str], ...],
    task_size: int | None = None, **terms: Any,
) -> int:  # fmt: skip
    from weighbridge.cli.render import Progress, emit_json
    from weighbridge.fleets.job import Job
    from weighbridge.fleets.parts import check_task_size
    from weighbridge.fleets.run import Fleet

    if task_size is not None:
        check_task_size(task_size, options.get("to", "gguf"))
    if not dry_run:
        flags = {"--nodes": nodes is not None, "--calibrate": calibrate is not None}
        refuse_others("a run", flags, hint="it applies to the plan: add --dry-run")
    fleet_of = Fleet(Job(op, options), sources, output, replan=replan, shard=shard, overwrite=bool(overwrite),
                 task_size=task_size, terms=_terms(nodes, **terms))  # fmt: skip
    chosen = _runner(runner, address, dict(node_label), shard, processes)
    if dry_run:
        planned = fleet_of.plan(calibrate or 0.0)
        emit_json(planned) if as_json else _show_plan(planned)
        return 0
    with Progress() as progress:
        report = fleet_of.run(
            chosen,
            jobs or 1,
            lambda done, total, failed: progress.count(done, "item", f"of {total:,}, {failed:,} failed"),
        )
    emit_json(report) if as_json else _show_report(report, output)
    return report.exit


def _runner(
    name: str, address: str | None, labels: dict[str, str], shard: Any, processes: int | None
) -> Runner:  # fmt: skip
    from weighbridge.fleets.runners import LocalRunner, RayRunner

    if name == "local":
        remote = {"--address": address is not None, "--node-label": labels}
        refuse_others("the local runner", remote, hint="--runner ray")
        return LocalRunner(processes)
    refuse_others("the Ray runner", {"--shard": shard, "--processes": processes}, hint="Ray places the tasks")
    return RayRunner(address, labels)


def _terms(
    nodes: int | None, *, cores: int | None, network: float | None, node_price: float | None, read_price: float | None,
    write_price: float | None, egress_price: float | None, cross_region: bool,
) -> Terms:  # fmt: skip
    if egress_price is not None and not cross_region:
        raise UsageError("--egress-price doesn't apply: no data leaves its region", hint="add --cross-region")

    def changed(defaults: Any, **values: Any) -> Any:
        return replace(defaults, **{name: value for name, value in values.items() if value is not None})

    machines = changed(Nodes(cores=os.cpu_count() or 1), count=nodes, cores=cores, price=node_price,
                       network=network and network * _GB / 8)  # fmt: skip
    return Terms(machines, changed(Prices(), reads=read_price, writes=write_price, egress=egress_price), cross_region)


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
        warn(
            f"{plural(report.failed, 'item')} failed: _fleet/{report.job}/dead-letters.jsonl; the same command \
tries them again"
        )
    if report.missing:
        note(f"{plural(report.missing, 'item')} of other shares are open")
    sums = f"{plural(report.items, 'item')}, {human_bytes(report.bytes)}, ${report.cost:,.2f}"
    echo(clean(f"{target}/_fleet/{report.job}: {sums}"))
