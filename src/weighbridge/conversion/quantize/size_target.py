"""Chooses types for a target size that minimize the error of the whole model.

1. Probe. Rows spread over each tensor are encoded as every candidate and decoded again. The error is the sum of squared
   differences relative to the sum of squares; with an importance matrix each column is weighted, which gives the
   expected relative error of the tensor's output.
2. Allocate. Every tensor starts at its smallest type and is upgraded along its lower convex hull, in the order of error
   removed per byte. Upgrades that no longer fit are skipped.

The same model, matrix and size give the same types.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import BY_NAME, F32, DType
from weighbridge.base.errors import RefusedError, UsageError
from weighbridge.containers.gguf.container import KV
from weighbridge.conversion.quantize import ftypes
from weighbridge.conversion.quantize import keys as gguf_keys
from weighbridge.conversion.quantize.inputs import QuantizeInputs
from weighbridge.tensors import kernels
from weighbridge.tensors.nodes import Node, cast

Floats = NDArray[np.float32]

# The candidates, if a tensor's rows are whole blocks of them. The first ones need an importance matrix.
CANDIDATES: Final = (
    "IQ2_XXS", "IQ2_XS", "IQ2_S", "Q2_K", "IQ3_XXS", "IQ3_S", "Q3_K", "IQ4_XS", "IQ4_NL", "Q4_0", "Q4_K", "Q5_0",
    "Q5_K", "Q6_K", "Q8_0", "F16",
)  # fmt: skip
# Probed elements of a tensor: enough to estimate the error to a few percent.
_SAMPLE: Final = 1 << 15


class Offer(NamedTuple):
    """A candidate type of a tensor: bytes of the whole tensor, and the expected error."""

    dtype: DType
    nbytes: int
    error: float


@dataclass(frozen=True)
class Allocation:
    """The chosen types, their total bytes, and the sum of the errors."""

    types: Mapping[str, DType]
    nbytes: int
    error: float


def types_for_size(
    inputs: QuantizeInputs,
    options: ftypes.TypeOptions,
    *,
    bits: float | None = None,
    size: int | None = None,
    overhead: int = 0,
) -> tuple[QuantizeInputs, ftypes.TypeChoice]:
    """Chooses types for `bits` per weight, or for a file of `size` bytes, at most `overhead` of them outside tensors.

    Returns the inputs with the file type of most weights, and the choice. Raises RefusedError if no choice of types is
    small enough.
    """
    fixed: dict[str, DType] = {}  # not quantizable, or set by an option
    roles = {"embedding": options.embedding_type, "output": options.output_type}
    for name, node in inputs.tensors.items():
        option = roles.get(ftypes.role(name)) or next((t for p, t in options.tensor_types if p.search(name)), None)
        if not ftypes.quantizable(name, node.spec, inputs.facts.architecture, options):
            fixed[name] = node.spec.dtype
        elif option is not None:
            fixed[name] = option
    free = [name for name in inputs.tensors if name not in fixed]
    if not free:
        raise UsageError("no tensor's type can be chosen: all are fixed by options or not quantizable")
    elements = sum(node.spec.elements for node in inputs.tensors.values())
    room = int(bits * elements / 8) if bits is not None else (size or 0) - overhead
    room -= sum(inputs.tensors[name].spec.with_dtype(dtype).nbytes for name, dtype in fixed.items())
    allocation = allocate({name: probe(inputs.tensors[name], inputs.weights(name)) for name in free}, room)
    types = {name: fixed.get(name) or allocation.types[name] for name in inputs.tensors}
    counts = Counter[str]()
    for name, node in inputs.tensors.items():
        counts[types[name].name] += node.spec.elements
    ftype = ftypes.nearest_ftype(counts.most_common(1)[0][0])
    keys = {**inputs.keys, gguf_keys.FILE_TYPE: KV("u32", ftype)}
    return replace(inputs, keys=keys), ftypes.TypeChoice(types)


def probe(node: Node, weights: Any) -> list[Offer]:
    """The expected error of each candidate, from evenly spaced rows of the tensor.

    `weights`: importance of the columns, f32[matrices, columns], or None.
    """
    source, columns = cast(node, F32), node.spec.shape[-1]
    count = min(node.spec.rows, max(1, _SAMPLE // columns))
    rows = np.linspace(0, node.spec.rows - 1, count).astype(np.int64)
    sample = np.stack([source.read(int(r), int(r) + 1).view(np.float32) for r in rows])
    row_weights = None if weights is None else weights[(rows * len(weights)) // node.spec.rows]
    power = _power(sample, row_weights)
    offers = []
    for dtype in map(BY_NAME.__getitem__, CANDIDATES):
        lacks_weights = dtype.importance == "required" and weights is None
        if columns % dtype.block or lacks_weights or not (kernels.encodes(dtype) or dtype.block == 1):
            continue
        error = _power(sample - _round_trip(sample, dtype, row_weights), row_weights)
        offers.append(Offer(dtype, node.spec.with_dtype(dtype).nbytes, error / power if power else 0.0))
    return offers


def _round_trip(sample: Floats, dtype: DType, weights: Floats | None) -> Floats:
    """Encodes rows as `dtype` and decodes them; sample, weights and result: f32[rows, columns]."""
    if dtype.block == 1:
        return sample.astype(np.float16).astype(np.float32)
    decoded = np.empty_like(sample)
    for i, row in enumerate(sample):
        packed = np.empty(row.size // dtype.block * dtype.size, np.uint8)
        kernels.encode(dtype, row, packed, None if weights is None else np.ascontiguousarray(weights[i]))
        kernels.decode(dtype, packed, decoded[i])
    return decoded


def _power(values: Floats, weights: Floats | None) -> float:
    """The sum of squares, weighted by column; values and weights: f32[rows, columns]."""
    squares = values.astype(np.float64) ** 2
    return float((squares if weights is None else squares * weights).sum())


def hull(offers: Iterable[Offer]) -> list[Offer]:
    """The lower convex hull of error over bytes, from the smallest offer on."""
    kept: list[Offer] = []
    for offer in sorted(offers, key=lambda o: (o.nbytes, o.error)):
        if kept and offer.error >= kept[-1].error:
            continue
        while len(kept) > 1 and _gain(kept[-1], offer) >= _gain(kept[-2], kept[-1]):
            kept.pop()
        kept.append(offer)
    return kept


def _gain(a: Offer, b: Offer) -> float:
    """Error that an upgrade from `a` to `b` removes per byte."""
    return (a.error - b.error) / (b.nbytes - a.nbytes)


def allocate(offers: Mapping[str, Sequence[Offer]], room: int) -> Allocation:
    """Chooses a type for each tensor within `room` bytes. Raises RefusedError if the smallest types don't fit."""
    hulls = {name: hull(candidates) for name, candidates in offers.items()}
    at = dict.fromkeys(hulls, 0)
    used = sum(steps[0].nbytes for steps in hulls.values())
    if used > room:
        raise RefusedError(
            f"the tensors need at least {used:,} bytes, but only {max(room, 0):,} are available",
            hint="choose a larger size, or pass an importance matrix, which allows smaller types",
        )
    order = {name: i for i, name in enumerate(hulls)}
    steps = [(-_gain(*h[:2]), order[n], n) for n, h in hulls.items() if len(h) > 1]
    heapq.heapify(steps)
    while steps:
        _, place, name = heapq.heappop(steps)
        now, then = hulls[name][at[name] : at[name] + 2]
        if used + then.nbytes - now.nbytes > room:
            continue
        used += then.nbytes - now.nbytes
        at[name] += 1
        if at[name] + 1 < len(hulls[name]):
            heapq.heappush(steps, (-_gain(*hulls[name][at[name] : at[name] + 2]), place, name))
    chosen = {name: hulls[name][i] for name, i in at.items()}
    return Allocation({n: o.dtype for n, o in chosen.items()}, used, sum(o.error for o in chosen.values()))
