"""Finds the bits of a block that determine each element's code, by flipping every bit. This works for every type that
can be unpacked, without a second description of its layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

CodeBits = tuple[tuple[tuple[int, int], ...], ...]


def code_bits(raw: Sequence[Any], unpack: Callable[[], Mapping[str, Any]], elements: int) -> CodeBits:
    """Returns for each of the `elements` (byte, mask) of the bits that change one of its numbers. `raw`: u8 arrays,
    which are modified and restored; bytes are counted over all of them. `unpack`: returns the numbers currently in
    them."""
    import numpy as np

    original = {name: part.reshape(-1).copy() for name, part in unpack().items() if part.size == elements}
    masks: list[dict[int, int]] = [{} for _ in range(elements)]
    start = 0
    for data in raw:
        for byte in range(data.size):
            for mask in (1, 2, 4, 8, 16, 32, 64, 128):
                data[byte] ^= mask
                flipped = unpack()
                changed = {int(e) for n in original for e in np.flatnonzero(flipped[n].reshape(-1) != original[n])}
                data[byte] ^= mask
                for element in changed:
                    masks[element][start + byte] = masks[element].get(start + byte, 0) | mask
        start += data.size
    return tuple(tuple(element.items()) for element in masks)
