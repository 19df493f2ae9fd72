"""The output of `wb pack`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weighbridge.base.words import plural
from weighbridge.cli.options import DryRunOptions
from weighbridge.cli.render import Column, Progress, clean, echo, emit_json, human_bytes, human_time, table
from weighbridge.cli.views.plan import print_notes

if TYPE_CHECKING:
    from weighbridge.conversion.archive.pack import PackPlan


def write_packed(plan: PackPlan, options: DryRunOptions) -> int:
    """Prints the plan, or runs it and prints how small each file became."""
    with plan:
        if options.dry_run:
            data = plan.describe()
            if options.json:
                emit_json(data)
                return 0
            table(
                ["file", *(Column(head, right=True) for head in ("size", "records", "deltas"))],
                [(f["name"], human_bytes(f["bytes"]), f["records"] or "copied", f["deltas"] or None)
                 for f in data["files"]],
            )  # fmt: skip
            print_notes(data["notes"])
            return 0
        with Progress(computing=True) as progress:
            report = plan.run(progress)
    if options.json:
        emit_json(report)
        return 0
    packed = [file for file in report.files if file.sha256]
    if len(packed) > 1:
        rows = [(f.name, human_bytes(f.bytes), human_bytes(f.packed_bytes), f"{f.packed_bytes / f.bytes:.3f}")
                for f in packed if f.bytes]  # fmt: skip
        table(["file", *(Column(head, right=True) for head in ("size", "packed", "ratio"))], rows)
    print_notes(report.notes)
    size, now = human_bytes(report.bytes), human_bytes(report.packed_bytes)
    count = plural(len(packed), "file")
    echo(clean(f"{report.target}: {count} packed, {size} in {now} ({report.ratio:.3f}), {human_time(report.seconds)}"))
    return 0
