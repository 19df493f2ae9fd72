"""The same weights of two models next to each other, whatever their types, names and order of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.records import dataclass
from weighbridge.models.model import OpenModel
from weighbridge.models.tensor_roles import canonical_role
from weighbridge.reports.diff.report import View, common_views, comparable
from weighbridge.reports.survey import roles_by_name

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import LogicalTensor

SCHEMA: Final = "weighbridge/shared-weights/1"
SHOWN: Final = 256  # weights: as many as in the largest blocks
_WIDEST: Final = 1 << 24  # weights of a row, which is decoded whole


@dataclass(frozen=True, slots=True)
class SharedWeights:
    """Weights [column, column + 256) of a row, in the rows' common order. `name`: in both models. `moved`: whether the
    file of each model has them in another order."""

    name: str
    types: tuple[str, str]
    shape: tuple[int, ...]
    row: int
    column: int
    moved: tuple[bool, bool]
    a: tuple[float, ...]
    b: tuple[float, ...]
    schema: str = SCHEMA


class WeightPairs:
    """The tensors that two models have in common."""

    def __init__(self, a: OpenModel, b: OpenModel) -> None:
        names, self._a, self._b, _ = common_views(a, b)
        self._stored = [entry.name for entry in a.index.entries]
        self._names = _canonical_names(a, self._a) if names == "canonical" else {}

    def at(self, tensor: int, row: int, column: int) -> SharedWeights:
        """Returns weights of stored tensor `tensor` of model a, from its last row or column on if there are fewer.
        Raises the errors of `named`, and UnsupportedError for a tensor without rows or with very long ones."""
        name, a, b = self.named(tensor)
        shape = a.spec.shape
        width = shape[-1] if shape else 1
        if not a.spec.elements or width > _WIDEST:
            raise UnsupportedError(f"{name} has no rows of up to {_WIDEST:,} weights")
        row, column = min(row, a.spec.elements // width - 1), min(column, width - 1)
        return SharedWeights(
            name, (_type(a), _type(b)), shape, row, column, (_is_moved(a), _is_moved(b)), _weights(a, row, column),
            _weights(b, row, column),
        )  # fmt: skip

    def named(self, tensor: int) -> tuple[str, LogicalTensor, LogicalTensor]:
        """Returns the common name of a stored tensor of model a, and its values in both models. Raises UsageError for
        an unknown tensor, UnsupportedError if the models don't both have it in one shape."""
        if tensor >= len(self._stored):
            raise UsageError(f"unknown tensor {tensor}")
        stored = self._stored[tensor]
        name = self._names.get(stored, stored)
        a, b = self._a.get(name), self._b.get(name)
        if a is None or b is None or a.spec.shape != b.spec.shape:
            raise UnsupportedError(f"{stored} isn't a whole tensor of one shape in both models")
        return name, a, b


def _weights(node: LogicalTensor, row: int, column: int) -> tuple[float, ...]:
    import numpy as np

    values = comparable(node)
    whole = len(values.spec.shape) > 1
    data = values.read(row, row + 1) if whole else values.read(column, min(column + SHOWN, values.spec.elements))
    read = data.view(np.dtype(values.spec.dtype.numpy)).astype(np.float64)
    return tuple(map(float, read[column : column + SHOWN] if whole else read))


def _type(node: LogicalTensor) -> str:
    packing = getattr(node, "packing", None)
    return packing.name if packing is not None else node.spec.dtype.name


def _is_moved(node: LogicalTensor) -> bool:
    from weighbridge.tensors.nodes import Gather, Strided, Transpose

    return isinstance(node, Gather | Strided | Transpose)


def _canonical_names(model: OpenModel, view: View) -> Mapping[str, str]:
    """Returns the canonical name of each stored tensor that is the only one of its role in its layer."""
    names: dict[tuple[int, str], list[str]] = {}
    for name in view:
        role = canonical_role(name)
        names.setdefault((role.layer, role.role), []).append(name)
    stored = ((name, names.get((role.layer, role.role), [])) for name, role in roles_by_name(model).items())
    return {name: known[0] for name, known in stored if len(known) == 1}
