"""Types for a size: each tensor gets the type with which the whole model, at that size, is least in error.

1. Probe. Rows spread over each tensor are quantized to every candidate and decoded again. Its error there is the
   squared error relative to the squared values, each column weighted by the importance matrix where there is one: then
   it is the expected relative error of the tensor's output.
2. Allocate. Every tensor starts at its smallest type. The step that takes most error away for a byte comes first, along
   each tensor's lower convex hull, as long as the steps fit; what doesn't fit any more is passed over.

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
from weighbridge.conversion.quantize import ftypes as mixtures
from weighbridge.conversion.quantize import keys as quantize_keys
from weighbridge.conversion.quantize.inputs import Prepared
from weighbridge.tensors import kernels
from weighbridge.tensors.nodes import Node, cast

Floats = NDArray[np.float32]

# What a tensor may become, where its rows are whole blocks of it; the first that can't do without is an importance
# matrix. Of two types of one size the better one is found by the probe.
CANDIDATES: Final = (
    "IQ2_XXS", "IQ2_XS", "IQ2_S", "Q2_K", "IQ3_XXS", "IQ3_S", "Q3_K", "IQ4_XS", "IQ4_NL", "Q4_0", "Q4_K", "Q5_0",
    "Q5_K", "Q6_K", "Q8_0", "F16",
)  # fmt: skip
# Elements of a tensor that are looked at: enough that the error is told to a few percent.
_SAMPLE: Final = 1 << 15


class Offer(NamedTuple):
    """A type for a tensor: bytes of all of it, and the error to expect."""

    dtype: DType
    nbytes: int
    error: float


@dataclass(frozen=True)
class Allocation:
    """The types, what they weigh, and the sum of the errors of the tensors that had a choice."""

    types: Mapping[str, DType]
    nbytes: int
    error: float


def budgeted(
    prepared: Prepared,
    options: mixtures.Options,
    *,
    bits: float | None = None,
    size: int | None = None,
    overhead: int = 0,
) -> tuple[Prepared, mixtures.Choice]:
    """The types for `bits` per weight, or for a file of `size` bytes of which at most `overhead` are none of tensors;
    and the keys with the file type that most weights have. RefusedError where nothing is that small."""
    fixed, free = _divided(prepared, options)
    elements = sum(node.spec.elements for node in prepared.tensors.values())
    room = int(bits * elements / 8) if bits is not None else (size or 0) - overhead
    room -= sum(_bytes(node, fixed[name]) for name, node in prepared.tensors.items() if name in fixed)
    offers = {name: probe(prepared.tensors[name], prepared.weights(name)) for name in free}
    found = allocate(offers, room)
    types = {name: fixed.get(name) or found.types[name] for name in prepared.tensors}
    keys = {**prepared.keys, quantize_keys.FILE_TYPE: KV("u32", _ftype(prepared.tensors, types))}
    return replace(prepared, keys=keys), mixtures.Choice(types)


def _divided(prepared: Prepared, options: mixtures.Options) -> tuple[dict[str, DType], list[str]]:
    """Tensors whose type is settled (kept as they are, or by an option), and those that have a choice."""
    arch, fixed, free = prepared.facts.architecture, {}, []
    roles = {"embedding": options.embedding_type, "output": options.output_type}
    for name, node in prepared.tensors.items():
        said = roles.get(mixtures.role(name)) or next((t for p, t in options.tensor_types if p.search(name)), None)
        if not mixtures.quantizable(name, node.spec, arch, options):
            fixed[name] = node.spec.dtype
        elif said is not None:
            fixed[name] = said
        else:
            free.append(name)
    if not free:
        raise UsageError("no tensor is left whose type could be chosen")
    return fixed, free


def _bytes(node: Node, dtype: DType) -> int:
    return node.spec.with_dtype(dtype).nbytes


def _ftype(tensors: Mapping[str, Node], types: Mapping[str, DType]) -> int:
    counts = Counter[str]()
    for name, node in tensors.items():
        counts[types[name].name] += node.spec.elements
    return mixtures.nearest_ftype(counts.most_common(1)[0][0])


def probe(node: Node, weights: Any) -> list[Offer]:
    """What each candidate makes of some of the tensor's rows."""
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
    """Rows spread evenly over the tensor [rows, columns], and which ones."""
    source, columns = cast(node, F32), node.spec.shape[-1]
    count = min(node.spec.rows, max(1, _SAMPLE // columns))
    rows = np.linspace(0, node.spec.rows - 1, count).astype(np.int64)
    return np.stack([source.read(int(r), int(r) + 1).view(np.float32) for r in rows]), rows


def _rounded(sample: Floats, dtype: DType, groups: Floats | None) -> Floats:
    """The rows as `dtype` holds them."""
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
    """From the smallest on, each the one that takes away most error for a byte: the lower convex hull."""
    kept: list[Offer] = []
    for offer in sorted(offers, key=lambda o: (o.nbytes, o.error)):
        if kept and offer.error >= kept[-1].error:
            continue
        while len(kept) > 1 and _gain(kept[-1], offer) >= _gain(kept[-2], kept[-1]):
            kept.pop()
        kept.append(offer)
    return kept


def _gain(a: Offer, b: Offer) -> float:
    """Error that a step from `a` to `b` takes away, for a byte."""
    return (a.error - b.error) / (b.nbytes - a.nbytes)


def allocate(offers: Mapping[str, Sequence[Offer]], room: int) -> Allocation:
    """A type for each, `room` bytes in all. RefusedError where the smallest types don't fit."""
    hulls = {name: hull(found) for name, found in offers.items()}
    at = dict.fromkeys(hulls, 0)
    used = sum(steps[0].nbytes for steps in hulls.values())
    if used > room:
        raise RefusedError(
            f"the tensors take {used:,} bytes at least, there is room for {max(room, 0):,}",
            hint="ask for a larger size; with an importance matrix smaller types are possible",
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
