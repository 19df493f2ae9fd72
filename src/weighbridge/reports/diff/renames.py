"""Finds tensors that were renamed between two models: equal in type, shape and bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import LogicalTensor, Node

_SLAB: Final = 4 << 20  # bytes read at a time
_View = Mapping[str, "LogicalTensor"]


def find_renamed(
    a: _View, b: _View, only_a: Iterable[str], only_b: Iterable[str], step: Callable[[str], None]
) -> dict[str, str]:
    """Returns the name in `b` of each tensor of `only_a` that is also in `only_b`. Equal tensors are paired in order.
    Tensors whose type and shape the other side lacks aren't read. `step` is called with each name before its tensor is
    read."""
    left, right = _by_spec(a, only_a), _by_spec(b, only_b)
    pairs: dict[str, str] = {}
    for spec in left.keys() & right.keys():
        candidates: dict[bytes, list[str]] = {}
        for name in right[spec]:
            step(name)
            candidates.setdefault(_digest(b[name]), []).append(name)
        for name in left[spec]:
            step(name)
            if names := candidates.get(_digest(a[name])):
                pairs[name] = names.pop(0)
    return pairs


def _by_spec(view: _View, names: Iterable[str]) -> dict[tuple[object, ...], list[str]]:
    groups: dict[tuple[object, ...], list[str]] = {}
    for name in names:
        groups.setdefault(tuple(node.spec for node in _stored(view[name])), []).append(name)
    return groups


def _stored(node: LogicalTensor) -> Iterator[Node]:
    """Yields the stored tensors: the tensor, or the members of a packed one."""
    from weighbridge.tensors.nodes import QuantizedTensor

    if isinstance(node, QuantizedTensor):
        yield from (node.members[role] for role in sorted(node.members))
    else:
        yield node


def _digest(node: LogicalTensor) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for stored in _stored(node):
        rows, width = stored.spec.rows, max(stored.spec.row_bytes, 1)
        step = max(1, _SLAB // width)
        for lo in range(0, rows, step):
            digest.update(stored.read(lo, min(lo + step, rows)).data)
    return digest.digest()
