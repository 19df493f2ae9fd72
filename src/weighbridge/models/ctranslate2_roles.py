"""Models of CTranslate2 through a family's table, both ways: one table of roles serves all families.

    from_ctranslate2(model)         the model under the family's canonical names; None if it isn't CTranslate2's
    to_ctranslate2(model, names)    the model's tensors under the names of an existing model of CTranslate2

The table is ctranslate2_roles.toml.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct, convert

from weighbridge.base.dtypes import BY_NAME
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.imports.tables import read_table
from weighbridge.containers.frameworks.ctranslate2 import NAME
from weighbridge.models.model import OpenModel
from weighbridge.models.stored_tensors import Dropped
from weighbridge.models.transform.base import with_nodes

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import Node

_STACKS: Final = ("decoder/", "encoder/", "")
_BIAS: Final = "_bias"


class RoleTable(Struct, frozen=True, forbid_unknown_fields=True):
    """ctranslate2_roles.toml."""

    families: frozenset[str]
    joined: tuple[str, ...]
    variables: dict[str, tuple[str, ...]]


@cache
def role_table() -> RoleTable:
    """The table of roles."""
    return convert(read_table(__file__, "ctranslate2_roles.toml"), RoleTable)


class FoundVariable(NamedTuple):
    """A variable of a model, and the number of a role's part of it."""

    name: str
    part: int = 0


def variable(role: str, layer: int, names: Collection[str]) -> FoundVariable | None:
    """The variable of a role among the names of a model; None if there is none."""
    table, base = role_table(), role.removesuffix(_BIAS)
    ends = {"linear": "weight", "norm": "gamma"} if base == role else {"linear": "bias", "norm": "beta"}
    for text in table.variables.get(base, ()):
        if base != role and not text.endswith("}"):
            continue
        for stack in _STACKS:
            if (name := stack + text.format(l=layer, **ends)) in names:
                return FoundVariable(name, table.joined.index(base) if base in table.joined else 0)
    return None


def from_ctranslate2(model: OpenModel) -> OpenModel | None:
    """The model under canonical names; `left_out` also lists settings and other variables without a role. None if it
    isn't CTranslate2's, or has no config of a family in the table. Raises FormatError for a variable whose shape
    contradicts the config, UnsupportedError for an int8 model."""
    if model.format != NAME:
        return None
    try:
        if model.family.name not in role_table().families:
            return None
        places = model.family.expansion("canonical", model.sizes, "").places
    except UnsupportedError:
        return None
    head, embed = variable("head", 0, model.stored), variable("embed", 0, model.stored)
    alias = head and embed and model.index.by_name[head.name].offset == model.index.by_name[embed.name].offset
    tied = alias and model.family.effective(model.config).get("tie_word_embeddings")  # then a folder lacks the head
    rows = {slot.instances[0]: slot.shape[0] for slot in places.values()}
    nodes: dict[str, Node] = {}
    used: set[str] = set()
    for name, slot in places.items():
        (role, index), *_ = slot.instances
        found = variable(role, index[0] if index else 0, model.stored)
        if found is None or (tied and found == head):
            continue
        node = _rows_of_role(model.stored[found.name], found, role, index, rows)
        if node.spec.dtype is BY_NAME["I8"]:
            raise UnsupportedError(f"{found.name} has codes of int8", hint="convert a float model of CTranslate2")
        if node.spec.shape != slot.shape:
            raise FormatError("a variable whose shape differs from config.json's", path=str(model.place.path),
                              field=found.name, expected=list(slot.shape), found=list(node.spec.shape))  # fmt: skip
        nodes[name] = node
        used.add(found.name)
    rest = ((name, node.spec.nbytes) for name, node in model.stored.items() if name not in used)
    dropped = (Dropped(name, "value", "a setting of CTranslate2, or no role of the family", 1, n) for name, n in rest)
    return replace(with_nodes(model, nodes), left_out=(*model.left_out, *dropped))


def _rows_of_role(
    node: Node, found: FoundVariable, role: str, index: tuple[int, ...], rows: dict[tuple[str, tuple[int, ...]], int]
) -> Node:
    """A role's rows of a joined variable; all of another one. `rows`: the rows of each role."""
    from weighbridge.tensors.slicing import part

    joined, end = role_table().joined, _BIAS if role.endswith(_BIAS) else ""
    sizes = [rows.get((other + end, index), 0) for other in joined]
    if role.removesuffix(_BIAS) not in joined or node.spec.shape[0] != sum(sizes):
        return node
    start = sum(sizes[: found.part])
    return part(node, start, start + sizes[found.part])


def to_ctranslate2(model: OpenModel, names: Collection[str]) -> dict[str, Node]:
    """The tensors of `model` under the names of an existing model of CTranslate2, those without a variable under their
    role's. Raises UnsupportedError for a family that isn't in the table, MappingError."""
    from weighbridge.tensors.nodes import as_node, concat

    if model.family.name not in role_table().families:
        raise UnsupportedError(f"CTranslate2's names of {model.family.name} models are unknown",
                               hint=f"known: {', '.join(sorted(role_table().families))}")  # fmt: skip
    found: list[tuple[FoundVariable, Node]] = []
    for (role, index), tensor in model.roles.items():
        place = variable(role, index[0] if index else 0, names)
        found.append((place or FoundVariable(".".join((role, *map(str, index)))), as_node(tensor)))
    found.sort(key=lambda row: row[0])
    nodes = {name: concat([node for _, node in rows]) for name, rows in groupby(found, key=lambda row: row[0].name)}
    head, embed = variable("head", 0, names), variable("embed", 0, names)
    if head and embed and head.name not in nodes:  # tied
        nodes[head.name] = nodes[embed.name]
    return nodes
