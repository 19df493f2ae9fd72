"""Tensors as a tree of their names' parts, with layers that look the same folded into one line: what a model is made
of, on one screen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from weighbridge.base import gc_pause
from weighbridge.reports.inspect.runs import runs


class Leaf(Protocol):
    """What a row must tell to be in the tree."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def parameters(self) -> int: ...


@dataclass(slots=True)
class TreeNode:
    """A part of the names; `repeat` siblings with the same content are folded into it (`part` is then `0-31`)."""

    part: str
    tensors: int = 0
    parameters: int = 0
    nbytes: int = 0
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    repeat: int = 1
    look: int = 0  # equal for nodes with equal content below; 0 for a tensor
    children: list[TreeNode] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TreeLine:
    """A node as a line of text: how deep, what it is called, its sums over all repeats."""

    depth: int
    name: str
    node: TreeNode


_DEPTH = 32  # of dots in a name; what is deeper stays one part, however long

#: What is below a part of the names, in order of appearance: tensors, and parts with what is below them.
_Below = list["TreeNode | tuple[str, _Below]"]


def build_tree(rows: Iterable[Leaf]) -> list[TreeNode]:
    """The forest of the rows' names, in order of appearance, folded. Tensors that are alike are one node, and what is
    below layers that are alike is built once."""
    forest = _Forest()
    with gc_pause.paused():
        for prefix, below in _by_layer(rows):
            forest.add(prefix, below)
        return _Folds().fold(forest.tops).children


def _by_layer(rows: Iterable[Leaf]) -> Iterable[tuple[str, list[Leaf]]]:
    """The rows by the prefix of their names, "" for each of those without one."""
    there = list(rows)
    found: dict[tuple[str, int], list[Leaf]] = {}
    for prefix, start, stop in runs([row.name for row in there]):
        found.setdefault((prefix, 0 if prefix else start), []).extend(there[start:stop])
    return ((prefix, below) for (prefix, _), below in found.items())


class _Forest:
    """What is below each part of the names. Layers that are alike share what is below them."""

    def __init__(self) -> None:
        self.tops: _Below = []
        self._homes: dict[str, _Below] = {"": self.tops}  # by the name up to the last dot
        self._leaves: dict[tuple[object, ...], TreeNode] = {}
        self._layers: dict[tuple[object, ...], tuple[_Below, int]] = {}  # what is below a layer, and its dots

    def add(self, prefix: str, rows: Sequence[Leaf]) -> None:
        """Adds rows whose names begin with `prefix`; no others do."""
        if prefix:
            below, dots = self._layer(len(prefix), rows)
            if prefix.count(".") + dots <= _DEPTH:
                _home(prefix, self._homes, below)
                return
        for row in rows:
            self._place(row.name, row, self._homes)

    def _layer(self, cut: int, rows: Sequence[Leaf]) -> tuple[_Below, int]:
        key = tuple([(row.name[cut:], row.dtype, row.shape, row.parameters, row.nbytes) for row in rows])
        found = self._layers.get(key)
        if found is None:
            homes: dict[str, _Below] = {"": []}
            for row in rows:
                self._place(row.name[cut:], row, homes)
            found = self._layers[key] = homes[""], max(row.name.count(".", cut) for row in rows)
        return found

    def _place(self, name: str, row: Leaf, homes: dict[str, _Below]) -> None:
        prefix, last = _parted(name)
        key = last, row.dtype, row.shape, row.parameters, row.nbytes
        leaf = self._leaves.get(key)
        if leaf is None:
            leaf = self._leaves[key] = TreeNode(last, 1, row.parameters, row.nbytes, row.dtype, row.shape)
        (homes.get(prefix) or _home(prefix, homes)).append(leaf)


def _parted(name: str) -> tuple[str, str]:
    """The name up to its last dot, and the rest."""
    if name.count(".") <= _DEPTH:
        last = name.rpartition(".")[2]
    else:
        last = name.split(".", _DEPTH)[-1]
    return name[: len(name) - len(last)], last


