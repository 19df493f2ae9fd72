"""Arranges tensors as a tree of the components of their names, and folds equal layers into one line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from typing import NamedTuple, Protocol

from weighbridge.base import gc_pause
from weighbridge.base.records import dataclass
from weighbridge.base.words import ranges
from weighbridge.reports.inspect.runs import runs


class Leaf(Protocol):
    """The fields of a row in the tree."""

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
    """A component of names, into which `repeat` siblings with equal content are folded (`part` is then `0-31`)."""

    part: str
    tensors: int = 0
    parameters: int = 0
    nbytes: int = 0
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    repeat: int = 1
    look: int = 0  # equal for nodes with equal content; 0 for a tensor
    children: list[TreeNode] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TreeLine:
    """A node as a line of text: its depth, its name, and the sums over all repeats."""

    depth: int
    name: str
    node: TreeNode


_DEPTH = 32  # dots in a name; deeper components stay one part

#: The content of a component, in order of appearance: tensors, and components with their content.
_Below = list["TreeNode | tuple[str, _Below]"]


def build_tree(rows: Iterable[Leaf]) -> list[TreeNode]:
    """Returns the folded forest of the rows' names, in order of appearance. Equal tensors are one node, and the content
    of equal layers is built once."""
    forest = _Forest()
    with gc_pause.paused():
        leaves = list(rows)
        by_prefix: dict[tuple[str, int], list[Leaf]] = {}  # names without a prefix are separate
        for prefix, start, stop in runs([row.name for row in leaves]):
            by_prefix.setdefault((prefix, 0 if prefix else start), []).extend(leaves[start:stop])
        for (prefix, _), below in by_prefix.items():
            forest.add(prefix, below)
        return _Folds().fold(forest.tops).children


class _Forest:
    """The content of each component of the names. Equal layers share their content."""

    def __init__(self) -> None:
        self.tops: _Below = []
        self._homes: dict[str, _Below] = {"": self.tops}  # by the name up to the last dot
        self._leaves: dict[tuple[object, ...], TreeNode] = {}
        self._layers: dict[tuple[object, ...], tuple[_Below, int]] = {}  # the content of a layer, and its dots

    def add(self, prefix: str, rows: Sequence[Leaf]) -> None:
        """Adds all rows whose names begin with `prefix`."""
        if prefix:
            cut = len(prefix)
            key = tuple([(row.name[cut:], row.dtype, row.shape, row.parameters, row.nbytes) for row in rows])
            layer = self._layers.get(key)
            if layer is None:
                homes: dict[str, _Below] = {"": []}
                for row in rows:
                    self._place(row.name[cut:], row, homes)
                layer = self._layers[key] = homes[""], max(row.name.count(".", cut) for row in rows)
            below, dots = layer
            if prefix.count(".") + dots <= _DEPTH:
                _home(prefix, self._homes, below)
                return
        for row in rows:
            self._place(row.name, row, self._homes)

    def _place(self, name: str, row: Leaf, homes: dict[str, _Below]) -> None:
        last = name.rpartition(".")[2] if name.count(".") <= _DEPTH else name.split(".", _DEPTH)[-1]
        prefix = name[: len(name) - len(last)]
        key = last, row.dtype, row.shape, row.parameters, row.nbytes
        leaf = self._leaves.get(key)
        if leaf is None:
            leaf = self._leaves[key] = TreeNode(last, 1, row.parameters, row.nbytes, row.dtype, row.shape)
        (homes.get(prefix) or _home(prefix, homes)).append(leaf)


def _home(prefix: str, homes: dict[str, _Below], below: _Below | None = None) -> _Below:
    """Returns the content of a prefix. A new prefix gets `below`, or an empty list."""
    content = homes.get(prefix)
    if content is None:
        content = homes[prefix] = [] if below is None else below
        above, dot, part = prefix[:-1].rpartition(".")
        _home(above + dot, homes).append((part, content))
    return content


class _Content(NamedTuple):
    """The folded content of a component, and its sums. `look`: equal for equal names, shapes and types."""

    children: list[TreeNode]
    look: int
    tensors: int
    parameters: int
    nbytes: int


class _Folds:
    """Folds numbered components with equal content. Equal content, which is common, is folded once."""

    def __init__(self) -> None:
        self._folded: dict[tuple[object, ...], _Content] = {}
        self._shared: dict[int, _Content] = {}  # by the identity of content that layers share
        self._looks: dict[tuple[object, ...], int] = {}

    def fold(self, below: _Below) -> _Content:
        """Folds a component's content. Equal contents become one object, so they can be compared by identity."""
        if (content := self._shared.get(id(below))) is not None:
            return content
        parts = [child if isinstance(child, TreeNode) else (child[0], self.fold(child[1])) for child in below]
        key = tuple([id(part) if isinstance(part, TreeNode) else (part[0], id(part[1])) for part in parts])
        content = self._folded.get(key)
        if content is None:
            # Numbered siblings with equal looks are grouped at the first of them.
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
            children = [group if isinstance(group, TreeNode) else _branch(group) for group in groups]
            content = self._folded[key] = _Content(
                children, self._look(children), sum(n.tensors for n in children),
                sum(n.parameters for n in children), sum(n.nbytes for n in children),
            )  # fmt: skip
        self._shared[id(below)] = content
        return content

    def _look(self, children: Sequence[TreeNode]) -> int:
        """Returns a number that is equal for siblings with equal names, shapes and types below."""
        below = sorted((child.part, child.repeat, child.look, child.dtype, child.shape or ()) for child in children)
        return self._looks.setdefault(tuple(below), len(self._looks) + 1)


def _branch(group: Sequence[tuple[str, _Content]]) -> TreeNode:
    """Returns components with equal looks as one node."""
    part, first = group[0]
    return TreeNode(
        ranges(int(part) for part, _ in group) if len(group) > 1 else part,
        sum(c.tensors for _, c in group), sum(c.parameters for _, c in group), sum(c.nbytes for _, c in group),
        repeat=len(group), look=first.look, children=first.children,
    )  # fmt: skip


def lines(forest: Iterable[TreeNode], depth: int = 0) -> Iterator[TreeLine]:
    """Yields the tree as indented lines; a chain of single children is one line (`model.layers`)."""
    for node in forest:
        name, at = chained(node)
        shown = node if at is node else TreeNode(name, node.tensors, node.parameters, node.nbytes, at.dtype, at.shape)
        shown.repeat = node.repeat
        yield TreeLine(depth, name, shown)
        yield from lines(at.children, depth + 1)


def chained(node: TreeNode) -> tuple[str, TreeNode]:
    """Returns the names of a chain of single children as one name, and the last of them."""
    name = node.part
    while len(node.children) == 1 and node.children[0].repeat == 1:
        node = node.children[0]
        name += f".{node.part}"
    return name, node
