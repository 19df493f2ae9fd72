"""The methods that a recipe can name, one row each: their parameters, and what they make of one tensor's values.

Names, parameters and defaults are mergekit's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from functools import partial
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from weighbridge.base.errors import UsageError
from weighbridge.base.records import dataclass
from weighbridge.tensors.merging import ArceeFusion, Combination, MergeMethod, NearSwap, Sce, TaskVectors

#: The default of a parameter that every model must have.
REQUIRED: Final = object()


class TensorValues(NamedTuple):
    """A method's parameters for one tensor. `models`: those of each model that isn't the base. `settings`: those of the
    method. `base`: whether a base is the first input. `keys`: of random numbers, one for each model."""

    models: tuple[Mapping[str, float], ...]
    settings: Mapping[str, Any]
    base: bool
    keys: tuple[bytes, ...]

    def each(self, parameter: str) -> tuple[float, ...]:
        return tuple(float(model[parameter]) for model in self.models)


@dataclass(frozen=True)
class MethodRow:
    """A method. `base`: whether it has a base, from which it takes differences; "end": one of the two models is the
    first end of an interpolation. `models`: the least and greatest number of models besides the base. `random`: whether
    a seed matters."""

    build: Callable[[TensorValues], MergeMethod | None]
    base: Literal["no", "optional", "needed", "end"] = "no"
    models: tuple[int, int] = (1, 1 << 10)
    per_model: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    random: bool = False


def random_key(seed: int, model: int, tensor: str) -> bytes:
    """The key of the random numbers for a tensor of a model, which is the model's number among the others."""
    return sha256(f"{seed}/{model}/{tensor}".encode()).digest()[:16]


def _share(weights: tuple[float, ...]) -> tuple[float, ...]:
    whole = sum(weights)
    if abs(whole) < 1e-8:
        raise UsageError("the weights add up to 0", hint="choose others, or normalize: false")
    return tuple(weight / whole for weight in weights)


def _linear(values: TensorValues) -> MergeMethod:
    weights = values.each("weight")
    return Combination("linear", _share(weights) if values.settings["normalize"] else weights)


def _slerp(values: TensorValues) -> MergeMethod:
    t = float(values.settings["t"])
    return Combination("slerp", (1 - t, t))


def _nuslerp(values: TensorValues) -> MergeMethod:
    first, second = values.each("weight")
    t = 0.5 if abs(first + second) < 1e-6 else second / (first + second)
    axis: Literal["rows", "columns"] = "columns" if values.settings["nuslerp_row_wise"] else "rows"
    over: Any = "tensor" if values.settings["nuslerp_flatten"] else axis
    return Combination("nuslerp", (1 - t, t), over, values.base)


def _multislerp(values: TensorValues) -> MergeMethod:
    weights = values.each("weight")
    weights = _share(weights) if values.settings["normalize_weights"] else weights
    return Combination("multislerp", weights, from_base=values.base, tolerance=float(values.settings["eps"]))


def _model_stock(values: TensorValues) -> MergeMethod:
    over: Any = "rows" if values.settings["filter_wise"] else "tensor"
    return Combination("model_stock", (), over, from_base=True)


def _karcher(values: TensorValues) -> MergeMethod:
    return Combination(
        "karcher", (), iterations=int(values.settings["max_iter"]), tolerance=float(values.settings["tol"])
    )


def _task_vectors(values: TensorValues, removal: str = "", consensus: bool = False) -> MergeMethod:
    settings = values.settings
    densities = values.each("density") if removal else ()
    if any(not 0 <= density <= 1 for density in densities):
        raise UsageError(f"density must be between 0 and 1, not {', '.join(map(str, densities))}")
    epsilon = float(settings.get("epsilon", 0))
    if removal == "random by rank" and any(d < 1 and not 0 < d - epsilon < d + epsilon < 1 for d in densities):
        raise UsageError("density - epsilon and density + epsilon must be between 0 and 1")
    return TaskVectors(
        values.each("weight"), densities, removal, consensus,
        normalize=bool(settings["normalize"]), rescale=bool(settings.get("rescale", False)),
        scale=float(settings["lambda"]), gamma=float(settings.get("gamma", 0)), epsilon=epsilon,
        keys=values.keys if "random" in removal else (),
    )  # fmt: skip


