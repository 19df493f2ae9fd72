"""Models and tensors in notebooks: plain HTML without scripts, with every name from a file escaped. It shows what the
page's first panels show, of the same reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Final

from weighbridge.reports.inspect.tree import TreeNode, build_tree, chained

if TYPE_CHECKING:
    from weighbridge.reports.inspect.report import InspectReport
    from weighbridge.reports.view.summary import PartTypes

_SHOWN: Final = 500  # rows of a level of the tree
_WIDTH: Final = 640  # of a bar, in pixels

_Share = tuple[str, int]  # name, bytes


def tensor_html(name: str, dtype: str, shape: tuple[int, ...], nbytes: int) -> str:
    return f"<code>{escape(name)}</code> {escape(dtype)} {list(shape)}, {nbytes:,} bytes"


def model_html(report: InspectReport, parts: Sequence[PartTypes] = ()) -> str:
    """What it is, bars of the bytes by number type and by part of the model, and the tree of tensors with equal layers
    folded."""
    types = _bar("Number types", [(row.dtype, row.nbytes) for row in report.dtypes])
    shares = _bar("Parts of the model", [(row.part.name, row.part.nbytes) for row in parts])
    tree = "".join(_nodes(build_tree(report.tensors)))
    return f"<div><b>{escape(report.path)}</b> {escape(_figures(report))}{types}{shares}{tree}</div>"


def _figures(report: InspectReport) -> str:
    found = [report.model.architecture, report.format, f"{report.tensor_count:,} tensors", f"{report.nbytes:,} bytes",
             f"{report.parameters:,} parameters"]  # fmt: skip
    if report.bits_per_weight is not None:
        found.append(f"{report.bits_per_weight:.2f} bits per weight")
    if report.model.context_length:
        found.append(f"{report.model.context_length:,} tokens of context")
    return ", ".join(filter(None, found))


def _nodes(nodes: Sequence[TreeNode]) -> Iterable[str]:
    for node in nodes[:_SHOWN]:
        text, last = chained(node)
        name = f"<code>{escape(text)}</code>" + (f" <b>× {node.repeat}</b>" if node.repeat > 1 else "")
        if last.shape is not None:
            yield f"<div>{name} {escape(last.dtype)} {list(last.shape)}, {node.nbytes:,} bytes</div>"
        else:
            sums = f"{node.tensors:,} tensors, {node.nbytes:,} bytes"
            inner = "".join(_nodes(last.children))
            yield f'<details style="margin-left:1em"><summary>{name} {sums}</summary>{inner}</details>'
    if len(nodes) > _SHOWN:
        yield f"<div>and {len(nodes) - _SHOWN:,} more</div>"


def _bar(title: str, shares: Sequence[_Share]) -> str:
    """One strip, each share as wide as its bytes, and what is what."""
    total = sum(nbytes for _, nbytes in shares)
    if not total:
        return ""
    legend = ", ".join(f"{escape(name)} {nbytes / total:.1%}" for name, nbytes in shares)
    strip = f'<svg width="{_WIDTH}" height="14" role="img">{"".join(_pieces(shares, total))}</svg>'
    return f"<div>{title}: {legend}</div>{strip}"


def _pieces(shares: Sequence[_Share], total: int) -> Iterable[str]:
    at = 0.0
    for number, (name, nbytes) in enumerate(shares):
        width = nbytes / total * _WIDTH
        yield (
            f'<rect x="{at:.1f}" width="{width:.1f}" height="14" fill="hsl({number * 47 % 360} 45% 55%)">'
            f"<title>{escape(name)}</title></rect>"
        )
        at += width
