"""Drawings of operators, for every family: boxes don't overlap, frames contain what is in them, and no line crosses an
operator."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations, pairwise

import pytest
from tests.forward.test_operators import MODELS, family_of, graph_of

from weighbridge.forward.operators.model import GraphStage
from weighbridge.page.views.graph import ranges
from weighbridge.page.views.graph_drawing import Drawing, PlacedOperator, drawing

_STEP = re.compile(r"([MLHVCQ])([^MLHVCQ]*)")
Point = tuple[float, float]


def points(path: str) -> Iterator[Point]:
    """Points along an SVG path of the commands that drawings have."""
    x = y = 0.0
    for command, text in _STEP.findall(path):
        numbers = [float(n) for n in text.split()]
        if command == "H":
            numbers = [numbers[0], y]
        elif command == "V":
            numbers = [x, numbers[0]]
        ends = list(zip(numbers[::2], numbers[1::2], strict=True))
        if command == "M":
            x, y = ends[0]
            continue
        control = [(x, y), *ends]
        for step in range(1, 21):
            yield _bezier(control, step / 20)
        x, y = ends[-1]


def _bezier(control: list[Point], t: float) -> Point:
    while len(control) > 1:
        control = [((1 - t) * ax + t * bx, (1 - t) * ay + t * by) for (ax, ay), (bx, by) in pairwise(control)]
    return control[0]


#: The models of each family.
OF_EACH = {family_of(model).name: [m for m in MODELS if family_of(m) is family_of(model)] for model in MODELS}


def stages(family: str) -> Iterator[GraphStage]:
    """The stages of the family's model that has most kinds of layers."""
    graph = max(map(graph_of, OF_EACH[family]), key=lambda graph: len(graph.kinds))
    yield from (graph.before, graph.after, *(kind.stage for kind in graph.kinds))


@pytest.mark.parametrize("family", OF_EACH)
def test_nothing_overlaps(family: str) -> None:
    for stage in stages(family):
        made = drawing(stage)
        assert len(made.operators) == len(stage.operators)
        for a, b in combinations(made.operators, 2):
            assert not overlap(a, b), (a.operator.id, b.operator.id)
        for p in made.operators:
            assert p.x >= 0 and p.y >= 0 and p.x + p.width <= made.width and p.y + p.height <= made.height  # noqa: PT018
        for frame in made.frames:
            for p in made.operators:
                inside = frame.x <= p.x and p.x + p.width <= frame.x + frame.width
                outside = p.x + p.width <= frame.x or p.x >= frame.x + frame.width
                apart = p.y + p.height <= frame.y or p.y >= frame.y + frame.height
                assert inside or outside or apart, (frame.title, p.operator.id)


def overlap(a: PlacedOperator, b: PlacedOperator) -> bool:
    return a.x < b.x + b.width and b.x < a.x + a.width and a.y < b.y + b.height and b.y < a.y + a.height


@pytest.mark.parametrize("family", OF_EACH)
def test_lines_go_down_from_what_they_begin_at_to_what_they_end_at(family: str) -> None:
    for stage in stages(family):
        made = drawing(stage)
        placed = {p.operator.id: p for p in made.operators}
        for edge in made.edges:
            way = list(points(edge.path))
            source, target = placed[edge.source], placed[edge.target]
            assert source.y + source.height <= target.y
            x, y = way[-1]
            if not edge.residual:
                assert abs(x - target.x - target.width / 2) < 1
                assert abs(y - target.y) < 1
            crossed = {p.operator.id for p in made.operators for at in way if within(at, p)}
            assert crossed <= {edge.source, edge.target}, f"{edge.source} to {edge.target}: {edge.path}"


def within(point: Point, box: PlacedOperator) -> bool:
    return box.x + 1 < point[0] < box.x + box.width - 1 and box.y + 1 < point[1] < box.y + box.height - 1


def test_layers_are_named_as_ranges() -> None:
    assert ranges((0, 1, 2, 5)) == "layers 0–2, 5"
    assert ranges((7,)) == "layer 7"
    assert ranges(tuple(range(0, 60, 2))).endswith("…")


def test_a_drawing_of_nothing_is_empty() -> None:
    assert isinstance(drawing(GraphStage((), (), ("series",), "unknown")), Drawing)
