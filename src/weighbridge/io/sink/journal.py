"""The finished pieces of a resumable write: `TARGET.partial.journal`, in the folder of `TARGET.partial`.

The first line is the key in JSON: everything that determines the bytes. A record of 32 bytes follows for each finished
piece. It ends in a digest keyed by that line; reading stops at the first wrong digest, so torn or foreign records are
ignored. A record is written only after its piece's bytes are on the disk (`Sink.finished`).
"""

from __future__ import annotations

import json
import re
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from weighbridge.base.errors import RefusedError
from weighbridge.base.limits import MIB
from weighbridge.io.sink.files import InPlace

_FORM: Final = "weighbridge/journal/1"
_HEAD: Final = 16 * MIB  # the key names every source: far more than the largest set of shards needs
_RECORD: Final = struct.Struct("<QQII")  # offset, size, file, crc32
_SEAL: Final = 8  # bytes
# Records wait until their bytes are synced: a trade-off between repeated work after `kill -9` and disk flushes.
_WAIT_BYTES: Final = 256 * MIB
_WAIT_SECONDS: Final = 5.0

Write = Callable[[Path, bytes], None]


class Piece(NamedTuple):
    """A run of bytes of one file. `file`: its number in the order of creation."""

    file: int
    offset: int
    size: int


class FileRange(NamedTuple):
    """Bytes [start, end) of the file `file` of a target ("": the target itself)."""

    file: str
    start: int
    end: int

    def clip(self, offset: int, size: int) -> tuple[int, int]:
        """Returns the overlap with `size` bytes at `offset`, as offset and size; size 0 without an overlap."""
        start, end = max(offset, self.start), min(offset + size, self.end)
        return start, max(end - start, 0)


class Journal:
    """The finished pieces of the write staged at `stage`, each with its recorded crc32. Raises RefusedError if the
    stage belongs to a different write, unless `overwrite`, or if another process is writing it. `write` writes a small
    file atomically."""

    def __init__(self, stage: Path, key: Mapping[str, str], write: Write, *, overwrite: bool = False) -> None:
        self.stage, self.path = stage, stage.with_name(f"{stage.name}.journal")
        self._head = json.dumps({"form": _FORM, **key}).encode() + b"\n"
        self._waiting: list[tuple[Piece, int]] = []
        self._bytes, self._since = 0, time.monotonic()
        self.done: dict[Piece, int] = {}
        if not self.path.exists():
            if stage.exists() and not overwrite:
                raise _refused(stage, "has no journal, so it can't be resumed")
            write(self.path, self._head)
        self._out = InPlace(self.path)
        try:
            self._take(key, overwrite)
        except BaseException:
            self._out.close()
            raise

    def _take(self, key: Mapping[str, str], overwrite: bool) -> None:
        """Locks the journal and reads it; empties it if the write isn't resumed."""
        if not self._out.lock():
            raise RefusedError(f"{self.stage} is being written by another process", hint="wait for it to end")
        staged = self.stage.exists()
        with self.path.open("rb") as file:
            head = file.readline(_HEAD)
            if head == self._head and staged:
                self.done = dict(self._records(file))
        if head != self._head:
            if staged and not overwrite:
                raise _refused(self.stage, _differs(head, key))
            self._out.truncate(0)
            self._out.write(0, self._head)
        self._end = len(self._head) + len(self.done) * (_RECORD.size + _SEAL)
        self._out.truncate(self._end)

    def _seal(self, record: bytes) -> bytes:
        return blake2b(record, digest_size=_SEAL, key=blake2b(self._head).digest()).digest()

    def _records(self, file: BinaryIO) -> Iterator[tuple[Piece, int]]:
        seen = set()
        while len(record := file.read(_RECORD.size + _SEAL)) == _RECORD.size + _SEAL:
            fields, seal = record[: _RECORD.size], record[_RECORD.size :]
            offset, size, number, crc = _RECORD.unpack(fields)
            piece = Piece(number, offset, size)
            if self._seal(fields) != seal or piece in seen:
                return
            seen.add(piece)
            yield piece, crc

    def forget(self) -> None:
        """Marks everything as unfinished."""
        self.done.clear()
        self._end = len(self._head)
        self._out.truncate(self._end)

    def add(self, piece: Piece, crc: int) -> bool:
        """Note that a piece is written; true when it is time to sync the files and `write`."""
        self._waiting.append((piece, crc))
        self._bytes += piece.size
        return self._bytes >= _WAIT_BYTES or time.monotonic() - self._since >= _WAIT_SECONDS

    def drop(self) -> None:
        """Discards records that aren't written yet."""
        self._waiting.clear()

    @property
    def waiting(self) -> frozenset[int]:
        """The files that must be on the disk before `write`."""
        return frozenset(piece.file for piece, _ in self._waiting)

    def write(self) -> None:
        """Writes the pending records: their bytes are on the disk."""
        records = [_RECORD.pack(p.offset, p.size, p.file, crc) for p, crc in self._waiting]
        self._out.write(self._end, b"".join(r + self._seal(r) for r in records))
        self._end += len(records) * (_RECORD.size + _SEAL)
        self.done.update(self._waiting)
        self._waiting, self._bytes, self._since = [], 0, time.monotonic()

    def close(self, *, remove: bool) -> None:
        self._out.close()
        if remove:
            self.path.unlink(missing_ok=True)


_DIGEST: Final = re.compile("[0-9a-f]{32}")


def _refused(stage: Path, why: str) -> RefusedError:
    return RefusedError(
        f"{stage} {why}", option="--overwrite", hint=f"start again with --overwrite, or remove {stage.name} yourself"
    )


def _differs(head: bytes, key: Mapping[str, str]) -> str:
    """How the journal's key differs from ours."""
    try:
        found = json.loads(head)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.pop("form", None) != _FORM:
        return "has a journal with a different version"
    names = [name for name in {**key, **found} if key.get(name) != found.get(name)]
    values = [str(values.get(names[0], "none")) for values in (found, key)]
    words = "" if any(map(_DIGEST.fullmatch, values)) else f" (then {values[0]}, now {values[1]})"
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return f"belongs to a run with a different {', '.join([names[0] + words, *names[1:3]])}{more}"
