"""The sums of an importance matrix: squares of the inputs of each matrix, by the names in a GGUF."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.errors import UnsupportedError
from weighbridge.base.spec import Shape
from weighbridge.conversion.quantize.imatrix import ImatrixSums
from weighbridge.forward.ops import Floats
from weighbridge.models.arch.expand import Instance
from weighbridge.models.model import OpenModel

_OUTPUT: Final = "output.weight"
_BLOCK: Final = "blk."
_EXPERTS: Final = ".experts."
#: In the name of the joint matrix of latent keys and values, which no GGUF of these families has.
JOINT: Final = ".kv_b."
#: In the names of its parts for keys and values, which have a matrix per head.
OF_KEYS, OF_VALUES = ".attention.k_b.", ".attention.v_b."


class MatrixPlace(NamedTuple):
    """A matrix in a file: the tensor's name, which matrix of its stack it is, how many the stack has, and whether its
    rows are the canonical columns."""

    name: str
    number: int
    stacked: int
    is_transposed: bool = False


Matrices = dict[tuple[str, int | None], MatrixPlace]


def gguf_matrices(model: OpenModel) -> Matrices:
    """`stored_matrices` of a GGUF."""
    return stored_matrices(model, "gguf", "")


def stored_matrices(model: OpenModel, dialect: str, prefix: str) -> Matrices:
    """Each matrix of a model in a dialect, by its canonical name, and by its number for an expert. Matrices that are
    fused there share one."""
    family, sizes = model.family, model.resolved.sizes
    stored: dict[Instance, MatrixPlace] = {}
    for slot in family.expansion(dialect, sizes, prefix).places.values():
        calls = [family.rows[role].layouts.get(dialect) for role in slot.roles]
        transposed = any(call is not None and call.row.transposes % 2 == 1 for call in calls)
        count = len(slot.roles)
        stored |= {
            instance: MatrixPlace(slot.name, n // count, len(slot.instances) // count, transposed)
            for n, instance in enumerate(slot.instances)
        }
    found = {place: stored[i] for place, i in canonical_instances(model).items() if i in stored}
    # keys and values of latent attention, whose joint matrix a folder has
    joint = {
        (name.replace(".k_b.", JOINT), None): place for (name, head), place in found.items()
        if OF_KEYS in name and place == found.get((name.replace(OF_KEYS, OF_VALUES), head))
    }  # fmt: skip
    return found | joint


def canonical_instances(model: OpenModel) -> dict[tuple[str, int | None], Instance]:
    """The role and indices of each matrix by its canonical name, and by its number for an expert."""
    slots = model.family.expansion("canonical", model.resolved.sizes, "").places.values()
    return {
        (slot.name, n if len(slot.instances) > 1 else None): instance
        for slot in slots for n, instance in enumerate(slot.instances)
    }  # fmt: skip


class ColumnSums:
    """An observer that sums squares. `output`: also of the output matrix. The matrices of heads share one count."""

    def __init__(self, model: OpenModel, *, output: bool = False) -> None:
        self._matrices = gguf_matrices(model)
        self._sums: dict[str, NDArray[np.float64]] = {}
        self._counts: dict[str, NDArray[np.int64]] = {}
        self._output = output
        self._heads = set[str]()

    def __call__(self, names: Sequence[str], x: Floats, expert: int | None = None) -> None:
        """See `layers.Observer`. Raises UnsupportedError for a matrix that a GGUF doesn't have."""
        targets = {self._matrix(name, expert) for name in names if JOINT not in name or (name, None) in self._matrices}
        squares = np.einsum("ij,ij->j", x, x).astype(np.float64)
        for target in targets:
            if not target.name.startswith(_BLOCK) and not (self._output and target.name == _OUTPUT):
                continue
            sums = self._sums.setdefault(target.name, np.zeros((target.stacked, x.shape[1])))
            counts = self._counts.setdefault(target.name, np.zeros(target.stacked, np.int64))
            sums[target.number] += squares
            counts[target.number] += len(x)
        if expert is not None and _EXPERTS not in names[0]:
            self._heads |= {target.name for target in targets}

    def _matrix(self, name: str, expert: int | None) -> MatrixPlace:
        found = self._matrices.get((name, expert))
        if found is None:
            raise UnsupportedError(f"{name} has no tensor in a GGUF")
        return found

    def entries(self) -> Mapping[str, ImatrixSums]:
        """The sums by tensor, in F32."""
        sums = {name: found.astype(np.float32) for name, found in self._sums.items()}
        return {
            name: ImatrixSums(found.reshape(1, -1), self._counts[name][:1])
            if name in self._heads
            else ImatrixSums(found, self._counts[name])
            for name, found in sums.items()
        }

    def missing(self, shapes: Mapping[str, Shape]) -> list[str]:
        """The layers' matrices without an entry. `shapes`: of the model's tensors by canonical name."""
        matrices = {
            name for name, shape in shapes.items()
            if len(shape) > 1 and name.endswith(".weight") and ".norm." not in name
        }  # fmt: skip
        stored = {place.name for (name, _), place in self._matrices.items() if name in matrices}
        return sorted(name for name in stored - self._sums.keys() if name.startswith(_BLOCK))

    def unseen(self) -> Counter[str]:
        """The number of experts without a token, by tensor."""
        return Counter({name: int((counts == 0).sum()) for name, counts in self._counts.items() if (counts == 0).any()})
