"""Weighted sums whose weights differ by matrix: SLERP by layer, Model Stock, Karcher means.

On a sphere the weights of a matrix don't add up to 1, so each matrix has a least-squares solution of its own, without
that condition. A matrix that is one source's shows nothing, whatever the method.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from weighbridge.reports.lineage import thresholds
from weighbridge.reports.lineage.mixing import (
    Fit,
    common_places,
    is_rounding_of,
    low_rank_peers,
    near_relatives,
    rounding_of,
    sampled,
    share_equal,
    weighted_sum,
)

if TYPE_CHECKING:
    from weighbridge.reports.lineage.model import LineagePair
    from weighbridge.reports.lineage.sampling import Sampler
    from weighbridge.tensors.likeness import F64, Mixture


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


def sums_by_matrix(model: Sampler, samplers: Mapping[str, Sampler], pairs: Sequence[LineagePair]) -> Iterator[Fit]:
    """Yields the sets of models from which each matrix of a model may be summed, with weights of its own."""
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


def _fit(model: Sampler, names: Sequence[str], rows: Sequence[_Solved]) -> Fit:
    """Returns the sum of all matrices, certain if its values, or what it leaves, prove it."""
    sums = [(matrix, dict(zip(names, weights, strict=True)), mixed) for matrix, weights, mixed in rows if mixed]
    residual, nearest = (sum(getattr(mixed, part) for *_, mixed in sums) for part in ("residual", "nearest"))
    equal = [
        share_equal(matrix.values[model.name], weighted_sum(weights, matrix.values), model.float_type)
        for matrix, weights, _ in sums
    ]
    noise = sum(matrix.noise[model.name] for matrix, *_ in sums)
    others = [sum(weights[name] ** 2 * matrix.noise[name] for matrix, weights, _ in sums) for name in names]
    by_source = {name: [solved.weights[i] for solved in rows] for i, name in enumerate(names)}
    return Fit(
        {name: sum(weights) / len(weights) for name, weights in by_source.items()},
        residual,
        residual <= thresholds.MIX_PROOF * nearest or sum(equal) >= thresholds.MIX_EQUAL * len(equal),
        is_rounding_of(residual, noise, others),
        {name: (min(weights), max(weights)) for name, weights in by_source.items()},
    )
