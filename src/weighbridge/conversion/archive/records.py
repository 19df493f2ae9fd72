"""The records of a file that is packed: which bytes are whose tensor's, and how their words are stored."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from weighbridge.base.dtypes import DType
from weighbridge.base.errors import RefusedError, UnsupportedError, UsageError
from weighbridge.base.limits import SNIFF_HEAD
from weighbridge.base.spec import Shape
from weighbridge.containers.formats import PACKED_KEY
from weighbridge.containers.opening import parse
from weighbridge.containers.safetensors.layout import METADATA
from weighbridge.containers.wbpack.archive import CHUNK, OVERHEAD, UNNAMED
from weighbridge.containers.wbpack.codec import Words, pack_chunk, words_of
from weighbridge.io.location import walk
from weighbridge.io.source import Source, Window
from weighbridge.models.locate import Place
from weighbridge.models.model import open_weights

# A lone surrogate, which no JSON holds.
_LONE: Final = re.compile("[\ud800-\udfff]")
#: Fewer bytes between two tensors (padding) are stored with the first one.
_PADDING: Final = 4096
#: A delta of at most this share of the chunk is taken without trying the other way.
_GOOD: Final = 0.5


class StoredTensor(NamedTuple):
    """The bytes of a tensor in a file."""

    name: str
    dtype: DType
    shape: Shape
    start: int
    end: int


class BasePlace(NamedTuple):
    """The bytes of a tensor in file `number` of a base."""

    number: int
    place: StoredTensor


class PlannedRecord(NamedTuple):
    """Bytes [start, end) of a file that are stored under `name`. `base`: the number of the base's file that has as many
    bytes from `base_offset` on; None without a delta."""

    name: str
    start: int
    end: int
    dtype: DType | None
    base: int | None = None
    base_offset: int = 0

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def chunks(self) -> int:
        return -(-self.size // CHUNK)

    @property
    def most(self) -> int:
        """Bytes that it can take, packed."""
        return self.size + OVERHEAD * self.chunks


def places_of(source: Source) -> tuple[StoredTensor, ...]:
    """The tensors whose bytes a file holds unchanged; none if Weighbridge doesn't read it."""
    try:
        index = parse(source)
    except (UnsupportedError, RefusedError):
        return ()
    tensors = []
    for entry in index.whole():
        part, start = index.files[entry.file], entry.offset
        while isinstance(part, Window) and part is not source:
            start, part = part.offset + start, part.parent
        if part is source:
            tensors.append(StoredTensor(entry.name, entry.dtype, entry.shape, start, start + entry.nbytes))
    return tuple(tensors)


def data_places(place: Place) -> dict[Path, tuple[StoredTensor, ...]]:
    """The tensors in each data file that the header of a model in a folder names, as ONNX's external data."""
    with open_weights(place.path) as model:
        stored: dict[str, list[StoredTensor]] = {}
        for entry in model.index:
            tensor = StoredTensor(entry.name, entry.dtype, entry.shape, entry.offset, entry.offset + entry.nbytes)
            stored.setdefault(model.index.files[entry.file].name, []).append(tensor)
        return {path: tuple(stored.get(str(path), ())) for path in model.place.data}


def files_of(src: Path) -> list[Path]:
    """The files of a folder, or the file itself."""
    return sorted(base / name for base, _, names in walk(src) for name in names) if src.is_dir() else [src]


def planned_records(
    size: int, places: Sequence[StoredTensor], base: Mapping[str, BasePlace], base_sizes: Sequence[int]
) -> tuple[PlannedRecord, ...]:
    """The records of a file of `size` bytes, which cover it; deltas to tensors of the
    base with the same name, type and shape. Of tensors that share bytes, the first one counts."""
    starts = sorted((p for p in places if p.start < p.end <= size), key=lambda p: (p.start, -p.end))
    kept: list[StoredTensor] = []
    for place in starts:
        if not kept or place.start >= kept[-1].end:
            kept.append(place)
    records: list[PlannedRecord] = []
    names: set[str] = {METADATA}

    def add(name: str, start: int, end: int, place: StoredTensor | None) -> None:
        if name in names or not name or name.startswith(PACKED_KEY) or _LONE.search(name):
            name = f"{UNNAMED}{len(records)}"
        names.add(name)
        record = PlannedRecord(name, start, end, place and place.dtype)
        if place is not None and (old := base.get(place.name)) is not None:
            is_same = (old.place.dtype, old.place.shape) == (place.dtype, place.shape)
            if is_same and old.place.start + record.size <= base_sizes[old.number]:
                record = record._replace(base=old.number, base_offset=old.place.start)
        records.append(record)

    if size and (not kept or kept[0].start):
        add(UNNAMED, 0, kept[0].start if kept else size, None)
    ends = [*(place.start for place in kept[1:]), size]
    for place, end in zip(kept, ends, strict=False):
        if end - place.end < _PADDING:
            add(place.name, place.start, end, place)
        else:
            add(place.name, place.start, place.end, place)
            add(UNNAMED, place.end, end, None)
    return tuple(piece for record in records for piece in _readable_head(record, names))


def _readable_head(record: PlannedRecord, names: Container[str]) -> Iterator[PlannedRecord]:
    """The record, without a delta in the file's first bytes: its format and header are read without the base."""
    cut = record.start + -(-(SNIFF_HEAD - record.start) // 8) * 8  # whole words
    if record.base is None or cut <= record.start:
        yield record
        return
    alone = record._replace(base=None, base_offset=0)
    tail = f"{UNNAMED}{record.name}"
    if cut >= record.end or tail in names:
        yield alone
        return
    yield alone._replace(end=cut)
    yield record._replace(name=tail, start=cut, base_offset=record.base_offset + cut - record.start)


def base_places(sources: Sequence[Source]) -> Mapping[str, BasePlace]:
    """The tensors of a base's files by name. UsageError if it has none."""
    tensors = {p.name: BasePlace(number, p) for number, source in enumerate(sources) for p in places_of(source)}
    if not tensors:
        raise UsageError("the base has no tensors that are stored as they are", hint="unpack or unzip it first")
    return tensors


def pack_best(dtype: DType | None, data: memoryview, base: memoryview | None) -> memoryview:
    """The smaller packed form of a chunk: without its base or as a delta."""
    alone, delta = words_of(dtype)
    best = None if base is None else _packed(delta, data, base)
    if best is None or len(best) > _GOOD * len(data):
        plain = _packed(alone, data, memoryview(b""))
        best = plain if best is None or len(plain) < len(best) else best
    return best


def _packed(words: Words, data: memoryview, base: memoryview) -> memoryview:
    out = memoryview(bytearray(len(data) + OVERHEAD))
    return out[: pack_chunk(words, data, base, out)]
