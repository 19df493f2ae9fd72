"""The output of `wb lineage` and `wb ls --lineage`: family trees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weighbridge.cli.render import clean, echo, human_bytes, note, shorten, warn
from weighbridge.reports.lineage.words import branch_text

if TYPE_CHECKING:
    from weighbridge.reports.lineage.model import LineageReport, StoreLineage


def print_tree(report: LineageReport) -> None:
    """Prints a line per model, indented below the model that it hangs on."""
    depth: dict[str, int] = {}
    for branch in report.tree:
        depth[branch.name] = 0 if branch.above is None else depth[branch.above] + 1
        mark = "" if branch.is_parent else "~ "
        text = branch_text(report, branch.name, branch.above, branch.is_parent)
        echo(f"{'   ' * depth[branch.name]}{mark}{clean(branch.name)}  {clean(text)}")


def print_families(lineage: StoreLineage) -> None:
    """Prints a tree per family, then the models without relatives."""
    for family in lineage.families:
        echo()
        print_tree(family)
    echo()
    if lineage.single:
        note(clean(f"without relatives here: {shorten(lineage.single)}"))
    for line in (*(f"not compared: {line}" for line in lineage.uncompared), *lineage.contradictions):
        warn(clean(line))
    for line in lineage.notes:
        note(clean(line))
    note(f"by {human_bytes(lineage.bytes_read)} of weights")
