"""How much a quantized model differs from its source, tensor by tensor. Every value of both is read once.

NMSE: squared error relative to the squared values. Weighted: the same with each column weighted by the importance
matrix, which is what the error of the tensor's output comes to. Cosine: of the two tensors as vectors. All sums are
f64, slab by slab in order, so that the numbers don't depend on threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.limits import MIB

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import Node

Progress = Callable[[int, int, str], None]
SCHEMA: Final = "weighbridge/quality/1"
WORST: Final = 5  # tensors named in a summary


@dataclass(frozen=True, slots=True)
class Quality:
    """The error of one tensor. `weighted` is None if the importance matrix has no entry for it."""

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
    """All tensors whose type changed, their total, and the sizes of all types."""

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
        return sorted(self.tensors, key=lambda q: (-_error(q), q.name))[:WORST]

    def describe(self) -> dict[str, Any]:
        """Plain data."""
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


def _error(q: Quality) -> float:
    return q.nmse if q.weighted is None else q.weighted


@dataclass(slots=True)
class _Sums:
    """Running sums: squared errors and values, weighted ones, products, and the largest error."""

    error: float = 0.0
    power: float = 0.0
    other: float = 0.0
    product: float = 0.0
    weighted_error: float = 0.0
    weighted_power: float = 0.0
    largest: float = 0.0

    def add(self, more: _Sums) -> None:
        for field in self.__slots__:
            now, new = getattr(self, field), getattr(more, field)
            setattr(self, field, max(now, new) if field == "largest" else now + new)

    def cosine(self) -> float:
        norm = math.sqrt(self.power * self.other)
        return min(1.0, self.product / norm) if norm else 1.0


def measure(
    originals: Mapping[str, Node], made: Mapping[str, Node], weights: Mapping[str, Any], *,
    jobs: int = 1, progress: Progress | None = None,
) -> QualityReport:  # fmt: skip
    """The report on `made`, of the same names and shapes as `originals`; tensors of the same type in both are equal and
    left out. `weights`: importance of the columns [matrices, columns]."""
    names = [n for n, node in made.items() if node.spec.dtype is not originals[n].spec.dtype]
    total, done = sum(made[n].spec.elements for n in names), 0
    whole, rows = _Sums(), []
    with ThreadPoolExecutor(jobs, thread_name_prefix="weighbridge") as pool:
        for name in names:
            sums = _Sums()
            slabs = list(_slabs(originals[name]))
            groups = weights.get(name)
            for part in pool.map(lambda s, n=name, g=groups: _compare(originals[n], made[n], g, *s), slabs):
                sums.add(part)
            rows.append(_row(name, originals[name], made[name], sums, groups is not None))
            whole.add(sums)
            done += made[name].spec.elements
            if progress is not None:
                progress(done, total, "measuring")
    return QualityReport(
        tuple(rows),
        nmse=_ratio(whole.error, whole.power),
        weighted=_ratio(whole.weighted_error, whole.weighted_power) if weights else None,
        max_error=whole.largest,
        cosine=whole.cosine(),
        bytes=sum(node.spec.nbytes for node in made.values()),
        types=_sizes(made.values()),
    )


def _row(name: str, original: Node, made: Node, sums: _Sums, weighted: bool) -> Quality:
    spec = made.spec
    return Quality(
        name, spec.shape, original.spec.dtype.name, spec.dtype.name, spec.nbytes,
        bits=spec.dtype.bits,
        nmse=_ratio(sums.error, sums.power),
        max_error=sums.largest,
        cosine=sums.cosine(),
        weighted=_ratio(sums.weighted_error, sums.weighted_power) if weighted else None,
    )  # fmt: skip


def _ratio(error: float, power: float) -> float:
    return error / power if power else 0.0


def _sizes(nodes: Iterable[Node]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for node in nodes:
        sizes[node.spec.dtype.name] = sizes.get(node.spec.dtype.name, 0) + node.spec.nbytes
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def _slabs(node: Node) -> Iterator[tuple[int, int]]:
    """Row ranges of about a MiB of f32."""
    rows = node.spec.rows
    step = max(1, MIB // max(1, 4 * node.spec.elements // max(rows, 1)))
    for lo in range(0, rows, step):
        yield lo, min(lo + step, rows)


def _compare(original: Node, made: Node, groups: Any, lo: int, hi: int) -> _Sums:
    import numpy as np

    a, b = (_values(node, lo, hi) for node in (original, made))
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


def _values(node: Node, lo: int, hi: int) -> Any:
    import numpy as np

    from weighbridge.base.dtypes import F32
    from weighbridge.tensors.nodes import cast

    return cast(node, F32).read(lo, hi).view(np.float32).reshape(hi - lo, -1).astype(np.float64)
