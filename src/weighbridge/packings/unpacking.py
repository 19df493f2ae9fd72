"""Turns stored tensors into logical ones: every group that a schema recognises becomes one tensor. Plain dtypes and
ggml blocks need no schema, because one stored tensor has all their atoms.

Recognising reads nothing, except the probes that a schema declares. This module reads them, with a limit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib import import_module
from typing import Any, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.plugins import guard
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


def replaced(tensors: Nodes, groups: Mapping[str, PackedGroup]) -> Mapping[str, LogicalTensor]:
    """The tensors, with every group replaced by its tensor, and without those that only mark a file with groups."""
    if not groups:
        return tensors
    out: dict[str, LogicalTensor] = {}
    evidence = {each for group in groups.values() if (each := group.match.schema.evidence)}
    marks = {mark for each in evidence for mark in each.marks}
    for name in tensors:
        if marks and name.rpartition(".")[2] in marks:
            continue
        group = groups.get(name)
        # `name` rather than an equal `group.name`: 100,000 strings would exist twice
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
    matches = find(schemas(), tensors if described is None else described, config, read, on_error)
    for match in {id(m): m for m in matches.values()}.values():
        try:
            built[id(match)] = PackedGroup(match, build(match, tensors))
        except (FormatError, UnsupportedError) as error:
            if on_error is None:
                raise
            on_error(match.stored[match.schema.key], error)
    members = ((name, matches[name]) for name in tensors if name in matches)
    return {name: built[id(match)] for name, match in members if id(match) in built}


def near(names: Collection[str]) -> set[str]:
    """The names of tensors that may form packed weights with some stored tensors, and their own."""
    companions: set[str] = set(names)
    for schema in schemas():
        endings = (*schema.suffixes, schema.logical)
        for name in names:
            for ending in endings:
                if name.endswith(ending):
                    companions.update(name.removesuffix(ending) + suffix for suffix in endings)
    return companions


def build(match: Match[Any], tensors: Nodes) -> LogicalTensor:
    """The logical tensor of a match. UnsupportedError if its packing isn't decoded."""
    schema = match.schema
    if not schema.reader:
        raise UnsupportedError(
            f"{match.name} is packed as {schema.label.upper()}, which isn't decoded",
            hint="use the unquantized model; wb get --raw and wb diff --names stored read its stored tensors",
        )
    members = {role: tensors[name] for role, name in match.stored.items()}
    with guard(schema.name, schema.reader):
        tensor: LogicalTensor = import_module(schema.reader).build(match, members)
        return tensor


def probe(name: str, node: Node, limit: int) -> bytes:
    """The bytes of a small stored tensor. FormatError if it is larger than its probe allows."""
    if node.spec.nbytes > limit:
        raise FormatError("too large for its role", field=name, expected=f"at most {limit:,} bytes", found=node.spec)
    return node.read_all().tobytes()
