"""Models that are made from several: weighted sums of related models, and layers of different ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Final, NamedTuple

from weighbridge.base.words import ranges
from weighbridge.reports.lineage import thresholds
from weighbridge.reports.lineage.layer_map import read_anchors, spread
from weighbridge.reports.lineage.model import LineagePair, LineageSource
from weighbridge.reports.lineage.sampling import Place, Sampler, is_lossy
from weighbridge.reports.prove.bounds import float_type, type_of

if TYPE_CHECKING:
    from weighbridge.base.dtypes import DType
    from weighbridge.tensors.likeness import F64, Mixture

_NEAR: Final = frozenset({"fine-tuned", "lora-merged"})


class Made(NamedTuple):
    """A model made from several others: "merged" or "slices". "sum": a weighted sum outside of its sources, so that any
    of them may be the sum of the others."""

    name: str
    relation: str
    sources: tuple[LineageSource, ...]
    detail: str


class SumFit(NamedTuple):
    """The weights of a model's sources, the energy that they leave, whether that is so little that they are certain,
    and whether it is the rounding of this model and not of one of its sources. `extremes`: the smallest and the largest
    weight of each source, if weights differ by matrix; `weights` are then their means."""

    weights: Mapping[str, float]
    residual: float
    certain: bool
    directed: bool
    extremes: Mapping[str, tuple[float, float]] = {}


def find_merged(samplers: Mapping[str, Sampler], pairs: Sequence[LineagePair]) -> Iterator[Made]:
    """Yields the models that are weighted sums: first those with the same weights in all matrices."""
    merged: set[str] = set()
    sums = list(settled(dict(possible_fits(possible_sums, samplers, samplers, pairs)), merged))
    yield from sums
    sources = {name: model for name, model in samplers.items() if name not in merged}
    rest = {name: model for name, model in sources.items() if name not in {row.name for row in sums}}
    yield from settled(dict(possible_fits(sums_by_matrix, rest, sources, pairs)), merged)


def possible_fits(
    search: Callable[[Sampler, Mapping[str, Sampler], Sequence[LineagePair]], Iterator[SumFit]],
    models: Mapping[str, Sampler], samplers: Mapping[str, Sampler], pairs: Sequence[LineagePair],
) -> Iterator[tuple[str, list[SumFit]]]:  # fmt: skip
    """Yields the fits of each model. A fit with a rounded source is left out if the source's original fits as well."""
    originals = {p.counterpart(p.parent): p.parent for p in pairs if p.relation == "quantized" and p.parent}
    for name, model in models.items():
        fits = list(search(model, samplers, pairs))
        residuals = {frozenset(fit.weights): fit.residual for fit in fits}
        finer = [frozenset(originals.get(source, source) for source in fit.weights) for fit in fits]
        yield name, [
            fit for fit, sources in zip(fits, finer, strict=True)
            if sources == fit.weights.keys() or residuals.get(sources, math.inf) > thresholds.MIX_CLEAR * fit.residual
        ]  # fmt: skip


def settled(fits: Mapping[str, Sequence[SumFit]], merged: set[str]) -> Iterator[Made]:
    """Yields the models that are sums by the fits of each, and adds those with known sources to `merged`. Those with
    few sources come first, and are no longer sources: their sources are, with less rounding."""
    sums: dict[str, SumFit] = {}
    while True:
        residual = {name: [fit for fit in result if not merged & fit.weights.keys()] for name, result in fits.items()}
        best = {name: fit for name, result in residual.items() if name not in merged and (fit := best_fit(result))}
        sums |= {name: fit for name, fit in best.items() if not fit.directed}
        sure = {name: fit for name, fit in best.items() if fit.directed}
        if not sure:
            break
        name = min(sure, key=lambda each: (len(sure[each].weights), sure[each].residual))
        merged.add(name)
        sums.pop(name, None)
        yield composite(name, "merged", sure[name])
    yield from (composite(name, "sum", fit) for name, fit in sums.items())


