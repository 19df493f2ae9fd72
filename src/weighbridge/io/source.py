"""Byte sources. Read-only, bounds-checked, safe to share between threads.

`run`, `verify` and the parsers read with `pread` through `FileSource`; only `wb.open` maps (`FileSource.map`), because
a file truncated under a mapping kills the process and mapped pages count as memory.
"""

from __future__ import annotations

import mmap
import os
import stat
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from weighbridge.base.closeable import Closing
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError


class Source(Closing, ABC):
    """`size` bytes that can be read in any order. `name` is used only in messages."""

    name: str
    size: int
    #: True if reading backwards starts over (a deflated zip member).
    sequential: bool = False
    #: True if each read may be a round trip, so reads should be announced (`advise`).
    remote: bool = False
    #: The program whose code of the bytes is decoded while they are read; "" if the file has them as they are.
    coder: str = ""
    #: True if it is a part of the file before it in an index.
    is_part: bool = False

    @property
    def fetched(self) -> int:
        """The bytes that came from a server so far."""
        return 0

    @property
    def stored(self) -> int:
        """The bytes that it takes on disk: fewer than `size` for a packed file."""
        return self.size

    @abstractmethod
    def _readinto(self, offset: int, out: memoryview) -> int:
        """Fills `out` from `offset` and returns the number of bytes read. Bounds are already checked."""

    def check(self, offset: int, length: int) -> None:
        """Raises FormatError unless the source has `length` bytes at `offset`."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise FormatError(
                "the file ends too early", path=self.name, offset=offset, expected=f"{length} bytes",
                found=f"{max(self.size - offset, 0)} of them",
            )  # fmt: skip

    def readinto(self, offset: int, out: memoryview) -> None:
        """Fills `out` with the bytes at `offset`. Raises FormatError if the source ends earlier."""
        self.check(offset, len(out))
        got = self._readinto(offset, out)
        if got != len(out):
            raise FormatError(
                "the file became shorter while it was read", path=self.name, offset=offset + got,
                hint="is it still being written or downloaded? try again when it is complete",
            )  # fmt: skip

    def read(self, offset: int, length: int) -> bytes:
        """Returns `length` bytes at `offset`; a length beyond the source's end is never allocated."""
        self.check(offset, length)
        out = bytearray(length)
        self.readinto(offset, memoryview(out))
        return bytes(out)

    def head(self, length: int) -> bytes:
        """The first `length` bytes, or all there are."""
        return self.read(0, min(length, self.size))

    def window(self, offset: int, size: int, name: str | None = None) -> Window:
        """A part of this source as a separate source (a zip member, a GGUF inside another file)."""
        return Window(self, offset, size, name)

    def location(self, offset: int) -> tuple[FileSource, int] | None:
        """The file, and the offset in it, of the byte at `offset`; None if no file contains it verbatim."""
        return None

    def advise(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Announce (offset, length) ranges that will be read. It may return before they are."""

    def stream(self, length: int) -> None:
        """Announce that the first `length` bytes, and perhaps more, will be read in their order."""

    def expect_header(self, end: int) -> None:
        """Announce that the header, of which `stream` announced the beginning, probably ends at `end`."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.size} bytes>"


class BytesSource(Source):
    """Bytes in memory."""

    def __init__(self, data: bytes | bytearray | memoryview, name: str = "<bytes>") -> None:
        self.data = memoryview(data).cast("B")
        self.name, self.size = name, len(self.data)

    def _readinto(self, offset: int, out: memoryview) -> int:
        out[:] = self.data[offset : offset + len(out)]
        return len(out)


class Window(Source):
    """`size` bytes of a parent source from `offset` on. Closing it leaves the parent open."""

    def __init__(self, parent: Source, offset: int, size: int, name: str | None = None) -> None:
        if offset < 0 or size < 0 or offset + size > parent.size:
            raise FormatError(
                "a part extends beyond the end of its file", path=parent.name, offset=offset,
                expected=f"at most {parent.size} bytes", found=f"end at {offset + size}",
            )  # fmt: skip
        self.parent, self.offset, self.size = parent, offset, size
        self.name = name or parent.name
        self.sequential, self.remote = parent.sequential, parent.remote

    @property
    def fetched(self) -> int:
        return self.parent.fetched

    def _readinto(self, offset: int, out: memoryview) -> int:
        return self.parent._readinto(self.offset + offset, out)

    def location(self, offset: int) -> tuple[FileSource, int] | None:
        return self.parent.location(self.offset + offset)

    def advise(self, ranges: Iterable[tuple[int, int]]) -> None:
        self.parent.advise((self.offset + start, length) for start, length in ranges)

    def expect_header(self, end: int) -> None:
        self.parent.expect_header(self.offset + end)


class DecodedChunk(Protocol):
    """Bytes [start, start + size) of a source that are decoded together."""

    @property
    def number(self) -> int: ...

    @property
    def start(self) -> int: ...

    @property
    def size(self) -> int: ...


AnyChunk = TypeVar("AnyChunk", bound=DecodedChunk)
_KEPT: Final = 16 << 20  # bytes of decoded chunks of a source: readers of slabs meet each chunk twice at most


class DecodedSource(Source, Generic[AnyChunk]):
    """Bytes that are decoded chunk by chunk, at any place. A few MiB of decoded chunks are kept."""

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size = name, size
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, memoryview] = OrderedDict()
        self._kept_bytes = 0

    @abstractmethod
    def chunks(self, start: int, end: int) -> Iterator[AnyChunk]:
        """The chunks with the bytes [start, end), in their order."""

    @abstractmethod
    def decode(self, chunk: AnyChunk, out: memoryview) -> None:
        """Fills `out` with a chunk. Raises FormatError if it is damaged."""

    def _readinto(self, offset: int, out: memoryview) -> int:
        end = offset + len(out)
        for chunk in self.chunks(offset, end):
            low, high = max(offset, chunk.start), min(end, chunk.start + chunk.size)
            target = out[low - offset : high - offset]
            with self._lock:
                data = self._kept.get(chunk.number)
            if data is None and len(target) == chunk.size:
                self.decode(chunk, target)
                continue
            if data is None:
                data = memoryview(bytearray(chunk.size))
                self.decode(chunk, data)
                self._keep(chunk.number, data)
            target[:] = data[low - chunk.start : high - chunk.start]
        return len(out)

    def _keep(self, number: int, data: memoryview) -> None:
        with self._lock:
            if number not in self._kept:
                self._kept_bytes += len(data)
            self._kept[number] = data
            while self._kept_bytes > _KEPT and len(self._kept) > 1:
                self._kept_bytes -= len(self._kept.popitem(last=False)[1])


