"""Which part of a file is in the page cache, reads ahead into it, and reads around it (Linux; elsewhere everything is
buffered)."""

from __future__ import annotations

import errno
import mmap
import os
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from typing import Final

from weighbridge.io.source import FileSource, pread_into, will_need

#: What direct reads align offset, length and memory to: enough for every file system that has them.
BLOCK: Final = 4096
_DIRECT: Final = getattr(os, "O_DIRECT", 0)


# A byte of mincore's -> 1 if the page is in memory; its other bits are reserved.
_RESIDENT: Final = bytes(byte & 1 for byte in range(256))


def resident_share(fd: int, size: int) -> float:
    """Returns the share of a file's pages that are in memory; 1.0 if the system can't determine it."""
    pages = _resident_pages(fd, size, [(0, size)]) if size else None
    return pages[0].count(1) / len(pages[0]) if pages else 1.0


def missing(fd: int, size: int, ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns the (offset, length) ranges whose first or last page isn't in memory; all if the system can't determine
    it. No page is read: a read with RWF_NOWAIT would start the system's read-ahead at each place, and a file cached in
    many small pages is mapped at half the speed."""
    ranges = list(ranges)
    ends = [(at, 1) for offset, length in ranges for at in (offset, offset + length - 1)]
    pages = _resident_pages(fd, size, ends) if size and ends else None
    if pages is None:
        return ranges
    out = [span for i, span in enumerate(ranges) if pages[2 * i] + pages[2 * i + 1] != b"\1\1"]
    # Linux reports every page of another user's file as resident.
    return out if out or _can_read_now(fd, ends[-1][0]) else ranges


def _resident_pages(fd: int, size: int, ranges: Iterable[tuple[int, int]]) -> list[bytes] | None:
    """For each range, a byte per page: 1 if it is in memory. None if the system can't determine it."""
    import ctypes

    try:
        mincore = ctypes.CDLL(None, use_errno=True).mincore
    except (OSError, AttributeError, TypeError):
        return None
    with mmap.mmap(fd, size, access=mmap.ACCESS_COPY) as mapping:  # writable, so that ctypes takes its address
        start = ctypes.c_char.from_buffer(mapping)
        found = [_resident(mincore, ctypes.addressof(start), *span) for span in ranges]
        del start  # the mapping can't be closed while its address is exported
    known = [pages for pages in found if pages is not None]
    return known if len(known) == len(found) else None


def _resident(mincore: Callable[..., int], address: int, offset: int, length: int) -> bytes | None:
    import ctypes

    skip = offset % mmap.PAGESIZE
    pages = ctypes.create_string_buffer(-(-(skip + length) // mmap.PAGESIZE))
    failed = mincore(ctypes.c_void_p(address + offset - skip), ctypes.c_size_t(skip + length), pages)
    return None if failed else pages.raw.translate(_RESIDENT)


def _can_read_now(fd: int, offset: int) -> bool:
    """Whether a byte can be read without waiting for the device; False if unknown."""
    try:
        return os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
    except (OSError, AttributeError):
        return False


@cache
def _madvise() -> Callable[..., int] | None:
    """Returns the system's `madvise` if it may support `_POPULATE_READ`."""
    if sys.platform != "linux":
        return None
    import ctypes

    try:
        found = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    found.argtypes = (ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int)
    return found


_POPULATE_READ: Final = 22  # MADV_POPULATE_READ of Linux 5.14


def populate(address: int, length: int) -> bool:
    """Reads bytes of a file mapping and maps their pages, so touching them doesn't fault. Returns False if the system
    doesn't support it or the file became shorter."""
    skip = address % mmap.PAGESIZE
    madvise = _madvise()
    return madvise is not None and madvise(address - skip, length + skip, _POPULATE_READ) == 0


#: Reads (offset, length) bytes ahead; returns False if it can't.
Fetch = Callable[[int, int], bool]

#: Bytes that a thread reads ahead at once, and the number of threads: of 1 to 4 threads and 4 to 128 MiB the fastest on
#: a virtual disk with a read-ahead of 8 MiB, and within 4 % of the fastest with one of 128 KiB.
_PIECE: Final = 8 << 20
_THREADS: Final = min(os.cpu_count() or 1, 2)


def read_ahead(source: FileSource, ranges: Iterable[tuple[int, int]], fetch: Fetch | None = None) -> None:
    """Starts reading (offset, length) ranges, in threads that `close` doesn't stop, and returns at once. Cached bytes
    are skipped. `fetch`: a faster way to read ahead, tried first."""
    fd = source.fileno()
    ends = [(start, start + length) for start, length in ranges]
    whole = ((at, min(_PIECE, end - at)) for start, end in ends for at in range(start, end, _PIECE))
    pieces = deque(missing(fd, source.size, whole))
    if pieces and hasattr(os, "posix_fadvise"):  # doubles the read-ahead: much faster if the system's is 128 KiB
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    for _ in range(min(_THREADS, len(pieces))):
        threading.Thread(target=_fetch_then_close, args=(os.dup(fd), pieces, fetch), daemon=True).start()


def _fetch_then_close(fd: int, pieces: deque[tuple[int, int]], fetch: Fetch | None) -> None:
    """Fetches (offset, length) pieces, or announces them to the system. Closes the descriptor."""
    try:
        while pieces:
            offset, length = pieces.popleft()
            if fetch is None or not fetch(offset, length):
                will_need(fd, [(offset, length)])
    except IndexError:  # another thread took the last one
        pass
    finally:
        os.close(fd)


def available_memory() -> int | None:
    """Bytes that programs can take without swapping: MemAvailable of Linux; None elsewhere."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            found = re.search(r"^MemAvailable:\s+(\d+) kB", file.read(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


class DirectReader:
    """Reads of one file into memory at multiples of `BLOCK`: around the page cache where most of the file isn't in it
    and the file system allows that, else through it."""

    def __init__(self, name: str, direct: bool | None = None) -> None:
        """`direct`: None decides by the share of resident pages."""
        self.name = name
        self._buffered = os.open(name, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        self.size = os.fstat(self._buffered).st_size
        wanted = resident_share(self._buffered, self.size) < 0.5 if direct is None else direct
        self._fd = -1
        if wanted and _DIRECT:
            with suppress(OSError):
                self._fd = os.open(name, os.O_RDONLY | _DIRECT | getattr(os, "O_CLOEXEC", 0))

    @property
    def direct(self) -> bool:
        return self._fd >= 0

    def read(self, offset: int, size: int, out: memoryview) -> int:
        """Reads `size` bytes at `offset` into `out`, which is aligned to `BLOCK` and has room for two more blocks.
        Returns their offset in `out`. Raises EOFError if the file ends earlier."""
        skip = offset % BLOCK if self.direct else 0
        first, need = offset - skip, skip + size
        length = -(-need // BLOCK) * BLOCK if self.direct else need
        done = 0
        while done < need:
            got = self._some(out[done:length], first + done)
            if not got:
                raise EOFError(f"{self.name} ends at {first + done}")
            done += got
        return skip

    def _some(self, out: memoryview, offset: int) -> int:
        if self.direct and offset % BLOCK == 0:
            try:
                return pread_into(self._fd, out, offset)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
        return pread_into(self._buffered, out, offset)

    def close(self) -> None:
        for fd in {self._fd, self._buffered}:
            if fd >= 0:
                os.close(fd)
        self._fd = self._buffered = -1
