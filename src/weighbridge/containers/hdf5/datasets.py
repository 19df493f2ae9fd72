"""Dependencies of a dataset: data in other files, and filters that the loading system's libraries provide."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Final

from weighbridge.base.errors import UnsupportedError
from weighbridge.containers.hdf5.headers import EXTERNAL, FILTERS, LAYOUT, Message
from weighbridge.containers.hdf5.heaps import GlobalHeap, LocalHeap
from weighbridge.containers.hdf5.structure import Hdf5

COMPACT, CONTIGUOUS, CHUNKED, VIRTUAL = 0, 1, 2, 3
_OWN: Final = range(1, 7)  # filters that HDF5 includes
#: Filters registered with the HDF Group that h5py, PyTables and hdf5plugin include.
KNOWN: Final = MappingProxyType(
    {305: "lzo", 307: "bzip2", 32000: "lzf", 32001: "blosc", 32004: "lz4", 32008: "bitshuffle", 32013: "zfp",
     32015: "zstd", 32017: "sz", 32018: "fcidecomp", 32024: "sz3", 32026: "blosc2", 32028: "sperr"}
)  # fmt: skip
_SAME: Final = "."  # a virtual dataset in the same file


def pipeline(message: Message) -> list[int]:
    """The filters of a dataset's chunks, in the order in which they were applied."""
    if message.shared:
        raise UnsupportedError("the filters of a dataset are shared between objects")
    f = message.body
    version, count = f.numbers(1, 1)
    f.take(6 if version == 1 else 0)
    numbers = []
    for _ in range(count):
        number = f.number(2)
        name = f.number(2) if version == 1 or number >= 256 else 0
        _, values = f.numbers(2, 2)
        f.take(min(-(-name // 8) * 8 if version == 1 else name, f.left))
        f.take(min(4 * values + (4 if version == 1 and values % 2 else 0), f.left))
        numbers.append(number)
    return numbers


def filters(message: Message) -> list[int]:
    """The filters of a dataset that HDF5 doesn't include."""
    return [number for number in pipeline(message) if number not in _OWN] if message.kind == FILTERS else []


def files(file: Hdf5, heap: GlobalHeap, message: Message) -> Iterator[str]:
    """The files that hold a dataset's data."""
    f = message.body
    if message.kind == EXTERNAL:
        f.take(4)
        _, used = f.numbers(2, 2)
        address = f.address()
        if address is not None:
            names = LocalHeap(file, address)
            for _ in range(used):
                yield names.text(f.length())
                f.take(2 * f.lengths)
    elif message.kind == LAYOUT:
        version, kind = f.numbers(1, 1)
        if version < 4 or kind != VIRTUAL:
            return
        address, index = f.address(), f.number(4)
        mapping = heap.get(address, index) if address is not None else None
        if mapping is None:
            return
        f = file.fields(*mapping)
        version, count = f.number(1), f.length()
        if not count:
            return
        # Further source files follow selections, which aren't read.
        first = f.text() if version == 0 else ""
        if first != _SAME or count > 1:
            yield first if first and first != _SAME else "its source files"


def stored(file: Hdf5, message: Message) -> tuple[int, int] | None:
    """The address and size of a dataset's data if they are contiguous."""
    f = message.body
    if message.kind != LAYOUT or f.number(1) < 3:
        return None
    kind = f.number(1)
    if kind == COMPACT:
        size = f.number(2)
        return f.at + f.place - file.base, min(size, f.left)
    if kind == CONTIGUOUS:
        address, size = f.address(), f.length()
        return None if address is None else (address, size)
    return None
