"""Tensors that two models have under different names: of the same type and shape, and byte for byte equal."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import LogicalTensor, Node

_SLAB: Final = 4 << 20  # bytes read at a time
_View = Mapping[str, "LogicalTensor"]


def renamed(
    a: _View, b: _View, only_a: Iterable[str], only_b: Iterable[str], step: Callable[[str], None]
) -> dict[str, str]:
    """The name in `b` of each tensor of `only_a` that `only_b` has too. Equal ones are paired in order. Tensors whose
    type and shape the other side lacks aren't read. `step` is called with the name of each that is."""
    left, right = _by_spec(a, only_a), _by_spec(b, only_b)
    pairs: dict[str, str] = {}
    for spec in left.keys() & right.keys():
        waiting: dict[bytes, list[str]] = {}
        for name in right[spec]:
            step(name)
            waiting.setdefault(_digest(b[name]), []).append(name)
        for name in left[spec]:
            step(name)
            if found := waiting.get(_digest(a[name])):
                pairs[name] = found.pop(0)
    return pairs


def _by_spec(view: _View, names: Iterable[str]) -> dict[tuple[object, ...], list[str]]:
    found: dict[tuple[object, ...], list[str]] = {}
    for name in names:
        found.setdefault(tuple(node.spec for node in _stored(view[name])), []).append(name)
    return found


def _stored(node: LogicalTensor) -> Iterator[Node]:
    """What a tensor is stored as: itself, or the members of a packed one."""
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