def composite(name: str, relation: str, fit: SumFit) -> Made:
    sources = [LineageSource(source, round(weight, 4)) for source, weight in fit.weights.items()]
    sources.sort(key=lambda source: (-abs(source.weight or 0), source.name))
    if fit.extremes:
        low_high = (
            f"{source.name} {least:.2g} to {most:.2g}"
            for source in sources
            for least, most in [fit.extremes[source.name]]
        )
        return Made(name, relation, tuple(sources), f"weights that differ by matrix: {', '.join(low_high)}")
    parts = " + ".join(f"{source.weight:.4g} {source.name}" for source in sources)
    return Made(name, relation, tuple(sources), parts.replace("+ -", "- "))


def _distance(pair: LineagePair) -> float:
    return pair.distance or 0.0


def near_relatives(model: Sampler, samplers: Mapping[str, Sampler], pairs: Sequence[LineagePair]) -> list[Sampler]:
    """Returns the models that another one may be merged from, the nearest first."""
    near = sorted((p for p in pairs if model.name in (p.a, p.b) and p.relation in _NEAR), key=_distance)
    peers = (samplers.get(pair.counterpart(model.name)) for pair in near)
    return [peer for peer in peers if peer is not None and not peer.lossy][: thresholds.MIX_SOURCES]


def low_rank_peers(model: Sampler, pairs: Sequence[LineagePair]) -> set[str]:
    """Returns the models from which one differs by a LoRA: two of them are on a line with it, whatever it is."""
    return {p.counterpart(model.name) for p in pairs if model.name in (p.a, p.b) and p.relation == "lora-merged"}


def possible_sums(model: Sampler, samplers: Mapping[str, Sampler], pairs: Sequence[LineagePair]) -> Iterator[SumFit]:
    """Yields the sets of models whose weighted sum a model may be."""
    from weighbridge.tensors.likeness import mixture, products

    peers = near_relatives(model, samplers, pairs)
    low_rank = low_rank_peers(model, pairs)
    places = common_places([model, *peers]) if len(peers) > 1 else []
    if not places:
        return
    values = {each.name: _vector(each, places) for each in peers}
    target, names = _vector(model, places), list(values)
    noise = {each.name: rounding_of(each, places) for each in (model, *peers)}
    gram = products([*values.values(), target])
    for count in range(2, thresholds.MIX_SIZE + 1):
        for subset in combinations(range(len(names)), count):
            if count == 2 and low_rank & {names[i] for i in subset}:
                continue  # two multiples of one LoRA are on a line with their base, too
            result = mixture(gram, len(names), subset)
            limit = thresholds.MIX_NOISE * noise[model.name]
            if result is None or result.residual > min(limit, thresholds.MIX_REST * result.nearest):
                continue
            weights = {names[i]: weight for i, weight in zip(subset, result.weights, strict=True)}
            if min(map(abs, weights.values())) >= thresholds.MIX_WEIGHT:
                others_noise = [weight**2 * noise[name] for name, weight in weights.items()]
                directed = is_rounding_of(result.residual, noise[model.name], others_noise)
                short, equal = simplest_weights(target, weights, values, model.float_type)
                proved = result.residual <= thresholds.MIX_PROOF * result.nearest
                yield SumFit(short, result.residual, proved or equal >= thresholds.MIX_EQUAL, directed)


def best_fit(fits: Sequence[SumFit]) -> SumFit | None:
    """Returns the fit of the fewest models that leaves about the smallest rest; None if there are several, or if it
    isn't certain. Models made from the same sources fit too, but their own rounding adds to the rest."""
    limit = min((fit.residual for fit in fits), default=0.0) * thresholds.MIX_FEWER
    count = min((len(fit.weights) for fit in fits if fit.residual <= limit), default=0)
    best = sorted((fit for fit in fits if len(fit.weights) == count), key=lambda fit: fit.residual)[:2]
    clear = len(best) == 1 or (len(best) > 1 and best[1].residual >= thresholds.MIX_CLEAR * best[0].residual)
    return best[0] if clear and best[0].certain else None


