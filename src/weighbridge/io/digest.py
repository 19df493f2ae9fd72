"""Digests of whole files, as those who list files give them: SHA-256, or git's id of a blob."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Final

from weighbridge.base.limits import MIB
from weighbridge.io.source import Source

GIT: Final = "git"
_CHUNK: Final = 4 * MIB


def git_hasher(size: int) -> Any:
    """SHA-1 over git's header of a blob, then its bytes."""
    return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)


def update(made: Any, source: Source, read: Callable[[int], object] | None = None) -> None:
    """Feed a hasher the whole source, read once. `read` is called with the bytes that have been."""
    buffer = memoryview(bytearray(min(_CHUNK, max(source.size, 1))))
    for at in range(0, source.size, _CHUNK):
        part = buffer[: min(_CHUNK, source.size - at)]
        source.readinto(at, part)
        made.update(part)
        if read is not None:
            read(at + len(part))


def digest_of(source: Source, algo: str, read: Callable[[int], object] | None = None) -> str:
    """The SHA-256 or git id of a source's bytes, in hex."""
    made = git_hasher(source.size) if algo == GIT else hashlib.sha256()
    update(made, source, read)
    return str(made.hexdigest())
