"""Every tensor of a model as columns of numbers, small enough to send all 100,000 of a large model at once."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from weighbridge.base import gc_pause
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.reports.view.roles import PARTS, Survey, survey

SCHEMA: Final = "weighbridge/tensor-columns/1"
_T = TypeVar("_T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class TensorColumns:
    """A tensor's number is its position in the columns, and in the model's index. `dtype`, `shape`, `role`, `part`,
    `file` and `packing` are numbers into `dtypes`, `shapes` and so on; `layer` is -1 outside of layers. `packings[0]`
    is "": a tensor of its own. `parameters`: logical ones; 0 of scales and other companions of a packed weight."""

    path: str
    format: str
    family: str | None
    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    roles: tuple[str, ...]
    parts: tuple[str, ...]
    files: tuple[str, ...]
    packings: tuple[str, ...]
    dtype: tuple[int, ...]
    shape: tuple[int, ...]
    role: tuple[int, ...]
    part: tuple[int, ...]
    layer: tuple[int, ...]
    file: tuple[int, ...]
    packing: tuple[int, ...]
    offset: tuple[int, ...]
    nbytes: tuple[int, ...]
    parameters: tuple[int, ...]
    schema: str = SCHEMA


class _Numbered(Generic[_T]):
    """Values as numbers into a list of the distinct ones, in order of appearance."""

    def __init__(self, first: Iterable[_T] = ()) -> None:
        self._numbers = {value: n for n, value in enumerate(first)}

    def column(self, values: Iterable[_T]) -> tuple[int, ...]:
        numbers = self._numbers
        return tuple([numbers.setdefault(value, len(numbers)) for value in values])

    @property
    def values(self) -> tuple[_T, ...]:
        return tuple(self._numbers)


def tensor_columns(model: Checkpoint, surveyed: Survey | None = None) -> TensorColumns:
    """The stored tensors of `model` in the order of its index. Reads no tensor data. `surveyed`: where it is known."""
    with gc_pause.paused():
        return _columns(model, surveyed or survey(model))


def _columns(model: Checkpoint, surveyed: Survey) -> TensorColumns:
    entries = model.index.entries
    counted, (family, found) = surveyed
    counts = [counted.of(e) for e in entries]
    dtypes, shapes, roles = _Numbered[str](), _Numbered[tuple[int, ...]](), _Numbered[str]()
    parts, packings = _Numbered(PARTS), _Numbered([""])
    return TensorColumns(
        path=str(model.place.path),
        format=model.format,
        family=family,
        names=tuple([e.name for e in entries]),
        dtype=dtypes.column(e.dtype.name for e in entries),
        shape=shapes.column(e.shape for e in entries),
        role=roles.column(row.role for row in found),
        part=parts.column(row.part for row in found),
        packing=packings.column(scheme or "" for _, scheme in counts),
        layer=tuple([row.layer for row in found]),
        file=tuple([e.file for e in entries]),
        offset=tuple([e.offset for e in entries]),
        nbytes=tuple([e.nbytes for e in entries]),
        parameters=tuple([n for n, _ in counts]),
        dtypes=dtypes.values,
        shapes=shapes.values,
        roles=roles.values,
        parts=parts.values,
        packings=packings.values,
        files=tuple([Path(source.name).name for source in model.index.files]),
    )
