"""Which bits of a block the code of each element is made of, found by turning one bit after the other: so it holds for
every type that can be unpacked, and no layout is written down twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

CodeBits = tuple[tuple[tuple[int, int], ...], ...]


def code_bits(raw: Sequence[Any], unpack: Callable[[], Mapping[str, Any]], elements: int) -> CodeBits:
    """Of each of the `elements`: (byte, mask) of the bits that change a number of this element; bytes count through
    all of `raw`, arrays of u8 that are restored. `unpack`: the numbers that are in them now."""
    import numpy as np

    own = {name: part.reshape(-1).copy() for name, part in unpack().items() if part.size == elements}
    found: list[dict[int, int]] = [{} for _ in range(elements)]
    start = 0
    for data in raw:
        for byte in range(data.size):
            for mask in (1, 2, 4, 8, 16, 32, 64, 128):
                data[byte] ^= mask
                turned = unpack()
                changed = {int(e) for name in own for e in np.flatnonzero(turned[name].reshape(-1) != own[name])}
                data[byte] ^= mask
                for element in changed:
                    found[element][start + byte] = found[element].get(start + byte, 0) | mask
        start += data.size
    return tuple(tuple(one.items()) for one in found)
