"""The C library's allocator."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

_M_ARENA_MAX: Final = -8  # malloc.h of glibc


def share_one_arena() -> None:
    """Let all threads of the process allocate from one arena, where the C library is glibc; without effect elsewhere.
    By default each thread keeps what it freed for itself: a server whose threads take turns with large answers would
    hold a third more memory than it uses."""
    import ctypes

    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def trim() -> None:
    """Give the system back what is free of the memory that the C library has taken. As above, of glibc alone."""
    import ctypes

    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
