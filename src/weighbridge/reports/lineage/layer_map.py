"""Which layers of two models are versions of each other, and the meaning of the order of the matches: layers removed,
repeated, or shared with a third model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from weighbridge.base.records import dataclass
from weighbridge.base.words import plural, ranges
from weighbridge.reports.lineage import thresholds

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from weighbridge.reports.lineage.sampling import Sampler

    Anchor = tuple[tuple[str, tuple[int, ...]], NDArray[np.float64]]

T = TypeVar("T")
Structure = Literal["", "pruned", "repeated", "slices"]
_TIED: Final = 1e-6  # of cosines: layers that are equal


@dataclass(frozen=True)
class LayerMap:
    """`a` and `b`: the layers that were read, `complete` if that is all of them. `to_a`: each layer of b that is a
    version of a layer of a, and `to_b` the reverse. `comparable`: whether layers of one shape and role exist;
    `cosines`: of layers of one number. `repeats`: whether a, and b, have layers that are versions of each other."""

    a: Sequence[int]
    b: Sequence[int]
    to_a: Mapping[int, int]
    to_b: Mapping[int, int]
    comparable: bool
    cosines: Mapping[int, float]
    complete: bool
    repeats: tuple[bool, bool]

    @property
    def identical(self) -> bool:
        """Whether both have the same layers in the same order, among those that were read."""
        return bool(self.to_a) and self.a == self.b and all(self.to_a.get(n) == n for n in self.b)

    @cached_property
    def structure(self) -> tuple[Structure, str, str]:
        """The relation, its parent ("a", "b" or "" if unknown), and a description."""
        if self.identical or not self.to_a:
            return "", "", ""
        if not self.complete:
            return "slices", "", f"{plural(len(self.to_a), 'layer')} in common, of those that were read"
        a_covers, b_covers = len(self.to_a) == len(self.b), len(self.to_b) == len(self.a)
        if a_covers and b_covers and len(self.a) != len(self.b):
            a_covers, b_covers = len(self.a) < len(self.b), len(self.a) > len(self.b)
        if a_covers == b_covers:
            return "slices", "", f"{plural(len(self.to_a), 'layer')} in common"
        if a_covers:
            return _derived(self.a, [self.to_a[n] for n in self.b], "a", self.repeats[0])
        return _derived(self.b, [self.to_b[n] for n in self.a], "b", self.repeats[1])

    def pairs(self) -> list[tuple[int, int]]:
        """Returns the matches (layer of a, layer of b)."""
        if len(self.to_b) > len(self.to_a):
            return sorted((a, b) for a, b in self.to_b.items())
        return sorted((a, b) for b, a in self.to_a.items())


def _derived(parent: Sequence[int], sources: Sequence[int], side: str, repeats: bool) -> tuple[Structure, str, str]:
    """Describes a model whose layers are `sources` of the layers of its parent. A parent that `repeats` layers may
    itself have been made from the other."""
    if len(set(sources)) < len(sources):
        return "repeated", side, f"layers {_runs(sources)}"
    side = "" if repeats else side
    if list(sources) == sorted(sources):
        return "pruned", side, f"layers {ranges(set(parent) - set(sources))} removed"
    return "slices", side, f"layers {_runs(sources)}"


def _runs(numbers: Sequence[int]) -> str:
    """`0-2, 1-3` for 0, 1, 2, 1, 2, 3."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def map_layers(a: Sampler, b: Sampler) -> LayerMap:
    """Returns the layers of two models that match, by the rows of one matrix of each."""
    import numpy as np

    left, right = read_anchors(a), read_anchors(b)
    complete = len(left) == len(a.layers) and len(right) == len(b.layers)
    if not complete and a.layers == b.layers:
        left, right = ({n: side[n] for n in side if n in second} for side, second in ((left, right), (right, left)))
    cosines = np.full((len(left), len(right)), -np.inf)
    for i, (role, rows) in enumerate(left.values()):
        for j, (second, values) in enumerate(right.values()):
            if role == second and rows.shape == values.shape:
                cosines[i, j] = float(np.vdot(rows, values))
    numbers = list(left), list(right)
    same = {n: float(cosines[numbers[0].index(n), numbers[1].index(n)]) for n in numbers[0] if n in numbers[1]}
    comparable = bool(np.isfinite(cosines).any())
    repeats = _repeats(left), _repeats(right)
    return LayerMap(
        *numbers, _best(cosines, *numbers), _best(cosines.T, *reversed(numbers)), comparable, same, complete, repeats
    )


def _repeats(anchors: Mapping[int, Anchor]) -> bool:
    """Whether two layers are versions of each other."""
    import numpy as np

    rows = list(anchors.values())
    return any(
        item[0] == second[0] and float(np.vdot(item[1], second[1])) >= thresholds.SAME_LAYER
        for i, item in enumerate(rows) for second in rows[:i]
    )  # fmt: skip


def read_anchors(model: Sampler) -> dict[int, Anchor]:
    """Returns the role, the matrix's shape and the rows of norm 1 of each layer that could be read."""
    import numpy as np

    places = spread_order(list(model.anchors.values()))
    model.read((place, thresholds.ANCHOR_ELEMENTS) for place in places)
    result = {}
    for layer, place in model.anchors.items():
        rows = model.rows(place, thresholds.ANCHOR_ELEMENTS)
        if rows is not None:
            values = rows.astype(np.float64)
            result[layer] = (place[1], model.node(place).spec.shape), values / (np.linalg.norm(values) or 1)
    return result


def _best(cosines: NDArray[np.float64], rows: Sequence[int], columns: Sequence[int]) -> dict[int, int]:
    """Returns the row that matches each column. Of equal ones the same number counts, else the successor of the
    previous match, else the first."""
    result: dict[int, int] = {}
    previous = -1
    for j, column in enumerate(columns):
        best = float(cosines[:, j].max()) if len(rows) else -1.0
        if best < thresholds.SAME_LAYER:
            continue
        tied = [rows[i] for i in range(len(rows)) if cosines[i, j] >= best - _TIED]
        previous = next((n for n in (column, previous + 1) if n in tied), tied[0])
        result[column] = previous
    return result


def spread(items: Sequence[T], count: int) -> list[T]:
    """Returns at most `count` items, evenly spread, with the first and the last."""
    if len(items) <= count:
        return list(items)
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def spread_order(items: Sequence[T]) -> list[T]:
    """Returns all items in an order whose beginnings are spread evenly, for a budget that may end."""
    ordered: list[T] = []
    count = 2
    while len(ordered) < len(items):
        ordered += [item for item in spread(items, count) if item not in ordered]
        count = 2 * count - 1
    return ordered
