"""Models and tensors in notebooks: plain HTML without scripts, with every name from a file escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

Row = tuple[str, str, tuple[int, ...], int]  # name, dtype, shape, bytes
_SHOWN = 500  # rows of a table; a model of 100,000 tensors would freeze the page


def tensor_html(name: str, dtype: str, shape: tuple[int, ...], nbytes: int) -> str:
    return f"<code>{escape(name)}</code> {escape(dtype)} {list(shape)}, {nbytes:,} bytes"


def model_html(title: str, form: str, rows: Sequence[Row]) -> str:
    """A summary, a bar of size shares, and the folded list of tensors, grouped by the first part of their names."""
    total = sum(row[3] for row in rows)
    head = f"<b>{escape(title)}</b> {escape(form)}: {len(rows):,} tensors, {total:,} bytes"
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(_group(row[0]), []).append(row)
    return f"<div>{head}{_bar(groups, total)}{''.join(_details(g, r) for g, r in groups.items())}</div>"


def _group(name: str) -> str:
    """`model.layers.3.mlp.up_proj.weight` -> `model.layers.3`: up to the first number, else the first part."""
    parts = name.split(".")
    for i, part in enumerate(parts):
        if part.isdecimal():
            return ".".join(parts[: i + 1])
    return parts[0]


def _details(group: str, rows: Sequence[Row]) -> str:
    size = sum(row[3] for row in rows)
    more = f"<tr><td>and {len(rows) - _SHOWN:,} more</td></tr>" if len(rows) > _SHOWN else ""
    body = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(dtype)}</td><td>{list(shape)}</td><td>{nbytes:,}</td></tr>"
        for name, dtype, shape, nbytes in rows[:_SHOWN]
    )
    summary = f"<summary><code>{escape(group)}</code> {len(rows):,} tensors, {size:,} bytes</summary>"
    return f"<details>{summary}<table>{body}{more}</table></details>"


def _bar(groups: dict[str, list[Row]], total: int, width: int = 640) -> str:
    """One strip, each group as wide as its share."""
    return f'<svg width="{width}" height="14" role="img">{"".join(_pieces(groups, total, width))}</svg>'


def _pieces(groups: dict[str, list[Row]], total: int, width: int) -> Iterable[str]:
    at = 0.0
    for i, (group, rows) in enumerate(groups.items()):
        size = sum(row[3] for row in rows) / max(total, 1) * width
        yield (
            f'<rect x="{at:.1f}" width="{size:.1f}" height="14" fill="hsl({i * 47 % 360} 45% 55%)">'
            f"<title>{escape(group)}</title></rect>"
        )
        at += size