def _passthrough(values: TensorValues) -> MergeMethod | None:
    (scale,) = values.each("scale")
    return None if scale == 1 else Combination("linear", (scale,))


_WEIGHT: Final = MappingProxyType({"weight": REQUIRED})
_DENSITY: Final = MappingProxyType({"weight": REQUIRED, "density": 1.0})
_RANDOM: Final = "random masks depend on seed, model and tensor: mergekit's differ"


def _differences(
    removal: str = "", consensus: bool = False, normalize: bool = False, rescale: bool = False, **settings: Any
) -> MethodRow:
    """A method that adds differences from a base."""
    settings |= {"normalize": normalize, "lambda": 1.0}
    return MethodRow(
        partial(_task_vectors, removal=removal, consensus=consensus),
        base="needed",
        per_model=_DENSITY if removal else _WEIGHT,
        settings=settings | ({"rescale": rescale, "int8_mask": False} if removal else {}),
        note=_RANDOM if "random" in removal else "",
        random="random" in removal,
    )


#: Methods by the name that a recipe gives them.
METHODS: Final[Mapping[str, MethodRow]] = MappingProxyType(
    {
        "linear": MethodRow(_linear, per_model=_WEIGHT, settings={"normalize": True}),
        "slerp": MethodRow(_slerp, "end", (1, 1), settings={"t": REQUIRED}),
        "nuslerp": MethodRow(
            _nuslerp, "optional", (2, 2), _WEIGHT, {"nuslerp_flatten": True, "nuslerp_row_wise": False}
        ),
        "multislerp": MethodRow(
            _multislerp, "optional", per_model=_WEIGHT, settings={"normalize_weights": True, "eps": 1e-8}
        ),
        "karcher": MethodRow(_karcher, settings={"max_iter": 10, "tol": 1e-5}),
        "task_arithmetic": _differences(),
        "ties": _differences("smallest", consensus=True, normalize=True),
        "dare_linear": _differences("random", rescale=True),
        "dare_ties": _differences("random", consensus=True, rescale=True),
        "della_linear": _differences("random by rank", rescale=True, epsilon=0.15),
        "della": _differences("random by rank", consensus=True, normalize=True, rescale=True, epsilon=0.15),
        "breadcrumbs": _differences("smallest and largest", gamma=0.01),
        "breadcrumbs_ties": _differences("smallest and largest", consensus=True, gamma=0.01),
        "model_stock": MethodRow(
            _model_stock,
            "needed",
            (2, 1 << 10),
            settings={"filter_wise": False},
            note="t is held between 0 and 1: mergekit's isn't",
        ),
        "sce": MethodRow(
            lambda values: Sce(float(values.settings["select_topk"])),
            "needed",
            settings={"select_topk": 1.0, "int8_mask": False},
        ),
        "nearswap": MethodRow(
            lambda values: NearSwap(float(values.settings["t"])), "end", (1, 1), settings={"t": REQUIRED}
        ),
        "arcee_fusion": MethodRow(
            lambda values: ArceeFusion(), "needed", (1, 1), note="quantiles are exact: mergekit samples large tensors"
        ),
        "passthrough": MethodRow(_passthrough, models=(1, 1), per_model={"scale": 1.0}),
    }
)


def method_of(name: str) -> MethodRow:
    """Returns a method. Raises UsageError for an unknown one."""
    if name not in METHODS:
        raise UsageError(f"no merge method is called {name!r}", hint=f"methods: {', '.join(METHODS)}")
    return METHODS[name]
