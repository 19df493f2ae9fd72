"""Plans of `wb quantize`, and its report of errors."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.errors import RefusedError
from weighbridge.cli.render import SCREEN, Cell, Column, echo, emit_json, human_bytes, pairs, table, warn
from weighbridge.cli.views.plan import print_losses, print_notes

if TYPE_CHECKING:
    from weighbridge.conversion.quantize.plan import QuantizePlan, QuantizeRow
    from weighbridge.reports.diff.quality import QualityReport


def show_plan(plan: QuantizePlan, *, as_json: bool) -> int:
    """Prints the plan; exit code 1 where something stands in the way."""
    emit_json(plan.describe()) if as_json else _print_plan(plan)
    return 1 if plan.refusals else 0


def check_report(path: Path, overwrite: bool) -> None:
    """RefusedError or UsageError, before the work, where the report couldn't be written after it."""
    from weighbridge.reports.diff.quality_page import form_of

    form_of(path)
    if path.exists() and not overwrite:
        raise RefusedError(f"{path} exists already", option="--overwrite")


def print_report(report: QualityReport, path: Path, name: str, *, overwrite: bool, as_json: bool) -> None:
    """Writes the errors of a quantized model to `path`, and prints the worst of them."""
    from weighbridge.io.sink import write_file
    from weighbridge.reports.diff.quality_page import cells, render

    write_file(path, render(report, path, name), overwrite=overwrite)
    if as_json:
        return
    weighted = None if report.weighted is None else f"{report.weighted:.4g}"
    total = [("NMSE", f"{report.nmse:.4g}"), ("weighted", weighted), ("cosine", f"{report.cosine:.6f}")]
    pairs([*total, ("largest error", f"{report.max_error:.4g}"), ("report", path)])
    echo()
    heads = ("worst", "shape", "from", "to", "bytes", "NMSE", "weighted", "max error", "cosine")
    table([Column(h, right=i > 3) for i, h in enumerate(heads)], [cells(q) for q in report.worst])


def _print_plan(plan: QuantizePlan) -> None:
    before, after = (sum(getattr(r, f) for r in plan.rows) for f in ("source_bytes", "target_bytes"))
    pairs(
        [
            ("source", plan.source),
            ("target", plan.target),
            ("type", plan.ftype or "chosen for the size"),
            ("size", f"{human_bytes(plan.size, exact=True)}, {plan.bits:.2f} bits per weight"),
            ("tensors", f"{human_bytes(before)} -> {human_bytes(after)}"),
            ("memory", f"{human_bytes(plan.memory)} at most, excluding the interpreter"),
        ]
    )
    echo()
    heads = (*map(Column, ("tensor", "shape", "from", "to")), Column("size", right=True), Column(""))
    table(heads, [_line(*group) for group in _grouped(plan.rows)])
    print_losses(plan.losses)
    print_notes(plan.notes)
    for message, names in _refused(plan).items():
        more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
        warn(f"refused: {names[0]}{more}: {message}")


def _refused(plan: QuantizePlan) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for refusal in plan.refusals:
        found.setdefault(refusal.message, []).append(refusal.tensor)
    return found


_LAYER: Final = re.compile(r"(?<=blk\.)\d+(?=\.)")


def _grouped(rows: Iterable[QuantizeRow]) -> list[tuple[str, list[QuantizeRow]]]:
    """Tensors of several layers that fare alike in one line; each by itself with --verbose."""
    groups: dict[tuple[Any, ...], list[QuantizeRow]] = {}
    for row in rows:
        kind = row.name if SCREEN.verbose else _LAYER.sub("*", row.name, count=1)
        groups.setdefault((kind, row.shape, row.source, row.target, row.wanted, row.weighted), []).append(row)
    return [(_named(key[0], found), found) for key, found in groups.items()]


def _named(kind: str, rows: list[QuantizeRow]) -> str:
    numbers = [int(found[0]) for row in rows if (found := _LAYER.search(row.name))]
    return kind.replace("*", _ranges(numbers), 1) if len(numbers) > 1 else rows[0].name


def _ranges(numbers: Iterable[int]) -> str:
    """`{0-3,7}`."""
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and runs[-1][1] == n - 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return "{" + ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs) + "}"


def _line(name: str, rows: list[QuantizeRow]) -> tuple[Cell, ...]:
    first = rows[0]
    remarks = [f"instead of {first.wanted}" if first.wanted else "", "weighted" if first.weighted else ""]
    size = human_bytes(sum(row.target_bytes for row in rows))
    to = first.target if first.target != first.source else "="
    shape = " x ".join(map(str, first.shape))
    return name, shape, first.source, to, size, ", ".join(filter(None, remarks))
