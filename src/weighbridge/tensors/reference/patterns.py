"""Counts values by bit pattern, in plain numpy. Results equal to the native counter (native/kernels/scan.cpp).

Each 16-bit pattern has a 64-bit counter. A value adds 2^40, so the upper 24 bits are the number of values. F16 and BF16
count at their own bits. Other types count as F32, at the upper half of their bits, and also add the lower half, so the
sum of a counter's values is exact. Every NaN counts as one pattern. Values whose upper half is zero, other than zero,
count at a pattern that only NaNs have, so that zeros have their own counter.
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
    counted = np.where(magnitude - np.uint32(1) < 0xFFFF, bits | np.uint32(TINY << 16), bits)
    counted = np.where(magnitude > INFINITY << 16, np.uint32(NAN << 16), counted)
    patterns, low = counted >> 16, counted & 0xFFFF
    sums = np.bincount(patterns, low, PATTERNS).astype(np.uint64)
    counters: Counters = (np.bincount(patterns, minlength=PATTERNS).astype(np.uint64) << np.uint64(COUNT_SHIFT)) + sums
    return counters
