"""`wb diff`: what differs between two models, in whatever form they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from weighbridge.base.errors import UsageError
from weighbridge.cli.options import applied, command, examples, jobs_option, json_option, option, overwrite_option
from weighbridge.cli.paths import FILE, SOURCE

if TYPE_CHECKING:
    from weighbridge.reports.diff.report import DiffReport, TensorChange

_SHOWN: Final = 20
_LAYERS: Final = 5  # that lost most


_OPTIONS: Final = (
    click.argument("a", type=SOURCE),
    click.argument("b", type=SOURCE),
    option("--names", type=click.Choice(["auto", "stored", "logical", "canonical"]), default="auto",
           help="Compare under these names [auto: canonical where the names differ]."),
    option("--tolerance", type=click.FloatRange(0), default=0.0, metavar="X",
           help="Differences up to X count as none [0]."),
    option("--limit", type=click.IntRange(0), default=_SHOWN, metavar="N", help=f"Rows to show [{_SHOWN}]."),
    option("--brief", is_flag=True, help="Print only the counts."),
    option("--html", type=FILE, metavar="FILE", help="Write the whole table as a page."),
    overwrite_option,
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
def diff(a: str, b: str, html: str | None, overwrite: bool, limit: int, brief: bool, as_json: bool, **how: Any) -> int:
    """Compare the models A and B: names, bytes, then values after decoding (largest difference, NMSE, cosine).

    A Hugging Face folder, a GGUF, an MLX folder: names are mapped where both families are known, and tensors that are
    byte for byte equal under other names are listed as renamed. Exit code 1 where a tensor is missing, renamed, of
    another shape or of other values, or metadata, config, tokenizer or chat template differ; another number type with
    the same values is no difference.
    """
    from weighbridge.cli.render import Progress, emit_json
    from weighbridge.io.sink import check_target, write_file
    from weighbridge.reports.diff.html import page
    from weighbridge.reports.diff.report import diff

    if html is not None:
        check_target(html, overwrite=overwrite, folder=False)
    elif overwrite:
        raise UsageError("--overwrite replaces a page", hint="write one with --html FILE")
    with Progress() as progress:
        found = diff(a, b, progress=progress, **how)
    if html is not None:
        write_file(html, page(found).encode(), overwrite=overwrite)
    if as_json:
        emit_json(found)
    else:
        _show(found, 0 if brief else limit, brief)
    return int(not found)


def _show(found: DiffReport, limit: int, brief: bool) -> None:
    from weighbridge.cli.render import Column, clean, echo, note, table

    if found.tensors and not brief:
        rows = [
            (clean(_named(c)), _what(c), clean(c.a), clean(c.b), _number(c.max_abs), _number(c.nmse), _number(c.cosine))
            for c in found.tensors[:limit]
        ]
        numbers = [Column(title, right=True) for title in ("max abs", "NMSE", "cosine")]
        table(["tensor", "what", "a", "b", *numbers], rows)
        if len(found.tensors) > limit:
            note(f"and {len(found.tensors) - limit:,} more: --limit, or --html for all")
    if found.layers and not brief:
        worst = [(f"layer {row.layer}", _number(row.nmse), _number(row.snr)) for row in found.layers[:_LAYERS]]
        table(["lost most", Column("NMSE", right=True), Column("signal to noise, dB", right=True)], worst)
    for key, one, other in () if brief else found.metadata:
        echo(clean(f"{key}: {one or 'not there'} | {other or 'not there'}"))
    for line in found.notes:
        note(clean(line))
    counts = ", ".join(f"{n:,} {kind}" for kind, n in found.counts.items() if n)
    echo(f"{counts or 'no tensors'} (by {found.names} names)")


def _named(change: TensorChange) -> str:
    return f"{change.name} -> {change.name_b}" if change.name_b else change.name


def _what(change: TensorChange) -> str:
    return "type, values" if change.kind == "values" and change.retyped else change.kind


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
