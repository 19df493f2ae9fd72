"""Turns a pickle's tensors into entries: each a window of the file, in place. A tensor that can't be located is a
finding, never an error: the others can."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from weighbridge.base.dtypes import DType, swap
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import EXPANDED, PICKLE_FINDINGS, PICKLE_INLINE, PICKLE_READING, PICKLE_REGIONS, SIGNED_64
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec, in_c_order
from weighbridge.containers.base import CAPPED, Entry, Finding, Index, Region, Severity
from weighbridge.io.source import BytesSource, FlippedSource, Source, Window
from weighbridge.unpickle.explain import explain
from weighbridge.unpickle.libraries.torch import Reading, Remark, SavedTensor, Storage
from weighbridge.unpickle.libraries.torch_types import InlineBytes
from weighbridge.unpickle.machine import Machine


class StoragePlace(NamedTuple):
    """The place of a storage: `size` bytes from `start` in file number `file`."""

    file: int
    start: int
    size: int


@dataclass(frozen=True)
class TorchEntries:
    entries: tuple[Entry, ...]
    findings: tuple[Finding, ...]
    capped: tuple[Entry, ...] = ()


class SourceList:
    """The sources of an index whose data has the byte order `order`: the file, and data that isn't stored verbatim
    (deflated members, arrays written as text, negated tensors)."""

    def __init__(self, source: Source, order: str = "<") -> None:
        self.order = order
        self._sources: list[Source] = [source]
        self._memory: list[bytes] = []
        self._kept: dict[tuple[int, int, int], StoragePlace] = {}
        self._flipped: dict[tuple[StoragePlace, str, tuple[str, ...]], StoragePlace] = {}
        self._size = 0
        self._number: int | None = None  # of data in memory

    def add(self, source: Source) -> int:
        self._sources.append(source)
        return len(self._sources) - 1

    def all(self) -> tuple[Source, ...]:
        if self._number is not None:
            self._sources[self._number] = BytesSource(b"".join(self._memory), f"{self._sources[0].name}::arrays")
        return tuple(self._sources)

    def hold(self, kept: InlineBytes, dtype: DType) -> StoragePlace:
        """The place of bytes inside the pickle."""
        start, source = kept.start, kept.data
        turned = kept.big_endian != (self.order == ">") and dtype.word > 1
        if isinstance(source, Source) and not kept.codec and not turned:
            while isinstance(source, Window):
                start, source = start + source.offset, source.parent
            number = next((i for i, listed in enumerate(self._sources) if listed is source), None)
            return StoragePlace(self.add(source) if number is None else number, start, kept.size)
        key = (id(source), start, int(turned))
        if key not in self._kept:
            self._kept[key] = self._remember(_bytes_of(kept), dtype, turned)
        return self._kept[key]

    def _remember(self, data: bytes, dtype: DType, turned: bool) -> StoragePlace:
        if self._number is None:
            self._number = self.add(BytesSource(b""))
        if self._size + len(data) > PICKLE_INLINE:
            raise FormatError("arrays that must be decoded to be read take too much memory",
                              expected=f"<= {PICKLE_INLINE} bytes")  # fmt: skip
        if turned:
            if len(data) % dtype.size:
                raise FormatError("its bytes aren't a whole number of elements", found=len(data))
            swapped = bytearray(data)
            swap(dtype, swapped)
            data = bytes(swapped)
        self._memory.append(data)
        self._size += len(data)
        return StoragePlace(self._number, self._size - len(data), len(data))

    def flip(self, place: StoragePlace, dtype: DType, flags: tuple[str, ...]) -> StoragePlace:
        """A place with the values negated or conjugated: their signs are bits."""
        key = (place, dtype.name, flags)
        if key not in self._flipped:
            word = dtype.word
            sign = b"\x80" + bytes(word - 1) if self.order == ">" else bytes(word - 1) + b"\x80"
            parts = dtype.size // word
            signs = [("neg" in flags) != ("conj" in flags and i == 1) for i in range(parts)]
            mask = b"".join(sign if on else bytes(word) for on in signs)
            parent = self._sources[place.file].window(place.start, place.size)
            self._flipped[key] = StoragePlace(self.add(FlippedSource(parent, mask)), 0, place.size)
        return self._flipped[key]


def _bytes_of(kept: InlineBytes) -> bytes:
    data = kept.data
    if isinstance(data, bytes):
        return data[kept.start : kept.start + kept.size]
    if kept.size > 2 * PICKLE_INLINE:
        raise FormatError("an array that must be decoded takes too much memory", found=f"{kept.size} bytes")
    raw = data.read(kept.start, kept.size)
    try:
        return raw.decode().encode("latin-1") if kept.codec == "utf-8" else raw
    except UnicodeError:
        raise FormatError("an array's text doesn't encode bytes", path=data.name, offset=kept.start) from None


def entries_of(
    reading: Reading, find: Callable[[Storage], StoragePlace], files: SourceList, path: str, shift: int
) -> TorchEntries:
    """`find` locates a storage, or raises FormatError; `shift`: the offset of the pickle in the file."""
    entries: list[Entry] = []
    capped: list[Entry] = []
    remarks = list(reading.remarks)
    left = EXPANDED
    for name, tensor in reading.tensors.items():
        storage = tensor.storage
        try:
            place = find(storage) if storage.inline is None else files.hold(storage.inline, storage.dtype)
            if place.size != storage.nbytes:
                raise FormatError("its storage has another length", expected=storage.nbytes, found=place.size)
            if tensor.flags:
                place = files.flip(place, tensor.dtype, tensor.flags)
            entry = _entry(name, tensor, place)
            grown = max(entry.spec.nbytes - entry.nbytes, 0)
            if grown > left:
                capped.append(entry)
                message = (
                    f"{name} is left out: {entry.nbytes} bytes are expanded to {entry.spec.nbytes}, and a file's "
                    f"tensors may grow by {EXPANDED} in all unless expansion is allowed (--allow-expand)"
                )
                remarks.append(Remark(CAPPED, message, tensor.at, name))
                continue
            left -= grown
            entries.append(entry)
        except FormatError as error:
            remarks.append(Remark("pickle.left-out", f"{name} is left out: {error.message}", tensor.at, name))
    return TorchEntries(tuple(entries), tuple(_findings(remarks, path, shift)), tuple(capped))


def index_of(
    name: str, reading: Reading, find: Callable[[Storage], StoragePlace], files: SourceList, path: str, shift: int,
    data_start: int = 0,
) -> Index:  # fmt: skip
    """The index of a file with one reading; the data of its first source begins at `data_start`."""
    part = entries_of(reading, find, files, path, shift)
    sources = files.all()
    starts = (data_start, *(0 for _ in sources[1:]))
    return Index(name, sources, part.entries, reading.plain, starts, findings=part.findings, capped=part.capped)


def no_storage(storage: Storage) -> StoragePlace:
    """For files with nothing but the pickle."""
    raise FormatError(f"storage {storage.key[:40]!r} isn't in the pickle")


def _entry(name: str, t: SavedTensor, place: StoragePlace) -> Entry:
    offset = place.start + t.storage.start * t.storage.dtype.size + t.offset * t.dtype.size
    shape, strides = t.shape, None if in_c_order(t.shape, t.strides) else t.strides
    if t.dtype.block > 1:  # a torch element of two 4-bit numbers counts as two
        if strides or not shape:
            raise FormatError(f"{t.dtype} that isn't in C order")
        shape = (*shape[:-1], shape[-1] * t.dtype.block)
    spec = Spec(shape, t.dtype)
    if spec.nbytes >= SIGNED_64:
        raise FormatError("it has too many elements", found=list(shape))
    if spec.elements == 0:
        return Entry(name, t.dtype, shape, place.start, 0, place.file)
    if strides is None:
        return Entry(name, t.dtype, shape, offset, spec.nbytes, place.file)
    reach = (1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))) * t.dtype.size
    return Entry(name, t.dtype, shape, offset, reach, place.file, strides)


def pickle_regions(source: Source, start: int, shift: int = 0) -> list[Region]:
    """The bytes of the pickle that begins at `start`, opcode by opcode with its effect; unknown to the end of the
    source if it is broken. `shift`: the source's offset in the file."""
    out: list[Region] = []
    machine = Machine(source, start, PICKLE_READING)
    try:
        for step in explain(machine):
            if step.broken:
                raise FormatError(step.effect)
            if len(out) == PICKLE_REGIONS:
                break
            out.append(Region(shift + step.at, shift + step.end, "opcode", step.op, step.effect))
        if not machine.done:
            machine.run()
            note = f"only the first {PICKLE_REGIONS} are listed"
            out.append(Region(out[-1].end, shift + machine.end, "opcode", "opcodes", note))
    except (FormatError, UnsupportedError) as error:
        at, end = out[-1].end if out else shift + start, shift + source.size
        out += [Region(at, end, "unknown", "", str(error))] if end > at else []
    return out


def _findings(remarks: list[Remark], path: str, shift: int) -> Iterable[Finding]:
    """The problems as findings: the first of each kind, and the number of further ones."""
    seen: dict[str, int] = {}
    for r in remarks:
        seen[r.rule] = seen.get(r.rule, 0) + 1
        if seen[r.rule] <= PICKLE_FINDINGS:
            severity = Severity.INFO if r.harmless else Severity.WARNING
            yield Finding(r.rule, severity, r.text, path, shift + r.at, r.tensor)
    for rule, count in seen.items():
        if count > PICKLE_FINDINGS:
            yield Finding(rule, Severity.WARNING, f"and {count - PICKLE_FINDINGS} more of this kind", path)
