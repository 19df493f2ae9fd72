"""Places the operators of a stage: lanes side by side, the rest from top to bottom, residual values at the right.

Coordinates are CSS pixels; y grows downwards. The widths of texts are estimated, with room to spare.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Final

from weighbridge.base.records import dataclass
from weighbridge.base.spec import Shape
from weighbridge.forward.operators.model import Arrangement, GraphStage, Operator, OperatorEdge

_TITLE, _FACT = 8.0, 6.4  # width of a character
_LEAST: Final = 72  # width of an operator
_HEIGHT, _LINE, _SMALL, _SIGN = 28, 14, 24, 24
_GAP, _LANE_GAP, _BEND = 30, 18, 30
_PAD, _BAND = 12, 24  # of a frame: its sides, and the band with its title
_BYPASS: Final = 22  # between a block and its residual value
_MARGIN: Final = 6
_CORNER: Final = 9
_TIP: Final = 7  # length of a line's end, which is straight
_READS_DOWN: Final = 26  # least distance of an operator from its input in another lane
#: Operators whose result differs in shape from their input.
_RESHAPING: Final = frozenset({"linear", "embedding", "attend", "part", "join", "choose"})


@dataclass(frozen=True, slots=True)
class PlacedOperator:
    """An operator with its box; x, y is the top left corner."""

    operator: Operator
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class DrawnEdge:
    """`path`: as in SVG."""

    source: str
    target: str
    path: str
    shape: Shape | None
    residual: bool


@dataclass(frozen=True, slots=True)
class DrawnLabel:
    """The shape of a value, next to its line."""

    x: float
    y: float
    text: str


@dataclass(frozen=True, slots=True)
class DrawnFrame:
    """A frame around operators."""

    title: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Drawing:
    """A drawn stage."""

    width: float
    height: float
    operators: tuple[PlacedOperator, ...]
    edges: tuple[DrawnEdge, ...]
    labels: tuple[DrawnLabel, ...]
    frames: tuple[DrawnFrame, ...]


@dataclass(frozen=True)
class _Box:
    """A part of the drawing around the axis x = 0, from y = 0. `nodes`: id -> (x of the centre, y of the top).
    `groups`: lanes, inner ones first. `bypass`: plus -> (x, y of the branch)."""

    left: float
    right: float
    height: float
    nodes: dict[str, tuple[float, float]] = field(default_factory=dict)
    frames: tuple[DrawnFrame, ...] = ()
    groups: tuple[_Group, ...] = ()
    bypass: dict[str, tuple[float, float]] = field(default_factory=dict)

    def moved(self, x: float, y: float) -> _Box:
        return replace(
            self,
            nodes={name: (a + x, b + y) for name, (a, b) in self.nodes.items()},
            frames=tuple(replace(f, x=f.x + x, y=f.y + y) for f in self.frames),
            groups=tuple(g.moved(x, y) for g in self.groups),
            bypass={name: (a + x, b + y) for name, (a, b) in self.bypass.items()},
        )


@dataclass(frozen=True)
class _Group:
    """Lanes from `top` to `bottom`. `axes`: x of the lane of each operator. `through`: x of the lane without one."""

    top: float
    bottom: float
    axes: Mapping[str, float]
    through: float | None

    def moved(self, x: float, y: float) -> _Group:
        through = None if self.through is None else self.through + x
        return _Group(self.top + y, self.bottom + y, {name: at + x for name, at in self.axes.items()}, through)


def drawing(stage: GraphStage) -> Drawing:
    """Places a stage."""
    operators = {operator.id: operator for operator in stage.operators}
    spaces: dict[str, float] = {}
    box = _place(stage.flow, operators, spaces, stage.wiring == "unknown")
    for _ in range(4):  # until each operator is below its input in another lane
        short: dict[str, float] = {}  # how much too high the target of an edge is
        for edge in stage.edges:
            (_, source), (_, target) = box.nodes[edge.source], box.nodes[edge.target]
            gap = source + size(operators[edge.source])[1] + _READS_DOWN - target
            if gap > 0:
                short[edge.target] = gap
        if not short:
            break
        spaces = {name: spaces.get(name, 0) + short.get(name, 0) for name in {*spaces, *short}}
        box = _place(stage.flow, operators, spaces, stage.wiring == "unknown")
    box = box.moved(box.left + _MARGIN, _MARGIN)
    placed: dict[str, PlacedOperator] = {}
    for name, (x, y) in box.nodes.items():
        width, height = size(operators[name])
        placed[name] = PlacedOperator(operators[name], round(x - width / 2, 1), round(y, 1), width, height)
    reading = {edge.source for edge in stage.edges}
    labels = (  # next to the operators that change the shape of a value
        DrawnLabel(at.x + at.width / 2 + 6, at.y + at.height + 13, shape_text(at.operator.shape))
        for name, at in placed.items()
        if at.operator.kind in _RESHAPING and name in reading and at.operator.shape
    )
    return Drawing(
        width=round(box.left + box.right + 2 * _MARGIN),
        height=round(box.height + 2 * _MARGIN),
        operators=tuple(placed.values()),
        edges=tuple(DrawnEdge(e.source, e.target, _path(e, placed, box), e.shape, e.residual) for e in stage.edges),
        labels=tuple(labels),
        frames=box.frames,
    )


def size(operator: Operator) -> tuple[float, float]:
    """The width and height of an operator's box."""
    if operator.kind == "sign":
        return _SIGN, _SIGN
    lines = shown_facts(operator)
    width = max(len(operator.title) * _TITLE, *(len(line) * _FACT for line in lines), _LEAST - 26) + 26
    height = _SMALL if operator.kind in ("part", "outside", "activation") and not lines else _HEIGHT
    return round(width), height + _LINE * len(lines)


