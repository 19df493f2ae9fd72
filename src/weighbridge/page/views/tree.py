"""The tensors of a model as the page's tree: that of `wb inspect --tree`, with the numbers of the tensors. A model with
100,000 tensors has a few dozen nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from weighbridge.base import gc_pause
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Shape
from weighbridge.models.model import OpenModel
from weighbridge.models.parameter_count import Count
from weighbridge.reports.inspect.tree import TreeNode, build_tree

SCHEMA: Final = "weighbridge/tensor-tree/1"
_TYPES: Final = 4  # listed per branch


@dataclass(frozen=True, slots=True)
class NumberedNode:
    """A tensor (`tensor`: its number in the model's index, `shape`: as stored), or a branch (`tensor` -1, `shape` None)
    with `children`. `repeat`: the number of numbered siblings that it represents, which have equal names, types,
    shapes and sizes below; `children` are those of the first, the sums cover all. `path`: the full name in the file.
    `parameters`: logical ones; None if they weren't counted. `dtypes`: at most four, in order of appearance."""

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
    """The nodes of the first level. `dtypes`: over the whole model, most bytes first."""

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


def tensor_tree(model: OpenModel, counted: Count | None) -> TensorTree:
    """Returns the tree of the stored tensors of `model`. Reads no tensor data. `counted`: the parameters, as in a
    survey; omitting them takes half the time."""
    entries = model.index.entries
    with gc_pause.paused():
        forest = build_tree(
            _Row(e.name, e.dtype.name, e.shape, e.nbytes, counted.of(e)[0] if counted else 0) for e in entries
        )
        shown = set(_tensor_paths(forest, ""))  # a few dozen of 100,000 names
        numbers = {e.name: number for number, e in enumerate(entries) if e.name in shown}
        sizes: dict[str, int] = {}
        for entry in entries:
            sizes[entry.dtype.name] = sizes.get(entry.dtype.name, 0) + entry.nbytes
        dtypes = tuple(sorted(sizes, key=lambda name: (-sizes[name], name)))
        return TensorTree(
            str(model.place.path), len(entries), dtypes, _numbered(forest, "", numbers, counted is not None)
        )


def _tensor_paths(nodes: list[TreeNode], above: str) -> Iterator[str]:
    for node in nodes:
        path = _path(node, above)
        if node.shape is not None:
            yield path
        yield from _tensor_paths(node.children, f"{path}.")


def _numbered(nodes: list[TreeNode], above: str, numbers: dict[str, int], counted: bool) -> tuple[NumberedNode, ...]:
    """Returns the nodes with their tensors' numbers. `above`: the prefix of their names."""
    numbered = []
    for node in nodes:
        path = _path(node, above)
        parameters = node.parameters if counted else None
        if node.shape is not None:
            numbered.append(
                NumberedNode(node.part, path, numbers[path], 1, 1, parameters, node.nbytes, (node.dtype,), node.shape)
            )
            continue
        below = _numbered(node.children, f"{path}.", numbers, counted)
        if len(below) == 1 and not below[0].children and not node.part[:1].isdecimal():  # `norm.weight` is one row
            numbered.append(replace(below[0], label=f"{node.part}.{below[0].label}"))
            continue
        dtypes = tuple(dict.fromkeys(name for child in below for name in child.dtypes))[:_TYPES]
        label = node.part.replace("-", "–").replace(",", ", ") if node.repeat > 1 else node.part
        numbered.append(
            NumberedNode(label, path, -1, node.repeat, node.tensors, parameters, node.nbytes, dtypes, None, below)
        )
    return tuple(numbered)


def _path(node: TreeNode, above: str) -> str:
    """Returns the name of a node; a folded node is named after its first sibling (`3-5,8`: 3)."""
    return above + (node.part if node.repeat == 1 else node.part.partition(",")[0].partition("-")[0])
