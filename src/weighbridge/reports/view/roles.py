"""What each stored tensor is in its model: its role, its layer, the part of the model that it belongs to. By the
family's table; a model of an unknown family has its names, with `*` for numbers, as roles. Loads no numpy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from types import MappingProxyType
from typing import Final, NamedTuple

from weighbridge.base import gc_pause
from weighbridge.base.errors import WeighbridgeError
from weighbridge.base.spec import Shape
from weighbridge.containers.base import Entry
from weighbridge.models.arch.expand import TensorSlot
from weighbridge.models.arch.family import Family
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.reports.inspect.parameter_count import Count
from weighbridge.reports.inspect.report import counted_parameters

#: A word of a canonical name -> the part of a model; the first that a name has counts.
_PARTS: Final = MappingProxyType(
    {
        "norm": "norms", "post_norm": "norms", "own_post_norm": "norms",
        "embed": "embedding", "position": "embedding", "types": "embedding",
        "attention": "attention", "cross": "attention",
        "moe": "experts", "mlp": "feed forward",
        "ssm": "state space", "delta": "state space", "conv": "state space",
        "head": "output", "classifier": "output", "mlm": "output", "nsp": "output", "pooler": "output",
    }
)  # fmt: skip
_OTHER: Final = "other"
#: The parts of a model in the order in which they are listed.
PARTS: Final = (
    "embedding", "attention", "state space", "feed forward", "experts", "norms", "output", _OTHER,
)  # fmt: skip
_LAYERS: Final = "layers"
_NUMBER: Final = re.compile(r"(?<![^.])[0-9]{1,6}(?![^.])")  # a whole part of a name


class TensorRole(NamedTuple):
    """`role`: the canonical name without its layer (`attention.q.weight`), of a fused tensor all, joined by `|`.
    `layer`: -1 outside of layers. `part`: one of `PARTS`."""

    role: str
    layer: int
    part: str


class TensorRoles(NamedTuple):
    """One row per stored tensor. `family`: None where no table knows the model."""

    family: str | None
    rows: Sequence[TensorRole]


class Survey(NamedTuple):
    """What several panels need of all tensors, found once: parameters with packed weights, and roles."""

    counted: Count
    roles: TensorRoles


def survey(model: Checkpoint) -> Survey:
    """The survey of an open model. Reads headers and small files only."""
    with gc_pause.paused():
        counted = counted_parameters(model)
        return Survey(counted, roles_of(model, counted))


def roles_of(model: Checkpoint, counted: Count) -> TensorRoles:
    """The role of each entry of the model's index. `counted`: its packed weights, whose members have one role."""
    entries = model.index.entries
    found = counted.found
    logical = [found[e.name].name if e.name in found else e.name for e in entries]
    shapes = {name: _logical_shape(e, counted) for name, e in zip(logical, entries, strict=True)}
    family, places = _places(model, shapes)
    made = ((_known(family, places[n]) if family and n in places else unknown_role(n)) for n in shapes)
    distinct: dict[TensorRole, TensorRole] = {}  # the experts of a layer share one
    rows = {name: distinct.setdefault(row, row) for name, row in zip(shapes, made, strict=True)}
    return TensorRoles(family.name if family else None, [rows[name] for name in logical])


def _logical_shape(entry: Entry, counted: Count) -> Shape:
    match = counted.found.get(entry.name)
    return entry.shape if match is None else match.found.spec.shape


def _places(model: Checkpoint, shapes: Mapping[str, Shape]) -> tuple[Family | None, Mapping[str, TensorSlot]]:
    with suppress(WeighbridgeError):
        family, sizes = model.family, model.sizes
        dialect, prefix = family.dialect_and_prefix(shapes, sizes)
        return family, family.expansion(dialect, sizes, prefix).places
    return None, {}


def _known(family: Family, place: TensorSlot) -> TensorRole:
    role, in_layer, part = _described(family, place.roles)
    return TensorRole(role, place.named[0] if in_layer and place.named else -1, part)


@cache
def _described(family: Family, roles: tuple[str, ...]) -> tuple[str, bool, str]:
    """The canonical names of some roles, whether they are of a layer, the part that the first belongs to."""
    names = [_canonical(family).get(role, role) for role in roles]
    parts = [name.split(".") for name in names]
    in_layer = _LAYERS in parts[0] or (roles[0] in names and bool(family.role_indices[roles[0]]))
    part = next((_PARTS[word] for word in _PARTS if word in parts[0]), _OTHER)
    return "|".join(map(_without_layer, parts)), in_layer, part


def _without_layer(words: list[str]) -> str:
    """`layers.{l}.attention.q.weight` as `attention.q.weight`."""
    if _LAYERS not in words:
        return ".".join(words)
    at = words.index(_LAYERS)
    return ".".join(words[:at] + words[at + 2 :])


@cache
def _canonical(family: Family) -> Mapping[str, str]:
    templates = family.dialects["canonical"].templates if "canonical" in family.dialects else ()
    return {role: template.name for template in templates for role in template.roles}


def unknown_role(name: str) -> TensorRole:
    """Of a name that no table has: numbers as `*`, the first one the layer."""
    found = _NUMBER.search(name)
    return TensorRole(_NUMBER.sub("*", name), int(found[0]) if found else -1, _OTHER)


def canonical_role(name: str) -> TensorRole:
    """Of a canonical name, such as `layers.3.attention.q.weight`."""
    words = name.split(".")
    part = next((_PARTS[word] for word in _PARTS if word in words), _OTHER)
    if _LAYERS not in words[:-1] or not words[words.index(_LAYERS) + 1].isdecimal():
        return TensorRole(name, -1, part)
    layer = int(words[words.index(_LAYERS) + 1])
    return TensorRole(_NUMBER.sub("*", _without_layer(words)), layer, part)


def named_roles(model: Checkpoint) -> dict[str, TensorRole]:
    """The role of each tensor by its stored name, and of each packed weight by its own."""
    counted, (_, rows) = survey(model)
    entries = model.index.entries
    packed = {counted.found[e.name].name: row for e, row in zip(entries, rows, strict=True) if e.name in counted.found}
    return packed | {e.name: row for e, row in zip(entries, rows, strict=True)}
