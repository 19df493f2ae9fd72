"""Turns a flow into operators, edges and their arrangement. Shapes are those of one token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from weighbridge.base.records import dataclass
from weighbridge.base.spec import Shape
from weighbridge.forward.operators import flow as flows
from weighbridge.forward.operators.description import LayerFacts
from weighbridge.forward.operators.model import Arrangement, GraphStage, Operator, OperatorEdge, Wiring

#: A value: the operator that computes it and its shape.
Value = tuple[str, Shape | None]
_COLUMN: Final = 9  # operators that are listed below each other
_LATER: Final = "@"  # before the word of a value that is computed elsewhere


@dataclass(frozen=True)
class StageEnds:
    """The ends of a stage: titles of operators outside of it. "": nothing."""

    before: str = ""
    after: str = ""


def stage(flow: flows.Flow | None, facts: LayerFacts, entry: StageEnds, wiring: Wiring) -> GraphStage:
    """Returns a wired stage. `facts` describes its operators."""
    wires = _Wires(facts)
    arranged: list[Arrangement] = []
    values: list[Value] = []
    if entry.before:
        arranged.append(wires.add(Operator("input", "outside", entry.before, shape=(facts.dim,))))
        values = [("input", (facts.dim,))]
    if flow is not None:
        values, arrangement = wires.walk(flow, values)
        arranged.append(arrangement)
    if entry.after:
        arranged.append(wires.join(Operator("output", "outside", entry.after, shape=(facts.dim,)), values))
    return GraphStage(tuple(wires.operators.values()), wires.resolved(), ("series", *arranged), wiring)


def listed(roles: Sequence[str], facts: LayerFacts) -> GraphStage:
    """Returns a stage with known tensors and unknown connections: one operator per weight, in a frame per component of
    the canonical names."""
    stems: dict[str, list[str]] = {}
    for role in roles:
        stems.setdefault(role.removesuffix(".weight").removesuffix(".bias"), []).append(role)
    frames: dict[str, list[Arrangement]] = {}
    operators = []
    for stem, weights in stems.items():
        operators.append(replace(facts.describe(flows.Word(stem, tuple(weights)), stem, None), kind="weights"))
        frames.setdefault(stem.partition(".")[0], []).append(stem)
    lanes: list[Arrangement] = []
    for name, ids in frames.items():
        count = -(-len(ids) // _COLUMN)  # several columns if there are many
        height = -(-len(ids) // count)
        columns: list[Arrangement] = [("series", *ids[at : at + height]) for at in range(0, len(ids), height)]
        lanes.append(("frame", facts.frame_title(name), columns[0] if count == 1 else ("lanes", *columns)))
    return GraphStage(tuple(operators), (), ("lanes", *lanes), "unknown")


class _Wires:
    """The operators and edges so far."""

    def __init__(self, facts: LayerFacts) -> None:
        self.facts = facts
        self.operators: dict[str, Operator] = {}
        self._edges: list[OperatorEdge] = []
        self._ids: dict[str, str] = {}  # of the first operator of a word

    def add(self, operator: Operator) -> str:
        self.operators[operator.id] = operator
        return operator.id

    def join(self, operator: Operator, values: Sequence[Value], *, residual: bool = False) -> str:
        """Adds an operator that reads these values."""
        self.add(operator)
        self._edges += [OperatorEdge(source, operator.id, shape, residual) for source, shape in values]
        return operator.id

    def walk(self, flow: flows.Flow, values: list[Value]) -> tuple[list[Value], Arrangement]:
        """Adds a flow that reads these values; returns its results and its arrangement."""
        if isinstance(flow, flows.Word):
            shapes = [shape for _, shape in values if shape is not None]
            operator = self.facts.describe(flow, self._id(flow.word), shapes if len(shapes) == len(values) else None)
            self._ids.setdefault(flow.word, operator.id)
            return [(self.join(operator, values), operator.shape)], operator.id
        if isinstance(flow, flows.Unchanged):
            return values, ("pass",)
        if isinstance(flow, flows.ElsewhereValue):
            if flow.word not in flows.functions().outside:
                return [(_LATER + flow.word, None)], ("from", flow.word)
            title, shape = self.facts.outside_title(flow.word), self.facts.outside_shape(flow.word)
            return [(self.add(Operator(self._id(flow.word), "outside", title, shape=shape)), shape)], flow.word
        if isinstance(flow, flows.Frame):
            values, inner = self.walk(flow.inner, values)
            return values, ("frame", self.facts.frame_title(flow.name), inner)
        if isinstance(flow, flows.Lanes):
            walked = [self.walk(lane, values) for lane in flow.items]
            return [value for results, _ in walked for value in results], ("lanes", *(inner for _, inner in walked))
        if isinstance(flow, flows.Residual):
            results, inner = self.walk(flow.inner, values)
            entering = values[0][1]
            plus = Operator(self._id("sum"), "sign", "+", facts=self.facts.residual, shape=entering)
            self.join(plus, results)
            self._edges += [OperatorEdge(source, plus.id, shape, residual=True) for source, shape in values]
            return [(plus.id, entering)], ("residual", plus.id, inner)
        arranged = []
        for item in flow.items:
            values, inner = self.walk(item, values)
            arranged.append(inner)
        return values, ("series", *arranged)

    def _id(self, word: str) -> str:
        number, name = 1, word
        while name in self.operators:
            number += 1
            name = f"{word} {number}"
        return name

    def resolved(self) -> tuple[OperatorEdge, ...]:
        """Returns the edges, those of values that were computed later included."""
        return tuple(map(self._resolve, self._edges))

    def _resolve(self, edge: OperatorEdge) -> OperatorEdge:
        if not edge.source.startswith(_LATER):
            return edge
        source = self._ids[edge.source.removeprefix(_LATER)]
        return replace(edge, source=source, shape=self.operators[source].shape)


def width(shape: Shape) -> int:
    """The elements of a value."""
    return math.prod(shape)


def mismatches(graph_stage: GraphStage, shapes: Mapping[str, Shape]) -> list[str]:
    """Returns matrices whose columns aren't as many as the elements that they read. `shapes`: of the tensors."""
    texts = []
    for operator in graph_stage.operators:
        edges = [edge for edge in graph_stage.edges if edge.target == operator.id]
        matrix = next((shapes[r] for r in operator.roles if r in shapes and len(shapes[r]) > 1), None)
        if operator.kind != "linear" or matrix is None or not edges or any(e.shape is None for e in edges):
            continue
        read = sum(width(e.shape or ()) for e in edges)
        is_turned = operator.shape == matrix[-1:] and read == matrix[-2]
        if read != matrix[-1] and not is_turned:
            texts.append(f"{operator.id}: reads {read}, has {matrix}")
    return texts
