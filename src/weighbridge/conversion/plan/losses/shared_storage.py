"""Tensors that share bytes of their source: ties, and views of one storage.

A PyTorch file keeps them as several views of one storage, and writes each other tensor in C order. Other containers
store each tensor separately, and `copies` lists those.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from weighbridge.base.dtypes import DType
from weighbridge.base.spec import Spec, c_strides
from weighbridge.io.source import Source
from weighbridge.tensors.nodes import Node, PackedMember, Stored, walk
from weighbridge.tensors.nodes.base import Slice, Strided

if TYPE_CHECKING:
    from weighbridge.containers.torch.write import View


class SharedStorage(NamedTuple):
    """`storages`: the storages to write, in the order of their first tensors. `views`: each tensor as a view."""

    storages: dict[str, Node]
    views: dict[str, View]


class _Window(NamedTuple):
    """The bytes [lo, hi) of a source that a tensor covers, and its strides in elements."""

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
    """A key of a tensor's bytes, shape and strides in its source; None for a computed tensor."""
    window = _window("", node)
    return None if window is None else (*window.kind, window.lo, node.spec.shape, window.strides)


def copies(source: Mapping[str, Node], written: Mapping[str, Node], storages: Mapping[str, str]) -> dict[str, str]:
    """The tensors of `written` that copy bytes that the source stores once: name -> the first tensor with these bytes.

    `storages`: the storage of each tensor, in a target whose tensors can share one.
    """
    groups = _shared_windows(source)
    first: dict[int, str] = {}
    copied: dict[str, str] = {}
    for name, node in written.items() if groups else ():
        leaves = [leaf for leaf in walk(node) if isinstance(leaf, Stored)]
        for number, group in enumerate(groups):
            if any(w.overlaps(leaf) for w in group for leaf in leaves):
                original = first.setdefault(number, name)
                match node, written[original]:
                    case PackedMember(source=a), PackedMember(source=b) if a is b:
                        continue  # codes and scales of one packed tensor
                if storages.get(original, original) != storages.get(name, name):
                    copied[name] = original
    return copied


def share(tensors: Mapping[str, Node]) -> SharedStorage:
    """The storages and views of `tensors`. Two tensors share one if their bytes overlap and their elements align."""
    from weighbridge.containers.torch.write import View

    joined = {w.name: (w, group) for group in _shared_windows(tensors) for w in group}
    storages: dict[str, Node] = {}
    views: dict[str, View] = {}
    named: dict[int, str] = {}  # by group; a shared storage has the name of its first tensor
    computed: dict[int, str] = {}  # by node, which may have several names
    for name, node in tensors.items():
        if name not in joined:
            storage = computed.setdefault(id(node), name)
            storages[storage] = node
            views[name] = View(storage, node.spec.shape, c_strides(node.spec.shape))
            continue
        window, group = joined[name]
        base, lo, size = group[0].base, group[0].lo, node.spec.dtype.size
        first = named.setdefault(id(group), name)
        if first == name:
            elements = (max(w.hi for w in group) - lo) // size
            storages[first] = Stored(Spec((elements,), base.spec.dtype), base.source, lo, base.swap)
        views[name] = View(first, node.spec.shape, window.strides, (window.lo - lo) // size)
    return SharedStorage(storages, views)


def _window(name: str, node: Node) -> _Window | None:
    """The window of a tensor in its source, if it is stored there without any computation."""
    size = node.spec.dtype.size
    if not node.spec.dtype.plain or not node.spec.elements:
        return None
    match node:
        case Stored():
            return _Window(name, node, node.offset, node.offset + node.spec.nbytes, c_strides(node.spec.shape))
        case Slice(source=Stored() as base):
            lo = base.offset + node.start * size
            return _Window(name, base, lo, lo + node.spec.nbytes, c_strides(node.spec.shape))
        case Strided(source=Stored() as base) if min(node.strides, default=0) >= 0:
            reach = 1 + sum((n - 1) * s for n, s in zip(node.spec.shape, node.strides, strict=True))
            lo = base.offset + node.start * size
            return _Window(name, base, lo, lo + reach * size, node.strides)
    return None


def _shared_windows(tensors: Mapping[str, Node]) -> list[list[_Window]]:
    """Groups of at least two windows of one source and type, each sorted by offset.

    Each window of a group overlaps earlier ones by whole elements.
    """
    windows = (w for name, node in tensors.items() if (w := _window(name, node)) is not None)
    groups: list[list[_Window]] = []
    end = 0
    for w in sorted(windows, key=lambda w: (*map(id, w.kind), w.lo)):
        start = groups[-1][0] if groups else w
        overlaps = groups and w.kind == start.kind and w.lo < end
        if overlaps and (w.lo - start.lo) % w.base.spec.dtype.size == 0:
            groups[-1].append(w)
            end = max(end, w.hi)
        else:
            groups.append([w])
            end = w.hi
    return [group for group in groups if len(group) > 1]
