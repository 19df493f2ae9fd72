"""The operator graph of a model, as data."""

from __future__ import annotations

from dataclasses import field
from typing import Final, Literal

from weighbridge.base.records import dataclass
from weighbridge.base.spec import Shape

SCHEMA: Final = "weighbridge/operator-graph/1"

#: "computed": by Weighbridge's forward pass, which is compared with transformers. "declared": by the table of flows,
#: which follows the reference's code. "unknown": the operators are listed without connections.
Wiring = Literal["computed", "declared", "unknown"]


@dataclass(frozen=True, slots=True)
class Operator:
    """A node. `kind`: "linear", "norm", "attend", "rotate", "activation", "sign" (+ or ×), "join", "choose", "part"
    (some elements of its input), "weights" (tensors of unknown use), "outside". `roles`: the canonical names of its
    tensors. `facts`: short texts. `shape`: of its output for one token; None if unknown. `part`: of the model."""

    id: str
    kind: str
    title: str
    roles: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    shape: Shape | None = None
    part: str = ""


@dataclass(frozen=True, slots=True)
class OperatorEdge:
    """A value from one operator to another. `residual`: it bypasses the operators in between. `shape`: for one
    token."""

    source: str
    target: str
    shape: Shape | None
    residual: bool = False


@dataclass(frozen=True, slots=True)
class GraphStage:
    """Operators and their connections, without or within a layer. `flow`: how they are arranged, as nested lists
    (`["series", ...]`, `["lanes", ...]`, `["residual", plus, inner]`, `["frame", title, inner]`, `["pass"]` for the
    unchanged input, `["from", word]` for one that is computed elsewhere), or an operator's id."""

    operators: tuple[Operator, ...]
    edges: tuple[OperatorEdge, ...]
    flow: Arrangement
    wiring: Wiring


Arrangement = str | tuple["Arrangement", ...]


@dataclass(frozen=True, slots=True)
class LayerKind:
    """Layers with equal operators. `stack`: "" or the name of one of several stacks of layers. `title`: how they
    differ from the others."""

    title: str
    layers: tuple[int, ...]
    stage: GraphStage
    stack: str = ""


@dataclass(frozen=True, slots=True)
class OperatorGraph:
    """`before` and `after` the layers. `kinds`: ordered by first layer. `notes`: on parts that the graph leaves out."""

    family: str
    architecture: str
    before: GraphStage
    kinds: tuple[LayerKind, ...]
    after: GraphStage
    notes: tuple[str, ...] = ()
    schema: str = field(default=SCHEMA)
