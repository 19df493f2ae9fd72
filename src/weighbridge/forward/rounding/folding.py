"""Factors for the columns of matrices, whose inverse a norm or the matrix before takes: the model stays the same.

    norm        q, k and v, or gate and up, with the router; in parallel layers all of these
    v -> o      heads of queries that share a head of values have its factors
    up -> down  of a gated network, and of each expert

Other activations than a product with `up` don't commute with factors. Source: AutoAWQ 0.2 (scale.py), which leaves
v -> o out for grouped queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import F32
from weighbridge.forward.column_sums import Matrices
from weighbridge.forward.graph import Graph
from weighbridge.forward.ops import Floats
from weighbridge.forward.rounding.calibrated import ComputedBytes, Inputs, Place, RoundedPart
from weighbridge.packings.write.awq import Consumer, column_factors
from weighbridge.packings.write.packers import as_bytes, rounded
from weighbridge.packings.write.smoothing import smoothing_factors
from weighbridge.tensors import nodes
from weighbridge.tensors.nodes import Node
from weighbridge.tensors.nodes.base import Stored

#: The matrices of attention that read the layer's normed input.
_ATTENTION_INPUTS: Final = ("qkv", "q", "k", "v", "q_a", "kv_a")


class Fold(NamedTuple):
    """Matrices of one input, and its producer: a `norm` (its name without `.weight`), or the rows of a matrix,
    `producer`; `tied`: the row of each column."""

    consumers: tuple[Place, ...]
    norm: str = ""
    producer: Place | None = None
    tied: NDArray[np.int64] | None = None


def folds(graph: Graph) -> Iterator[Fold]:
    """The folds of a model."""
    for layer in range(graph.layers):
        yield from _of_norms(graph, layer)
        name = f"layers.{layer}.attention"
        if graph.has(f"{name}.v.weight") and not graph.config.keys.get("attention.clamp_kqv"):
            (heads, shared), wide = graph.heads(layer), int(graph.config.value_dim or 0)
            columns = np.arange(heads * wide)
            tied = columns // wide // (heads // shared) * wide + columns % wide
            yield Fold(((f"{name}.o.weight", None),), producer=(f"{name}.v.weight", None), tied=tied)
        if not graph.row.gated:
            yield from _of_networks(graph, layer)


def _of_norms(graph: Graph, layer: int) -> Iterator[Fold]:
    name = f"layers.{layer}"
    attention: list[Place] = [(f"{name}.attention.{part}.weight", None) for part in _ATTENTION_INPUTS]
    network: list[Place] = [
        (f"{name}.{part}.weight", None)
        for part in ("moe.router", "mlp.gate", "mlp.up", "moe.shared.router", "moe.shared.gate", "moe.shared.up")
    ]
    network += _experts(graph, f"{name}.moe.experts.gate.weight") + _experts(graph, f"{name}.moe.experts.up.weight")
    first, second = f"{name}.attention.norm", f"{name}.mlp.norm"
    together = graph.parallel and not graph.has(f"{second}.weight")
    for norm, places in ((first, attention + network),) if together else ((first, attention), (second, network)):
        consumers = tuple(place for place in places if graph.has(place[0]))
        if consumers and graph.has(f"{norm}.weight"):
            yield Fold(consumers, norm)


def _experts(graph: Graph, name: str) -> list[Place]:
    return [(name, expert) for expert in range(graph.shapes[name][0])] if graph.has(name) else []


def _of_networks(graph: Graph, layer: int) -> Iterator[Fold]:
    for part in ("mlp", "moe.shared", "moe.experts"):
        up, down = (f"layers.{layer}.{part}.{matrix}.weight" for matrix in ("up", "down"))
        if not graph.has(f"layers.{layer}.{part}.gate.weight") or graph.has(f"layers.{layer}.{part}.up.bias"):
            continue
        numbers = range(graph.shapes[up][0]) if part == "moe.experts" else [None]
        yield from (Fold(((down, n),), producer=(up, n)) for n in numbers)


class RowRun(NamedTuple):
    """Rows of a stored tensor, from `start` on."""

    name: str
    start: int


class FloatPart(NamedTuple):
    """A tensor that stays floats and changes: its values, and the tensor that holds the result."""

    source: Node
    stored: Stored

    def read(self) -> Floats:
        values: Floats = nodes.cast(self.source, F32).read_all().view(np.float32).reshape(self.source.spec.shape)
        return values

    def put(self, values: Floats) -> None:
        into = self.stored.source
        assert isinstance(into, ComputedBytes)
        into.put(self.stored, as_bytes(self.stored.spec.dtype, values))


#: The factors [columns] of matrices with these inputs; columns of one number have one factor.
Factors = Callable[[Sequence[Consumer], Inputs, NDArray[np.int64] | None], Floats]


def awq_factors(consumers: Sequence[Consumer], inputs: Inputs, tied: NDArray[np.int64] | None) -> Floats:
    """Those of AWQ."""
    return column_factors(consumers, inputs.products, inputs.magnitudes / max(inputs.rows, 1), tied)


def smoothed(alpha: float) -> Factors:
    """Those of SmoothQuant."""
    return lambda consumers, inputs, tied: smoothing_factors(consumers, inputs.peaks, alpha, tied)


class Folding:
    """The folds of a model that is being rounded. `choose`: how factors are chosen. `columns`: the factors of stored
    tensors so far; `changed`: canonical places of floats that changed. `names`: stored tensors by canonical place;
    `rows`: the rows of producers."""

    def __init__(
        self, graph: Graph, parts: Mapping[str, RoundedPart], floats: Mapping[str, FloatPart],
        matrices: Matrices, rows: Mapping[Place, RowRun], choose: Factors,
    ) -> None:  # fmt: skip
        self.offset = np.float32(graph.row.norm_offset)
        self.parts, self.floats, self.matrices, self.rows, self.choose = parts, floats, matrices, rows, choose
        self.names = {place: matrix.name for place, matrix in matrices.items()}
        self.graph = graph
        self.columns: dict[str, Floats] = {}
        self.changed: set[Place] = set()
        self.applied = 0
        self._folds = {place: fold for fold in folds(graph) if self._fits(fold) for place in fold.consumers}

    @property
    def routers(self) -> Matrices:
        """The routers, whose input is needed before that of their experts."""
        return {place: self.matrices[place] for place in self._folds if place[0].endswith("moe.router.weight")}

    def _fits(self, fold: Fold) -> bool:
        """Whether all tensors of a fold can be changed."""
        changed: list[Place] = [(f"{fold.norm}.weight", None)] if fold.norm else []
        bias = (f"{fold.norm}.bias", None) if fold.norm else bias_of(fold.producer)
        changed += [bias] if self.graph.has(bias[0]) else []
        if fold.producer is not None and (
            fold.producer not in self.rows or self.rows[fold.producer].name not in self.parts
        ):
            return False
        names = {self.names.get(place) for place in fold.consumers}
        whole = sum(name in names for name in self.names.values()) == len(fold.consumers)  # no other matrix is in them
        return (
            whole
            and all(self.names.get(place) in self.floats for place in changed)
            and all(name in self.parts or name in self.floats for name in names)
        )

    def apply(self, place: Place, inputs: Inputs) -> None:
        """Chooses the factors of the matrices that read these inputs, and changes them and the inputs' producer.
        `place`: one of the matrices."""
        fold = self._folds.get(place)
        if fold is None:
            return
        for each in fold.consumers:
            del self._folds[each]
        names = dict.fromkeys(self.names[each] for each in fold.consumers)
        consumers = [Consumer(self.parts[n].values, self.parts[n].rule) for n in names if n in self.parts]
        factors = self.choose(consumers, inputs, fold.tied)
        applied = self._into_norm(fold.norm, factors) if fold.norm else self._into_rows(fold, factors)
        if applied is None:
            return
        self.applied += 1
        inputs.products /= np.multiply.outer(applied, applied).astype(np.float64)
        for name in names:
            self.columns[name] = applied
            if name in self.floats:
                self.floats[name].put(self.floats[name].read() * applied)
        self.changed |= {each for each in fold.consumers if self.names[each] in self.floats}

    def _into_norm(self, norm: str, factors: Floats) -> Floats:
        """Divides a norm by factors. Returns those that its type holds."""
        place = (f"{norm}.weight", None)
        part = self.floats[self.names[place]]
        before = part.read() + self.offset
        after = rounded(part.stored.spec.dtype, before / factors - self.offset)
        with np.errstate(all="ignore"):
            exact = before / (after + self.offset)
        usable = np.isfinite(exact) & (exact > 0)
        part.put(np.where(usable, after, before - self.offset))
        self.changed.add(place)
        exact = np.where(usable, exact, np.float32(1)).astype(np.float32)
        bias = (f"{norm}.bias", None)
        if self.graph.has(bias[0]):
            shift = self.floats[self.names[bias]]
            shift.put(shift.read() / exact)
            self.changed.add(bias)
        return exact

    def _into_rows(self, fold: Fold, factors: Floats) -> Floats | None:
        """Divides the rows of a rounded matrix by factors; None if its scales can't hold them."""
        assert fold.producer is not None
        run = self.rows[fold.producer]
        by_row = factors
        if fold.tied is not None:
            by_row = np.ones(int(fold.tied.max()) + 1, np.float32)
            by_row[fold.tied] = factors
        bias = bias_of(fold.producer)
        if not self.parts[run.name].divide_rows(run.start, by_row):
            return None
        if self.graph.has(bias[0]):
            shift = self.floats[self.names[bias]]
            values = shift.read()
            values[run.start : run.start + len(by_row)] /= by_row
            shift.put(values)
            self.changed.add(bias)
        return factors

    def finish(self) -> None:
        """Stores the floats that didn't change."""
        changed = {self.names[place] for place in self.changed}
        for name, part in self.floats.items():
            if name not in changed:
                part.put(part.read())


def bias_of(matrix: Place | None) -> Place:
    """The bias of a matrix."""
    assert matrix is not None
    return matrix[0].removesuffix("weight") + "bias", matrix[1]
