"""The role of each stored tensor, its layer, and the part of the model that it belongs to. They come from the family's
table; in a model of an unknown family, the role is the name with `*` for numbers. Doesn't load numpy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from types import MappingProxyType
from typing import Final, NamedTuple

from weighbridge.base.errors import WeighbridgeError
from weighbridge.models.arch.expand import TensorSlot
from weighbridge.models.arch.family import Family
from weighbridge.models.model import OpenModel
from weighbridge.models.parameter_count import Count

#: Components of canonical names and the part of the model that they indicate; the first match counts.
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
_NUMBER: Final = re.compile(r"(?<![^.])[0-9]{1,6}(?![^.])")  # a whole component of a name


class TensorRole(NamedTuple):
    """`role`: the canonical name without its layer (`attention.q.weight`), or those of a fused tensor joined by `|`.
    `layer`: -1 outside of layers. `part`: one of `PARTS`."""

    role: str
    layer: int
    part: str


class TensorRoles(NamedTuple):
    """One row per stored tensor. `family`: None if no table matches the model."""

    family: str | None
    rows: Sequence[TensorRole]


def roles_of(model: OpenModel, counted: Count) -> TensorRoles:
    """Returns the role of each entry of the model's index. The members of a packed weight share its role."""
    entries = model.index.entries
    packed = counted.packed
    logical = [packed[e.name].name if e.name in packed else e.name for e in entries]
    shapes = {name: counted.logical_shape(e) for name, e in zip(logical, entries, strict=True)}
    family: Family | None = None
    places: Mapping[str, TensorSlot] = {}
    with suppress(WeighbridgeError):
        dialect, prefix = model.family.dialect_and_prefix(shapes, model.sizes)
        family, places = model.family, model.family.expansion(dialect, model.sizes, prefix).places
    distinct: dict[TensorRole, TensorRole] = {}  # the experts of a layer share one
    rows: dict[str, TensorRole] = {}
    for name in shapes:
        if family and name in places:
            role, in_layer, part = _role_parts(family, places[name].roles)
            named = places[name].named
            row = TensorRole(role, named[0] if in_layer and named else -1, part)
        else:
            row = unknown_role(name)
        rows[name] = distinct.setdefault(row, row)
    return TensorRoles(family.name if family else None, [rows[name] for name in logical])


@cache
def _role_parts(family: Family, roles: tuple[str, ...]) -> tuple[str, bool, str]:
    """Returns the joined role, whether it is in a layer, and the part of the model."""
    templates = family.dialects["canonical"].templates if "canonical" in family.dialects else ()
    canonical = {role: template.name for template in templates for role in template.roles}
    names = [canonical.get(role, role) for role in roles]
    components = [name.split(".") for name in names]
    in_layer = _LAYERS in components[0] or (roles[0] in names and bool(family.role_indices[roles[0]]))
    return "|".join(map(_without_layer, components)), in_layer, _part(components[0])


def _part(components: list[str]) -> str:
    return next((_PARTS[component] for component in _PARTS if component in components), _OTHER)


def _without_layer(components: list[str]) -> str:
    """Returns `layers.{l}.attention.q.weight` as `attention.q.weight`."""
    if _LAYERS not in components:
        return ".".join(components)
    at = components.index(_LAYERS)
    return ".".join(components[:at] + components[at + 2 :])


def unknown_role(name: str) -> TensorRole:
    """Returns the role of a name that no table lists: `*` replaces numbers, the first of which is the layer."""
    number = _NUMBER.search(name)
    return TensorRole(_NUMBER.sub("*", name), int(number[0]) if number else -1, _OTHER)


def canonical_role(name: str) -> TensorRole:
    """Returns the role of a canonical name such as `layers.3.attention.q.weight`."""
    components = name.split(".")
    part = _part(components)
    if _LAYERS not in components[:-1] or not components[components.index(_LAYERS) + 1].isdecimal():
        return TensorRole(name, -1, part)
    layer = int(components[components.index(_LAYERS) + 1])
    return TensorRole(_NUMBER.sub("*", _without_layer(components)), layer, part)
