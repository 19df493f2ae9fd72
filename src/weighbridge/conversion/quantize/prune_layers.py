"""Layers left out (--prune-layers): which tensors stay, and what they are called then (`remap_layer`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from weighbridge.base.errors import UsageError

_LAYER: Final = re.compile(r"blk\.(\d+)\.", re.ASCII)


class Pruned(NamedTuple):
    """`names`: old -> new, of the tensors that stay; `gone`: the layers that don't; how many layers are `left`, of how
    many `before`."""

    names: dict[str, str]
    gone: frozenset[int]
    left: int
    before: int


def number(name: str) -> int | None:
    """The layer that a tensor is of."""
    found = _LAYER.search(name)
    return int(found[1]) if found else None


def pruned(names: Iterable[str], gone: Sequence[int]) -> Pruned:
    """The tensors without those of the layers `gone`, the later ones moved up. UsageError for one that isn't there."""
    names = list(names)
    there = sorted({n for name in names if (n := number(name)) is not None})
    if strange := sorted(set(gone) - set(there)):
        have = f"it has {there[0]} to {there[-1]}" if there else "it has none"
        raise UsageError(f"the model has no layer {strange[0]}", hint=have)
    kept = [n for n in there if n not in gone]
    if gone and not kept:
        raise UsageError("no layer would be left")
    moved = {old: new for new, old in enumerate(kept)} if gone else {n: n for n in there}
    stay = {name: _renamed(name, moved) for name in names if (at := number(name)) is None or at in moved}
    return Pruned(stay, frozenset(gone), len(kept), len(there))


def _renamed(name: str, moved: dict[int, int]) -> str:
    return _LAYER.sub(lambda m: f"blk.{moved[int(m[1])]}.", name, count=1)
