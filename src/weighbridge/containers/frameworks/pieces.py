"""Tensors that a file stores in several pieces."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from weighbridge.io.source import FileSource, Source


class Pieces(Source):
    """Pieces of `parent`, each (offset, length), one after the other."""

    def __init__(self, parent: Source, pieces: Sequence[tuple[int, int]], name: str) -> None:
        for offset, length in pieces:
            parent.check(offset, length)
        self.parent, self.name, self.remote = parent, f"{parent.name}::{name}", parent.remote
        self._pieces = [piece for piece in pieces if piece[1]]
        self._starts = [0, *accumulate(length for _, length in self._pieces)]
        self.size = self._starts[-1]

    def _readinto(self, offset: int, out: memoryview) -> int:
        done = 0
        while done < len(out):
            at = bisect_right(self._starts, offset + done) - 1
            inside, (start, length) = offset + done - self._starts[at], self._pieces[at]
            size = min(length - inside, len(out) - done)
            self.parent.readinto(start + inside, out[done : done + size])
            done += size
        return done

    def location(self, offset: int) -> tuple[FileSource, int] | None:
        return None  # a run may go on in another place