def shown_facts(operator: Operator) -> tuple[str, ...]:
    """The facts that are drawn; inputs show their shape."""
    if operator.kind == "outside":
        return (shape_text(operator.shape),) if operator.shape else ()
    return operator.facts


def shape_text(shape: Shape) -> str:
    return " × ".join(map(str, shape))


def _place(flow: Arrangement, operators: dict[str, Operator], spaces: dict[str, float], loose: bool) -> _Box:
    """Returns the box of an arrangement. `loose`: operators are listed, not connected."""
    if isinstance(flow, str):
        width, height = size(operators[flow])
        above = spaces.get(flow, 0)
        return _Box(width / 2, width / 2, height + above, {flow: (0, above)})
    kind, *items = flow
    if kind in ("pass", "from"):
        return _Box(12, 12, 0)
    if kind == "frame":
        return _framed(str(items[0]), _place(items[1], operators, spaces, loose), starts_with_lanes(items[1]))
    if kind == "residual":
        return _residual(str(items[0]), _place(items[1], operators, spaces, loose))
    boxes = [_place(item, operators, spaces, loose) for item in items]
    if kind == "lanes":
        return _lanes(items, boxes)
    return _series(boxes, 8 if loose else _GAP)


def starts_with_lanes(flow: Arrangement) -> bool:
    if isinstance(flow, str):
        return False
    return flow[0] == "lanes" or (flow[0] == "series" and len(flow) > 1 and starts_with_lanes(flow[1]))


def _series(boxes: Sequence[_Box], gap: float) -> _Box:
    """Boxes below each other."""
    at, moved = 0.0, list[_Box]()
    for box in boxes:
        if moved and box.height:
            at += gap
        moved.append(box.moved(0, at))
        at += box.height
    return _union(moved, max((b.left for b in boxes), default=0), max((b.right for b in boxes), default=0), at)


def _framed(title: str, inner: _Box, lanes: bool) -> _Box:
    above = _BAND + (_BEND - 8 if lanes else 6)
    least = len(title) * _FACT + 22  # so that the title is left of the axis
    left, right, height = max(inner.left + _PAD, least), max(inner.right + _PAD, least), inner.height + above + _PAD
    box = inner.moved(0, above)
    return replace(box, left=left, right=right, height=height,
                   frames=(DrawnFrame(title, -left, 0, left + right, height), *box.frames))  # fmt: skip


def _residual(plus: str, inner: _Box) -> _Box:
    """A block, the sum below it, and the value that bypasses it at the right."""
    right = max(inner.right, _SIGN / 2) + _BYPASS
    nodes = {**inner.nodes, plus: (0.0, inner.height + _GAP)}
    bypass = {**inner.bypass, plus: (right - 6, -_GAP / 2)}
    return replace(inner, right=right, height=inner.height + _GAP + _SIGN, nodes=nodes, bypass=bypass)


def _lanes(items: Sequence[Arrangement], boxes: Sequence[_Box]) -> _Box:
    """Boxes side by side, with the same top."""
    whole = sum(box.left + box.right for box in boxes) + _LANE_GAP * (len(boxes) - 1)
    at, moved, through, axes = -whole / 2, [], None, dict[str, float]()
    for item, box in zip(items, boxes, strict=True):
        moved.append(box.moved(at + box.left, 0))
        axes |= dict.fromkeys(box.nodes, at + box.left)
        if item[0] == "pass":
            through = at + box.left
        at += box.left + box.right + _LANE_GAP
    height = max(box.height for box in boxes)
    box = _union(moved, whole / 2, whole / 2, height)
    return replace(box, groups=(*box.groups, _Group(0, height, axes, through)))


