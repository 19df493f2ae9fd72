"""A diff as one HTML page without scripts; every name from a file is escaped."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weighbridge.reports.diff.report import DiffReport, TensorChange

_SHOWN = 5000  # rows; more would freeze the page
_STYLE = (
    "body{font:14px system-ui;margin:2em}td,th{padding:.15em .8em;text-align:left}td.n{text-align:right;"
    "font-variant-numeric:tabular-nums}tr:nth-child(even){background:#8881}code{font-size:13px}"
)


def page(diff: DiffReport) -> str:
    """The complete page."""
    counts = ", ".join(f"{n:,} {kind}" for kind, n in diff.counts.items() if n)
    rows = "".join(map(_row, diff.tensors[:_SHOWN]))
    more = f"<p>and {len(diff.tensors) - _SHOWN:,} more</p>" if len(diff.tensors) > _SHOWN else ""
    notes = "".join(f"<p>{escape(note)}</p>" for note in diff.notes)
    meta = "".join(f"<tr><td><code>{escape(k)}</code></td><td>{escape(a)}</td><td>{escape(b)}</td></tr>"
                   for k, a, b in diff.metadata)  # fmt: skip
    keys = f"<h2>Metadata</h2><table><tr><th>key<th>a<th>b</tr>{meta}</table>" if meta else ""
    head = "<tr><th>tensor<th>what<th>a<th>b<th>max abs<th>NMSE<th>cosine</tr>"
    return (
        f'<!doctype html><meta charset="utf-8"><title>diff</title><style>{_STYLE}</style>'
        f"<h1>{escape(diff.a)} and {escape(diff.b)}</h1><p>{counts} (by {escape(diff.names)} names)</p>{notes}"
        f"<table>{head}{rows}</table>{more}{keys}"
    )


def _row(change: TensorChange) -> str:
    numbers = (change.max_abs, change.nmse, change.cosine)
    cells = "".join(f'<td class="n">{"" if x is None else f"{x:.6g}"}</td>' for x in numbers)
    texts = "".join(f"<td>{escape(x)}</td>" for x in (change.kind, change.a, change.b))
    to = f" to <code>{escape(change.name_b)}</code>" if change.name_b else ""
    return f"<tr><td><code>{escape(change.name)}</code>{to}</td>{texts}{cells}</tr>"