def is_rounding_of(residual: float, self_noise: float, peers: Iterable[float]) -> bool:
    """Whether the rest of a sum is nearer to the energy of the sum's own rounding than to that which the rounding of a
    source would leave, if that source were computed from the sum and the other sources."""
    return all((residual >= (self_noise + noise) / 2) == (noise < self_noise) for noise in peers)


def rounding_of(model: Sampler, places: Sequence[Place]) -> float:
    """Returns the energy of rounding in a model's rows."""
    from weighbridge.tensors.likeness import rounding_energy

    rows = ((model.rows(p, thresholds.MATRIX_ELEMENTS), float_type(type_of(model.node(p)))) for p in places)
    return sum(rounding_energy(values, dtype) for values, dtype in rows if values is not None and dtype is not None)


def simplest_weights(
    target: F64, weights: Mapping[str, float], values: Mapping[str, F64], dtype: DType
) -> tuple[Mapping[str, float], float]:
    """Returns the weights and the share of values that they reproduce; weights of two decimals if these reproduce as
    many."""
    equal = share_equal(target, weighted_sum(weights, values), dtype)
    short = {name: round(weight, 2) for name, weight in weights.items()}
    if (
        abs(sum(short.values()) - 1) < 1e-6
        and (share := share_equal(target, weighted_sum(short, values), dtype)) >= equal
    ):
        return short, share
    return weights, equal


def weighted_sum(weights: Mapping[str, float], values: Mapping[str, F64]) -> F64:
    import numpy as np

    total: F64 = np.add.reduce([weight * values[name] for name, weight in weights.items()])
    return total


def share_equal(target: F64, predicted: F64, dtype: DType) -> float:
    """Returns the share of values that a prediction gives, once it is rounded."""
    import numpy as np

    from weighbridge.tensors.likeness import rounded

    return float(np.mean(rounded(predicted, dtype) == target))


def common_places(models: Sequence[Sampler]) -> list[Place]:
    """Returns matrices of some layers that all models have in one shape and in a float type."""
    first = models[0]
    layers = spread(first.layers, thresholds.LAYERS)
    places = [place for place in first.matrices if place[0] in layers]
    for model in models:
        nodes = [(place, model.matrices.get(place)) for place in places]
        places = [
            place for place, node in nodes
            if node is not None and node.spec.shape == first.matrices[place].spec.shape and not is_lossy(type_of(node))
        ]  # fmt: skip
    for model in models:
        model.read((place, thresholds.MATRIX_ELEMENTS) for place in places)
    return [p for p in places if all(model.rows(p, thresholds.MATRIX_ELEMENTS) is not None for model in models)]


def _vector(model: Sampler, places: Sequence[Place]) -> F64:
    import numpy as np

    return np.concatenate([sampled(model, place) for place in places])


def sampled(model: Sampler, place: Place) -> F64:
    """Returns the sampled elements of a matrix that was read."""
    import numpy as np

    rows = model.rows(place, thresholds.MATRIX_ELEMENTS)
    assert rows is not None
    return rows.ravel().astype(np.float64)


# ------------------------------------------------------------------------------------------ weights by matrix
#
# SLERP by layer, Model Stock, Karcher means. On a sphere the weights of a matrix don't add up to 1, so each matrix is
# solved separately, without that condition. A matrix that equals one source isn't evidence.


class _Matrix(NamedTuple):
    """The sampled values of a matrix, by model, the energy of their rounding, and the scalar products of the sources,
    of zero and of the target, in this order."""

    values: Mapping[str, F64]
    noise: Mapping[str, float]
    gram: F64


