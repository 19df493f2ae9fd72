"""The operator graph of an open model, as the page draws it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weighbridge.base.errors import UnsupportedError
from weighbridge.forward.operators.build import operator_graph
from weighbridge.models.model import OpenModel
from weighbridge.page.views.graph_drawing import drawn
from weighbridge.reports.survey import Survey


def graph_view(model: OpenModel, surveyed: Survey) -> dict[str, Any]:
    """Returns the drawings of the layers of each kind, and of the stages before and after them. Raises UnsupportedError
    if no family's table knows the model. Reads headers only."""
    if surveyed.roles.family is None:
        raise UnsupportedError("no family’s table matches the model")
    counted = surveyed.counted
    shapes = {counted.packed[e.name].name if e.name in counted.packed else e.name: counted.logical_shape(e)
              for e in model.index.entries}  # fmt: skip
    graph = operator_graph(model, shapes)
    return {
        "family": graph.family, "architecture": graph.architecture,
        "before": drawn(graph.before), "after": drawn(graph.after), "notes": graph.notes,
        "kinds": [
            {"title": kind.title, "layers": kind.layers, "range": ranges(kind.layers), "stack": kind.stack,
             "stage": drawn(kind.stage)}
            for kind in graph.kinds
        ],
    }  # fmt: skip


def ranges(numbers: Sequence[int]) -> str:
    """Returns sorted numbers as ranges: `layers 0–2, 5`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [str(a) if a == b else f"{a}–{b}" for a, b in runs]
    return f"layer{'' if len(numbers) == 1 else 's'} {', '.join(texts[:12])}{' …' if len(texts) > 12 else ''}"
