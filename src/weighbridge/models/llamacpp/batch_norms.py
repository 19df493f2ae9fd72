"""Batch norms of a tower. A folder has a norm's weight and bias with the mean and variance of its inputs; a GGUF has
all four as one weight and one bias."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from weighbridge.models.arch.naming import MappingError, MappingReport

if TYPE_CHECKING:
    from weighbridge.models.arch.expand import Expansion
    from weighbridge.models.arch.family import Family
    from weighbridge.tensors.nodes import LogicalTensor

#: Tensors that only a folder has. The number of batches may be missing, since a finished model doesn't use it.
EXTRA: Final = ("running_mean", "running_var", "num_batches_tracked")
MEAN, VARIANCE, BATCHES = EXTRA


def starts(family: Family, expansion: Expansion) -> list[str]:
    """The names of the batch norms among the places of a folder, up to the last dot."""
    places = expansion.places.values()
    return [place.name.removesuffix("weight") for place in places if family.rows[place.roles[0]].batch_norm]


def folded(family: Family, expansion: Expansion, tensors: Mapping[str, LogicalTensor]) -> dict[str, LogicalTensor]:
    """The weight and bias of each norm with mean and variance folded in, as the reference converter computes them
    (conversion/granite.py `GraniteSpeechMmprojModel.modify_tensors`, llama.cpp b11549). MappingError if one is
    missing."""
    from weighbridge.tensors.nodes import pairwise

    out: dict[str, LogicalTensor] = {}
    for start in starts(family, expansion):
        parts = [f"{start}{part}" for part in ("weight", "bias", MEAN, VARIANCE)]
        if missing := [part for part in parts if part not in tensors]:
            raise MappingError(family.name, "hf", MappingReport(missing=tuple(missing)))
        weight, bias, mean, variance = (tensors[part] for part in parts)
        scale = pairwise(weight, variance, "over_deviation")
        out |= {parts[0]: scale, parts[1]: pairwise(bias, pairwise(mean, scale, "times"), "minus")}
    return out


def extras(norms: Iterable[str]) -> list[str]:
    """The names of the tensors that only a folder has, from those of the weights and biases."""
    each = (name.removesuffix("weight") for name in norms if name.endswith("weight"))
    return [f"{start}{part}" for start in each for part in EXTRA]


def unfolded(family: Family, expansion: Expansion, tensors: Mapping[str, LogicalTensor]) -> dict[str, LogicalTensor]:
    """A mean and a variance for each norm that leave it only its weight and bias from the GGUF."""
    import numpy as np

    from weighbridge.base.dtypes import BY_NAME, F32
    from weighbridge.tensors.functions import BATCH_EPSILON
    from weighbridge.tensors.nodes import const, zeros

    out: dict[str, LogicalTensor] = {}
    for start in starts(family, expansion):
        shape = tensors[f"{start}weight"].spec.shape
        ones = const(np.full(shape, np.float32(1) - np.float32(BATCH_EPSILON), "<f4"), F32)
        out |= {f"{start}{MEAN}": zeros(shape, F32), f"{start}{VARIANCE}": ones}
        out[f"{start}{BATCHES}"] = const(np.zeros((), "<i8"), BY_NAME["I64"])
    return out
