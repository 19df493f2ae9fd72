"""The report of a diff: what changed in each tensor and layer. Notebooks show it as an HTML page without scripts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from html import escape
from typing import Final

from weighbridge.base.records import dataclass
from weighbridge.reports.lineage.model import LineagePair

SCHEMA: Final = "weighbridge/diff/1"
#: The kinds of changes in the order of the report, most important first.
KINDS: Final = ("only in a", "only in b", "renamed", "shape", "values", "type", "equal")
_SHOWN: Final = 5000  # rows; more would freeze the page
_STYLE: Final = (
    "body{font:14px system-ui;margin:2em}td,th{padding:.15em .8em;text-align:left}td.n{text-align:right;"
    "font-variant-numeric:tabular-nums}tr:nth-child(even){background:#8881}code{font-size:13px}"
)


@dataclass(frozen=True, slots=True)
class TensorChange:
    """One tensor. `kind`: one of KINDS ("type": equal values of another number type; "renamed": equal bytes, `name_b`
    in b). The measures cover values in F32: the largest difference, the mean squared difference over the mean square of
    a (NMSE), and the cosine of the angle between both. NaN equals NaN; `broken` counts values that are NaN or Inf on
    one side only. `snr`: the NMSE in decibels, None without an error. `squares`: the sum of the squared values of a.
    `retyped`: the number type differs. `role` and `layer`: as in the page's heat map; -1 outside of layers."""

    name: str
    kind: str
    a: str = ""
    b: str = ""
    max_abs: float | None = None
    nmse: float | None = None
    cosine: float | None = None
    broken: int = 0
    snr: float | None = None
    squares: float = 0.0
    retyped: bool = False
    name_b: str = ""
    role: str = ""
    layer: int = -1


@dataclass(frozen=True, slots=True)
class LayerError:
    """The tensors of one layer with different values, treated as one tensor. `nmse`: the sum of the squared errors over
    that of the squared values; `snr`: the same in decibels."""

    layer: int
    tensors: int
    nmse: float
    snr: float | None


@dataclass(frozen=True, slots=True, repr=False)
class DiffReport:
    """`names`: the dialect under which both were read. `tensors`: all but the equal ones, worst first; `counts` covers
    all. `layers`: those with different values, largest error first. `templates`: both chat templates if they differ.
    `lineage`: how the models are related, if that was asked for."""

    a: str
    b: str
    names: str
    counts: Mapping[str, int]
    tensors: tuple[TensorChange, ...]
    metadata: tuple[tuple[str, str, str], ...] = ()
    notes: tuple[str, ...] = ()
    layers: tuple[LayerError, ...] = ()
    templates: tuple[str, str] | None = None
    lineage: LineagePair | None = None
    schema: str = field(default=SCHEMA)

    def __bool__(self) -> bool:
        return self.same and not self.metadata

    def __repr__(self) -> str:
        counts = ", ".join(f"{n:,} {kind}" for kind, n in self.counts.items() if n)
        return f"<DiffReport {self.a} | {self.b}: {counts}>"

    @property
    def same(self) -> bool:
        """Whether all tensors have equal names, shapes and values."""
        return not any(self.counts.get(kind) for kind in KINDS[:5])

    def _repr_html_(self) -> str:
        return html_page(self)


def decibels(nmse: float | None) -> float | None:
    """Returns the signal-to-noise ratio; None without an error or without a signal."""
    return None if nmse is None or not 0 < nmse < math.inf else -10 * math.log10(nmse)


def html_page(diff: DiffReport) -> str:
    """Returns the report as an HTML page, in which every text from a file is escaped."""
    counts = ", ".join(f"{n:,} {kind}" for kind, n in diff.counts.items() if n)
    rows = ""
    for change in diff.tensors[:_SHOWN]:
        numbers = (change.max_abs, change.nmse, change.cosine)
        cells = "".join(f'<td class="n">{"" if x is None else f"{x:.6g}"}</td>' for x in numbers)
        texts = "".join(f"<td>{escape(x)}</td>" for x in (change.kind, change.a, change.b))
        to = f" to <code>{escape(change.name_b)}</code>" if change.name_b else ""
        rows += f"<tr><td><code>{escape(change.name)}</code>{to}</td>{texts}{cells}</tr>"
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