def _home(prefix: str, homes: dict[str, _Below], below: _Below | None = None) -> _Below:
    """What is below a prefix; where the prefix isn't there yet, `below` or an empty list."""
    found = homes.get(prefix)
    if found is None:
        found = homes[prefix] = [] if below is None else below
        above, dot, part = prefix[:-1].rpartition(".")
        _home(above + dot, homes).append((part, found))
    return found


class _Content(NamedTuple):
    """What is below a part of the names, folded, and its sums. `look`: equal for equal names, shapes and types."""

    children: list[TreeNode]
    look: int
    tensors: int
    parameters: int
    nbytes: int


class _Folds:
    """Runs of numbered parts that look alike made one. Most are: what is equal is folded once."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], _Content] = {}
        self._shared: dict[int, _Content] = {}  # by the identity of what layers share
        self._looks: dict[tuple[object, ...], int] = {}

    def fold(self, below: _Below) -> _Content:
        """Equal contents are one object, so that they are found by identity."""
        if (content := self._shared.get(id(below))) is not None:
            return content
        parts = [child if isinstance(child, TreeNode) else (child[0], self.fold(child[1])) for child in below]
        key = tuple([id(part) if isinstance(part, TreeNode) else (part[0], id(part[1])) for part in parts])
        content = self._known.get(key)
        if content is None:
            children = list(self._runs(parts))
            content = self._known[key] = _Content(
                children, self._look(children), sum(n.tensors for n in children),
                sum(n.parameters for n in children), sum(n.nbytes for n in children),
            )  # fmt: skip
        self._shared[id(below)] = content
        return content

    def _runs(self, parts: Sequence[TreeNode | tuple[str, _Content]]) -> Iterator[TreeNode]:
        """Numbered siblings are gathered by look (they may be mixed), each look once, at its first place."""
        alike: dict[int, list[tuple[str, _Content]]] = {}
        groups: list[TreeNode | list[tuple[str, _Content]]] = []
        for child in parts:
            if isinstance(child, TreeNode):
                groups.append(child)
            elif child[0].isdecimal() and child[1].look in alike:
                alike[child[1].look].append(child)
            else:
                groups.append(group := [child])
                if child[0].isdecimal():
                    alike[child[1].look] = group
        return (group if isinstance(group, TreeNode) else _branch(group) for group in groups)

    def _look(self, children: Sequence[TreeNode]) -> int:
        """What must be equal for two siblings to be folded: names, shapes and types below."""
        below = sorted((child.part, child.repeat, child.look, child.dtype, child.shape or ()) for child in children)
        return self._looks.setdefault(tuple(below), len(self._looks) + 1)


def _branch(group: Sequence[tuple[str, _Content]]) -> TreeNode:
    """Parts that look alike as one node."""
    part, first = group[0]
    return TreeNode(
        _numbers([int(part) for part, _ in group]) if len(group) > 1 else part,
        sum(c.tensors for _, c in group), sum(c.parameters for _, c in group), sum(c.nbytes for _, c in group),
        repeat=len(group), look=first.look, children=first.children,
    )  # fmt: skip


def _numbers(numbers: Sequence[int]) -> str:
    """`0-3,5`."""
    out: list[list[int]] = []
    for n in sorted(numbers):
        if out and n == out[-1][1] + 1:
            out[-1][1] = n
        else:
            out.append([n, n])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in out)


def lines(forest: Iterable[TreeNode], depth: int = 0) -> Iterator[TreeLine]:
    """The tree as indented lines; a chain of single children is one line (`model.layers`)."""
    for node in forest:
        name, at = chained(node)
        shown = node if at is node else TreeNode(name, node.tensors, node.parameters, node.nbytes, at.dtype, at.shape)
        shown.repeat = node.repeat
        yield TreeLine(depth, name, shown)
        yield from lines(at.children, depth + 1)


def chained(node: TreeNode) -> tuple[str, TreeNode]:
    """The last of a chain of single children, and the parts of all as one name."""
    name = node.part
    while len(node.children) == 1 and node.children[0].repeat == 1:
        node = node.children[0]
        name += f".{node.part}"
    return name, node