class _Solved(NamedTuple):
    """The weights of the sources in a matrix, in their order. `mixed`: None for a matrix that is one source's."""

    matrix: _Matrix
    weights: tuple[float, ...]
    mixed: Mixture | None


def sums_by_matrix(model: Sampler, samplers: Mapping[str, Sampler], pairs: Sequence[LineagePair]) -> Iterator[SumFit]:
    """Yields the sets of models that each matrix of a model may be a sum of, with weights that differ by matrix."""
    peers = near_relatives(model, samplers, pairs)
    names = [peer.name for peer in peers]
    low_rank = low_rank_peers(model, pairs)
    matrices = list(_matrices(model, peers)) if len(peers) > 1 else []
    for count in range(2, thresholds.MIX_SIZE + 1):
        for subset in combinations(range(len(names)), count):
            if count == 2 and low_rank & {names[i] for i in subset}:
                continue
            if solved := _solve(matrices, model.name, subset):
                yield _fit(model, [names[i] for i in subset], solved)


def _matrices(model: Sampler, peers: Sequence[Sampler]) -> Iterator[_Matrix]:
    import numpy as np

    from weighbridge.tensors.likeness import products

    models = [*peers, model]
    for place in common_places(models):
        values = {each.name: sampled(each, place) for each in models}
        *sources, target = values.values()
        gram = products([*sources, np.zeros_like(target), target])
        yield _Matrix(values, {each.name: rounding_of(each, [place]) for each in models}, gram)


def _solve(matrices: Sequence[_Matrix], name: str, subset: tuple[int, ...]) -> list[_Solved]:
    """Returns the weights of each matrix; nothing if one isn't a sum of the sources, or if too few have several. A
    matrix that equals several sources is left out."""
    from weighbridge.tensors.likeness import mixture

    result = []
    for matrix in matrices:
        zero = len(matrix.gram) - 2
        limit = thresholds.MIX_NOISE * matrix.noise[name]
        distances = [matrix.gram[i, i] - 2 * matrix.gram[i, -1] + matrix.gram[-1, -1] for i in subset]
        if min(distances) <= limit:
            equal = [float(distance <= limit) for distance in distances]
            if sum(equal) == 1:
                result.append(_Solved(matrix, tuple(equal), None))
            continue
        mixed = mixture(matrix.gram, zero + 1, (*subset, zero))
        weights = mixed.weights[:-1] if mixed is not None else ()
        if mixed is None or mixed.residual > limit or abs(sum(weights) - 1) > thresholds.MIX_SPHERE:
            return []
        result.append(_Solved(matrix, weights, mixed))
    several = sum(min(map(abs, solved.weights)) >= thresholds.MIX_WEIGHT for solved in result)
    return result if several >= max(2, thresholds.MIX_MATRICES * len(matrices)) else []


def _fit(model: Sampler, names: Sequence[str], rows: Sequence[_Solved]) -> SumFit:
    """Returns the fit over all matrices. It is certain if it reproduces most values, or leaves almost nothing."""
    sums = [(matrix, dict(zip(names, weights, strict=True)), mixed) for matrix, weights, mixed in rows if mixed]
    residual, nearest = (sum(getattr(mixed, part) for *_, mixed in sums) for part in ("residual", "nearest"))
    equal = [
        share_equal(matrix.values[model.name], weighted_sum(weights, matrix.values), model.float_type)
        for matrix, weights, _ in sums
    ]
    noise = sum(matrix.noise[model.name] for matrix, *_ in sums)
    others = [sum(weights[name] ** 2 * matrix.noise[name] for matrix, weights, _ in sums) for name in names]
    by_source = {name: [solved.weights[i] for solved in rows] for i, name in enumerate(names)}
    return SumFit(
        {name: sum(weights) / len(weights) for name, weights in by_source.items()},
        residual,
        residual <= thresholds.MIX_PROOF * nearest or sum(equal) >= thresholds.MIX_EQUAL * len(equal),
        is_rounding_of(residual, noise, others),
        {name: (min(weights), max(weights)) for name, weights in by_source.items()},
    )


