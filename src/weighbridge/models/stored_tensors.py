"""The stored tensors of an index as nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from weighbridge.base.spec import Spec
from weighbridge.containers.base import Entry, Index
from weighbridge.tensors.nodes import Node, Stored, strided


def node_of(index: Index, entry: Entry) -> Node:
    """A stored tensor as a node: its bytes in C order, or a strided view of them."""
    source, swap = index.files[entry.file], index.byte_order == ">"
    if entry.strides is None:
        return Stored(entry.spec, source, entry.offset, swap)
    window = Spec((entry.nbytes // entry.dtype.size,), entry.dtype)
    return strided(Stored(window, source, entry.offset, swap), 0, entry.shape, entry.strides)


class StoredTensors(Mapping[str, Node]):
    """The stored tensors of an index by name. Builds each node on first access, so listing 100,000 names is cheap."""

    def __init__(self, index: Index) -> None:
        self._index, self._entries, self._nodes = index, index.by_name, dict[str, Node]()

    def __getitem__(self, name: str) -> Node:
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = node_of(self._index, self._entries[name])
        return node

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries
