"""A model as one drawing: what stands before the layers, each kind of layer once with how many there are, what stands
after them. The boxes are the roles of the family's table with what the file has of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from weighbridge.base.spec import Shape
from weighbridge.containers.base import Entry
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.reports.inspect.parameter_count import Count
from weighbridge.reports.view.roles import PARTS, Survey, TensorRole, survey

SCHEMA: Final = "weighbridge/architecture/1"


@dataclass(frozen=True, slots=True)
class RoleBox:
    """One role of one layer, or outside of layers. `count`: weights (experts are several); `shape`: the logical one of
    each, None where they differ; `dtypes`: as stored, of all layers of the group, most bytes first. Sums are those of
    one layer, the first; `total_nbytes` of all layers of the group."""

    role: str
    part: str
    count: int
    shape: Shape | None
    parameters: int
    nbytes: int
    total_nbytes: int
    dtypes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers of the same roles and shapes; () for what is outside of layers."""

    layers: tuple[int, ...]
    boxes: tuple[RoleBox, ...]


@dataclass(frozen=True, slots=True)
class ArchitectureView:
    """`before` and `after` the layers: embeddings, and norms and outputs. `groups`: the kinds of layers, in order of
    their first layer. `sizes`: of the family's table by symbol; {} where none knows the model."""

    path: str
    family: str | None
    architecture: str | None
    sizes: dict[str, int]
    before: LayerGroup
    groups: tuple[LayerGroup, ...]
    after: LayerGroup
    schema: str = SCHEMA


_Rows = list[tuple[Entry, TensorRole]]


def architecture(model: Checkpoint, surveyed: Survey | None = None) -> ArchitectureView:
    """The drawing of an open model. Reads headers only."""
    counted, roles = surveyed or survey(model)
    layers: dict[int, _Rows] = {}
    for entry, row in zip(model.index.entries, roles.rows, strict=True):
        layers.setdefault(row.layer, []).append((entry, row))
    outside = layers.pop(-1, [])
    first = [pair for pair in outside if pair[1].part == PARTS[0]]
    last = [pair for pair in outside if pair[1].part != PARTS[0]]
    known = roles.family is not None
    return ArchitectureView(
        path=str(model.place.path),
        family=roles.family,
        architecture=model.sizes.architecture if known else None,
        sizes=dict(model.sizes.values) if known else {},
        before=_group((), [first], counted),
        groups=tuple(_groups(layers, counted)),
        after=_group((), [last], counted),
    )


def _groups(layers: dict[int, _Rows], counted: Count) -> Iterator[LayerGroup]:
    alike: dict[frozenset[tuple[str, int, Shape | None]], list[int]] = {}
    for layer, rows in sorted(layers.items()):
        look = frozenset((box.role, box.count, box.shape) for box in _group((layer,), [rows], counted).boxes)
        alike.setdefault(look, []).append(layer)
    for numbers in alike.values():
        yield _group(tuple(numbers), [layers[n] for n in numbers], counted)


def _group(numbers: tuple[int, ...], members: list[_Rows], counted: Count) -> LayerGroup:
    """The boxes of some layers of one kind."""
    boxes: dict[str, _Rows] = {}
    for entry, row in members[0] if members else ():
        boxes.setdefault(row.role, []).append((entry, row))
    sums: dict[str, dict[str, int]] = {}
    for rows in members:
        for entry, row in rows:
            types = sums.setdefault(row.role, {})
            types[entry.dtype.name] = types.get(entry.dtype.name, 0) + entry.nbytes
    return LayerGroup(numbers, tuple(_box(role, rows, sums[role], counted) for role, rows in _ordered(boxes)))


def _ordered(boxes: dict[str, _Rows]) -> Iterable[tuple[str, _Rows]]:
    """By the parts of a model, and in a part as the file has them."""
    return sorted(boxes.items(), key=lambda item: PARTS.index(item[1][0][1].part))


def _box(role: str, rows: _Rows, types: dict[str, int], counted: Count) -> RoleBox:
    weights = [(e, n) for e, n in ((e, counted.of(e)[0]) for e, _ in rows) if n]
    shapes = {counted.found[e.name].found.spec.shape if e.name in counted.found else e.shape for e, _ in weights}
    return RoleBox(
        role=role,
        part=rows[0][1].part,
        count=len(weights),
        shape=shapes.pop() if len(shapes) == 1 else None,
        parameters=sum(n for _, n in weights),
        nbytes=sum(e.nbytes for e, _ in rows),
        total_nbytes=sum(types.values()),
        dtypes=tuple(sorted(types, key=lambda name: (-types[name], name))),
    )
