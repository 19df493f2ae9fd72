"""Methods that add up the inputs, each times a number. The numbers depend on lengths and angles only, that is, on the
inner products of all pairs: the Gram matrix. Interpolations on a sphere are of this kind.

The definitions are those of mergekit 0.1 (arcee-ai/mergekit, merge_methods), which keeps whole tensors in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.errors import UsageError
from weighbridge.base.records import dataclass
from weighbridge.tensors.merging.base import Band, Bands, F32Array, MergeMethod, total

Gram = NDArray[np.float64]  # [..., n, n]
Coefficients = NDArray[np.float64]  # [..., n]

# mergekit's constants.
_SHORTEST: Final = 1e-8  # a vector this short has no direction
_PARALLEL: Final = 0.9995  # cosine beyond which slerp is linear
_SHORTEST_UNIT: Final = 1e-7  # of nuslerp
_COLINEAR: Final = 1e-8  # of nuslerp: squared sines below its square are linear


@dataclass(frozen=True)
class Combination(MergeMethod):
    """Adds up the inputs times coefficients. `rule`: a key of `RULES`. `over`: the vectors that have an angle: whole
    tensors, their rows, or their columns. `from_base`: the first input is a base, and the others' differences from it
    are combined and added to it."""

    scratch: ClassVar[int] = 3

    rule: str
    weights: tuple[float, ...]
    over: Literal["tensor", "rows", "columns"] = "tensor"
    from_base: bool = False
    iterations: int = 10
    tolerance: float = 1e-5

    @property
    def for_vector(self) -> Combination:
        return replace(self, over="rows") if self.over == "columns" else self

    def survey(self, bands: Bands, size: int) -> Coefficients | None:
        if self.rule == "linear":
            return np.array(self.weights)
        if self.over == "rows":
            return None
        by_column = self.over == "columns"
        grams = (self._gram(self._vectors(band.inputs), 0 if by_column else None) for band in bands())
        gram = sum(grams, np.zeros(()))
        return RULES[self.rule](np.moveaxis(gram, -1, 0) if by_column else gram, self)

    def rows(self, band: Band, survey: Coefficients | None) -> F32Array:
        vectors = self._vectors(band.inputs)
        if survey is None:
            gram = np.moveaxis(self._gram(vectors, 1), -1, 0)
            survey = RULES[self.rule](gram, self)[:, None]
        change = _weighted(vectors, survey)
        return np.add(change, band.inputs[0], out=change) if self.from_base else change

    def _vectors(self, inputs: tuple[F32Array, ...]) -> tuple[F32Array, ...]:
        return tuple(vector - inputs[0] for vector in inputs[1:]) if self.from_base else inputs

    @staticmethod
    def _gram(vectors: tuple[F32Array, ...], axis: int | None) -> Gram:
        """The inner products of all pairs, of whole bands or along an axis."""
        count = len(vectors)
        gram: list[list[Any]] = [[None] * count for _ in range(count)]
        for i, one in enumerate(vectors):
            for j in range(i + 1):
                product = np.multiply(one, vectors[j], dtype=np.float64)
                gram[i][j] = gram[j][i] = total(product) if axis is None else product.sum(axis=axis)
        return np.array(gram)


def _weighted(vectors: tuple[F32Array, ...], coefficients: Coefficients) -> F32Array:
    """The sum in the order of the vectors. A coefficient of 0 leaves a vector out, so that 1 and 0 give the first back
    bit for bit, whatever the second holds."""
    out: F32Array | None = None
    for n, vector in enumerate(vectors):
        factor = coefficients[..., n].astype(np.float32)
        if not factor.any():
            continue
        term = vector * factor
        out = term if out is None else np.add(out, term, out=out)
    return np.zeros_like(vectors[0]) if out is None else out


# ------------------------------------------------------------------------------------------------ rules


def _lengths(gram: Gram) -> NDArray[np.float64]:
    return np.sqrt(np.maximum(np.diagonal(gram, axis1=-2, axis2=-1), 0))


def _slerp(gram: Gram, method: Combination) -> Coefficients:
    t = method.weights[1]
    lengths = _lengths(gram)
    one, other = np.where(lengths > _SHORTEST, lengths, 1)
    cosine = min(max(gram[0, 1] / (one * other), -1), 1)
    if abs(cosine) > _PARALLEL:
        return np.array([1 - t, t])
    angle = np.arccos(cosine)
    pair: Coefficients = np.array([np.sin((1 - t) * angle), np.sin(t * angle)]) / np.sin(angle)
    return pair


def _nuslerp(gram: Gram, method: Combination) -> Coefficients:
    t = method.weights[1]
    lengths = np.maximum(_lengths(gram), _SHORTEST_UNIT)
    cosine = np.clip(gram[..., 0, 1] / (lengths[..., 0] * lengths[..., 1]), -1, 1)
    linear = 1 - np.square(cosine) <= _COLINEAR**2
    angle = np.arccos(np.where(linear, 0, cosine))
    sine = np.where(linear, 1, np.sin(angle))
    first = np.where(linear, 1 - t, np.sin((1 - t) * angle) / sine)
    second = np.where(linear, t, np.sin(t * angle) / sine)
    return np.stack([first, second], axis=-1)


def _model_stock(gram: Gram, method: Combination) -> Coefficients:
    """t of the mean of the models, and 1 - t of the base, here as changes from the base. t is held between 0 and 1:
    changes that point away from each other have no common part (the formula would give any number)."""
    lengths, count = _lengths(gram), gram.shape[-1]
    cosines = gram / np.maximum(lengths[..., :, None] * lengths[..., None, :], 1e-6)
    above = np.triu_indices(count, 1)
    cosine = np.clip(cosines[..., above[0], above[1]].clip(-1, 1).mean(axis=-1), 0, 1)
    t = count * cosine / (1 + (count - 1) * cosine)
    return np.repeat((t / count)[..., None], count, axis=-1)


def _karcher(gram: Gram, method: Combination) -> Coefficients:
    """The mean on the unit sphere, of vectors in the basis of the inputs."""
    lengths = _lengths(gram)
    valid = lengths > method.tolerance
    if not valid.any():
        return np.zeros_like(lengths)
    units = gram / np.where(valid, lengths, 1)[:, None] / np.where(valid, lengths, 1)[None, :]
    share = valid / valid.sum()

    def length(vector: Coefficients) -> float:
        return math.sqrt(max(float(vector @ units @ vector), 0))

    mean = share / length(share) if length(share) >= method.tolerance else np.eye(len(share))[valid.argmax()]
    for _ in range(method.iterations):
        tangent = np.zeros_like(mean)
        for n in np.flatnonzero(valid):
            cosine = min(max(float(units[n] @ mean), -1), 1)
            if (angle := np.arccos(cosine)) >= method.tolerance:
                tangent += share[n] * angle / np.sin(angle) * (np.eye(len(mean))[n] - cosine * mean)
        if (step := length(tangent)) < method.tolerance:
            break
        mean = np.cos(step) * mean + np.sin(step) * tangent / step
        mean /= length(mean)
    coefficients: Coefficients = lengths.mean() * np.where(valid, mean / np.where(valid, lengths, 1), 0)
    return coefficients


def _multislerp(gram: Gram, method: Combination) -> Coefficients:
    """A weighted mean in the plane that touches the sphere at the mean direction."""
    weights = np.array(method.weights)
    if len(weights) == 1:
        return np.ones(1)
    lengths = _lengths(gram) + method.tolerance
    units = gram / lengths[:, None] / lengths[None, :]
    size = np.sqrt(max(float(weights @ units @ weights), 0))
    if size < method.tolerance:
        if len(weights) == 2:
            return weights
        raise UsageError("opposite vectors cancel out, so they have no mean direction", hint="choose other weights")
    mean = weights / size
    tangent = weights - (weights @ (units @ mean)) * mean
    angle = np.sqrt(max(float(tangent @ units @ tangent), 0)) + method.tolerance
    result = mean * np.cos(angle) + tangent * (np.sin(angle) / angle)
    coefficients: Coefficients = result * float(_lengths(gram) @ weights) / lengths
    return coefficients


#: The coefficients of a method, from the Gram matrix of its vectors.
RULES: Final[Mapping[str, Callable[[Gram, Combination], Coefficients]]] = MappingProxyType(
    {
        "linear": lambda gram, method: np.array(method.weights),
        "slerp": _slerp,
        "nuslerp": _nuslerp,
        "model_stock": _model_stock,
        "karcher": _karcher,
        "multislerp": _multislerp,
    }
)