def _union(boxes: Sequence[_Box], left: float, right: float, height: float) -> _Box:
    return _Box(
        left, right, height,
        {name: at for box in boxes for name, at in box.nodes.items()},
        tuple(f for box in boxes for f in box.frames),
        tuple(g for box in boxes for g in box.groups),
        {name: at for box in boxes for name, at in box.bypass.items()},
    )  # fmt: skip


def _path(edge: OperatorEdge, placed: dict[str, PlacedOperator], box: _Box) -> str:
    """The line of an edge: down, with a bend above lanes that it enters and below those that it leaves."""
    source, target = placed[edge.source], placed[edge.target]
    x0, y0 = source.x + source.width / 2, source.y + source.height
    x1, y1 = target.x + target.width / 2, target.y
    if edge.residual:
        # from the axis to the right, down, and back to the sum
        x, y = box.bypass[edge.target]
        end, middle = target.x + target.width, target.y + target.height / 2
        return (f"M{x0:.1f} {y:.1f}H{x - _CORNER:.1f}Q{x:.1f} {y:.1f} {x:.1f} {y + _CORNER:.1f}V{middle - _CORNER:.1f}"
                f"Q{x:.1f} {middle:.1f} {x - _CORNER:.1f} {middle:.1f}H{end:.1f}")  # fmt: skip
    entered = [g for g in reversed(box.groups) if edge.target in g.axes and edge.source not in g.axes]
    left = [g for g in box.groups if edge.source in g.axes and edge.target not in g.axes]
    stops = _stops(edge, box, entered, left, y0, y1, x1)
    path, x, y = [f"M{x0:.1f} {y0:.1f}"], x0, y0
    for number, (to, start, end) in enumerate(stops):
        later = stops[number + 1][1] if number + 1 < len(stops) else y1 - _TIP + 0.1
        end = min(end, y1 - _TIP)
        if later < end:  # both bends don't fit
            continue
        path.append(f"V{max(start, y):.1f}{_bend(x, max(start, y), to, end)}")
        x, y = to, end
    if abs(x - x1) > 0.5:
        path.append(_bend(x, y, x1, y1 - _TIP))
    return "".join(path) + f"V{y1:.1f}"


def _stops(
    edge: OperatorEdge, box: _Box, entered: Sequence[_Group], left: Sequence[_Group], y0: float, y1: float, x1: float
) -> list[tuple[float, float, float]]:
    """Where a line bends: to which x, and between which heights. `entered`, `left`: lanes, in the order of the way."""
    common = (group.axes for group in box.groups if {edge.source, edge.target} <= group.axes.keys())
    if any(axes[edge.source] != axes[edge.target] for axes in common):  # from one lane to another: at once, then down
        return [(x1, y0, y0 + _BEND)]
    stops = [(group.axes[edge.source], group.bottom - 1, group.bottom) for group in left[:-1]]
    if left:
        stops.append((x1, left[-1].bottom, left[-1].bottom + _BEND))
    stops += [(group.axes[edge.target], group.top - _BEND, group.top - _TIP) for group in entered]
    if not left:
        for x, top, bottom in _ways(edge, box, y0, y1):
            stops += [(x, top - _BEND, top), (x1, bottom, bottom + _BEND)]
    return stops


def _ways(edge: OperatorEdge, box: _Box, y0: float, y1: float) -> Iterator[tuple[float, float, float]]:
    """Yields the lanes without an operator that a line goes through: x, top and bottom."""
    for group in box.groups:
        if group.through is None or edge.target in group.axes or not (y0 <= group.top and group.bottom <= y1):
            continue
        member = next(iter(group.axes))
        around = (outer.axes for outer in box.groups if edge.target in outer.axes)
        if all(axes.get(member) == axes[edge.target] for axes in around):
            yield group.through, group.top, group.bottom


def _bend(x0: float, y0: float, x1: float, y1: float) -> str:
    """A smooth step sideways, downwards."""
    if abs(x0 - x1) < 0.5:
        return f"V{y1:.1f}"
    middle = (y0 + y1) / 2
    return f"C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}"


def drawn(stage: GraphStage) -> dict[str, Any]:
    """Returns the drawing of a stage as the page reads it."""
    placed = drawing(stage)
    return {
        "width": placed.width, "height": placed.height, "wiring": stage.wiring, "edges": placed.edges,
        "labels": placed.labels, "frames": placed.frames,
        "nodes": [
            {"id": p.operator.id, "kind": p.operator.kind, "title": p.operator.title, "facts": p.operator.facts,
             "lines": shown_facts(p.operator), "roles": p.operator.roles, "part": p.operator.part,
             "shape": p.operator.shape, "x": p.x, "y": p.y, "width": p.width, "height": p.height}
            for p in placed.operators
        ],
    }  # fmt: skip