# ------------------------------------------------------------------------------------------ layers of several models


class _Run(NamedTuple):
    """Consecutive layers of a model that other models have as consecutive layers. `candidates`: the first of those
    layers in each model that has all of them."""

    start: int
    length: int
    candidates: Mapping[str, int]


def find_stacked(samplers: Mapping[str, Sampler], pairs: Sequence[LineagePair]) -> Iterator[Made]:
    """Yields the models whose layers are those of several others, unchanged. A model from which one of them was made
    isn't stacked."""
    keys = {name: _keys(model) for name, model in samplers.items()}
    places = {name: {key: n for n, key in reversed(layers.items())} for name, layers in keys.items()}
    children = {(pair.parent, pair.counterpart(pair.parent)) for pair in pairs if pair.parent}
    for name, layers in keys.items():
        peers = {second: numbers for second, numbers in places.items() if second != name}
        origins = [{o: numbers[key] for o, numbers in peers.items() if key in numbers} for key in layers.values()]
        has_origins = len(layers) == len(samplers[name].layers) and all(origins)
        if not has_origins or any(all(second in result for result in origins) for second in peers):
            continue
        result = [only_source(samplers, name, run) for run in layer_runs(origins)]
        sources = dict.fromkeys(source for source, _ in result)
        if None in sources or any((name, source) in children for source in sources):
            continue
        detail = ", ".join(f"layers {ranges(numbers)} of {source}" for source, numbers in result)
        yield Made(name, "slices", tuple(LineageSource(str(source)) for source in sources), detail)


def only_source(samplers: Mapping[str, Sampler], name: str, run: _Run) -> tuple[str | None, list[int]]:
    """Returns the only model with the layers of a run, all matrices compared, and their numbers there."""
    target = samplers[name]
    layer = target.layers[run.start]
    equal = [second for second, n in run.candidates.items() if equal_layers(target, layer, samplers[second], n)]
    if len(equal) != 1:
        return None, []
    first = run.candidates[equal[0]]
    return equal[0], list(range(first, first + run.length))


def equal_layers(a: Sampler, layer: int, b: Sampler, second: int) -> bool:
    """Whether all matrices of two layers have equal rows."""
    roles = [role for n, role in a.matrices if n == layer]
    for model, n in ((a, layer), (b, second)):
        model.read(((n, role), thresholds.MATRIX_ELEMENTS) for role in roles if (n, role) in model.matrices)
    for role in roles:
        x, y = a.rows((layer, role), thresholds.MATRIX_ELEMENTS), b.rows((second, role), thresholds.MATRIX_ELEMENTS)
        if x is None or y is None or x.shape != y.shape or (x != y).any():
            return False
    return True


def _keys(model: Sampler) -> dict[int, bytes]:
    """Returns what identifies each layer: its anchor's matrix and the bytes of the rows."""
    result = {}
    for layer, (kind, _) in read_anchors(model).items():
        rows = model.rows(model.anchors[layer], thresholds.ANCHOR_ELEMENTS)
        if rows is not None:
            result[layer] = repr(kind).encode() + rows.tobytes()
    return result


def layer_runs(origins: Sequence[Mapping[str, int]]) -> Iterator[_Run]:
    """Yields runs of consecutive layers of one model, each as long as possible."""
    at = 0
    while at < len(origins):
        lengths = dict.fromkeys(origins[at], 1)
        for name, first in origins[at].items():
            while at + lengths[name] < len(origins) and origins[at + lengths[name]].get(name) == first + lengths[name]:
                lengths[name] += 1
        longest = max(lengths.values())
        yield _Run(at, longest, {n: origins[at][n] for n, length in lengths.items() if length == longest})
        at += longest
