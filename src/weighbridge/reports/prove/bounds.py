"""What a type may change: bounds on a tensor's error, and on how far the predictions of a model move.

A tensor's error may be three times what its type costs on random numbers (bounds.toml): real weights have rows that
suit a type worse. Predictions: the mean divergence is about ten times the NMSE of the weights for trained models
(llama.cpp's tools/perplexity/README.md: Llama 3 8B, Q4_0 0.072, Q2_K 0.445, IQ1_S 2.25); the bound is thirty times, and
a floor for the arithmetic of two programs: higher where activations are rounded too, as llama.cpp does for blocks
(measured on small random models, which are more sensitive than trained ones: Q8_0 0.016).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import LogicalTensor

MARGIN: Final = 3.0
EXACT: Final = 1e-10  # NMSE of a type that holds all values, where a factor was multiplied in: rounding of F32
_DIVERGENCE: Final = 30.0
_FLOOR, _ROUNDED_FLOOR = 2e-3, 3e-2  # nats
_ROUNDED: Final = 1e-6  # NMSE of a type that is computed in less than F32
_COSINE: Final = 1e-4


class Bounds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """bounds.toml: NMSE by dtype, and of packed weights by bits."""

    nmse: dict[str, float]
    packed: dict[str, float]


class RunBounds(NamedTuple):
    """`divergence`: mean Kullback-Leibler divergence of the next token, nats. `agreement`: share of positions with the
    same most likely token. `cosine`: distance of embeddings (1 - cosine)."""

    divergence: float
    agreement: float
    cosine: float


@cache
def table() -> Bounds:
    """The table that is shipped."""
    text = (resources.files(__package__ or "") / "bounds.toml").read_text(encoding="utf-8")
    return msgspec.toml.decode(text, type=Bounds)


def type_of(tensor: LogicalTensor) -> str:
    """The dtype of a tensor, or of a packed one its packing and the bits of its codes: `mlx-affine 4`."""
    members = getattr(tensor, "members", None)
    if members is None:
        return tensor.spec.dtype.name  # type: ignore[no-any-return, union-attr, unused-ignore]
    size = max(member.spec.nbytes for member in members.values())  # the codes
    bits = min(max(int(8 * size / max(tensor.spec.elements, 1)), 1), 8)
    return f"{tensor.packing.name} {bits}"  # type: ignore[union-attr]


def cost(name: str) -> float:
    """The NMSE that a type costs, by its name (`type_of`); 0 for one that holds all values."""
    known = table()
    packing, _, bits = name.rpartition(" ")
    return known.packed[bits] if packing else known.nmse.get(name, 0.0)


def largest_error(source: str, target: str) -> float:
    """The largest NMSE of a tensor of type `target` made of one of type `source`."""
    if source == target:
        return EXACT
    return max(MARGIN * cost(target), EXACT)


def run_bounds(types: Iterable[tuple[str, int]]) -> RunBounds:
    """The bounds for a pair of models. `types`: of every tensor of both, with its elements; the error of the type that
    has the most counts among those that are coarse."""
    sizes = Counter[str]()
    for name, elements in types:
        sizes[name] += elements
    total = sum(sizes.values()) or 1
    error = max((cost(name) for name, n in sizes.items() if n / total >= 0.02), default=0.0)
    divergence = (_ROUNDED_FLOOR if error > _ROUNDED else _FLOOR) + _DIVERGENCE * error
    return RunBounds(divergence, max(0.0, 0.9 - 3 * divergence), _COSINE + _DIVERGENCE * error)
