"""A quality report as an SVG and an HTML page, drawn without a library.

The SVG has two parts: the tensors by bits and error (log scale), and the bytes of each type.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from html import escape
from pathlib import PurePath
from types import MappingProxyType
from typing import Final

from weighbridge.base.errors import UsageError
from weighbridge.reports.diff.quality import Quality, QualityReport

_WIDE, _HIGH, _LEFT, _TOP = 720, 300, 70, 40
#: The page's colours, which stay apart for the colour-blind; a ninth type has the first one again.
_COLORS: Final = ("#32548d", "#d36c07", "#658e61", "#7d142d", "#9a80dc", "#6f5109", "#099da4", "#626263")
_DRAWN: Final = (
    "<style>text{font:12px system-ui,sans-serif;fill:#5d6168;font-variant-numeric:tabular-nums}.t{font-size:15px;"
    "font-weight:600;fill:#1d1f23}.g{fill:#fff}line{stroke:#e2e2dc}@media(prefers-color-scheme:dark){text{fill:#a0a4ab}"
    ".t{fill:#e7e7e3}.g{fill:#1b1d20}line{stroke:#303338}circle,.b{stroke:#fff;stroke-opacity:.5}}</style>"
)


def render(report: QualityReport, path: PurePath, title: str) -> bytes:
    """Renders the report in the form of the file's suffix."""
    return form_of(path)(report, title).encode()


def form_of(path: PurePath) -> Callable[[QualityReport, str], str]:
    """Returns the renderer for the file's suffix. Raises UsageError for an unsupported one."""
    form = _FORMS.get(path.suffix.lower())
    if form is None:
        hint = f"one of {', '.join(_FORMS)}" + ("; most programs can convert an SVG" if path.suffix == ".png" else "")
        raise UsageError(f"a report can't be written as {path.suffix or path.name!r}", hint=hint)
    return form


def svg(report: QualityReport, title: str) -> str:
    """Returns the picture."""
    colors = {name: _COLORS[i % len(_COLORS)] for i, name in enumerate(report.types)}
    height = _TOP + _HIGH + 70 + 22 * len(report.types) + 20
    dots = [
        f'<circle cx="{_x(report, q.bits):.1f}" cy="{_y(report, q.nmse):.1f}" '
        f'r="{3 + min(7.0, math.sqrt(q.bytes) / 2000):.1f}" fill="{colors[q.type]}" fill-opacity="0.6">'
        f"<title>{escape(q.name)} {q.type} {q.nmse:.3g}</title></circle>"
        for q in report.tensors
    ]
    top, most, bars = _TOP + _HIGH + 60, max(report.types.values(), default=1) or 1, []
    for i, (name, size) in enumerate(report.types.items()):
        y, width = top + 22 * i, (_WIDE - 120) * size / most
        bars.append(f'<text x="{_LEFT - 8}" y="{y + 12}" text-anchor="end">{name}</text>')
        bars.append(
            f'<rect class="b" x="{_LEFT}" y="{y}" width="{width:.1f}" height="16" rx="3" fill="{colors[name]}"/>'
        )
        bars.append(f'<text x="{_LEFT + width + 6:.1f}" y="{y + 12}">{size / 1e6:,.3g} MB</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDE + 30} {height}">{_DRAWN}\n'
        f'<rect class="g" width="100%" height="100%"/>\n<text class="t" x="{_LEFT}" y="22">{escape(title)}</text>\n'
        + "\n".join([*_axes(report), *dots, *bars])
        + "\n</svg>\n"
    )


def _decades(report: QualityReport) -> tuple[int, int]:
    """Returns the powers of ten that enclose every nonzero error."""
    errors = [q.nmse for q in report.tensors if q.nmse > 0] or [1.0]
    low, high = math.floor(math.log10(min(errors))), math.ceil(math.log10(max(errors)))
    return low, max(high, low + 1)


def _x(report: QualityReport, bits: float) -> float:
    most = max((q.bits for q in report.tensors), default=16)
    return _LEFT + _WIDE * bits / (most * 1.05)


def _y(report: QualityReport, error: float) -> float:
    low, high = _decades(report)
    at = math.log10(error) if error > 0 else low
    return _TOP + _HIGH * (high - at) / (high - low)


def _axes(report: QualityReport) -> Iterable[str]:
    low, high = _decades(report)
    for power in range(low, high + 1):
        y = _y(report, 10.0**power)
        yield f'<line x1="{_LEFT}" x2="{_LEFT + _WIDE}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">1e{power}</text>'
    yield f'<text x="16" y="{_TOP + _HIGH / 2}" transform="rotate(-90 16 {_TOP + _HIGH / 2})">NMSE</text>'
    for bits in sorted({q.bits for q in report.tensors}):
        yield f'<text x="{_x(report, bits):.1f}" y="{_TOP + _HIGH + 16}" text-anchor="middle">{bits:g}</text>'
    yield f'<text x="{_LEFT + _WIDE / 2}" y="{_TOP + _HIGH + 34}" text-anchor="middle">bits per weight</text>'


_STYLE: Final = (
    "<style>body{font-family:sans-serif;margin:2em;max-width:72em}td,th{padding:2px 8px;text-align:left}"
    ".worst{background:#fde9e7}</style>"
)
_HEADS: Final = ("tensor", "shape", "from", "to", "bytes", "NMSE", "weighted", "max error", "cosine")


def cells(q: Quality) -> tuple[str, ...]:
    """Returns the cells of a tensor's row."""
    weighted = "" if q.weighted is None else f"{q.weighted:.3g}"
    shape = " x ".join(map(str, q.shape))
    errors = f"{q.nmse:.3g}", weighted, f"{q.max_error:.3g}", f"{q.cosine:.6f}"
    return q.name, shape, q.source, q.type, f"{q.bytes:,}", *errors


def _html(report: QualityReport, title: str) -> str:
    worst = {q.name for q in report.worst}
    head = "".join(f"<th>{name}</th>" for name in _HEADS)
    rows = "\n".join(
        f"<tr{' class=worst' if q.name in worst else ''}>"
        + "".join(f"<td>{escape(c)}</td>" for c in cells(q))
        + "</tr>"
        for q in report.tensors
    )
    weighted = "" if report.weighted is None else f", weighted by the importance matrix {report.weighted:.3g}"
    reported = f"NMSE {report.nmse:.3g}{weighted}, largest error {report.max_error:.3g}, cosine {report.cosine:.6f}"
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>\n{_STYLE}\n'
        f"<h1>{escape(title)}</h1>\n<p>{reported}, {report.bytes:,} bytes. The worst {len(worst)} are marked.</p>\n"
        f"{svg(report, title)}\n<table><tr>{head}</tr>\n{rows}\n</table></html>\n"
    )


_FORMS: Final = MappingProxyType[str, Callable[[QualityReport, str], str]](
    {".json": lambda report, _: json.dumps(report.describe(), indent=1) + "\n", ".html": _html, ".svg": svg}
)
