"""The tensors of a model as columns of numbers, compact enough to send 100,000 of them at once."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Final, TypeVar

from weighbridge.base import gc_pause
from weighbridge.base.records import dataclass
from weighbridge.models.model import OpenModel
from weighbridge.models.tensor_roles import PARTS
from weighbridge.reports.survey import Survey, survey

SCHEMA: Final = "weighbridge/tensor-columns/1"
_T = TypeVar("_T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class TensorColumns:
    """A tensor's number is its position in the columns and in the model's index. `dtype`, `shape`, `role`, `part`,
    `file` and `packing` are positions in `dtypes`, `shapes` and so on; `packings[0]` is "", an unpacked tensor. `layer`
    is -1 outside of layers. `parameters`: logical ones; 0 for scales and other companions of a packed weight."""

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


def tensor_columns(model: OpenModel, surveyed: Survey | None = None) -> TensorColumns:
    """Returns the stored tensors of `model` in the order of its index. Reads no tensor data."""
    with gc_pause.paused():
        counted, (family, rows) = surveyed or survey(model)
        entries = model.index.entries
        counts = [counted.of(e) for e in entries]
        dtypes, dtype = _numbered(e.dtype.name for e in entries)
        shapes, shape = _numbered(e.shape for e in entries)
        roles, role = _numbered(row.role for row in rows)
        parts, part = _numbered((row.part for row in rows), PARTS)
        packings, packing = _numbered((scheme or "" for _, scheme in counts), [""])
        return TensorColumns(
            path=str(model.place.path),
            format=model.format,
            family=family,
            names=tuple([e.name for e in entries]),
            dtypes=dtypes,
            shapes=shapes,
            roles=roles,
            parts=parts,
            files=tuple([Path(source.name).name for source in model.index.files]),
            packings=packings,
            dtype=dtype,
            shape=shape,
            role=role,
            part=part,
            layer=tuple([row.layer for row in rows]),
            file=tuple([e.file for e in entries]),
            packing=packing,
            offset=tuple([e.offset for e in entries]),
            nbytes=tuple([e.nbytes for e in entries]),
            parameters=tuple([n for n, _ in counts]),
        )


def _numbered(values: Iterable[_T], first: Iterable[_T] = ()) -> tuple[tuple[_T, ...], tuple[int, ...]]:
    """Returns the distinct values in order of appearance, after those of `first`, and the position of each value."""
    numbers = {value: n for n, value in enumerate(first)}
    column = tuple([numbers.setdefault(value, len(numbers)) for value in values])
    return tuple(numbers), column
