"""`wb diff`: the differences between two models in any form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from weighbridge.base.errors import UsageError
from weighbridge.cli.options import (
    applied,
    arch_file_option,
    command,
    examples,
    jobs_option,
    json_option,
    option,
    overwrite_option,
)
from weighbridge.cli.values import FILE, SOURCE

if TYPE_CHECKING:
    from weighbridge.reports.diff.model import DiffReport

_SHOWN: Final = 20
_LAYERS: Final = 5  # that lost most


_OPTIONS: Final = (
    click.argument("a", type=SOURCE),
    click.argument("b", type=SOURCE),
    option("--names", type=click.Choice(["auto", "stored", "logical", "canonical"]), default="auto",
           help="Compare under these names [auto: canonical if the names differ]."),
    option("--tolerance", type=click.FloatRange(0), default=0.0, metavar="X",
           help="Differences up to X count as none [0]."),
    option("--limit", type=click.IntRange(0), default=_SHOWN, metavar="N", help=f"Rows to show [{_SHOWN}]."),
    option("--brief", is_flag=True, help="Print only the counts."),
    option("--html", type=FILE, metavar="FILE", help="Write the whole table as a page."),
    overwrite_option,
    arch_file_option,
    jobs_option,
    json_option,
)  # fmt: skip


@command(
    epilog=examples(
        "wb diff ./my-model/ my-model.gguf",
        "wb diff base.safetensors tuned.safetensors --limit 50",
        "wb diff a.gguf b.gguf --html changes.html",
    )
)
@applied(_OPTIONS)
def diff(
    a: str, b: str, html: str | None, overwrite: bool, limit: int, brief: bool, as_json: bool, **options: Any
) -> int:
    """Compare the models A and B: names, bytes, then values after decoding (largest difference, NMSE, cosine).

    Maps names between formats if both families are known, and lists identical tensors under other names as renamed.
    Exit code 1 if a tensor is missing, renamed or has another shape or other values, or if metadata, config, tokenizer
    or chat template differ. Another number type with the same values doesn't count.
    """
    from weighbridge.cli.render import Progress, emit_json
    from weighbridge.io.sink import check_target, write_file
    from weighbridge.reports.diff.model import html_page
    from weighbridge.reports.diff.report import diff

    if html is not None:
        check_target(html, overwrite=overwrite, folder=False)
    elif overwrite:
        raise UsageError("--overwrite replaces a page", hint="write one with --html FILE")
    with Progress() as progress:
        report = diff(a, b, progress=progress, **options)
    if html is not None:
        write_file(html, html_page(report).encode(), overwrite=overwrite)
    if as_json:
        emit_json(report)
    else:
        _show(report, 0 if brief else limit, brief)
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
    counts = ", ".join(f"{n:,} {kind}" for kind, n in report.counts.items() if n)
    echo(f"{counts or 'no tensors'} (by {report.names} names)")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
