"""Reused scratch memory per thread: fresh pages from the system cost more than reading into them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

from weighbridge.base.limits import MIB
from weighbridge.tensors import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Bytes: TypeAlias = "NDArray[np.uint8]"

#: The most bytes that a thread keeps. Beyond it, memory is allocated and freed as usual.
_KEPT: Final = 16 * MIB
_LINE: Final = 64  # bytes: buffers begin at a cache line


class _Stack(threading.local):
    """The first `used` of the `size` bytes of `data` are borrowed. `peak`: the most bytes ever borrowed at once."""

    # of a thread that has borrowed nothing yet
    data: Bytes
    size = used = peak = 0


_stack = _Stack()


@contextmanager
def scratch_buffers(*sizes: int) -> Iterator[tuple[Bytes, ...]]:
    """Buffers of `sizes` bytes each, uninitialized. They, and views of them, are invalid after the block."""
    before = _stack.used
    try:
        yield tuple(map(_take, sizes))
    finally:
        _stack.used = before


def _take(size: int) -> Bytes:
    if not _stack.used and _stack.size < min(_stack.peak, _KEPT):
        kept = min(_stack.peak, _KEPT)
        whole = np.empty(kept + _LINE, np.uint8)
        skip = -whole.__array_interface__["data"][0] % _LINE
        _stack.data, _stack.size = whole[skip : skip + kept], kept
    at = _stack.used
    _stack.used += -(-size // _LINE) * _LINE
    _stack.peak = max(_stack.peak, _stack.used)
    return _stack.data[at : at + size] if size > 0 and at + size <= _stack.size else np.empty(size, np.uint8)
