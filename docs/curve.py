"""Draws the first table of docs/quantize-quality.md, size against divergence, as docs/pictures/quality-size.svg:
`python docs/curve.py`."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).resolve().parent
WIDE, HIGH, LEFT, TOP = 640, 400, 60, 40
POWERS = range(-4, 1)  # of ten: the scale of divergences
SIZES = range(3, 11)  # MB
_ROW = re.compile(r"\| ([^|]+) \| ([\d.]+) MB \| [\d.]+ \| [^|]+ \| ([\d.]+) \| [^|]+ \|")
WEIGHTED = " with imatrix"
STYLE = (
    "<style>text{font:12px system-ui,sans-serif;fill:#5d6168}.n{fill:#1d1f23;font:11.5px ui-monospace,monospace;"
    "paint-order:stroke;stroke:#fff;stroke-width:3px}.g{fill:#fff}path{stroke:#e2e2dc;fill:none}"
    ".l{stroke:#5d6168;stroke-dasharray:3 4}circle{fill:#32548d}.i{fill:#d36c07}"
    "@media(prefers-color-scheme:dark){text{fill:#a0a4ab}.n{fill:#e7e7e3;stroke:#1b1d20}.g{fill:#1b1d20}"
    "path{stroke:#303338}.l{stroke:#a0a4ab}circle{fill:#0298f2}.i{fill:#b9722b}}</style>"
)


class Point(NamedTuple):
    name: str
    size: float  # MB
    divergence: float

    @property
    def weighted(self) -> bool:
        return self.name.endswith(WEIGHTED)

    @property
    def place(self) -> tuple[float, float]:
        share = (POWERS[-1] - math.log10(self.divergence)) / (POWERS[-1] - POWERS[0])
        return LEFT + WIDE * (self.size - SIZES[0]) / (SIZES[-1] - SIZES[0]), TOP + HIGH * share


def points(text: str) -> list[Point]:
    """Returns the rows of the first table with a divergence, without those of a type that a row above has."""
    rows = [Point(*row) for row in _ROW.findall(text.split("\n\n- ")[0])]
    seen = {row.name for row in rows}
    own = [row for row in rows if row.name.removesuffix(WEIGHTED) not in seen or not row.weighted]
    return sorted((Point(row.name, float(row.size), float(row.divergence)) for row in own
                   if float(row.divergence) and not row.name[0].isdigit()), key=lambda row: row.size)  # fmt: skip


def svg(rows: list[Point]) -> str:
    """Returns the picture. The types without an importance matrix are joined."""
    parts = [f'<rect class="g" width="100%" height="100%"/><text x="{LEFT}" y="20">KL divergence, nats</text>']
    for power in POWERS:
        y = TOP + HIGH * (POWERS[-1] - power) / (POWERS[-1] - POWERS[0])
        parts.append(f'<path d="M{LEFT} {y:g}H{LEFT + WIDE}"/><text x="{LEFT - 8}" y="{y + 4:g}" text-anchor="end">')
        parts.append(f"{10.0**power:g}</text>")
    for size in SIZES:
        x = LEFT + WIDE * (size - SIZES[0]) / (SIZES[-1] - SIZES[0])
        parts.append(f'<text x="{x:g}" y="{TOP + HIGH + 18}" text-anchor="middle">{size} MB</text>')
    line = "L".join("{:.1f} {:.1f}".format(*row.place) for row in rows if not row.weighted)
    parts.append(f'<path class="l" d="M{line}"/>')
    least = math.inf
    for row in rows:
        x, y = row.place
        below = f'x="{x - 8:.1f}" y="{y + 14:.1f}" text-anchor="end"'
        way = below if row.divergence < least and x > LEFT + 150 else f'x="{x + 8:.1f}" y="{y - 6:.1f}"'
        parts.append(f'<circle class="{"i" if row.weighted else ""}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>')
        parts.append(f'<text class="n" {way}>{row.name}</text>')
        least = min(least, row.divergence)
    box = f'width="{LEFT + WIDE + 40}" height="{TOP + HIGH + 40}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box}>{STYLE}\n' + "\n".join(parts) + "\n</svg>\n"


if __name__ == "__main__":
    rows = points((DOCS / "quantize-quality.md").read_text("utf-8"))
    (DOCS / "pictures" / "quality-size.svg").write_text(svg(rows), "utf-8")
