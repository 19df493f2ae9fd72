"""Compares the sampled rows of two models whose layers are mapped: equal, rounded, within a type's error, changed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from weighbridge.base.records import dataclass
from weighbridge.reports.lineage import thresholds
from weighbridge.reports.lineage.layer_map import LayerMap, spread
from weighbridge.reports.lineage.sampling import Place, Sample, Sampler, is_lossy
from weighbridge.reports.prove.bounds import MARGIN, coarser_float, cost, float_type

if TYPE_CHECKING:
    from weighbridge.tensors.likeness import Slack

#: `to b`: the rows of b are those of a, rounded to its type, and the reverse.
State = Literal["equal", "to b", "to a", "within", "changed"]
_BOTH: Final = frozenset({"to a", "to b"})


class MatrixComparison(NamedTuple):
    """One tensor of two models. `product`, `a2`, `b2`, `error`: sums over the rows of a * b, a^2, b^2, (a - b)^2."""

    role: str
    place_a: Place
    place_b: Place
    state: State
    product: float
    a2: float
    b2: float
    error: float


@dataclass(frozen=True)
class SampledValues:
    """`matrices`: the compared matrices. `reshaped`: the roles of those that have another shape. `extras`: the roles of
    embeddings, heads and norms that differ."""

    matrices: Sequence[MatrixComparison]
    reshaped: Sequence[str]
    extras: Sequence[str]

    @property
    def cosine(self) -> float:
        return _cosine(self.matrices)

    def cosine_of(self, role: str) -> float:
        return _cosine([row for row in self.matrices if row.role == role])

    @property
    def distance(self) -> float:
        """The norm of the difference over that of the weights."""
        a2 = sum(row.a2 for row in self.matrices)
        return math.sqrt(sum(row.error for row in self.matrices) / a2) if a2 else 0.0

    @property
    def changed(self) -> Sequence[MatrixComparison]:
        return [row for row in self.matrices if row.state != "equal"]

    @property
    def state(self) -> State:
        """What holds for all matrices."""
        states = {row.state for row in self.changed}
        if not states:
            return "equal"
        if len(states) == 1 and states <= _BOTH:
            return states.pop()
        return "changed" if "changed" in states else "within"


def _cosine(rows: Sequence[MatrixComparison]) -> float:
    a2, b2 = sum(row.a2 for row in rows), sum(row.b2 for row in rows)
    return sum(row.product for row in rows) / math.sqrt(a2 * b2) if a2 and b2 else 0.0


def compare_values(a: Sampler, b: Sampler, layers: LayerMap) -> SampledValues:
    """Compares the anchors of all matched layers, all matrices of some of them, and the extras."""
    pairs = layers.pairs()
    some = spread(pairs, thresholds.LAYERS)
    matched = [
        ((i, role), (j, role)) for i, j in some for layer, role in a.matrices if layer == i and (j, role) in b.matrices
    ]
    reshaped = [pair for pair in matched if a.node(pair[0]).spec.shape != b.node(pair[1]).spec.shape]
    matched = [pair for pair in matched if pair not in reshaped]
    for model, side in ((a, 0), (b, 1)):
        model.read((pair[side], thresholds.MATRIX_ELEMENTS) for pair in matched)
    rows = [_compare(a, b, *pair, thresholds.MATRIX_ELEMENTS) for pair in matched]
    done = {(row.place_a, row.place_b) for row in rows if row is not None}
    anchors = [(a.anchors[i], b.anchors[j]) for i, j in pairs if (a.anchors[i], b.anchors[j]) not in done]
    rows += [_compare(a, b, *pair, thresholds.ANCHOR_ELEMENTS) for pair in anchors]
    roles = sorted({left[1] for left, _ in reshaped})
    return SampledValues([row for row in rows if row is not None], roles, list(changed_extras(a, b, dict(pairs))))


def _compare(a: Sampler, b: Sampler, left: Place, right: Place, elements: int) -> MatrixComparison | None:
    import numpy as np

    x, y = a.sample(left, elements), b.sample(right, elements)
    if x is None or y is None or x.rows.shape != y.rows.shape:
        return None
    p, q = x.rows.astype(np.float64).ravel(), y.rows.astype(np.float64).ravel()
    sums = float(p @ q), float(p @ p), float(q @ q), float((p - q) @ (p - q))
    return MatrixComparison(left[1], left, right, compare_samples(x, y), *sums)


def compare_samples(x: Sample, y: Sample) -> State:
    """Returns how rows of the same place differ."""
    import numpy as np

    if (x.rows == y.rows).all():
        return "equal"
    lossy = is_lossy(x.type) or is_lossy(y.type)
    error, size = np.square(x.rows - y.rows, dtype=np.float64).sum(), np.square(x.rows, dtype=np.float64).sum()
    if lossy and error > MARGIN * (cost(x.type) + cost(y.type)) * size:
        return "changed"
    to_y, to_x = _rounds(x, y), _rounds(y, x)
    if to_y != to_x:
        return "to b" if to_y else "to a"
    if lossy:
        return "within"
    return "equal" if to_y or is_rounding(x, y) else "changed"


def is_rounding(x: Sample, y: Sample) -> bool:
    """Whether rows differ only by rounding: of factors multiplied in, in F32, and of results to the coarser type."""
    from weighbridge.tensors.likeness import unexplained

    dtype = coarser_float(x.type, y.type)
    return dtype is not None and not unexplained(x.rows, y.rows, dtype)


def _rounds(source: Sample, result: Sample) -> bool:
    """Whether `result` is `source` rounded to its type."""
    from weighbridge.tensors.likeness import fit_of_grid, rounded

    if not is_lossy(result.type):
        dtype = float_type(result.type)
        if dtype is None or cost(result.type) == cost(source.type) or is_lossy(source.type):
            return False
        return int((rounded(source.rows, dtype) != result.rows).sum()) <= thresholds.OFF
    fit = fit_of_grid(source.rows, result.levels, _slack(result.type))
    return fit is not None and fit.off <= thresholds.OFF


def _slack(name: str) -> Slack:
    from weighbridge.tensors.likeness import Slack

    if " " in name:  # a packing and its bits
        return Slack(thresholds.SLACK_PACKED, thresholds.SLACK_PACKED)
    if name.endswith("_K"):
        return Slack()
    has_offset = name.endswith("_1") or name.startswith("IQ")
    return Slack(thresholds.SLACK_GGML, thresholds.SLACK_GGML if has_offset else 0.0)


def changed_extras(a: Sampler, b: Sampler, layers: dict[int, int]) -> Iterable[str]:
    """Yields the roles of extras that both models have, and whose rows differ by more than their types explain."""
    matched = {place: (layers.get(place[0], -1), place[1]) for place in a.extras if place[0] < 0 or place[0] in layers}
    common = {left: right for left, right in matched.items() if right in b.extras}
    for model, places in ((a, common), (b, common.values())):
        model.read((place, thresholds.ANCHOR_ELEMENTS) for place in places)
    changed = set()
    for left, right in common.items():
        x, y = a.sample(left, thresholds.ANCHOR_ELEMENTS), b.sample(right, thresholds.ANCHOR_ELEMENTS)
        if x is None or y is None:
            continue
        shape = a.node(left).spec.shape
        if shape != b.node(right).spec.shape or _differ(x, y, is_vector=len(shape) == 1):
            changed.add(left[1])
    yield from sorted(changed)


def _differ(x: Sample, y: Sample, *, is_vector: bool) -> bool:
    import numpy as np

    if not is_vector:
        return compare_samples(x, y) == "changed"
    types = {x.type, y.type}
    close = max(thresholds.NORM, 2 * math.sqrt(max(map(cost, types))) if len(types) > 1 else 0)
    return bool((np.abs(x.rows - y.rows) > close * (1 + np.abs(x.rows))).any())
