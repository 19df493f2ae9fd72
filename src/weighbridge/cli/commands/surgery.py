"""What `wb rename` and `wb slice` share: the options of what they write, and the account of it on a screen."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from weighbridge.cli.commands.plans import print_notes
from weighbridge.cli.options import arch_file_option, jobs_option, json_option, resume_option, size_option
from weighbridge.cli.render import SCREEN, Cell, clean, echo, emit_json, human_bytes, note, table, warn
from weighbridge.cli.targets import TargetType

if TYPE_CHECKING:
    from weighbridge.conversion.transform import TransformReport

_SHOWN: Final = 8  # rows of a table; all of them with --verbose

_OPTIONS: Final[tuple[Callable[[Any], Any], ...]] = (
    click.option("--to", type=TargetType(), help="Format of the target [the source's, or DST's extension]."),
    size_option("--max-shard-size", help="Largest size of one file, such as 5GB [a set stays a set]."),
    arch_file_option,
    click.option("--overwrite", is_flag=True, help="Replace DST where it exists."),
    resume_option,
    click.option("--dry-run", is_flag=True, help="Say what would be done and write nothing."),
    jobs_option,
    json_option,
)


def writing_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a command that writes a model again."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def tell(report: TransformReport, *, dry_run: bool, as_json: bool) -> int:
    """The account, for people or as JSON."""
    if as_json:
        emit_json(report)
        return 0
    if report.renamed and not report.cut and not report.dropped:
        _rows(["new name", "was"], [(clean(r.new), clean(" + ".join(r.old[:3]))) for r in report.renamed])
    elif report.renamed:
        note(f"{len(report.renamed):,} tensors have another number")
    _rows(["cut", "was", "is"], [(clean(c.tensor), str(list(c.before)), str(list(c.after))) for c in report.cut])
    _rows(["key", "was", "is"], [(clean(c.key), _value(c.before), _value(c.after)) for c in report.changed])
    if report.dropped:
        note(clean(f"left out: {len(report.dropped):,} tensors, first {report.dropped[0]}"))
    for line in dict.fromkeys(report.losses):
        warn(clean(line))
    print_notes(report.notes)
    will = "would have" if dry_run else "has"
    echo(clean(f"{report.target} {will} {report.tensors:,} tensors, {human_bytes(report.bytes)}"))
    return 0


def _rows(heads: list[Any], rows: list[tuple[Cell, ...]]) -> None:
    """A table of the first few rows."""
    if not rows:
        return
    shown = rows if SCREEN.verbose else rows[:_SHOWN]
    table(heads, shown)
    if len(shown) < len(rows):
        note(f"and {len(rows) - len(shown):,} more, shown with -v")
    echo()


def _value(value: Any) -> str:
    text = "-" if value is None else str(value)
    return clean(text if len(text) < 60 else f"{text[:56]} ...")