class UnpackedSource(DecodedSource[AnyChunk]):
    """The decoded content of one source, `packed`."""

    def __init__(self, packed: Source, size: int) -> None:
        super().__init__(packed.name, size)
        self.packed, self.remote = packed, packed.remote

    @property
    def fetched(self) -> int:
        return self.packed.fetched


class FileSource(Source):
    """A regular file, read with `pread`; opened on construction, so a missing file fails here."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = os.fspath(path)
        fd = os.open(self.name, _READING)
        found = os.fstat(fd)
        mode = found.st_mode
        if not stat.S_ISREG(mode):
            os.close(fd)
            if stat.S_ISDIR(mode):
                raise IsADirectoryError(f"{self.name} is a folder, not a file")
            raise UnsupportedError(f"{self.name} is not a regular file", hint="copy it to a file first")
        if not found.st_size and _has_bytes(fd):
            os.close(fd)
            raise UnsupportedError(f"{self.name} has no size, and yet bytes", hint="copy it to a file first")
        self._fd, self.size = fd, found.st_size
        self._maps: dict[bool, memoryview] = {}
        self._lock = threading.Lock()

    @property
    def path(self) -> Path:
        return Path(self.name)

    def fileno(self) -> int:
        """The descriptor, for copies inside the kernel."""
        if self._fd < 0:
            raise UsageError(f"{self.name} is closed")
        return self._fd

    def _readinto(self, offset: int, out: memoryview) -> int:
        done, fd = 0, self.fileno()
        while done < len(out):  # one call moves at most 2 GiB on Linux, less on others
            got = pread_into(fd, out[done : done + (1 << 30)], offset + done)
            if got == 0:
                break
            done += got
        return done

    def head(self, length: int) -> bytes:
        if hasattr(os, "pread") and len(found := os.pread(self.fileno(), length, 0)) == min(length, self.size):
            return found
        return super().head(length)

    def location(self, offset: int) -> tuple[FileSource, int] | None:
        return self, offset

    def advise(self, ranges: Iterable[tuple[int, int]]) -> None:
        will_need(self.fileno(), ranges)

    def map(self, private: bool = False) -> memoryview:
        """The whole file as a view, which keeps the mapping alive after `close`. Read-only; a `private` view may be
        modified without changing the file (pages are copied when written)."""
        with self._lock:
            if private not in self._maps:
                access = mmap.ACCESS_COPY if private else mmap.ACCESS_READ
                mapping = mmap.mmap(self.fileno(), self.size, access=access) if self.size else b""
                self._maps[private] = memoryview(mapping)
            return self._maps[private]

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        self._maps = {}
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()


class ReopenedFile(Source):
    """A regular file that is open only while it is read: thousands of them exceed no limit of the system."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        with FileSource(path) as file:
            self.name, self.size = file.name, file.size

    def _readinto(self, offset: int, out: memoryview) -> int:
        with FileSource(self.name) as file:
            return file._readinto(offset, out)


