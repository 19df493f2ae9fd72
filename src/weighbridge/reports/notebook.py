"""Models and tensors in notebooks: HTML without scripts, in which every text from a file is escaped. It shows the same
reports as the first panels of the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from weighbridge.base.words import plural
from weighbridge.reports.inspect.tree import Leaf, TreeNode, build_tree, chained

_SHOWN: Final = 500  # rows per level of the tree
_WIDTH: Final = 640  # of a bar, in pixels

_Share = tuple[str, int]  # name, bytes


def tensor_html(name: str, dtype: str, shape: tuple[int, ...], nbytes: int) -> str:
    return f"<code>{escape(name)}</code> {escape(dtype)} {list(shape)}, {nbytes:,} bytes"


def model_html(
    path: str, figures: Iterable[str], types: Sequence[_Share], parts: Sequence[_Share], tensors: Iterable[Leaf]
) -> str:
    """Returns the model's figures, bars of its bytes by number type and part, and the tree of tensors with equal layers
    folded."""
    bars = _bar("Number types", types) + _bar("Parts of the model", parts)
    tree = "".join(_nodes(build_tree(tensors)))
    return f"<div><b>{escape(path)}</b> {escape(', '.join(figures))}{bars}{tree}</div>"


def _nodes(nodes: Sequence[TreeNode]) -> Iterable[str]:
    for node in nodes[:_SHOWN]:
        text, last = chained(node)
        name = f"<code>{escape(text)}</code>" + (f" <b>× {node.repeat}</b>" if node.repeat > 1 else "")
        if last.shape is not None:
            yield f"<div>{name} {escape(last.dtype)} {list(last.shape)}, {node.nbytes:,} bytes</div>"
        else:
            sums = f"{plural(node.tensors, 'tensor')}, {node.nbytes:,} bytes"
            inner = "".join(_nodes(last.children))
            yield f'<details style="margin-left:1em"><summary>{name} {sums}</summary>{inner}</details>'
    if len(nodes) > _SHOWN:
        yield f"<div>and {len(nodes) - _SHOWN:,} more</div>"


def _bar(title: str, shares: Sequence[_Share]) -> str:
    """Returns a bar divided by the bytes of each share, with a legend."""
    total = sum(nbytes for _, nbytes in shares)
    if not total:
        return ""
    legend = ", ".join(f"{escape(name)} {nbytes / total:.1%}" for name, nbytes in shares)
    pieces, x = [], 0.0
    for number, (name, nbytes) in enumerate(shares):
        width = nbytes / total * _WIDTH
        pieces.append(
            f'<rect x="{x:.1f}" width="{width:.1f}" height="14" fill="hsl({number * 47 % 360} 45% 55%)">'
            f"<title>{escape(name)}</title></rect>"
        )
        x += width
    return f'<div>{title}: {legend}</div><svg width="{_WIDTH}" height="14" role="img">{"".join(pieces)}</svg>'
