"""What a packing module gives: it finds the groups of stored tensors that are one logical tensor, by their names, types
and shapes (a config only settles what shapes leave open: configs are often wrong), and makes `Packed` nodes of them.

A packing never sees a container: names and nodes come in, names and nodes go out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from weighbridge.tensors.nodes import Node

Nodes = Mapping[str, Node]


class Unpacker(Protocol):
    """The interface of a packing module."""

    NAME: str

    def unpack(self, tensors: Nodes, config: Mapping[str, Any]) -> Nodes:
        """The same tensors with every group of this packing replaced by one `Packed`, in the place of its first
        member. Tensors of other kinds pass through; where there are no such groups, the mapping itself does.
        FormatError where a group is incomplete or misshapen."""
