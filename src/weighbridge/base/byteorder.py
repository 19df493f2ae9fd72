"""Byte order of tensor data. In a big-endian GGUF the scalars inside every block are swapped too, so a swap is a fixed
permutation of the bytes of one atom, and is its own inverse.

(gguf-py 0.19 writes big-endian files in which bf16 and block data stays little-endian. Nothing in such a file says so.)
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from weighbridge.base.dtypes import DType
from weighbridge.base.errors import UnsupportedError

# The scalars of one block in file order, as (size, how many); ggml-common.h of llama.cpp b11549, and as ggml-quants.c
# loads them: some arrays of bytes are words to it. IQ2_XXS is left out: its codes are read bytewise and as words. So is
# Q8_1, which is in no file.
_BLOCKS: Final = MappingProxyType(
    {
        "Q4_0": ((2, 1), (1, 16)),  # d, qs
        "Q4_1": ((2, 2), (1, 16)),  # d, m, qs
        "Q5_0": ((2, 1), (4, 1), (1, 16)),  # d, qh, qs
        "Q5_1": ((2, 2), (4, 1), (1, 16)),  # d, m, qh, qs
        "Q8_0": ((2, 1), (1, 32)),  # d, qs
        "Q1_0": ((2, 1), (1, 16)),  # d, qs
        "Q2_0": ((2, 1), (1, 16)),  # d, qs
        "IQ4_NL": ((2, 1), (1, 16)),  # d, qs
        "Q2_K": ((1, 80), (2, 2)),  # scales, qs, d, dmin
        "Q3_K": ((1, 108), (2, 1)),  # hmask, qs, scales, d
        "Q4_K": ((2, 2), (1, 140)),  # d, dmin, scales, qs
        "Q5_K": ((2, 2), (1, 172)),  # d, dmin, scales, qh, qs
        "Q6_K": ((1, 208), (2, 1)),  # ql, qh, scales, d
        "Q8_K": ((4, 1), (1, 256), (2, 16)),  # d, qs, sums
        "IQ1_S": ((2, 1), (1, 32), (2, 8)),  # d, qs, qh
        "IQ1_M": ((1, 48), (2, 4)),  # qs, qh, scales
        "IQ2_XS": ((2, 33), (1, 8)),  # d, qs, scales
        "IQ2_S": ((2, 1), (1, 80)),  # d, qs, signs, qh, scales
        "IQ3_XXS": ((2, 1), (1, 64), (4, 8)),  # d, codes, signs and scales
        "IQ3_S": ((2, 1), (1, 108)),  # d, qs, qh, signs, scales
        "IQ4_XS": ((2, 2), (1, 132)),  # d, scales_h, scales_l, qs
        "TQ1_0": ((1, 52), (2, 1)),  # qs, qh, d
        "TQ2_0": ((1, 64), (2, 1)),  # qs, d
        "MXFP4": ((1, 17),),  # e, qs
        "NVFP4": ((1, 36),),  # d, qs
    }
)


def swap_plan(dtype: DType) -> tuple[int, ...]:
    """For each byte of a swapped atom, which byte of the original it is. UnsupportedError for other layouts."""
    if dtype.plain:
        runs: tuple[tuple[int, int], ...] = ((dtype.word, dtype.size // dtype.word),)
    elif dtype.name in _BLOCKS:
        runs = _BLOCKS[dtype.name]
    else:
        raise UnsupportedError(f"the byte order of {dtype} data can't be changed", hint="get a little-endian file")
    plan: list[int] = []
    for word, count in runs:
        for _ in range(count):
            plan += range(len(plan) + word - 1, len(plan) - 1, -1)
    return tuple(plan)


def swap(dtype: DType, data: bytearray | memoryview) -> None:
    """Change the byte order of whole atoms in place: one strided copy for each byte of an atom that moves."""
    plan = swap_plan(dtype)
    for to, origin in enumerate(plan):
        if to < origin:  # bytes move in pairs
            data[to :: dtype.size], data[origin :: dtype.size] = (
                bytes(data[origin :: dtype.size]),
                bytes(data[to :: dtype.size]),
            )
