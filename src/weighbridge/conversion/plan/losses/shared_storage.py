"""Tensors that share bytes of their source (ties, views of one storage): kept where the target can, listed elsewhere.

In a PyTorch file tensors that the source stores once stay one storage with several views; what stands alone is written
in C order by itself. Every other container stores each tensor for itself, and `copies` lists those.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import NamedTuple

from weighbridge.base.dtypes import DType
from weighbridge.base.spec import Spec
from weighbridge.containers.torch.write import View, contiguous
from weighbridge.io.source import Source
from weighbridge.tensors.nodes import Node, PackedMember, Stored, walk
from weighbridge.tensors.nodes.base import Slice, Strided


class SharedStorage(NamedTuple):
    """`storages`: the storages to write, in the order in which tensors need them; `views`: each tensor as a view."""

    storages: dict[str, Node]
    views: dict[str, View]


class _Window(NamedTuple):
    """The bytes [lo, hi) of a source that a tensor covers, and its strides there."""

    name: str
    base: Stored
    lo: int
    hi: int
    strides: tuple[int, ...]

    @property
    def kind(self) -> tuple[Source, bool, DType]:
        return self.base.source, self.base.swap, self.base.spec.dtype

    def overlaps(self, leaf: Stored) -> bool:
        return leaf.source is self.base.source and self.lo < leaf.offset + leaf.spec.nbytes and leaf.offset < self.hi


def is_same(a: Node, b: Node) -> bool:
    """Whether two tensors are the same bytes of a source, in the same shape."""
    return (place := place_of(a)) is not None and place == place_of(b)


def place_of(node: Node) -> tuple[Hashable, ...] | None:
    """The place and strides of a tensor's bytes; None for a computed tensor."""
    window = _window("", node)
    return None if window is None else (*window.kind, window.lo, node.spec.shape, window.strides)


def copies(source: Mapping[str, Node], written: Mapping[str, Node], storages: Mapping[str, str]) -> dict[str, str]:
    """The tensors of `written` that are copies of bytes that the source stores once: name -> the tensor that they
    shared them with. `storages`: the storage of each tensor, in a target that can share one."""
    windows = (w for name, node in source.items() if (w := _window(name, node)) is not None)
    groups = [group for group in _overlapping(windows) if len(group) > 1]
    first: dict[int, str] = {}
    found: dict[str, str] = {}
    for name, node in written.items() if groups else ():
        leaves = [leaf for leaf in walk(node) if isinstance(leaf, Stored)]
        for number, group in enumerate(groups):
            if any(w.overlaps(leaf) for w in group for leaf in leaves):
                other = first.setdefault(number, name)
                shared = storages.get(other, other) == storages.get(name, name)
                if not shared and not _of_one_tensor(node, written[other]):
                    found[name] = other
    return found


def _of_one_tensor(a: Node, b: Node) -> bool:
    """Whether both are parts of one packed tensor: its codes, its scales."""
    return isinstance(a, PackedMember) and isinstance(b, PackedMember) and a.source is b.source


def share(tensors: Mapping[str, Node]) -> SharedStorage:
    """The storages and views of `tensors`. Two tensors share where their bytes overlap and their elements align."""
    windows = (w for name, node in tensors.items() if (w := _window(name, node)) is not None)
    joined = {w.name: (w, group) for group in _overlapping(windows) if len(group) > 1 for w in group}
    storages: dict[str, Node] = {}
    views: dict[str, View] = {}
    named: dict[int, str] = {}  # a shared storage has the name of its first tensor
    made: dict[int, str] = {}  # computed once, under several names
    for name, node in tensors.items():
        if name not in joined:
            storage = made.setdefault(id(node), name)
            storages[storage] = node
            views[name] = View(storage, node.spec.shape, contiguous(node.spec))
            continue
        mine, group = joined[name]
        first = named.setdefault(id(group), name)
        if first == name:
            storages[first] = _storage(group)
        views[name] = View(first, node.spec.shape, mine.strides, (mine.lo - group[0].lo) // node.spec.dtype.size)
    return SharedStorage(storages, views)


def _storage(group: list[_Window]) -> Node:
    """All bytes of a group, which is sorted by where its windows begin."""
    base, lo = group[0].base, group[0].lo
    elements = (max(w.hi for w in group) - lo) // base.spec.dtype.size
    return Stored(Spec((elements,), base.spec.dtype), base.source, lo, base.swap)


def _window(name: str, node: Node) -> _Window | None:
    """The place of a tensor in its source, if it is stored there without any computation."""
    size = node.spec.dtype.size
    if not node.spec.dtype.plain or not node.spec.elements:
        return None
    match node:
        case Stored():
            return _Window(name, node, node.offset, node.offset + node.spec.nbytes, contiguous(node.spec))
        case Slice(source=Stored() as base):
            lo = base.offset + node.start * size
            return _Window(name, base, lo, lo + node.spec.nbytes, contiguous(node.spec))
        case Strided(source=Stored() as base) if min(node.strides, default=0) >= 0:
            reach = 1 + sum((n - 1) * s for n, s in zip(node.spec.shape, node.strides, strict=True))
            lo = base.offset + node.start * size
            return _Window(name, base, lo, lo + reach * size, node.strides)
    return None


def _overlapping(windows: Iterator[_Window]) -> Iterator[list[_Window]]:
    """Runs of windows of one source and type in which each overlaps earlier ones by whole elements."""
    order = sorted(windows, key=lambda w: (*map(id, w.kind), w.lo))
    group: list[_Window] = []
    end = 0
    for w in order:
        near = group and w.kind == group[0].kind and w.lo < end
        if not near or (w.lo - group[0].lo) % w.base.spec.dtype.size:
            if group:
                yield group
            group, end = [], 0
        group.append(w)
        end = max(end, w.hi)
    if group:
        yield group
