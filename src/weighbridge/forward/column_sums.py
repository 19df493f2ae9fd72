"""The sums of an importance matrix: squares of the inputs of each matrix, by the names in a GGUF."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.errors import UnsupportedError
from weighbridge.conversion.quantize.imatrix import ImatrixSums
from weighbridge.forward.ops import Floats
from weighbridge.models.arch.expand import Instance
from weighbridge.models.model import OpenModel

_OUTPUT: Final = "output.weight"
_BLOCK: Final = "blk."


class MatrixPlace(NamedTuple):
    """A matrix in a file: the tensor's name, which matrix of its stack it is, and how many the stack has."""

    name: str
    number: int
    stacked: int


Matrices = dict[tuple[str, int | None], MatrixPlace]


def gguf_matrices(model: OpenModel) -> Matrices:
    """`stored_matrices` of a GGUF."""
    return stored_matrices(model, "gguf", "")


def stored_matrices(model: OpenModel, dialect: str, prefix: str) -> Matrices:
    """Each matrix of a model in a dialect, by its canonical name, and by its number for an expert. Matrices that are
    fused there share one."""
    family, sizes = model.family, model.resolved.sizes
    stored = {
        instance: MatrixPlace(slot.name, n // len(slot.roles), len(slot.instances) // len(slot.roles))
        for slot in family.expansion(dialect, sizes, prefix).places.values()
        for n, instance in enumerate(slot.instances)
    }
    return {place: stored[i] for place, i in canonical_instances(model).items() if i in stored}


def canonical_instances(model: OpenModel) -> dict[tuple[str, int | None], Instance]:
    """The role and indices of each matrix by its canonical name, and by its number for an expert."""
    slots = model.family.expansion("canonical", model.resolved.sizes, "").places.values()
    return {
        (slot.name, n if len(slot.instances) > 1 else None): instance
        for slot in slots for n, instance in enumerate(slot.instances)
    }  # fmt: skip


class ColumnSums:
    """An observer that sums squares. `output`: also of the output matrix."""

    def __init__(self, model: OpenModel, *, output: bool = False) -> None:
        self._matrices = gguf_matrices(model)
        self._sums: dict[str, NDArray[np.float64]] = {}
        self._counts: dict[str, NDArray[np.int64]] = {}
        self._output = output

    def __call__(self, names: Sequence[str], x: Floats, expert: int | None = None) -> None:
        """See `layers.Observer`. Raises UnsupportedError for a matrix that a GGUF doesn't have."""
        targets = {self._matrix(name, expert) for name in names}
        squares = np.einsum("ij,ij->j", x, x).astype(np.float64)
        for target in targets:
            if not target.name.startswith(_BLOCK) and not (self._output and target.name == _OUTPUT):
                continue
            sums = self._sums.setdefault(target.name, np.zeros((target.stacked, x.shape[1])))
            counts = self._counts.setdefault(target.name, np.zeros(target.stacked, np.int64))
            sums[target.number] += squares
            counts[target.number] += len(x)

    def _matrix(self, name: str, expert: int | None) -> MatrixPlace:
        found = self._matrices.get((name, expert))
        if found is None:
            raise UnsupportedError(f"{name} has no tensor in a GGUF")
        return found

    def entries(self) -> Mapping[str, ImatrixSums]:
        """The sums by tensor, in F32."""
        return {name: ImatrixSums(s.astype(np.float32), self._counts[name]) for name, s in self._sums.items()}

    def unseen(self) -> Counter[str]:
        """The number of experts without a token, by tensor."""
        return Counter({name: int((counts == 0).sum()) for name, counts in self._counts.items() if (counts == 0).any()})
