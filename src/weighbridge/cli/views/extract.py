"""A LoRA adapter that was extracted: ranks and errors of its matrices."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

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
from weighbridge.cli.views.plan import print_losses, print_notes

if TYPE_CHECKING:
    from weighbridge.conversion.extraction.plan import ExtractPlan

_SHOWN: Final = 8  # rows of a table; all of them with --verbose
_ENDS: Final = {
    "rank": "--rank",
    "energy": "--energy",
    "rounding": "the rest is rounding",
    "full": "nothing is left",
}


def write_extraction(plan: ExtractPlan, options: DryRunOptions) -> int:
    """Runs the plan, unless it is a dry run, and prints the adapter's matrices."""
    with plan:
        if not options.dry_run:
            with Progress() as progress:
                plan.run(progress)
    if options.json:
        emit_json(plan.report)
        return 0
    report = plan.report
    worst = sorted(report.matrices, key=lambda m: -m.error)
    shown = worst if SCREEN.verbose else worst[:_SHOWN]
    rows: list[tuple[Cell, ...]] = [
        (clean(m.name), m.rank, f"{m.energy:.2%}", f"{m.error:.2g}", f"{m.change:.2g}", _ENDS[m.limited_by])
        for m in shown
    ]
    heads = [Column(head, right=True) for head in ("rank", "energy", "error", "change")]
    table(["matrix", *heads, "rank ends at"], rows)
    if len(shown) < len(worst):
        note(f"and {len(worst) - len(shown):,} more with smaller errors (shown with -v)")
    echo()
    ranks = Counter(m.rank for m in report.matrices if m.rank)
    spread = f"ranks {min(ranks)} to {max(ranks)}" if len(ranks) > 1 else f"rank {report.rank}"
    if limited := sum(m.limited_by == "rank" for m in report.matrices):
        warn(f"{plural(limited, 'matrix', 'have')} more than --rank keeps")
    will = "would have" if options.dry_run else "has"
    whole = f", {plural(len(report.whole), 'whole tensor')}" if report.whole else ""
    pairs = f"{plural(sum(ranks.values()), 'matrix')} of {spread}{whole}"
    echo(clean(f"{report.target} {will} {pairs}, {human_bytes(report.bytes)}; {report.unchanged:,} unchanged"))
    print_losses(plan.losses)
    print_notes(report.notes)
    return 0
