"""The family tree as an SVG picture."""

from __future__ import annotations

from html import escape
from typing import Final

from weighbridge.reports.lineage.model import LineageReport
from weighbridge.reports.lineage.words import branch_text

_ROW, _INDENT, _BOX, _MARGIN = 46, 34, 32, 12
_GLYPH: Final = 7.4  # width of a character at 13 px, at most
_STYLE: Final = (
    "text{font:13px system-ui,sans-serif;fill:#1b1f24}.d{fill:#57606a;font-size:12px}rect{fill:#f6f8fa;stroke:#8c959f}"
    "path{fill:none;stroke:#57606a;stroke-width:1.5}.u{stroke-dasharray:4 4}"
    "@media(prefers-color-scheme:dark){text{fill:#e7e7e3}.d{fill:#a0a4ab}rect{fill:#24262a;stroke:#75797f}path{stroke:#a0a4ab}}"
)


def svg(report: LineageReport) -> str:
    """Returns the tree as SVG. A solid line leads from a parent to its child, a dashed one to the nearest relative.
    Every text from a file is escaped."""
    depth: dict[str, int] = {}
    place: dict[str, tuple[float, float]] = {}
    parts: list[str] = []
    right = 0.0
    for row, branch in enumerate(report.tree):
        depth[branch.name] = 0 if branch.above is None else depth[branch.above] + 1
        x, y = _MARGIN + depth[branch.name] * _INDENT, _MARGIN + row * _ROW
        place[branch.name] = x, y
        width = len(branch.name) * _GLYPH + 16
        text = branch_text(report, branch.name, branch.above, branch.is_parent)
        if branch.above is not None:
            left, top = place[branch.above]
            middle = y + _BOX / 2
            kind = "" if branch.is_parent else ' class="u"'
            parts.append(f'<path{kind} d="M{left + _INDENT / 2:g} {top + _BOX}V{middle:g}H{x:g}"/>')
        parts.append(f'<rect x="{x}" y="{y}" width="{width:.0f}" height="{_BOX}" rx="6"/>')
        parts.append(f'<text x="{x + 8}" y="{y + 21}">{escape(branch.name)}</text>')
        parts.append(f'<text class="d" x="{x + width + 10:.0f}" y="{y + 21}">{escape(text)}</text>')
        right = max(right, x + width + 10 + len(text) * _GLYPH)
    size = f'width="{right + _MARGIN:.0f}" height="{2 * _MARGIN + len(report.tree) * _ROW}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{_STYLE}</style>{"".join(parts)}</svg>\n'
