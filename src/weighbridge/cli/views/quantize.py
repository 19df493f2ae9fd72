"""The output of `wb quantize`: plans and the report of errors."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.errors import RefusedError
from weighbridge.base.native import slow_version
from weighbridge.base.words import ranges
from weighbridge.cli.options import CommandOptions
from weighbridge.cli.render import SCREEN, Cell, Column, echo, emit_json, human_bytes, pairs, table, warn
from weighbridge.cli.views.plan import WriteCommand, print_keys, print_losses, print_notes

if TYPE_CHECKING:
    from weighbridge.conversion.quantize.plan import QuantizePlan, QuantizeRow
    from weighbridge.reports.diff.quality import QualityReport


def show_plan(plan: QuantizePlan, options: CommandOptions) -> int:
    """Prints the plan. Returns exit code 1 if something prevents it."""
    if options.json:
        emit_json(plan.describe())
    else:
        before, after = (sum(getattr(r, f) for r in plan.rows) for f in ("source_bytes", "target_bytes"))
        pairs(
            [
                ("source", plan.source),
                ("target", plan.target),
                ("type", plan.ftype or "chosen for the size"),
                ("size", f"{human_bytes(plan.size, exact=True)}, {plan.bits:.2f} bits per weight"),
                ("tensors", f"{human_bytes(before)} -> {human_bytes(after)}"),
                ("memory", f"{human_bytes(plan.memory)} at most, excluding the interpreter"),
                ("threads", str(plan.threads)),
                ("kernels", slow_version()),
                ("bill of materials", None if plan.bill is None else plan.bill.path),
            ]
        )
        echo()
        heads = (*map(Column, ("tensor", "shape", "from", "to")), Column("size", right=True), Column(""))
        table(heads, [_line(*group) for group in _grouped(plan.rows)])
        print_keys(plan)
        print_losses(plan.losses)
        print_notes(plan.notes)
        refused: dict[str, list[str]] = {}
        for refusal in plan.refusals:
            refused.setdefault(refusal.message, []).append(refusal.tensor)
        for message, names in refused.items():
            more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
            warn(f"refused: {names[0]}{more}: {message}")
    return 1 if plan.refusals else 0


def save_recipe(plan: QuantizePlan, path: Path, overwrite: bool) -> None:
    """Writes the types of a plan for --recipe."""
    from weighbridge.io.sink import write_file

    write_file(path, plan.recipe.encode(), overwrite=overwrite)


def check_report(path: Path, overwrite: bool) -> None:
    """Raises RefusedError or UsageError before the work if the report can't be written."""
    from weighbridge.reports.diff.quality_page import form_of

    form_of(path)
    if path.exists() and not overwrite:
        raise RefusedError(f"{path} exists already", option="--overwrite")


def print_report(report: QualityReport, path: Path, name: str, options: WriteCommand) -> None:
    """Writes the errors of a quantized model to `path`, and prints the largest."""
    from weighbridge.io.sink import write_file
    from weighbridge.reports.diff.quality_page import cells, render

    write_file(path, render(report, path, name), overwrite=options.overwrite)
    if options.json:
        return
    weighted = None if report.weighted is None else f"{report.weighted:.4g}"
    total = [("NMSE", f"{report.nmse:.4g}"), ("weighted", weighted), ("cosine", f"{report.cosine:.6f}")]
    pairs([*total, ("largest error", f"{report.max_error:.4g}"), ("report", path)])
    echo()
    heads = ("worst", "shape", "from", "to", "bytes", "NMSE", "weighted", "max error", "cosine")
    table([Column(h, right=i > 3) for i, h in enumerate(heads)], [cells(q) for q in report.worst])


_LAYER: Final = re.compile(r"(?<=blk\.)\d+(?=\.)")


def _grouped(rows: Iterable[QuantizeRow]) -> list[tuple[str, list[QuantizeRow]]]:
    """Groups tensors of several layers with the same outcome; with --verbose, each tensor is a group."""
    groups: dict[tuple[Any, ...], list[QuantizeRow]] = {}
    for row in rows:
        kind = row.name if SCREEN.verbose else _LAYER.sub("*", row.name, count=1)
        groups.setdefault((kind, row.shape, row.source, row.target, row.wanted, row.weighted), []).append(row)
    named = []
    for (kind, *_), group in groups.items():
        layers = ranges(int(number[0]) for row in group if (number := _LAYER.search(row.name)))
        named.append((kind.replace("*", f"{{{layers}}}", 1) if len(group) > 1 else group[0].name, group))
    return named


def _line(name: str, rows: list[QuantizeRow]) -> tuple[Cell, ...]:
    first = rows[0]
    remarks = [f"instead of {first.wanted}" if first.wanted else "", "weighted" if first.weighted else ""]
    size = human_bytes(sum(row.target_bytes for row in rows))
    to = first.target if first.target != first.source else "="
    shape = " x ".join(map(str, first.shape))
    return name, shape, first.source, to, size, ", ".join(filter(None, remarks))
