"""The reports of the commands that transform a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

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
    note,
    table,
    warn,
)
from weighbridge.cli.views.plan import print_notes

if TYPE_CHECKING:
    from weighbridge.conversion.checkpoint.strip import StripReport
    from weighbridge.conversion.transform import TransformPlan, TransformReport

_SHOWN: Final = 8  # rows of a table; all of them with --verbose


def write_transform(plan: TransformPlan, options: DryRunOptions) -> int:
    """Runs the plan, unless it is a dry run, and prints the changes."""
    with plan:
        if not options.dry_run:
            with Progress() as progress:
                plan.run(progress)
    emit_json(plan.report) if options.json else _print_transform(plan.report, options.dry_run)
    return 0


def _print_transform(report: TransformReport, dry_run: bool) -> None:
    if report.renamed and not report.cut and not report.dropped:
        _rows(["new name", "was"], [(clean(r.new), clean(" + ".join(r.old[:3]))) for r in report.renamed])
    elif report.renamed:
        note(f"{plural(len(report.renamed), 'tensor')} renumbered")
    _rows(["cut", "was", "is"], [(clean(c.tensor), str(list(c.before)), str(list(c.after))) for c in report.cut])
    _rows(["key", "was", "is"], [(clean(c.key), _value(c.before), _value(c.after)) for c in report.changed])
    if report.dropped:
        note(clean(f"left out: {plural(len(report.dropped), 'tensor')}, first {report.dropped[0]}"))
    for line in dict.fromkeys(report.losses):
        warn(clean(line))
    print_notes(report.notes)
    will = "would have" if dry_run else "has"
    echo(clean(f"{report.target} {will} {plural(report.tensors, 'tensor')}, {human_bytes(report.bytes)}"))


def print_strip(report: StripReport, dry_run: bool) -> None:
    """Prints the parts that were left out of a training checkpoint, and the result."""
    if report.dropped:
        rows: list[tuple[Cell, ...]] = [
            (d.name, d.part, d.tensors or None, human_bytes(d.bytes) if d.bytes else None, d.why)
            for d in report.dropped
        ]
        table(["left out", "what", Column("tensors", right=True), Column("size", right=True), "recognized by"], rows)
        echo()
    if report.wrapper:
        note(clean(f"note: the weights were under {report.wrapper!r}, which their names no longer contain"))
    if report.ema_used:
        note(f"note: {report.ema_used:,} of {plural(report.tensors, 'tensor')} are averaged ones")
    for line in dict.fromkeys(report.losses):
        warn(clean(line))
    print_notes(report.notes)
    will = "would have" if dry_run else "has"
    size = f"{human_bytes(abs(report.saved))} {'smaller' if report.saved >= 0 else 'larger'} than {report.source}"
    echo(clean(f"{report.target} {will} {plural(report.tensors, 'tensor')}, {human_bytes(report.bytes)}: {size}"))


def _rows(heads: list[Any], rows: list[tuple[Cell, ...]]) -> None:
    """Prints a table of the first few rows."""
    if not rows:
        return
    shown = rows if SCREEN.verbose else rows[:_SHOWN]
    table(heads, shown)
    if len(shown) < len(rows):
        note(f"and {len(rows) - len(shown):,} more (shown with -v)")
    echo()


def _value(value: Any) -> str:
    text = "-" if value is None else str(value)
    return clean(text if len(text) < 60 else f"{text[:56]} ...")
