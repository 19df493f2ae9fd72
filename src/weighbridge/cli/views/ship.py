"""The output of `wb ship`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weighbridge.cli.render import Cell, Column, Styled, clean, echo, human_bytes, note, pairs, table

if TYPE_CHECKING:
    from weighbridge.shipping.plan import ShipReport


def show(report: ShipReport) -> None:
    """Prints the files, the requirements of the target, the text of a dry run, and the commands."""
    if report.files:
        rows: list[tuple[Cell, ...]] = [(f.what, f.path, human_bytes(f.bytes), f.how) for f in report.files]
        table(["part", "file", Column("size", right=True), "how"], rows)
        echo()
    if report.checks:
        checked = [(Styled("ok", "ok") if c.ok else Styled("no", "error"), c.need, c.message) for c in report.checks]
        table(["", "needs", ""], checked)
        echo()
    if report.text and (report.dry_run or not report.files):
        echo(clean(report.text, "\n"))
    for line in report.notes:
        note(f"note: {clean(line)}")
    pairs(("run", command) for command in report.run if bool(report))
