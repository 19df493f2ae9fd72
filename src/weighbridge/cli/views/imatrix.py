"""The output of `wb inspect` for an importance matrix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from weighbridge.base.words import plural
from weighbridge.cli.render import SCREEN, Column, clean, echo, human_bytes, pairs, styled, table

if TYPE_CHECKING:
    from weighbridge.conversion.quantize.imatrix_report import ImatrixReport

_SHOWN: Final = 10  # names per kind of mismatch, unless --verbose
_HEADS: Final = ("entry", "matrices", "columns", "seen", "unused", "sum", "most", "at", "least", "at", "zeros")


def show(report: ImatrixReport) -> None:
    """Prints the head, a row for each entry, and the mismatches with the model."""
    echo(clean(report.path), "head")
    pairs(_summary(report), indent=2)
    echo()
    columns: list[str | Column] = [_HEADS[0], *(Column(head, right=True) for head in _HEADS[1:])]
    rows = []
    for line in report.entries:
        least, most = f"{line.seen_least:,}", f"{line.seen_most:,}"
        seen = least if least == most else f"{least}-{most}"
        rows.append((
            line.name, f"{line.matrices:,}", f"{line.columns:,}", seen, f"{line.unused:,}", f"{line.sum:.6g}",
            *_value(line.most, line.most_at), *_value(line.least, line.least_at), f"{100 * line.zeros:.4g}%",
        ))  # fmt: skip
    table(columns, rows)
    if (fit := report.fit) is None:
        return
    echo()
    model = clean(fit.model)
    if fit.fits:
        echo(f"{styled('ok', 'ok')}: it fits {model}")
    else:
        echo(f"it doesn't fit {model}", "error")
    wrong = [f"{w.name} ({plural(w.expected, 'value')} expected, {w.found:,} found)" for w in fit.wrong_size]
    for kind, names in (
        ("entries without a tensor", fit.extra),
        ("tensors without an entry", fit.missing),
        ("wrong size", wrong),
        ("no entry, as llama-imatrix omits it by default", fit.seldom),
    ):
        if names:
            echo(f"  {kind}: {len(names):,}")
            shown = names if SCREEN.verbose else names[:_SHOWN]
            for name in shown:
                echo(f"    {clean(name)}")
            if len(names) > len(shown):
                echo(f"    ... {len(names) - len(shown):,} more (--verbose)", "dim")


def _summary(report: ImatrixReport) -> Iterator[tuple[str, object]]:
    yield "format", f"importance matrix, {'older form (.dat)' if report.form == 'legacy' else 'GGUF'}"
    yield "size", human_bytes(report.nbytes, exact=True)
    yield "data sets", ", ".join(map(clean, report.datasets)) or None
    size = f" of {plural(report.chunk_size, 'token')}" if report.chunk_size else ""
    yield "read for it", plural(report.chunks, "chunk") + size if report.chunks else None
    yield "entries", f"{len(report.entries):,} ({plural(report.values, 'value')})"
    yield "unused", f"{plural(report.unused, 'expert')} not reached by the text" if report.unused else None
    yield "numbers", f"mean squares of the inputs; seen: {report.unit}"


def _value(value: float | None, at: Sequence[int] | None) -> tuple[str, str]:
    return ("-", "-") if value is None or at is None else (f"{value:.4g}", f"{at[0]},{at[1]}")
