"""Collects the tensors that a reader of a framework's format finds, with the checks that all of them need."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from weighbridge.base.dtypes import BY_NAME, U8
from weighbridge.base.errors import FormatError, RefusedError, UnsupportedError
from weighbridge.base.limits import DECODED_TENSORS, DIMS, SIGNED_64
from weighbridge.base.spec import Shape, Spec
from weighbridge.containers.base import Entry, Finding, Index, Region, Rule, Severity
from weighbridge.containers.data_files import DataFile, check_name
from weighbridge.io.source import BytesSource, Source

#: Types that only some formats have, by their bits.
PACKED: Final[Mapping[str, int]] = MappingProxyType({"U4": 4, "I4": 4, "U3": 3, "U2": 2, "I2": 2, "U1": 1})
#: The rules that all these formats share.
RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "dtype": Rule(Severity.WARNING, "a tensor of a type that Weighbridge doesn't have is left out"),
        "packed": Rule(Severity.WARNING, "numbers of 4 bits or fewer, which are given as the bytes that hold them"),
        "texts": Rule(Severity.INFO, "a tensor of texts is left out"),
        "repeated-name": Rule(Severity.WARNING, "two tensors have one name; the second gets a number"),
    }
)


class TensorList:
    """The tensors of one file. `format`: the name of its format; `rules`: its rules."""

    def __init__(self, format: str, source: Source, rules: Mapping[str, Rule] = RULES) -> None:
        self.format, self.source, self.rules = format, source, rules
        self.entries: dict[str, Entry] = {}
        self.findings: list[Finding] = []
        self._files: list[Source] = [source]
        self._needed: dict[str, tuple[int, int]] = {}  # data file -> its number, and the bytes that tensors need
        self._orders: set[str] = set()
        self._memory, self._number, self._decoded = bytearray(), 0, 0

    def finding(self, rule: str, message: str, offset: int | None = None, tensor: str | None = None) -> None:
        name, severity = f"{self.format}/{rule}", self.rules[rule].severity
        self.findings.append(Finding(name, severity, message, self.source.name, offset, tensor))

    def error(self, reason: str, name: str, offset: int | None = None, **facts: Any) -> FormatError:
        """The error about a tensor."""
        return FormatError(reason, path=self.source.name, offset=offset, field=name[:80], **facts)

    def spec(self, name: str, dtype: str | None, shape: Sequence[int], kind: object, at: int | None) -> Spec | None:
        """The type and shape of a tensor. None, and a finding, if Weighbridge doesn't have the type, whose name
        in the file is `kind`."""
        if len(shape) > DIMS or any(not 0 <= n < SIGNED_64 for n in shape) or math.prod(shape) >= SIGNED_64:
            raise self.error("the shape is impossible", name, at, found=list(shape)[:8])
        if dtype is not None and dtype in PACKED:
            nbytes = -(-math.prod(shape) * PACKED[dtype] // 8)
            self.finding(
                "packed", f"{PACKED[dtype]}-bit numbers of shape {list(shape)}, given as {nbytes:,} bytes", at, name
            )
            return Spec((nbytes,), U8)
        row = BY_NAME.get(dtype or "")
        if row is None or math.prod(shape) % row.block:
            self.finding("dtype", f"left out: its type is {kind}, its shape {list(shape)}", at, name)
            return None
        return Spec(tuple(shape), row)

    def add(
        self, name: str, dtype: str | None, shape: Sequence[int], offset: int, nbytes: int, *, kind: object,
        file: str | None = None, at: int | None = None, number: int = 0,
        strides: tuple[int, ...] | None = None, swap: bool = False,
    ) -> None:  # fmt: skip
        """Adds a tensor whose bytes are in the file, or in the data file `file`, or in the source `number`. `at`: the
        offset of its description; `swap`: whether it is big-endian."""
        spec = self.spec(name, dtype, shape, kind, at)
        if spec is None:
            return
        if nbytes != spec.nbytes and strides is None:
            raise self.error(
                "the data has another size than the shape", name, at, expected=f"{spec.nbytes} bytes", found=nbytes
            )
        if spec.dtype.word > 1:
            self._orders.add(">" if swap else "<")
        if file is None:
            self._files[number].check(offset, nbytes)
        else:
            name_of_file = check_name(file, self.source.name, at)
            number, size = self._needed.get(name_of_file) or (self.add_source(DataFile(name_of_file, 0)), 0)
            self._needed[name_of_file] = number, max(size, offset + nbytes)
        self._insert(name, Entry("", spec.dtype, spec.shape, offset, nbytes, number, strides))

    def add_values(self, name: str, dtype: str, shape: Shape, values: bytes, at: int | None = None) -> None:
        """Adds a tensor with the bytes `values`, which were decoded from another form in the file."""
        spec = self.spec(name, dtype, shape, dtype, at)
        if spec is None:
            return
        if len(values) != spec.nbytes:
            raise self.error(
                "the data has another size than the shape", name, at, expected=spec.nbytes, found=len(values)
            )
        self._decoded += len(values)
        if self._decoded > DECODED_TENSORS:
            raise UnsupportedError(f"{self.source.name}: its tensors are written as numbers, too many to decode")
        if not self._number:
            self._number = self.add_source(BytesSource(b""))
        self._insert(name, Entry("", spec.dtype, spec.shape, len(self._memory), spec.nbytes, self._number))
        self._memory += values

    def add_source(self, source: Source) -> int:
        """Adds a source of tensors, such as a member of an archive; returns its number."""
        self._files.append(source)
        return len(self._files) - 1

    def index(self, metadata: Mapping[str, Any], version: int | None = None) -> Index:
        if len(self._orders) > 1:
            raise UnsupportedError(f"{self.source.name}: some tensors are big-endian and some little-endian",
                                   hint="write all of them in one byte order")  # fmt: skip
        byte_order = self._orders.pop() if self._orders else "<"
        files = list(self._files)
        for name, (number, size) in self._needed.items():
            files[number] = DataFile(name, size)
        if self._number:
            files[self._number] = BytesSource(bytes(self._memory), f"{self.source.name}::decoded")
        return Index(
            self.format, tuple(files), tuple(self.entries.values()), metadata, (0,) * len(files), 1, byte_order,
            version, tuple(self.findings),
        )  # fmt: skip

    def _insert(self, name: str, entry: Entry) -> None:
        chosen, count = name, 1
        while chosen in self.entries:
            count += 1
            chosen = f"{name}#{count}"
        if count > 1:
            self.finding("repeated-name", f"the name occurs again: the tensor is called {chosen}", entry.offset, name)
        self.entries[chosen] = Entry(
            chosen, entry.dtype, entry.shape, entry.offset, entry.nbytes, entry.file, entry.strides
        )


def framed(source: Source, parse: Callable[[Source], Index], frame: str, head: Iterable[Region] = ()) -> list[Region]:
    """Every byte of a file, named: the parts `head` at its start, the tensors, and between them the `frame`."""
    try:
        index = parse(source)
    except (FormatError, UnsupportedError, RefusedError):
        return [Region(0, source.size, "unknown")] if source.size else []
    entries = sorted((e for e in index if not e.file and e.nbytes), key=lambda e: (e.offset, e.nbytes))
    return tiled_whole(entries, source.size, frame, head)


def tiled_whole(entries: Iterable[Entry], size: int, frame: str, head: Iterable[Region] = ()) -> list[Region]:
    """Every byte of a file of `size` bytes, named: the parts `head`, the tensors in order, and around them the
    `frame`."""
    out = list(head)
    out += tiled(out[-1].end if out else 0, entries, frame)
    at = out[-1].end if out else 0
    return [*out, Region(at, size, "header", frame)] if at < size else out


def tiled(at: int, entries: Iterable[Entry], frame: str) -> Iterator[Region]:
    """The bytes from `at` to the end of the last tensor, named: `entries`, in order, and between them the `frame`."""
    for entry in entries:
        start, end = max(entry.offset, at), entry.offset + entry.nbytes  # tensors may share their bytes
        if start > at:
            yield Region(at, start, "header", frame)
        if end > start:
            yield Region(start, end, "tensor", entry.name, str(entry.spec))
        at = max(at, end)
