"""`wb diff`: the differences between two models in any form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from weighbridge.base.errors import UsageError
from weighbridge.base.options import option
from weighbridge.base.records import dataclass
from weighbridge.cli.options import CommandOptions, command, examples
from weighbridge.cli.values import SOURCE
from weighbridge.io.options import OverwriteOptions
from weighbridge.reports.options import DiffOptions

if TYPE_CHECKING:
    from weighbridge.reports.diff.model import DiffReport

_LAYERS: Final = 5  # that lost most


@dataclass(frozen=True, kw_only=True)
class DiffCommand(DiffOptions, OverwriteOptions, CommandOptions):
    limit: int = option("Rows to show [20].", 20, metavar="N", least=0)
    brief: bool = option("Print only the counts.", False)
    html: str | None = option("Write the whole table as a page.", metavar="FILE", kind="file")


@command(
    DiffCommand,
    epilog=examples(
        "wb diff ./my-model/ my-model.gguf",
        "wb diff base.safetensors tuned.safetensors --limit 50",
        "wb diff a.gguf b.gguf --html changes.html",
        "wb diff ./base/ ./tuned/ --lineage --brief",
    ),
)
@click.argument("a", type=SOURCE)
@click.argument("b", type=SOURCE)
def diff(a: str, b: str, options: DiffCommand) -> int:
    """Compare the models A and B: names, bytes, then values after decoding (largest difference, NMSE, cosine).

    Maps names between formats if both families are known, and lists identical tensors under other names as renamed.
    Exit code 1 if a tensor is missing, renamed or has another shape or other values, or if metadata, config, tokenizer
    or chat template differ. Another number type with the same values doesn't count.
    """
    from weighbridge.cli.render import Progress, emit_json
    from weighbridge.io.sink import check_target, write_file
    from weighbridge.reports.diff.model import html_page
    from weighbridge.reports.diff.report import diff

    if options.html is not None:
        check_target(options.html, overwrite=options.overwrite, folder=False)
    elif options.overwrite:
        raise UsageError("--overwrite replaces a page", hint="write one with --html FILE")
    with Progress() as progress:
        report = diff(a, b, progress=progress, **options.keywords(diff))
    if options.html is not None:
        write_file(options.html, html_page(report).encode(), overwrite=options.overwrite)
    if options.json:
        emit_json(report)
    else:
        _show(report, 0 if options.brief else options.limit, options.brief)
    return int(not report)


def _show(report: DiffReport, limit: int, brief: bool) -> None:
    from weighbridge.cli.render import Column, clean, echo, note, table

    if report.tensors and not brief:
        rows = [
            (
                clean(f"{c.name} -> {c.name_b}" if c.name_b else c.name),
                "type, values" if c.retyped and c.kind == "values" else c.kind,
                clean(c.a),
                clean(c.b),
                *map(_number, (c.max_abs, c.nmse, c.cosine)),
            )
            for c in report.tensors[:limit]
        ]
        numbers = [Column(title, right=True) for title in ("max abs", "NMSE", "cosine")]
        table(["tensor", "what", "a", "b", *numbers], rows)
        if len(report.tensors) > limit:
            note(f"and {len(report.tensors) - limit:,} more: --limit, or --html for all")
    if report.layers and not brief:
        worst = [(f"layer {row.layer}", _number(row.nmse), _number(row.snr)) for row in report.layers[:_LAYERS]]
        table(["lost most", Column("NMSE", right=True), Column("signal to noise, dB", right=True)], worst)
    for key, in_a, in_b in () if brief else report.metadata:
        echo(clean(f"{key}: {in_a or 'missing'} | {in_b or 'missing'}"))
    for line in report.notes:
        note(clean(line))
    if report.lineage is not None:
        from weighbridge.reports.lineage.words import sentence

        echo(clean(sentence(report.lineage)))
    counts = ", ".join(f"{n:,} {kind}" for kind, n in report.counts.items() if n)
    echo(f"{counts or 'no tensors'} (by {report.names} names)")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
