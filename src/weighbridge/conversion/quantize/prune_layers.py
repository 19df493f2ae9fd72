"""--prune-layers: which tensors remain, and their new names (`remap_layer` of llama-quantize)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from weighbridge.base.errors import UsageError

_LAYER: Final = re.compile(r"blk\.(\d+)\.", re.ASCII)


class Pruned(NamedTuple):
    """`names`: old -> new name of the remaining tensors. `removed`: layers; `left` of `before` layers remain."""

    names: dict[str, str]
    removed: frozenset[int]
    left: int
    before: int


def number(name: str) -> int | None:
    """The layer of a tensor; None for tensors outside the layers."""
    match = _LAYER.search(name)
    return int(match[1]) if match else None


def prune(names: Iterable[str], removed: Sequence[int]) -> Pruned:
    """Removes layers and renumbers those that follow. Raises UsageError for a layer that doesn't exist."""
    names = list(names)
    existing = sorted({n for name in names if (n := number(name)) is not None})
    if unknown := sorted(set(removed) - set(existing)):
        have = f"it has {existing[0]} to {existing[-1]}" if existing else "it has none"
        raise UsageError(f"the model has no layer {unknown[0]}", hint=have)
    kept = [n for n in existing if n not in removed]
    if removed and not kept:
        raise UsageError("no layer would be left")
    moved = {old: new for new, old in enumerate(kept)} if removed else {n: n for n in existing}
    renamed = {
        name: _LAYER.sub(lambda match: f"blk.{moved[int(match[1])]}.", name, count=1)
        for name in names
        if (layer := number(name)) is None or layer in moved
    }
    return Pruned(renamed, frozenset(removed), len(kept), len(existing))
