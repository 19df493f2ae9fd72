"""Models that are made from several: weighted sums of related models, and layers of different ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Final, NamedTuple

from weighbridge.base.words import ranges
from weighbridge.reports.lineage import thresholds
from weighbridge.reports.lineage.layer_map import read_anchors, spread
from weighbridge.reports.lineage.model import LineagePair, LineageSource
from weighbridge.reports.lineage.sampling import Place, Sampler, is_lossy, type_of
from weighbridge.reports.lineage.values import float_type

if TYPE_CHECKING:
    from weighbridge.base.dtypes import DType
    from weighbridge.tensors.likeness import F64, Rows

_NEAR: Final = frozenset({"fine-tuned", "lora-merged"})


class Made(NamedTuple):
    """A model made from several others: "merged" or "slices"."""

    name: str
    relation: str
    sources: tuple[LineageSource, ...]
    detail: str


class _Fit(NamedTuple):
    """The weights of a model's sources, the share of values that they reproduce, and whether the rest is so small that
    they are certain without it."""

    weights: Mapping[str, float]
    equal: float
    proved: bool


def find_merged(samplers: Mapping[str, Sampler], pairs: Sequence[LineagePair]) -> Iterator[Made]:
    """Yields the models that are weighted sums of others, if the weights show which of them is the sum."""
    for name, model in samplers.items():
        near = sorted((pair for pair in pairs if name in (pair.a, pair.b) and pair.relation in _NEAR), key=_distance)
        others = [samplers[pair.other(name)] for pair in near][: thresholds.MIX_SOURCES]
        low_rank = {pair.other(name) for pair in near if pair.relation == "lora-merged"}
        weights = _weights(model, others) if len(others) > 1 else {}
        # Two multiples of one LoRA lie on a line with their base, too.
        if weights and (len(weights) > 2 or not low_rank & weights.keys()):
            found = [LineageSource(source, round(weight, 4)) for source, weight in weights.items()]
            found.sort(key=lambda source: (-abs(source.weight or 0), source.name))
            parts = " + ".join(f"{source.weight:.4g} {source.name}" for source in found)
            yield Made(name, "merged", tuple(found), parts.replace("+ -", "- "))


def _distance(pair: LineagePair) -> float:
    return pair.distance or 0.0


def _weights(model: Sampler, others: Sequence[Sampler]) -> Mapping[str, float]:
    """Returns the weights of the fewest models of which another is the sum; {} if there are none, several such sets, or
    one of them may be the sum."""
    from weighbridge.tensors.likeness import mixture, products, rounding_energy

    places = _common_places([model, *others])
    if not places or (dtype := _dtype(model, places)) is None:
        return {}
    target, values = _vector(model, places), {each.name: _vector(each, places) for each in others}
    names, gram = list(values), products([*values.values(), target])
    noise = thresholds.MIX_NOISE * rounding_energy(_as_f32(target), dtype)
    for count in range(2, thresholds.MIX_SIZE + 1):
        fits = []
        for subset in combinations(range(len(names)), count):
            found = mixture(gram, len(names), subset)
            if found is None or found.rest > min(noise, thresholds.MIX_REST * found.nearest):
                continue
            if min(map(abs, found.weights)) >= thresholds.MIX_WEIGHT:
                weights = {names[i]: weight for i, weight in zip(subset, found.weights, strict=True)}
                equal = _equal(target, _sum(weights, values), dtype)
                fits.append(_Fit(weights, equal, found.rest <= thresholds.MIX_PROOF * found.nearest))
        if fits:
            return _chosen(fits, target, values, dtype)
    return {}


def _chosen(fits: Sequence[_Fit], target: F64, values: Mapping[str, F64], dtype: DType) -> Mapping[str, float]:
    """Returns the weights that reproduce the values, or the only ones that leave almost no rest. A point between others
    is their sum; of a point outside, one of the others might be."""
    exact = [fit for fit in fits if fit.equal >= thresholds.MIX_EQUAL]
    fits = exact or [fit for fit in fits if fit.proved and min(fit.weights.values()) > 0]
    if len(fits) != 1:
        return {}
    weights = fits[0].weights
    outside = min(weights.values()) < 0
    return {} if outside and _reversible(target, weights, values, dtype) else weights


def _sum(weights: Mapping[str, float], values: Mapping[str, F64]) -> F64:
    import numpy as np

    return np.add.reduce([weight * values[name] for name, weight in weights.items()])


def _as_f32(values: F64) -> Rows:
    import numpy as np

    return values.astype(np.float32)


def _equal(target: F64, predicted: F64, dtype: DType) -> float:
    import numpy as np

    from weighbridge.tensors.likeness import rounded

    return float(np.mean(rounded(predicted, dtype) == target))


def _reversible(target: F64, weights: Mapping[str, float], values: Mapping[str, F64], dtype: DType) -> bool:
    """Whether one of the sources could as well be the sum of the others and the target."""
    whole = _sum(weights, values)
    return any(
        _equal(values[name], (target - (whole - weight * values[name])) / weight, dtype) >= thresholds.MIX_EQUAL
        for name, weight in weights.items()
    )


def _common_places(models: Sequence[Sampler]) -> list[Place]:
    """Returns matrices of some layers that all models have in one shape and in a float type."""
    first = models[0]
    layers = spread(first.layers, thresholds.LAYERS)
    places = [place for place in first.matrices if place[0] in layers]
    places = [place for place in places if all(_usable(model, place, first) for model in models)]
    for model in models:
        model.read((place, thresholds.MATRIX_ELEMENTS) for place in places)
    return [p for p in places if all(model.rows(p, thresholds.MATRIX_ELEMENTS) is not None for model in models)]


def _usable(model: Sampler, place: Place, first: Sampler) -> bool:
    node = model.matrices.get(place)
    return node is not None and node.spec.shape == first.matrices[place].spec.shape and not is_lossy(type_of(node))


def _dtype(model: Sampler, places: Sequence[Place]) -> DType | None:
    names = {type_of(model.node(place)) for place in places}
    return float_type(names.pop()) if len(names) == 1 else None


def _vector(model: Sampler, places: Sequence[Place]) -> F64:
    import numpy as np

    rows = [model.rows(place, thresholds.MATRIX_ELEMENTS) for place in places]
    return np.concatenate([values.ravel() for values in rows if values is not None]).astype(np.float64)


# ------------------------------------------------------------------------------------------ layers of several models


class _Run(NamedTuple):
    """Consecutive layers of a model that are consecutive layers of others. `candidates`: the first of those layers in
    each model that has all of them."""

    start: int
    length: int
    candidates: Mapping[str, int]


def find_stacked(samplers: Mapping[str, Sampler], pairs: Sequence[LineagePair]) -> Iterator[Made]:
    """Yields the models whose layers are those of several others, unchanged. A model from which one of them was made
    isn't stacked."""
    keys = {name: _keys(model) for name, model in samplers.items()}
    places = {name: {key: n for n, key in reversed(layers.items())} for name, layers in keys.items()}
    children = {(pair.parent, pair.other(pair.parent)) for pair in pairs if pair.parent}
    for name, layers in keys.items():
        others = {other: numbers for other, numbers in places.items() if other != name}
        origins = [{o: numbers[key] for o, numbers in others.items() if key in numbers} for key in layers.values()]
        if len(layers) != len(samplers[name].layers) or not all(origins):
            continue
        if any(all(other in found for found in origins) for other in others):
            continue
        found = [_only_source(samplers, name, run) for run in _runs(origins)]
        sources = dict.fromkeys(source for source, _ in found)
        if None in sources or any((name, source) in children for source in sources):
            continue
        detail = ", ".join(f"layers {ranges(numbers)} of {source}" for source, numbers in found)
        yield Made(name, "slices", tuple(LineageSource(str(source)) for source in sources), detail)


