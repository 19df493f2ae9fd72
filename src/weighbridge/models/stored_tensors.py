"""The stored tensors of an index as nodes, and the record of those that were left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import msgspec

from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.containers.base import Entry, Index

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import Node

Part = TypeVar("Part")


@dataclass(frozen=True)
class Dropped:
    """A removed part of a training checkpoint: its name, its kind, the evidence, and its size. A part without tensors
    is plain values, such as an epoch."""

    name: str
    part: str
    why: str
    tensors: int
    bytes: int


#: The note on ranks that each have a copy of some tensors.
FROM_FIRST_RANK: Final = "tensors that several ranks have were read from the first of them; the copies weren't compared"


@dataclass(frozen=True)
class JoinedModel:
    """A model whose tensors are in the files of several processes: an index of whole tensors, these as nodes, the parts
    that were left out, and notes."""

    index: Index
    tensors: Mapping[str, Node]
    left_out: tuple[Dropped, ...] = ()
    notes: tuple[str, ...] = ()


def node_builder(index: Index) -> Callable[[Entry], Node]:
    """Returns a function that builds the node of an entry of `index`: its bytes in C order, or a strided view of
    them."""
    from weighbridge.tensors.nodes import Stored, strided

    files, swap = index.files, index.byte_order == ">"

    def build(entry: Entry) -> Node:
        source = files[entry.file]
        if entry.strides is None:
            return Stored(entry.spec, source, entry.offset, swap)
        window = Spec((entry.nbytes // entry.dtype.size,), entry.dtype)
        return strided(Stored(window, source, entry.offset, swap), 0, entry.shape, entry.strides)

    return build


def joined_index(indexes: Sequence[Index], entries: Iterable[tuple[int, Entry]]) -> Index:
    """One index of the files of several. `entries`: the tensors, each with the number of the index of its file."""
    starts = [0, *accumulate(len(index.files) for index in indexes)]
    files = tuple(source for index in indexes for source in index.files)
    shifted = tuple(msgspec.structs.replace(entry, file=starts[n] + entry.file) for n, entry in entries)
    findings = tuple(finding for index in indexes for finding in index.findings)
    return Index(indexes[0].format, files, shifted, data_start=(0,) * len(files), findings=findings)


class StoredTensors(Mapping[str, "Node"]):
    """The stored tensors of an index by name. Each node is built on first access, so listing 100,000 names is cheap."""

    def __init__(self, index: Index) -> None:
        self._index, self._entries = index, index.by_name
        self._build: Callable[[Entry], Node] | None = None  # built late: names are listed without numpy
        self._nodes: dict[str, Node] = {}

    def __getitem__(self, name: str) -> Node:
        node = self._nodes.get(name)
        if node is None:
            self._build = self._build or node_builder(self._index)
            entry = self._entries[name]
            node = self._nodes[entry.name] = self._build(entry)  # not `name`: an equal string would be kept as well
        return node

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries


class JoinedTensors(Mapping[str, "Node"], Generic[Part]):
    """Tensors that are joined from parts. `build` returns the node of a tensor; each is built on first access."""

    def __init__(self, tensors: Mapping[str, Part], build: Callable[[Part], Node]) -> None:
        self.tensors, self._build = tensors, build
        self._nodes: dict[str, Node] = {}

    def __getitem__(self, name: str) -> Node:
        if name not in self._nodes:
            self._nodes[name] = self._build(self.tensors[name])
        return self._nodes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __contains__(self, name: object) -> bool:
        return name in self.tensors


class RenamedTensors(Mapping[str, "Node"]):
    """Some of `tensors` under new names (`names`: new -> old). Their nodes stay unbuilt."""

    def __init__(self, tensors: Mapping[str, Node], names: Mapping[str, str]) -> None:
        self.tensors, self.names = tensors, names

    def __getitem__(self, name: str) -> Node:
        return self.tensors[self.names[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.names
