"""A drawing of a model: the tensors before the layers, each distinct kind of layer once with its count, and the tensors
after them. A box is a role of the family's table, with the sizes and types found in the file."""

from __future__ import annotations

from collections import Counter
from typing import Final

from weighbridge.base.records import dataclass
from weighbridge.base.spec import Shape
from weighbridge.containers.base import Entry
from weighbridge.models.model import OpenModel
from weighbridge.models.parameter_count import Count
from weighbridge.models.tensor_roles import PARTS, TensorRole
from weighbridge.reports.survey import Survey, survey

SCHEMA: Final = "weighbridge/architecture/1"


@dataclass(frozen=True, slots=True)
class RoleBox:
    """One role within a layer, or outside of layers. `count`: weights (several for experts). `shape`: their logical
    shape, None if they differ. `dtypes`: stored types over all layers of the group, most bytes first. `parameters`:
    per layer. `nbytes`: of the smallest and of the largest layer. `total_nbytes`: over all layers of the group."""

    role: str
    part: str
    count: int
    shape: Shape | None
    parameters: int
    nbytes: tuple[int, int]
    total_nbytes: int
    dtypes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers with equal roles and shapes; `layers` is () outside of layers. `nbytes`: of the smallest and the largest
    layer, whose types may differ. `parts`: the same for each part."""

    layers: tuple[int, ...]
    boxes: tuple[RoleBox, ...]
    nbytes: tuple[int, int]
    parts: dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class ArchitectureView:
    """`before` and `after` the layers: embeddings, and norms and outputs. `groups`: the kinds of layers, ordered by
    first layer. `sizes`: the symbols of the family's table, {} for an unknown family."""

    path: str
    family: str | None
    architecture: str | None
    sizes: dict[str, int]
    before: LayerGroup
    groups: tuple[LayerGroup, ...]
    after: LayerGroup
    schema: str = SCHEMA


_Rows = list[tuple[Entry, TensorRole]]


def architecture(model: OpenModel, surveyed: Survey | None = None) -> ArchitectureView:
    """Returns the drawing of an open model. Reads headers only."""
    counted, roles = surveyed or survey(model)
    layers: dict[int, _Rows] = {}
    for entry, row in zip(model.index.entries, roles.rows, strict=True):
        layers.setdefault(row.layer, []).append((entry, row))
    outside = layers.pop(-1, [])
    alike: dict[frozenset[tuple[str, int, Shape | None]], list[int]] = {}
    for layer, rows in sorted(layers.items()):
        look = frozenset((box.role, box.count, box.shape) for box in _group((layer,), [rows], counted).boxes)
        alike.setdefault(look, []).append(layer)
    sized = roles.family is not None
    return ArchitectureView(
        path=str(model.place.path),
        family=roles.family,
        architecture=model.sizes.architecture if sized else None,
        sizes=dict(model.sizes.values) if sized else {},
        before=_group((), [[pair for pair in outside if pair[1].part == PARTS[0]]], counted),
        groups=tuple(_group(tuple(numbers), [layers[n] for n in numbers], counted) for numbers in alike.values()),
        after=_group((), [[pair for pair in outside if pair[1].part != PARTS[0]]], counted),
    )


def _group(numbers: tuple[int, ...], layers: list[_Rows], counted: Count) -> LayerGroup:
    """Returns the boxes of equal layers, ordered by the parts of a model, then as in the file."""
    weights: dict[str, _Rows] = {}
    for entry, row in layers[0]:
        weights.setdefault(row.role, []).append((entry, row))
    types: dict[str, Counter[str]] = {}
    sizes: dict[str, Counter[int]] = {}  # role -> bytes in each layer
    for number, rows in enumerate(layers):
        for entry, row in rows:
            types.setdefault(row.role, Counter())[entry.dtype.name] += entry.nbytes
            sizes.setdefault(row.role, Counter())[number] += entry.nbytes
    ordered = sorted(weights.items(), key=lambda item: PARTS.index(item[1][0][1].part))
    boxes = (_box(rows, types[role], list(sizes[role].values()), counted) for role, rows in ordered)
    parts = dict.fromkeys(rows[0][1].part for _, rows in ordered)
    return LayerGroup(numbers, tuple(boxes), _extent(layers), {part: _extent(layers, part) for part in parts})


def _extent(layers: list[_Rows], part: str | None = None) -> tuple[int, int]:
    """Returns the bytes of the smallest and of the largest layer, or of one part of them."""
    totals = [sum(entry.nbytes for entry, row in rows if part in (None, row.part)) for rows in layers]
    return min(totals), max(totals)


def _box(rows: _Rows, types: Counter[str], sizes: list[int], counted: Count) -> RoleBox:
    weights = [(e, n) for e, n in ((e, counted.of(e)[0]) for e, _ in rows) if n]
    shapes = {counted.logical_shape(e) for e, _ in weights}
    return RoleBox(
        role=rows[0][1].role,
        part=rows[0][1].part,
        count=len(weights),
        shape=shapes.pop() if len(shapes) == 1 else None,
        parameters=sum(n for _, n in weights),
        nbytes=(min(sizes), max(sizes)),
        total_nbytes=sum(sizes),
        dtypes=tuple(sorted(types, key=lambda name: (-types[name], name))),
    )
