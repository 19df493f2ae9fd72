"""The output of commands that write: plans and results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from weighbridge.base.options import option
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.cli.options import DryRunOptions
from weighbridge.cli.render import (
    SCREEN,
    Cell,
    Column,
    Progress,
    clean,
    echo,
    emit_json,
    human_bytes,
    human_time,
    note,
    pairs,
    table,
    warn,
)
from weighbridge.conversion.options import WriteOptions

if TYPE_CHECKING:
    from weighbridge.containers.base import Finding
    from weighbridge.conversion.plan.model import Plan
    from weighbridge.conversion.result import Loss, Move

P = TypeVar("P")
_NOTES = 4  # lines
_NAMED = 3  # tensors in a line


@dataclass(frozen=True, kw_only=True)
class WriteCommand(WriteOptions, DryRunOptions):
    """The options of every command that writes a model."""


@dataclass(frozen=True, kw_only=True)
class TargetCommand(WriteCommand):
    output: str | None = option(
        "The target, instead of DST.", kind="output", letter="o", aliases="outfile mlx-path", section="Target"
    )


def planned(
    plan: Callable[..., P],
    src: Path | str | Sequence[str],
    dst: str | Path,
    options: WriteCommand,
    keywords: Mapping[str, Any] | None = None,
) -> P:
    """Makes the plan of a command. `keywords`: instead of the given options. Except in a dry run, a target that can't
    be written raises its error before the source is read."""
    check_writable(dst, options)
    return plan(src, dst, **(options.keywords(plan) if keywords is None else keywords))


def check_writable(dst: str | Path, options: WriteCommand) -> None:
    """Raises the error of a target that can't be written, except in a dry run."""
    from weighbridge.adapters.remote.schemes import resolve_target
    from weighbridge.io.sink import check_target

    if not options.dry_run:
        overwrite = options.overwrite or options.replace_folder
        check_target(resolve_target(dst), overwrite=overwrite, parents=options.parents, resume=options.resume)


def write(plan: Plan, options: WriteCommand) -> int:
    """Prints the plan, or runs it with a progress line and prints the result and the losses."""
    with plan:
        if options.dry_run:
            emit_json(plan.describe()) if options.json else _print_plan(plan)
            return 0
        if plan.preparation is not None:
            with Progress(noun="layer") as progress:
                plan.preparation.prepare(progress)
        with Progress(computing=plan.computing) as progress:
            result = plan.run(progress)
        if options.json:
            emit_json(result)
            return 0
        _moves(result.moves)
        print_losses(result.losses)
        _counted("too large for the type and became infinity", result.overflow)
        _counted("too small for the type and became zero", result.underflow)
        print_notes(result.notes)
        rate = f", {human_bytes(int(result.bytes / result.seconds))}/s" if result.seconds > 0.1 else ""
        count = f"{plural(len(result.files), 'file')}, " if len(result.files) > 1 else ""
        echo(clean(f"{result.target}: {count}{human_bytes(result.bytes)} in {human_time(result.seconds)}{rate}"))
        if not SCREEN.quiet:
            from weighbridge.shipping.run import how_to_run

            if (line := how_to_run(plan)) is not None:
                note(clean(f"run it: {line}"))
        if result.bill is not None:
            print_findings(result.findings)
            note(clean(f"bill of materials: {result.bill}"))
    return 0


def print_findings(findings: Sequence[Finding]) -> None:
    """Prints the findings of a bill of materials on the standard error."""
    for finding in findings:
        say = note if finding.severity == "info" else warn
        say(clean(f"{finding.message} ({finding.rule})" + (f"; {finding.hint}" if finding.hint else "")))


def _print_plan(plan: Plan) -> None:
    data = plan.describe()
    pairs(
        [
            ("source", data["source"]),
            ("target", data["target"]),
            ("format", data["format"]),
            ("size", human_bytes(data["bytes"], exact=True)),
            ("memory", f"{human_bytes(data['memory'])} at most, excluding the interpreter"),
            ("threads", str(plan.threads)),
            ("passes", data["passes"] if data["passes"] > 1 else None),
            ("bill of materials", data["bill"]),
        ]
    )
    echo()
    files: list[tuple[Cell, ...]] = [(f["name"], len(f["tensors"]), human_bytes(f["bytes"])) for f in data["files"]]
    files += [(name, None, human_bytes(size)) for name, size in data["texts"].items()]
    table(["file", Column("tensors", right=True), Column("size", right=True)], files)
    print_keys(plan)
    echo()
    work = Counter((t["dtype"], t["how"]) for f in data["files"] for t in f["tensors"])
    table(["type", "how", Column("tensors", right=True)], [(*key, count) for key, count in work.most_common()])
    _moves(plan.moves)
    print_losses(plan.losses)
    print_notes(data["notes"])


def print_keys(plan: Plan) -> None:
    """Prints the keys of a GGUF that an option sets."""
    for key, kv in plan.keys.items():
        value = f"{kv.type} of {len(kv.value):,}" if kv.type.startswith("arr[") else f"{kv.value} ({kv.type})"
        echo(clean(f"key {key}: {value}"))


def _moves(moves: Sequence[Move]) -> None:
    """Prints a line for each kind of move of quantized tensors, with the reason if it isn't exact."""
    ways = Counter((m.source, m.target, m.kind, m.why) for m in moves)
    worst: dict[tuple[str, str, str, str], float] = {}
    for m in moves:
        key = (m.source, m.target, m.kind, m.why)
        worst[key] = max(worst.get(key, 0.0), m.relative or 0.0)
    for (source, target, kind, why), count in ways.most_common():
        many = plural(count, "tensor")
        rounded = f" by at most {worst[source, target, kind, why]:.1e}" if kind == "near" else ""
        line = f"{many} from {source} to {target}: {kind}{rounded}{f' ({why})' if why else ''}"
        (note if kind == "exact" else warn)(clean(line))


def print_losses(losses: Sequence[Loss]) -> None:
    """Prints one line per kind of loss with the first tensors, or all tensors with --verbose. Losses that change
    results are first and marked."""
    from weighbridge.conversion.result import results_first

    kinds: dict[str, list[str]] = {}
    for loss in results_first(losses):
        what = f"changes results: {loss.message}" if loss.effect == "results" else loss.message
        kinds.setdefault(what, []).extend([loss.tensor] if loss.tensor else [])
    for what, tensors in kinds.items():
        shown = tensors if SCREEN.verbose else tensors[:_NAMED]
        more = f" and {len(tensors) - len(shown):,} more" if len(shown) < len(tensors) else ""
        warn(clean(f"{', '.join(shown)}{more}: {what}" if tensors else what))


def _counted(what: str, counts: Mapping[str, int]) -> None:
    """Warns about values that a cast lost, with the tensor that lost most."""
    if counts:
        total, worst = sum(counts.values()), max(counts, key=counts.__getitem__)
        most = f"most in {clean(worst)} ({counts[worst]:,})" if len(counts) > 1 else f"in {clean(worst)}"
        warn(f"{total:,} {'values were' if total > 1 else 'value was'} {what}, {most}")


def print_notes(lines: Sequence[str]) -> None:
    """Prints the first few notes: a set of a hundred shards has hundreds. --verbose prints all."""
    shown = lines if SCREEN.verbose or len(lines) <= _NOTES else lines[: _NOTES - 1]
    for line in shown:
        note(f"note: {clean(line)}")
    if len(shown) < len(lines):
        note(f"note: {len(lines) - len(shown)} more, shown with -v")
