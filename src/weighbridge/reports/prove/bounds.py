"""Bounds on the error that a type may cause in a tensor, and in the predictions of a model.

A tensor's error may be three times its type's error on random numbers (bounds.toml), since real weights have rows that
suit a type less. Predictions: for trained models, the mean divergence is about ten times the NMSE of the weights
(llama.cpp's tools/perplexity/README.md: Llama 3 8B, Q4_0 0.072, Q2_K 0.445, IQ1_S 2.25). The bound is thirty times the
NMSE plus a floor for the arithmetic of two programs, which is higher if activations are rounded too, as llama.cpp does
for blocks (measured on small random models, which are more sensitive than trained ones: Q8_0 0.016).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from weighbridge.base.dtypes import BY_NAME, DType
from weighbridge.base.imports.tables import read_table

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import LogicalTensor

MARGIN: Final = 3.0
EXACT: Final = 1e-10  # NMSE of a type that holds all values, after a factor was multiplied in: rounding of F32
_DIVERGENCE: Final = 30.0
_FLOOR, _ROUNDED_FLOOR = 2e-3, 3e-2  # nats
_ROUNDED: Final = 1e-6  # NMSE of a type that is computed with less than F32
_COSINE: Final = 1e-4


class Bounds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rows of bounds.toml: NMSE by dtype, and for packed weights by bits."""

    nmse: dict[str, float]
    packed: dict[str, float]


class RunBounds(NamedTuple):
    """`divergence`: mean Kullback-Leibler divergence of the next token, in nats. `agreement`: share of positions with
    the same most likely token. `cosine`: distance of embeddings (1 - cosine)."""

    divergence: float
    agreement: float
    cosine: float


@cache
def table() -> Bounds:
    """Returns the parsed table."""
    return msgspec.convert(read_table(__file__, "bounds.toml"), Bounds)


def type_of(tensor: LogicalTensor) -> str:
    """Returns the dtype of a tensor, or the packing and bits of a packed one: `mlx-affine 4`. For a computed tensor,
    such as a transposed one, returns the coarsest type that its values were stored in."""
    from weighbridge.tensors.nodes import QuantizedTensor, packed_in, walk

    if not isinstance(tensor, QuantizedTensor):
        if (packed := packed_in(tensor)) is None:
            return max((node.spec.dtype.name for node in walk(tensor)), key=cost)
        tensor = packed
    return f"{tensor.packing.name} {min(tensor.packing.code_bits, 8)}"


def cost(name: str) -> float:
    """Returns the NMSE of a type, by its name (`type_of`); 0 if it holds all values."""
    packing, _, bits = name.rpartition(" ")
    return table().packed[bits] if packing else table().nmse.get(name, 0.0)


def float_type(name: str) -> DType | None:
    """Returns the plain float type of this name."""
    dtype = BY_NAME.get(name)
    return dtype if dtype is not None and dtype.plain and dtype.is_float else None


def coarser_float(first: str, second: str) -> DType | None:
    """Returns the plain float type, of two, that rounds more; None if one of them isn't a plain float type."""
    types = [float_type(name) for name in (first, second)]
    plain = [dtype for dtype in types if dtype is not None]
    return max(plain, key=lambda dtype: cost(dtype.name)) if len(plain) == len(types) else None


def largest_error(source: str, target: str) -> float:
    """Returns the largest NMSE of a tensor converted from type `source` to type `target`."""
    if source == target:
        return EXACT
    return max(MARGIN * cost(target), EXACT)


def run_bounds(types: Iterable[tuple[str, int]]) -> RunBounds:
    """Returns the bounds for two models. `types`: the type and elements of every tensor of both. The coarsest type with
    at least 2 % of the elements counts."""
    sizes = Counter[str]()
    for name, elements in types:
        sizes[name] += elements
    total = sum(sizes.values()) or 1
    error = max((cost(name) for name, n in sizes.items() if n / total >= 0.02), default=0.0)
    divergence = (_ROUNDED_FLOOR if error > _ROUNDED else _FLOOR) + _DIVERGENCE * error
    return RunBounds(divergence, max(0.0, 0.9 - 3 * divergence), _COSINE + _DIVERGENCE * error)
