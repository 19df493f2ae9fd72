"""Methods that add differences from a base ("task vectors"), after some of their elements were removed and opposed ones
dropped. The definitions are those of mergekit 0.1 (sparsify.py, generalized_task_arithmetic.py, sce.py), except for
random masks: theirs depend on the order of the process, ours on seed, model, tensor and element."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.records import dataclass
from weighbridge.tensors.merging.base import Band, Bands, F32Array, MergeMethod, total
from weighbridge.tensors.merging.order import Cutoff, cutoffs

Mask = NDArray[np.bool_]

_SMALL_SUM: Final = 1e-7  # magnitudes that add up to less aren't rescaled (mergekit)
_SMALL_WEIGHT: Final = 1e-8
_SCE_SMALL: Final = 1e-6


def draws(key: bytes, first: int, count: int) -> NDArray[np.uint32]:
    """Elements first.. of the random sequence of `key` (16 bytes). PCG64DXSM jumps to any place, so shards and threads
    that begin anywhere get the same numbers; it takes less than half of Philox's time."""
    generator = np.random.PCG64DXSM(int.from_bytes(key, "little"))
    skip = first % 2  # two numbers of 32 bits in one of 64
    generator.advance(first // 2)
    numbers = generator.random_raw((skip + count + 1) // 2)
    return numbers.astype("<u8", copy=False).view("<u4")[skip : skip + count]


class _Removal(NamedTuple):
    """One way of removing elements. `counts`: how many of the largest each cut-off separates. `mask`: the elements that
    stay."""

    mask: Callable[[TaskVectors, int, F32Array, int, Sequence[Cutoff]], Mask]
    counts: Callable[[TaskVectors, int, int], tuple[int, ...]] = lambda method, model, size: ()


def _largest(method: TaskVectors, model: int, size: int) -> tuple[int, ...]:
    return (max(1, int(method.densities[model] * size)),)


def _between(method: TaskVectors, model: int, size: int) -> tuple[int, ...]:
    """The cut-offs above which elements are outliers, and below which they are small."""
    kept = int(method.densities[model] * size)
    outliers = min(int(method.gamma * size), size - kept)
    return outliers + kept, outliers


def _random(method: TaskVectors, model: int, delta: F32Array, first: int, cuts: Sequence[Cutoff]) -> Mask:
    limit = min(round(method.densities[model] * 2**32), 2**32 - 1)
    return (draws(method.keys[model], first, delta.size) < np.uint32(limit)).reshape(delta.shape)


def _by_rank(method: TaskVectors, model: int, delta: F32Array, first: int, cuts: Sequence[Cutoff]) -> Mask:
    """The larger an element is in its row, the likelier it stays."""
    ranks = np.abs(delta).argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
    share = ranks / max(delta.shape[1] - 1, 1)
    stays = method.densities[model] - method.epsilon + 2 * method.epsilon * share
    mask: Mask = draws(method.keys[model], first, delta.size).reshape(delta.shape) < stays * 2**32
    return mask


#: How elements of a difference are removed, by name.
REMOVALS: Final[Mapping[str, _Removal]] = MappingProxyType(
    {
        "smallest": _Removal(lambda m, n, delta, first, cuts: cuts[0].mask(np.abs(delta), first), _largest),
        "smallest and largest": _Removal(
            lambda m, n, delta, first, cuts: cuts[0].mask(np.abs(delta), first) & ~cuts[1].mask(np.abs(delta), first),
            _between,
        ),
        "random": _Removal(_random),
        "random by rank": _Removal(_by_rank),
    }
)


class TaskSurvey(NamedTuple):
    """By model: the cut-offs of its magnitudes, and the factor that restores their sum."""

    cuts: tuple[tuple[Cutoff, ...], ...]
    factors: tuple[float, ...]


@dataclass(frozen=True)
class TaskVectors(MergeMethod):
    """The base, which is the first input, plus `scale` times the weighted sum of the other inputs' differences from it.

    `removal`: a key of `REMOVALS`, or "" for none; `densities`: the shares of elements that stay. `rescale`: makes up
    for the removed ones. `consensus`: elements whose sign differs from the sign of the sum are left out. `normalize`:
    divides by the sum of the weights that count. `keys`: those of random numbers, by model."""

    scratch: ClassVar[int] = 12

    weights: tuple[float, ...] = ()
    densities: tuple[float, ...] = ()
    removal: str = ""
    consensus: bool = False
    normalize: bool = False
    rescale: bool = False
    scale: float = 1.0
    gamma: float = 0.01
    epsilon: float = 0.15
    keys: tuple[bytes, ...] = ()

    def _sparse(self, model: int) -> bool:
        return bool(self.removal) and self.densities[model] < 1

    def survey(self, bands: Bands, size: int) -> TaskSurvey:
        models = range(len(self.weights))
        counts = {n: REMOVALS[self.removal].counts(self, n, size) for n in models if self._sparse(n)}

        def magnitudes() -> Iterator[tuple[int, list[F32Array]]]:
            for band in bands():
                pairs = ((np.abs(band.inputs[n + 1] - band.inputs[0]), row) for n, row in counts.items())
                yield band.first, [delta for delta, row in pairs for _ in row]

        sizes = [count for row in counts.values() for count in row]
        each = iter(cutoffs(magnitudes, sizes) if sizes else ())
        cuts = tuple(tuple(next(each) for _ in counts.get(n, ())) for n in models)
        return TaskSurvey(cuts, self._factors(bands, cuts))

    def _factors(self, bands: Bands, cuts: tuple[tuple[Cutoff, ...], ...]) -> tuple[float, ...]:
        count = len(self.weights)
        if not self.rescale or not any(map(self._sparse, range(count))):
            return (1.0,) * count
        before, after = [0.0] * count, [0.0] * count
        for band in bands():
            for n in filter(self._sparse, range(count)):
                delta = band.inputs[n + 1] - band.inputs[0]
                kept = REMOVALS[self.removal].mask(self, n, delta, band.first, cuts[n])
                magnitude = np.abs(delta)
                before[n] += total(magnitude)
                after[n] += total(magnitude * kept)
        return tuple(1.0 if min(b, a) < _SMALL_SUM else b / a for b, a in zip(before, after, strict=True))

    def rows(self, band: Band, survey: TaskSurvey | None) -> F32Array:
        base = band.inputs[0]
        changes = [self._change(n, band, survey) for n in range(len(self.weights))]
        stay = _agreeing(changes) if self.consensus else None
        out = np.zeros_like(base)
        for n, change in enumerate(changes):
            out += change if stay is None else change * stay[n]
        if self.normalize:
            out /= self._divisor(stay)
        out *= np.float32(self.scale)
        out += base
        return out

    def _change(self, model: int, band: Band, survey: TaskSurvey | None) -> F32Array:
        delta = band.inputs[model + 1] - band.inputs[0]
        factor = self.weights[model]
        if survey is not None and self._sparse(model):
            delta *= REMOVALS[self.removal].mask(self, model, delta, band.first, survey.cuts[model])
            factor *= survey.factors[model]
        delta *= np.float32(factor)
        return delta

    def _divisor(self, stay: Sequence[Mask] | None) -> F32Array | np.float32:
        if stay is None:
            whole = sum(self.weights)
            return np.float32(1 if abs(whole) < _SMALL_WEIGHT else whole)
        divisor = np.zeros(stay[0].shape, np.float32)
        for weight, mask in zip(self.weights, stay, strict=True):
            divisor += mask * np.float32(weight)
        divisor[np.abs(divisor) < _SMALL_WEIGHT] = 1
        return divisor


def _agreeing(changes: Sequence[F32Array]) -> list[Mask]:
    """Which elements have the sign of the sum of all; a sum of 0 counts as positive."""
    whole = np.zeros_like(changes[0])
    for change in changes:
        whole += change
    negative = whole < 0
    return [((change > 0) ^ negative) & (change != 0) for change in changes]


class SceSurvey(NamedTuple):
    chosen: Cutoff | None
    weights: tuple[float, ...]


@dataclass(frozen=True)
class Sce(MergeMethod):
    """The base plus the mean of differences, weighted by their mean squares. Of each tensor only the share `top` of
    elements that vary most between the models counts, and of these those with the sign of the sum."""

    scratch: ClassVar[int] = 12

    top: float = 1.0

    def _variance(self, deltas: Sequence[F32Array]) -> F32Array:
        count = np.float32(len(deltas))
        mean = np.add.reduce(list(deltas), axis=0) / count
        out: F32Array = np.add.reduce([np.square(delta - mean) for delta in deltas], axis=0) / count
        return out

    @staticmethod
    def _deltas(band: Band) -> list[F32Array]:
        return [delta - band.inputs[0] for delta in band.inputs[1:]]

    def survey(self, bands: Bands, size: int) -> SceSurvey:
        chosen = None
        if self.top < 1:
            varying = sum(int(np.count_nonzero(self._variance(self._deltas(band)))) for band in bands())
            pieces = lambda: ((band.first, [self._variance(self._deltas(band))]) for band in bands())  # noqa: E731
            (chosen,) = cutoffs(pieces, [int(varying * max(self.top, 0))])
        squares = (
            [total(np.square(delta, dtype=np.float64)) for delta in self._chosen(band, chosen)] for band in bands()
        )
        means = np.sum(list(squares), axis=0) / size
        whole = float(means.sum())
        share = np.full(len(means), 1 / len(means)) if abs(whole) < _SCE_SMALL else means / whole
        return SceSurvey(chosen, tuple(map(float, share)))

    def _chosen(self, band: Band, chosen: Cutoff | None) -> list[F32Array]:
        deltas = self._deltas(band)
        if chosen is None:
            return deltas
        mask = chosen.mask(self._variance(deltas), band.first)
        return [delta * mask for delta in deltas]

    def rows(self, band: Band, survey: SceSurvey) -> F32Array:
        deltas = self._chosen(band, survey.chosen)
        whole, divisor = np.zeros_like(deltas[0]), np.zeros_like(deltas[0])
        for weight, delta, mask in zip(survey.weights, deltas, _agreeing(deltas), strict=True):
            counted = mask * np.float32(weight)
            whole += delta * counted
            divisor += counted
        whole /= np.maximum(divisor, np.float32(_SCE_SMALL))
        whole += band.inputs[0]
        return whole
