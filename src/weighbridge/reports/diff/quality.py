"""The error of a quantized model relative to its source, tensor by tensor. Every value of both is read once.

NMSE: squared error relative to the squared values. Weighted: the same with each column weighted by the importance
matrix, which estimates the error of the tensor's output. Cosine: of the two tensors as vectors. All sums are f64, slab
by slab in order, so the results don't depend on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.limits import MIB
from weighbridge.base.records import dataclass
from weighbridge.io.workers import Workers

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import Node

Progress = Callable[[int, int, str], None]
SCHEMA: Final = "weighbridge/quality/1"
WORST: Final = 5  # tensors named in a summary


@dataclass(frozen=True, slots=True)
class Quality:
    """The error of one tensor. `weighted`: None if the importance matrix has no entry for it."""

    name: str
    shape: tuple[int, ...]
    source: str
    type: str
    bytes: int
    bits: float
    nmse: float
    max_error: float
    cosine: float
    weighted: float | None = None


@dataclass(frozen=True)
class QualityReport:
    """The tensors whose type changed, the measures over all of them, and the bytes of each type."""

    tensors: tuple[Quality, ...]
    nmse: float
    weighted: float | None
    max_error: float
    cosine: float
    bytes: int
    types: Mapping[str, int]

    @property
    def worst(self) -> list[Quality]:
        """The tensors with the largest error, weighted if possible."""
        ranked = sorted(self.tensors, key=lambda q: (-(q.nmse if q.weighted is None else q.weighted), q.name))
        return ranked[:WORST]

    def describe(self) -> dict[str, Any]:
        """Returns the report as JSON-compatible data."""
        return {
            "schema": SCHEMA,
            "nmse": self.nmse,
            "weighted": self.weighted,
            "max_error": self.max_error,
            "cosine": self.cosine,
            "bytes": self.bytes,
            "types": dict(self.types),
            "worst": [q.name for q in self.worst],
            "tensors": [asdict(q) for q in self.tensors],
        }


@dataclass(slots=True)
class _Sums:
    """Running sums: squared errors and values, plain and weighted, products, and the largest error."""

    error: float = 0.0
    power: float = 0.0
    quantized_power: float = 0.0
    product: float = 0.0
    weighted_error: float = 0.0
    weighted_power: float = 0.0
    largest: float = 0.0

    def add(self, sums: _Sums) -> None:
        for field in self.__slots__:
            old, new = getattr(self, field), getattr(sums, field)
            setattr(self, field, max(old, new) if field == "largest" else old + new)

    def cosine(self) -> float:
        norm = math.sqrt(self.power * self.quantized_power)
        return min(1.0, self.product / norm) if norm else 1.0


def measure(
    originals: Mapping[str, Node], quantized: Mapping[str, Node], weights: Mapping[str, Any], *,
    jobs: int = 1, progress: Progress | None = None,
) -> QualityReport:  # fmt: skip
    """Measures the error of `quantized` against `originals`, which has the same names and shapes. Tensors of the same
    type in both are equal and left out. `weights`: f32 importance of the columns, [matrices, columns]."""
    names = [n for n, node in quantized.items() if node.spec.dtype is not originals[n].spec.dtype]
    total, done = sum(quantized[n].spec.elements for n in names), 0
    whole, rows = _Sums(), []
    with Workers(jobs, "quality") as pool:
        for name in names:
            sums, original, node, groups = _Sums(), originals[name], quantized[name], weights.get(name)
            step = max(1, MIB // max(1, 4 * original.spec.elements // max(original.spec.rows, 1)))  # a MiB of f32
            for part in pool.map(partial(_compare, original, node, groups, step), range(0, original.spec.rows, step)):
                sums.add(part)
            spec = node.spec
            error = _ratio(sums.weighted_error, sums.weighted_power) if groups is not None else None
            rows.append(Quality(
                name, spec.shape, original.spec.dtype.name, spec.dtype.name, spec.nbytes, spec.dtype.bits,
                _ratio(sums.error, sums.power), sums.largest, sums.cosine(), error,
            ))  # fmt: skip
            whole.add(sums)
            done += node.spec.elements
            if progress is not None:
                progress(done, total, "measuring")
    types: dict[str, int] = {}
    for node in quantized.values():
        types[node.spec.dtype.name] = types.get(node.spec.dtype.name, 0) + node.spec.nbytes
    return QualityReport(
        tuple(rows),
        nmse=_ratio(whole.error, whole.power),
        weighted=_ratio(whole.weighted_error, whole.weighted_power) if weights else None,
        max_error=whole.largest,
        cosine=whole.cosine(),
        bytes=sum(types.values()),
        types=dict(sorted(types.items(), key=lambda item: -item[1])),
    )


def _ratio(error: float, power: float) -> float:
    return error / power if power else 0.0


def _compare(original: Node, quantized: Node, groups: Any, step: int, lo: int) -> _Sums:
    """Returns the sums over `step` rows from `lo`."""
    import numpy as np

    from weighbridge.base.dtypes import F32
    from weighbridge.tensors.nodes import cast

    hi = min(lo + step, original.spec.rows)
    a, b = (
        cast(node, F32).read(lo, hi).view(np.float32).reshape(hi - lo, -1).astype(np.float64)
        for node in (original, quantized)
    )
    error = a - b
    squares, powers = error * error, a * a
    sums = _Sums(
        float(squares.sum()), float(powers.sum()), float((b * b).sum()), float((a * b).sum()),
        largest=float(np.abs(error).max(initial=0)),
    )  # fmt: skip
    if groups is not None:
        columns = groups[np.arange(lo, hi) * len(groups) // original.spec.rows].astype(np.float64)
        sums.weighted_error, sums.weighted_power = float((squares * columns).sum()), float((powers * columns).sum())
    return sums
