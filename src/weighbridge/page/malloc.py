"""The C library's allocator."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

_M_ARENA_MAX: Final = -8  # malloc.h of glibc


def share_one_arena() -> None:
    """Lets all threads allocate from one arena of glibc; has no effect with other C libraries. By default each thread
    keeps the memory that it freed: a server whose threads take turns with large answers would hold a third more memory
    than it uses."""
    import ctypes

    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def trim() -> None:
    """Returns glibc's free memory to the system; has no effect with other C libraries."""
    import ctypes

    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
