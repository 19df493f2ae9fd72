"""Turns a pickle's tensors into entries: each a window of the file, in place. A tensor that can't be located is a
finding, never an error: the others can."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from weighbridge.base.byteorder import swap
from weighbridge.base.dtypes import DType
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import EXPANDED, PICKLE_FINDINGS, PICKLE_INLINE, PICKLE_READING, PICKLE_REGIONS
from weighbridge.base.spec import Spec
from weighbridge.containers.base import CAPPED, Entry, Finding, Region, Severity
from weighbridge.io.flip import FlippedSource
from weighbridge.io.source import BytesSource, Source, Window
from weighbridge.unpickle.explain import explain
from weighbridge.unpickle.libraries.torch import Reading, Remark, SavedTensor, Storage
from weighbridge.unpickle.libraries.torch_types import InlineBytes
from weighbridge.unpickle.machine import Machine

_MOST: Final = 1 << 63  # bytes of one tensor


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
    """The sources of an index whose data is in `order`: the file itself, and data that isn't stored verbatim
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
        turned = kept.turned != (self.order == ">") and dtype.word > 1
        if isinstance(source, Source) and not kept.codec and not turned:
            while isinstance(source, Window):
                start, source = start + source.offset, source.parent
            known = [i for i, one in enumerate(self._sources[:1]) if one is source]
            return StoragePlace(known[0] if known else self._other(source), start, kept.size)
        key = (id(source), start, int(turned))
        if key not in self._kept:
            self._kept[key] = self._remember(_bytes_of(kept), dtype, turned)
        return self._kept[key]

    def _other(self, source: Source) -> int:
        found = next((i for i, one in enumerate(self._sources) if one is source), None)
        return self.add(source) if found is None else found

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
        """The place where the values are negated or conjugated: signs are bits."""
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
            place = find(storage) if storage.kept is None else files.hold(storage.kept, storage.dtype)
            if place.size != storage.nbytes:
                raise FormatError("its storage has another length", expected=storage.nbytes, found=place.size)
            if tensor.flags:
                place = files.flip(place, tensor.dtype, tensor.flags)
            entry = _entry(name, tensor, place)
            grown = max(entry.spec.nbytes - entry.nbytes, 0)
            if grown > left:
                capped.append(entry)
                remarks.append(Remark(CAPPED, _capped(entry), tensor.at, name))
                continue
            left -= grown
            entries.append(entry)
        except FormatError as error:
            remarks.append(Remark("pickle.left-out", f"{name} is left out: {error.message}", tensor.at, name))
    return TorchEntries(tuple(entries), tuple(_findings(remarks, path, shift)), tuple(capped))


def _capped(e: Entry) -> str:
    return (
        f"{e.name} is left out: {e.nbytes} bytes are expanded to {e.spec.nbytes}, and a file's tensors may grow by "
        f"{EXPANDED} in all unless expansion is allowed (--allow-expand)"
    )


def no_storage(storage: Storage) -> StoragePlace:
    """For files with nothing but the pickle."""
    raise FormatError(f"storage {storage.key[:40]!r} lies outside the pickle")


def _entry(name: str, t: SavedTensor, place: StoragePlace) -> Entry:
    offset = place.start + t.storage.start * t.storage.dtype.size + t.offset * t.dtype.size
    shape, strides = _logical(t)
    spec = Spec(shape, t.dtype)
    if spec.nbytes >= _MOST:
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
                raise FormatError(step.words)
            if len(out) == PICKLE_REGIONS:
                break
            out.append(Region(shift + step.at, shift + step.end, "opcode", step.op, step.words))
        if not machine.done:
            machine.run()
            words = f"only the first {PICKLE_REGIONS} are listed"
            out.append(Region(out[-1].end, shift + machine.end, "opcode", "opcodes", words))
    except (FormatError, UnsupportedError) as error:
        at = out[-1].end if out else shift + start
        rest = Region(at, shift + source.size, "unknown", "", str(error))
        return [*out, rest] if rest.end > at else out
    return out


def _logical(t: SavedTensor) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """The shape, and strides if the elements aren't in C order. A torch element of two 4-bit numbers counts as two."""
    dense = _dense(t.shape, t.strides)
    if t.dtype.block == 1:
        return t.shape, None if dense else t.strides
    if not dense or not t.shape:
        raise FormatError(f"{t.dtype} that does not lie in C order")
    return (*t.shape[:-1], t.shape[-1] * t.dtype.block), None


def _dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether the elements are in C order without gaps."""
    if 0 in shape:
        return True
    step = 1
    for n, s in zip(reversed(shape), reversed(strides), strict=True):
        if n != 1 and s != step:
            return False
        step *= n
    return True


def _findings(remarks: list[Remark], path: str, shift: int) -> Iterable[Finding]:
    """The problems as findings; of many of one kind the first, and their number."""
    seen: dict[str, int] = {}
    for r in remarks:
        seen[r.rule] = seen.get(r.rule, 0) + 1
        if seen[r.rule] <= PICKLE_FINDINGS:
            severity = Severity.INFO if r.harmless else Severity.WARNING
            yield Finding(r.rule, severity, r.words, path, shift + r.at, r.tensor)
    for rule, count in seen.items():
        if count > PICKLE_FINDINGS:
            yield Finding(rule, Severity.WARNING, f"and {count - PICKLE_FINDINGS} more of this kind", path)
