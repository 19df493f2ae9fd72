"""Scans a chat template for attacks on the program that renders it. Nothing is rendered.

transformers renders templates in a sandbox, others (llama-cpp-python until 0.2.72, SGLang until 2026) did not, and
without one a template that reaches an object's underscored attributes can run anything. A model's template needs no
such attribute, so anything that leads there is a finding, however it is written: jinja2's own parser reads the
template, and `interpreter.py` tracks the possible values of each expression.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from weighbridge.base.limits import JINJA_SIZE
from weighbridge.reports.scan.model import Part, Piece, ScanFinding

_RENDERED: Final = "A program that renders templates without a sandbox runs the code that this reaches."


def scan(part: Part) -> Iterator[Piece]:
    """Scans a file that is a template."""
    size = min(part.source.size, JINJA_SIZE + 1)
    part.budget.spend(size)
    yield from check(part.source.read(0, size).decode("utf-8", "replace"), part, "the template")


def check(text: str, part: Part, label: str) -> Iterator[ScanFinding]:
    """Findings on the template `text`, which messages call `label`."""
    from weighbridge.reports.scan.template.interpreter import check_template  # imports jinja2

    for rule, message, line in dict.fromkeys(check_template(text)):
        place = f"{label}, line {line}" if line else label
        consequence = "" if rule == "template/unreadable" else _RENDERED
        yield part.finding(rule, f"{place}: {message}", consequence=consequence)
