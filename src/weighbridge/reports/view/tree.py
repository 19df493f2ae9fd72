"""The tensors of a model as the page's tree: that of `wb inspect --tree`, with the number of each tensor, so that one
can be picked. A model of 100,000 tensors has some dozens of nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from weighbridge.base import gc_pause
from weighbridge.base.spec import Shape
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.reports.inspect.parameter_count import Count
from weighbridge.reports.inspect.tree import TreeNode, build_tree

SCHEMA: Final = "weighbridge/tensor-tree/1"
_TYPES: Final = 4  # listed of a branch


@dataclass(frozen=True, slots=True)
class NumberedNode:
    """A tensor (`tensor`: its number in the model's index, `shape`: as stored), or a branch (`tensor` -1, `shape` None)
    with its `children`. `repeat`: how many numbered siblings it stands for, which are alike in names, types, shapes and
    sizes; `children` are those of the first, the sums those of all. `path`: the names above and its own, as in the
    file. `parameters`: logical ones; None in a tree that wasn't asked to count them. `dtypes`: at most four, in order
    of appearance."""

    label: str
    path: str
    tensor: int
    repeat: int
    tensors: int
    parameters: int | None
    nbytes: int
    dtypes: tuple[str, ...]
    shape: Shape | None = None
    children: tuple[NumberedNode, ...] = ()


@dataclass(frozen=True, slots=True)
class TensorTree:
    """The nodes of the first level. `dtypes`: of the whole model, the one with most bytes first."""

    path: str
    tensors: int
    dtypes: tuple[str, ...]
    nodes: tuple[NumberedNode, ...]
    schema: str = SCHEMA


class _Row(NamedTuple):
    name: str
    dtype: str
    shape: Shape
    nbytes: int
    parameters: int


def tensor_tree(model: Checkpoint, counted: Count | None) -> TensorTree:
    """The tree of the stored tensors of `model`. Reads no tensor data. `counted`: as of `survey`; without it,
    parameters stay open, which takes half the time."""
    with gc_pause.paused():
        found = _Numbered(model, counted)
        return TensorTree(str(model.place.path), len(model.index), _by_size(model), found.nodes)


def _by_size(model: Checkpoint) -> tuple[str, ...]:
    sizes: dict[str, int] = {}
    for entry in model.index.entries:
        sizes[entry.dtype.name] = sizes.get(entry.dtype.name, 0) + entry.nbytes
    return tuple(sorted(sizes, key=lambda name: (-sizes[name], name)))


def _rows(model: Checkpoint, counted: Count | None) -> Iterator[_Row]:
    for e in model.index.entries:
        yield _Row(e.name, e.dtype.name, e.shape, e.nbytes, counted.of(e)[0] if counted else 0)


class _Numbered:
    """Nodes of the folded tree with what the page needs beside them."""

    def __init__(self, model: Checkpoint, counted: Count | None) -> None:
        self._counted = counted is not None
        forest = build_tree(_rows(model, counted))
        shown = set(_paths(forest, ""))  # of 100,000 names some dozens
        self._numbers = {e.name: number for number, e in enumerate(model.index.entries) if e.name in shown}
        self.nodes = self._of(forest, "")

    def _of(self, nodes: list[TreeNode], above: str) -> tuple[NumberedNode, ...]:
        return tuple(self._tensor(n, above) if n.shape is not None else self._branch(n, above) for n in nodes)

    def _tensor(self, node: TreeNode, above: str) -> NumberedNode:
        path = _path(node, above)
        parameters = node.parameters if self._counted else None
        return NumberedNode(
            node.part, path, self._numbers[path], 1, 1, parameters, node.nbytes, (node.dtype,), node.shape
        )

    def _branch(self, node: TreeNode, above: str) -> NumberedNode:
        path = _path(node, above)
        below = self._of(node.children, f"{path}.")
        if len(below) == 1 and not below[0].children and not node.part[:1].isdecimal():  # `norm.weight` is one row
            return replace(below[0], label=f"{node.part}.{below[0].label}")
        dtypes = tuple(dict.fromkeys(name for child in below for name in child.dtypes))[:_TYPES]
        parameters = node.parameters if self._counted else None
        label = node.part.replace("-", "–").replace(",", ", ") if node.repeat > 1 else node.part
        return NumberedNode(label, path, -1, node.repeat, node.tensors, parameters, node.nbytes, dtypes, None, below)


def _paths(nodes: list[TreeNode], above: str) -> Iterator[str]:
    """The names of the tensors that the tree shows."""
    for node in nodes:
        path = _path(node, above)
        if node.shape is not None:
            yield path
        yield from _paths(node.children, f"{path}.")


def _path(node: TreeNode, above: str) -> str:
    """The names above a node and its own: of the first of those that it stands for."""
    return above + (node.part if node.repeat == 1 else _first(node.part))


def _first(numbers: str) -> str:
    """`3-5,8` -> `3`."""
    return numbers.partition(",")[0].partition("-")[0]