def _only_source(samplers: Mapping[str, Sampler], name: str, run: _Run) -> tuple[str | None, list[int]]:
    """Returns the only model with the layers of a run, all matrices compared, and their numbers there."""
    target = samplers[name]
    layer = target.layers[run.start]
    equal = [other for other, n in run.candidates.items() if _equal_layers(target, layer, samplers[other], n)]
    if len(equal) != 1:
        return None, []
    first = run.candidates[equal[0]]
    return equal[0], list(range(first, first + run.length))


def _equal_layers(a: Sampler, layer: int, b: Sampler, other: int) -> bool:
    """Whether all matrices of two layers have equal rows."""
    roles = [role for n, role in a.matrices if n == layer]
    for model, n in ((a, layer), (b, other)):
        model.read(((n, role), thresholds.MATRIX_ELEMENTS) for role in roles if (n, role) in model.matrices)
    for role in roles:
        x, y = a.rows((layer, role), thresholds.MATRIX_ELEMENTS), b.rows((other, role), thresholds.MATRIX_ELEMENTS)
        if x is None or y is None or x.shape != y.shape or (x != y).any():
            return False
    return True


def _keys(model: Sampler) -> dict[int, bytes]:
    """Returns what identifies each layer: its anchor's matrix and the bytes of the rows."""
    found = {}
    for layer, (kind, _) in read_anchors(model).items():
        rows = model.rows(model.anchors[layer], thresholds.ANCHOR_ELEMENTS)
        if rows is not None:
            found[layer] = repr(kind).encode() + rows.tobytes()
    return found


def _runs(origins: Sequence[Mapping[str, int]]) -> Iterator[_Run]:
    """Yields runs of consecutive layers of one model, each as long as possible."""
    at = 0
    while at < len(origins):
        lengths = {name: _length(origins, at, name) for name in origins[at]}
        longest = max(lengths.values())
        yield _Run(at, longest, {n: origins[at][n] for n, length in lengths.items() if length == longest})
        at += longest


def _length(origins: Sequence[Mapping[str, int]], at: int, name: str) -> int:
    """Returns the number of layers from `at` on that follow each other in a model."""
    first, count = origins[at][name], 1
    while at + count < len(origins) and origins[at + count].get(name) == first + count:
        count += 1
    return count
