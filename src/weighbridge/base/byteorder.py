"""Byte order of tensor data. A big-endian GGUF also swaps the scalars inside every block. So a swap is a fixed
permutation of the bytes of one atom, and swapping twice restores them.

(gguf-py 0.19 writes big-endian files in which bf16 and block data stays little-endian. Such a file can't be
recognised.)
"""

from __future__ import annotations

from weighbridge.base.dtypes import DType
from weighbridge.base.errors import UnsupportedError


def swap_plan(dtype: DType) -> tuple[int, ...]:
    """For each byte of a swapped atom its place in the original. UnsupportedError if the order is undefined."""
    if any(f.scalar == "mixed" for f in dtype.fields) or not (dtype.plain or dtype.fields):
        raise UnsupportedError(f"the byte order of {dtype} data can't be changed", hint="get a little-endian file")
    plain = ((dtype.word, dtype.size // dtype.word),)
    plan: list[int] = []
    for word, count in [(f.itemsize, f.count) for f in dtype.fields] or plain:
        for _ in range(count):
            plan += range(len(plan) + word - 1, len(plan) - 1, -1)
    return tuple(plan)


def swap(dtype: DType, data: bytearray | memoryview) -> None:
    """Swaps whole atoms in place: one strided copy per pair of bytes that trade places."""
    for to, origin in enumerate(swap_plan(dtype)):
        if to < origin:
            data[to :: dtype.size], data[origin :: dtype.size] = (
                bytes(data[origin :: dtype.size]),
                bytes(data[to :: dtype.size]),
            )
