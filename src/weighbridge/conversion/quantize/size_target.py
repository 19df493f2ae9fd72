"""Chooses types for a target size, so that the error of the whole model is least.

1. Probe. Rows spread over each tensor are encoded as every candidate and decoded again. The error is the sum of squared
   differences relative to the sum of squares; with an importance matrix each column is weighted, which gives the
   expected relative error of the tensor's output.
2. Allocate. Every tensor starts at its smallest type and is upgraded along its lower convex hull. The upgrade that
   removes most error per byte comes first; upgrades that no longer fit are skipped.

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

# The candidates, where a tensor's rows are whole blocks of them. The first ones need an importance matrix.
CANDIDATES: Final = (
    "IQ2_XXS", "IQ2_XS", "IQ2_S", "Q2_K", "IQ3_XXS", "IQ3_S", "Q3_K", "IQ4_XS", "IQ4_NL", "Q4_0", "Q4_K", "Q5_0",
    "Q5_K", "Q6_K", "Q8_0", "F16",
)  # fmt: skip
# Elements of a tensor that are probed: enough to know the error to a few percent.
_SAMPLE: Final = 1 << 15


class Offer(NamedTuple):
    """A candidate type of a tensor: bytes of the whole tensor, and the expected error."""

    dtype: DType
    nbytes: int
    error: float


@dataclass(frozen=True)
class Allocation:
    """The chosen types, their bytes in all, and the sum of the errors."""

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
    """The types for `bits` per weight, or for a file of `size` bytes, at most `overhead` of them outside tensors; and
    the inputs with the file type of most weights. RefusedError where no choice of types is that small."""
    fixed, free = _fixed_and_free(inputs, options)
    elements = sum(node.spec.elements for node in inputs.tensors.values())
    room = int(bits * elements / 8) if bits is not None else (size or 0) - overhead
    room -= sum(_bytes(node, fixed[name]) for name, node in inputs.tensors.items() if name in fixed)
    offers = {name: probe(inputs.tensors[name], inputs.weights(name)) for name in free}
    found = allocate(offers, room)
    types = {name: fixed.get(name) or found.types[name] for name in inputs.tensors}
    keys = {**inputs.keys, gguf_keys.FILE_TYPE: KV("u32", _ftype(inputs.tensors, types))}
    return replace(inputs, keys=keys), ftypes.TypeChoice(types)


def _fixed_and_free(inputs: QuantizeInputs, options: ftypes.TypeOptions) -> tuple[dict[str, DType], list[str]]:
    """Tensors with a fixed type (not quantizable, or set by an option), and those whose type can be chosen."""
    arch, fixed, free = inputs.facts.architecture, {}, []
    roles = {"embedding": options.embedding_type, "output": options.output_type}
    for name, node in inputs.tensors.items():
        option = roles.get(ftypes.role(name)) or next((t for p, t in options.tensor_types if p.search(name)), None)
        if not ftypes.quantizable(name, node.spec, arch, options):
            fixed[name] = node.spec.dtype
        elif option is not None:
            fixed[name] = option
        else:
            free.append(name)
    if not free:
        raise UsageError("no tensor's type can be chosen: all are fixed by options or not quantizable")
    return fixed, free


def _bytes(node: Node, dtype: DType) -> int:
    return node.spec.with_dtype(dtype).nbytes


def _ftype(tensors: Mapping[str, Node], types: Mapping[str, DType]) -> int:
    counts = Counter[str]()
    for name, node in tensors.items():
        counts[types[name].name] += node.spec.elements
    return ftypes.nearest_ftype(counts.most_common(1)[0][0])


def probe(node: Node, weights: Any) -> list[Offer]:
    """The expected error of each candidate, from some of the tensor's rows."""
    sample, rows = _sample(node)
    columns = node.spec.shape[-1]
    groups = None if weights is None else weights[(rows * len(weights)) // node.spec.rows]
    power = _power(sample, groups)
    offers = []
    for dtype in map(BY_NAME.__getitem__, CANDIDATES):
        needs = dtype.importance == "required" and weights is None
        if columns % dtype.block or needs or not (kernels.encodes(dtype) or dtype.block == 1):
            continue
        error = _power(sample - _rounded(sample, dtype, groups), groups)
        offers.append(Offer(dtype, _bytes(node, dtype), error / power if power else 0.0))
    return offers


def _sample(node: Node) -> tuple[Floats, NDArray[np.int64]]:
    """Evenly spaced rows of the tensor, f32[rows, columns], and their numbers."""
    source, columns = cast(node, F32), node.spec.shape[-1]
    count = min(node.spec.rows, max(1, _SAMPLE // columns))
    rows = np.linspace(0, node.spec.rows - 1, count).astype(np.int64)
    return np.stack([source.read(int(r), int(r) + 1).view(np.float32) for r in rows]), rows


def _rounded(sample: Floats, dtype: DType, groups: Floats | None) -> Floats:
    """The rows encoded as `dtype` and decoded."""
    if dtype.block == 1:
        return sample.astype(np.float16).astype(np.float32)
    out = np.empty_like(sample)
    for i, row in enumerate(sample):
        packed = np.empty(row.size // dtype.block * dtype.size, np.uint8)
        kernels.encode(dtype, row, packed, None if groups is None else np.ascontiguousarray(groups[i]))
        kernels.decode(dtype, packed, out[i])
    return out


def _power(values: Floats, groups: Floats | None) -> float:
    squares = values.astype(np.float64) ** 2
    return float((squares if groups is None else squares * groups).sum())


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
    """A type for each tensor, within `room` bytes. RefusedError where the smallest types don't fit."""
    hulls = {name: hull(found) for name, found in offers.items()}
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
