"""Values counted by bit pattern, in plain numpy. Results equal to the native counter (native/kernels/scan.cpp).

One counter of 64 bits for each pattern of 16 bits: a value adds 2^40, so that the upper 24 bits are how many there
are. F16 and BF16 count at their own bits. All else counts as f32, at the upper half of its bits, and adds the lower
half too: so the sum of a counter's values is known exactly. Every NaN counts as one pattern; what is smaller than any
upper half that isn't zero counts at a pattern that only NaNs have, so that zeros stay apart.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from weighbridge.tensors.reference.floats import Bytes
from weighbridge.tensors.reference.registry import DECODE

PATTERNS: Final = 1 << 16
COUNT_SHIFT: Final = 40
#: Elements that a counter holds: 2^23 lower halves are below 2^40.
MOST: Final = 1 << 23
#: Types whose patterns are their own bits.
HALVES: Final = ("F16", "BF16")
INFINITY: Final = 0x7F80
NAN: Final = 0x7FC0
#: Where the smallest positive f32 count (with the sign bit: the negative ones): below 2^-133, but not zero.
TINY: Final = 0x7F81

Counters = NDArray[np.uint64]


def count_patterns(name: str, src: Bytes) -> Counters:
    """The counters of stored bytes, at most `MOST` elements."""
    if name in HALVES:
        patterns = np.ascontiguousarray(src).view("<u2")
        return np.bincount(patterns, minlength=PATTERNS).astype(np.uint64) << np.uint64(COUNT_SHIFT)
    bits = np.ascontiguousarray(src).view("<u4") if name == "F32" else DECODE[name](src).view(np.uint32)
    magnitude = bits & np.uint32(0x7FFFFFFF)
    known = np.where(magnitude - np.uint32(1) < 0xFFFF, bits | np.uint32(TINY << 16), bits)
    known = np.where(magnitude > INFINITY << 16, np.uint32(NAN << 16), known)
    patterns, low = known >> 16, known & 0xFFFF
    sums = np.bincount(patterns, low, PATTERNS).astype(np.uint64)
    counters: Counters = (np.bincount(patterns, minlength=PATTERNS).astype(np.uint64) << np.uint64(COUNT_SHIFT)) + sums
    return counters
