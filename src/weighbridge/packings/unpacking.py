"""Stored tensors as logical ones: every group that a schema recognises becomes one tensor. Plain dtypes and ggml blocks
need no schema: one stored tensor has all their atoms.

Recognising reads nothing. What a schema declares as a probe is read here, bounded, and handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.packings.schema.base import Config, Described, Match
from weighbridge.packings.schema.groups import OnError, find
from weighbridge.packings.schema.registry import schemas
from weighbridge.tensors.nodes import LogicalTensor, Node

Nodes = Mapping[str, Node]


class PackedGroup(NamedTuple):
    """A recognised group, and the tensor it forms."""

    match: Match[Any]
    node: LogicalTensor

    @property
    def name(self) -> str:
        return self.match.name

    @property
    def stored(self) -> frozenset[str]:
        """The names of the stored tensors that it replaces."""
        return frozenset(self.match.tensors)


def unpack(tensors: Nodes, config: Config, on_error: OnError | None = None) -> Mapping[str, LogicalTensor]:
    """The same tensors with every group replaced by one tensor, at the position of its first member. Without groups,
    the mapping itself. `on_error`: see `schema.groups.find`."""
    return replaced(tensors, groups(tensors, config, on_error))


def replaced(tensors: Nodes, found: Mapping[str, PackedGroup]) -> Mapping[str, LogicalTensor]:
    """The tensors, with every group replaced by its tensor."""
    if not found:
        return tensors
    out: dict[str, LogicalTensor] = {}
    for name in tensors:
        group = found.get(name)
        # not `group.name` where it equals `name`: 100,000 strings would be there twice
        out[name if group is None or group.name == name else group.name] = group.node if group else tensors[name]
    return out


def groups(
    tensors: Nodes, config: Config, on_error: OnError | None = None, described: Mapping[str, Described] | None = None
) -> Mapping[str, PackedGroup]:
    """The group of each stored tensor that belongs to one. `described`: the same tensors, if their specs are known
    without building nodes."""

    def read(name: str, limit: int) -> bytes:
        return probe(name, tensors[name], limit)

    built: dict[int, PackedGroup] = {}  # by the identity of the match
    found = find(schemas(), tensors if described is None else described, config, read, on_error)
    for match in {id(m): m for m in found.values()}.values():
        try:
            built[id(match)] = PackedGroup(match, build(match, tensors))
        except (FormatError, UnsupportedError) as error:
            if on_error is None:
                raise
            on_error(match.stored[match.schema.key], error)
    members = ((name, found[name]) for name in tensors if name in found)
    return {name: built[id(match)] for name, match in members if id(match) in built}


def near(names: Collection[str]) -> set[str]:
    """The names of all that may belong to a packed weight together with some stored tensors."""
    found: set[str] = set(names)
    for schema in schemas():
        endings = (*schema.suffixes, schema.logical)
        for name in names:
            for ending in endings:
                if name.endswith(ending):
                    found.update(name.removesuffix(ending) + other for other in endings)
    return found


def build(match: Match[Any], tensors: Nodes) -> LogicalTensor:
    """The logical tensor of a match."""
    members = {role: tensors[name] for role, name in match.stored.items()}
    return _reader(match.schema.reader)(match, members)


@cache
def _reader(module: str) -> Callable[[Match[Any], Nodes], LogicalTensor]:
    found: Callable[[Match[Any], Nodes], LogicalTensor] = import_module(module).build
    return found


def probe(name: str, node: Node, limit: int) -> bytes:
    """The bytes of a small stored tensor. FormatError if it is larger than its probe allows."""
    if node.spec.nbytes > limit:
        raise FormatError("too large for its role", field=name, expected=f"at most {limit:,} bytes", found=node.spec)
    return node.read_all().tobytes()