def will_need(fd: int, ranges: Iterable[tuple[int, int]]) -> None:
    """Asks the system to read ranges of a file into the page cache, if it supports that."""
    if hasattr(os, "posix_fadvise"):
        for offset, length in ranges:
            os.posix_fadvise(fd, offset, length, os.POSIX_FADV_WILLNEED)


# O_NONBLOCK: opening a FIFO must not hang; it means nothing for a regular file.
_READING: Final = os.O_RDONLY | sum(getattr(os, flag, 0) for flag in ("O_BINARY", "O_CLOEXEC", "O_NONBLOCK"))


def _has_bytes(fd: int) -> bool:
    """Whether there is something to read in a file that states a size of 0, as those of Linux's /proc and /sys do."""
    try:
        return bool(os.read(fd, 1))
    except OSError:  # it isn't memory or a device that can be read from its start
        return True


if hasattr(os, "preadv"):

    def pread_into(fd: int, out: memoryview, offset: int) -> int:
        """Read into `out` at `offset` without moving the file's position; the number of bytes got."""
        return os.preadv(fd, [out], offset)

else:  # Windows has no pread: one lock guards seek + read
    _seek_lock = threading.Lock()

    def pread_into(fd: int, out: memoryview, offset: int) -> int:
        with _seek_lock:
            os.lseek(fd, offset, os.SEEK_SET)
            data = os.read(fd, len(out))
        out[: len(data)] = data
        return len(data)


class FlippedSource(Source):
    """`parent` with every run of `len(mask)` bytes combined with `mask` by exclusive or."""

    def __init__(self, parent: Source, mask: bytes, name: str | None = None) -> None:
        self.parent, self.mask, self.size = parent, mask, parent.size
        self.name = name or parent.name
        self.sequential = parent.sequential

    def _readinto(self, offset: int, out: memoryview) -> int:
        got = self.parent._readinto(offset, out)
        for i, bits in enumerate(self.mask):
            if bits:
                lane = slice((i - offset) % len(self.mask), got, len(self.mask))
                out[lane] = bytes(out[lane]).translate(bytes(b ^ bits for b in range(256)))
        return got
