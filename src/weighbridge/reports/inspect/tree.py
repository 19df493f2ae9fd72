"""Tensors as a tree of the parts of their names, with equal layers folded into one line: the structure of a model, on
one screen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol


class Leaf(Protocol):
    """The fields of a row that the tree needs."""

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
    """A node as a line of text: its depth, its name, its sums over all repeats."""

    depth: int
    name: str
    node: TreeNode


_DEPTH = 32  # dots in a name; deeper levels stay one part


def grow(rows: Iterable[Leaf]) -> list[TreeNode]:
    """The forest of the rows' names, in order of appearance, folded."""
    top = TreeNode("")
    homes: dict[str, TreeNode] = {}  # by the name up to the last dot: its tensors are adjacent
    branches: dict[tuple[int, str], TreeNode] = {}
    for row in rows:
        *above, last = row.name.split(".", _DEPTH)
        prefix = row.name[: len(row.name) - len(last)]
        home = homes.get(prefix)
        if home is None:
            home = homes[prefix] = _branch(top, above, branches)
        home.children.append(TreeNode(last, 1, row.parameters, row.nbytes, row.dtype, row.shape))
    _sum(top)
    return _folded(top, {}).children


def _branch(node: TreeNode, parts: Iterable[str], branches: dict[tuple[int, str], TreeNode]) -> TreeNode:
    """The node at the end of the path below `node`, created if necessary."""
    for part in parts:
        child = branches.get((id(node), part))
        if child is None:
            child = branches[id(node), part] = TreeNode(part)
            node.children.append(child)
        node = child
    return node


def _sum(node: TreeNode) -> None:
    for child in node.children:
        _sum(child)
        node.tensors += child.tensors
        node.parameters += child.parameters
        node.nbytes += child.nbytes


#: Signature of a node -> its number: equality is one comparison of numbers, however much is below.
_Looks = dict[tuple[object, ...], int]


def _folded(node: TreeNode, looks: _Looks) -> TreeNode:
    """The node with runs of equal numbered children merged."""
    if node.children:
        node.children = list(_runs([_folded(child, looks) for child in node.children], looks))
        node.look = _look(node, looks)
    return node


def _runs(children: Sequence[TreeNode], looks: _Looks) -> Iterator[TreeNode]:
    """Numbered siblings, grouped by signature (they may be mixed), each at its first position."""
    groups: dict[object, list[TreeNode]] = {}
    for i, child in enumerate(children):
        key = ("number", child.look) if child.children and child.part.isdecimal() else i
        groups.setdefault(key, []).append(child)
    for group in groups.values():
        first = group[0]
        if len(group) > 1:
            first.part, first.repeat = _numbers([int(n.part) for n in group]), len(group)
            first.tensors = sum(n.tensors for n in group)
            first.parameters = sum(n.parameters for n in group)
            first.nbytes = sum(n.nbytes for n in group)
        yield first


def _look(node: TreeNode, looks: _Looks) -> int:
    """The signature: what must be equal for two siblings to be folded, that is names, shapes and types below."""
    below = sorted((child.part, child.repeat, child.look, child.dtype, child.shape or ()) for child in node.children)
    return looks.setdefault(tuple(below), len(looks) + 1)


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
        name, at = node.part, node
        while len(at.children) == 1 and at.children[0].repeat == 1:
            at = at.children[0]
            name += f".{at.part}"
        shown = node if at is node else TreeNode(name, node.tensors, node.parameters, node.nbytes, at.dtype, at.shape)
        shown.repeat = node.repeat
        yield TreeLine(depth, name, shown)
        yield from lines(at.children, depth + 1)
