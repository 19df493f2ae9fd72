"""Opens checkpoints whose tensors are in parts, as the processes of a training run wrote them: the folders of
`torch.distributed.checkpoint` (`containers/torch/dcp.py`), and safetensors of its `HuggingFaceStorageWriter`.

    open_parts(place, sources)    the whole tensors, which are joined from their parts as they are read

Only `.metadata`, or the headers of the safetensors, is read on opening. An item of a data file is parsed when the first
tensor that needs it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import DIMS, PICKLE_FINDINGS, SLAB
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Shape, Spec, c_strides
from weighbridge.base.words import plural
from weighbridge.containers.base import Entry, Finding, Index
from weighbridge.containers.boxes import Box, BoxPart, Hole, Tile, overlap, tile
from weighbridge.containers.safetensors import container as safetensors
from weighbridge.containers.torch import dcp
from weighbridge.containers.torch import zip as torch_zip
from weighbridge.io.source import Source
from weighbridge.models.jsonfile import decode
from weighbridge.models.locate import Place
from weighbridge.models.stored_tensors import JoinedTensors

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import Node

#: The key in the metadata of safetensors with parts of tensors.
SHARDING: Final = "DCP_SHARDING_INFO"
_NO_SHAPES: Final = (
    "files with parts of tensors don't state the shapes of these: a missing last file would go unnoticed"
)


class ChunkBytes(NamedTuple):
    """The place of a chunk's elements: `nbytes` bytes of a source, in C order unless there are `strides`."""

    source: Source
    offset: int
    nbytes: int
    strides: tuple[int, ...] | None = None
    swap: bool = False


@dataclass(frozen=True)
class Chunked:
    """A whole tensor, the boxes of its chunks, and a function that finds a chunk's bytes by its number."""

    spec: Spec
    boxes: tuple[Box, ...]
    find: Callable[[int], ChunkBytes]

    def node(self) -> Node:
        """The tensor, joined from its chunks as it is read."""
        from weighbridge.tensors.nodes import Const

        if not self.spec.elements:
            return Const(self.spec, b"")
        places: dict[int, ChunkBytes] = {}

        def build(part: BoxPart) -> Node:
            if part.number not in places:
                places[part.number] = self.find(part.number)
            return self._piece(part, places[part.number])

        return node_of_tile(tile(self.spec.shape, self.boxes), build)

    def same(self, first: int, second: int, region: Box) -> bool:
        """Whether two chunks store the same bytes for a region that both have."""
        starts = {n: [a - b for a, b in zip(region.starts, self.boxes[n].starts, strict=True)] for n in (first, second)}
        a, b = (self._piece(BoxPart(n, tuple(at), region.shape), self.find(n)) for n, at in starts.items())
        step = max(SLAB // max(a.spec.row_bytes, 1), 1)
        runs = ((lo, min(lo + step, a.spec.rows)) for lo in range(0, a.spec.rows, step))
        return all(a.read(lo, hi).tobytes() == b.read(lo, hi).tobytes() for lo, hi in runs)

    def _piece(self, piece: BoxPart, data: ChunkBytes) -> Node:
        from weighbridge.tensors.nodes import Stored, strided

        box, dtype = self.boxes[piece.number], self.spec.dtype
        if piece.shape == box.shape and data.strides is None:
            return Stored(Spec(piece.shape, dtype), data.source, data.offset, data.swap)
        if dtype.block > 1:
            raise UnsupportedError(f"chunks of {dtype} that overlap, or aren't in C order")
        flat = Stored(Spec((data.nbytes // dtype.size,), dtype), data.source, data.offset, data.swap)
        strides = c_strides(box.shape) if data.strides is None else data.strides
        start = sum(a * s for a, s in zip(piece.starts, strides, strict=True))
        return strided(flat, start, piece.shape, strides)


def node_of_tile(part: Tile, build: Callable[[BoxPart], Node]) -> Node:
    """A tensor from the parts of boxes that cover it. `build`: the node of a part."""
    from weighbridge.tensors.nodes import concat

    if isinstance(part, BoxPart):
        return build(part)
    return concat([node_of_tile(inner, build) for inner in part.parts], part.axis)


def open_parts(place: Place, sources: Sequence[Source]) -> tuple[Place, Index, JoinedTensors[Chunked]]:
    """The index of files with parts of tensors, and the whole tensors; the place with notes. `sources`: those of
    `place.weights`. FormatError if the parts don't cover their tensors, or a file is too short."""
    if place.chunks is not None:
        index, tensors = open_chunks(place.chunks, sources)
        notes = [f"{f.tensor}: {f.message}" if f.tensor else f.message for f in index.findings]
    else:
        index, tensors = join_shards([safetensors.parse(source) for source in sources])
        notes = [_NO_SHAPES]
    return replace(place, chunks=None, notes=(*place.notes, *notes)), index, tensors


# ---- .metadata and .distcp --------------------------------------------------------------------------------------


def open_chunks(metadata: dcp.DcpMetadata, sources: Sequence[Source]) -> tuple[Index, JoinedTensors[Chunked]]:
    """The index of the whole tensors, and these. `sources`: `.metadata` and the data files."""
    numbers = {Path(source.name).name: number for number, source in enumerate(sources)}
    for item in metadata.items:
        source = sources[numbers[item.file]]
        if item.offset + item.length > source.size:
            raise FormatError(
                "the file ends before an item that .metadata lists", path=source.name, offset=item.offset,
                expected=f"{item.length} bytes", found=f"{max(source.size - item.offset, 0)} of them",
                hint="copy it again, or use another step: wb verify lists everything that is damaged",
            )  # fmt: skip
    tensors = {name: chunked(name, t, lambda file: sources[numbers[file]]) for name, t in metadata.tensors.items()}
    return declared(metadata, sources, metadata.findings), JoinedTensors(tensors, Chunked.node)


def declared(metadata: dcp.DcpMetadata, sources: Sequence[Source], findings: tuple[Finding, ...]) -> Index:
    """The whole tensors that `.metadata` lists, each at the item of its first chunk. `sources`: `.metadata`, and the
    data files that exist."""
    numbers = {Path(source.name).name: number for number, source in enumerate(sources)}
    entries: list[Entry] = []
    for name, tensor in metadata.tensors.items():
        first = tensor.chunks[0].item if tensor.chunks else dcp.DcpItem("", 0, 0)
        entries.append(_entry(name, tensor.spec, numbers.get(first.file, 0), first.offset))
    plain = {name: f"a pickled object of {item.length} bytes" for name, item in metadata.objects.items()}
    starts = (0,) * len(sources)
    return dcp.DcpIndex(
        dcp.NAME, tuple(sources), tuple(entries), plain, starts, findings=findings, paths=metadata.paths
    )


def chunked(name: str, tensor: dcp.ChunkedTensor, file: Callable[[str], Source]) -> Chunked:
    """A tensor of a distributed checkpoint. `file`: the data file of a name."""

    def find(number: int) -> ChunkBytes:
        chunk = tensor.chunks[number]
        return find_chunk(name, tensor, chunk, file(chunk.item.file))

    return Chunked(tensor.spec, tuple(chunk.box for chunk in tensor.chunks), find)


def find_chunk(name: str, tensor: dcp.ChunkedTensor, chunk: dcp.Chunk, source: Source) -> ChunkBytes:
    """The bytes of a chunk in its item. FormatError if the item isn't that of the chunk."""
    item = source.window(chunk.item.offset, chunk.item.length, f"{source.name}::{name}")
    index = torch_zip.parse(item)
    dcp.check_chunk(index, chunk, tensor.dtype, source.name, name)
    entry = index.entries[0]
    return ChunkBytes(index.files[entry.file], entry.offset, entry.nbytes, entry.strides, index.byte_order == ">")


def _entry(name: str, spec: Spec, file: int, offset: int) -> Entry:
    return Entry(name, spec.dtype, spec.shape, offset, spec.nbytes, file)


# ---- safetensors with parts of tensors --------------------------------------------------------------------------


def join_shards(indexes: Sequence[Index]) -> tuple[Index, JoinedTensors[Chunked]]:
    """The whole tensors of files with parts of them. A tensor ends where its last part does: the files don't state
    shapes."""
    parts_of: dict[str, list[tuple[Box, int, Entry]]] = {}
    for number, index in enumerate(indexes):
        path = index.files[0].name
        if SHARDING not in index.metadata:
            raise FormatError("a file named like one with parts of tensors doesn't state their places", path=path,
                              field=SHARDING)  # fmt: skip
        saved: dict[str, Any] = decode(str(index.metadata[SHARDING]).encode(), f"{path} ({SHARDING})", dict[str, Any])
        for entry in index:
            parts_of.setdefault(entry.name, []).append((_box(entry, saved.get(entry.name), path), number, entry))
    files = tuple(source for index in indexes for source in index.files)
    tensors: dict[str, Chunked] = {}
    entries: list[Entry] = []
    for name, parts in parts_of.items():
        first = parts[0][2]
        path = files[parts[-1][1]].name
        if len({(len(e.shape), e.dtype) for _, _, e in parts}) > 1:
            raise FormatError("the parts of a tensor have different types or dimensions", path=path, field=name)
        shape = tuple(max(box.end(axis) for box, _, _ in parts) for axis in range(len(first.shape)))
        spec = Spec(shape, first.dtype)
        kept = [part for part in parts if part[0].elements]
        _check_covered(shape, [box for box, _, _ in kept], path, name)
        tensors[name] = Chunked(spec, tuple(box for box, _, _ in kept), _stored_at(kept, files))
        entries.append(_entry(name, spec, parts[0][1], first.offset))
    metadata = {k: v for k, v in indexes[0].metadata.items() if k not in (SHARDING, "DCP_VERSION")}
    starts = tuple(start for index in indexes for start in index.data_start)
    joined = replace(indexes[0], files=files, entries=tuple(entries), metadata=metadata, data_start=starts)
    return joined, JoinedTensors(tensors, Chunked.node)


def _stored_at(parts: Sequence[tuple[Box, int, Entry]], files: Sequence[Source]) -> Callable[[int], ChunkBytes]:
    def find(number: int) -> ChunkBytes:
        _, file, entry = parts[number]
        return ChunkBytes(files[file], entry.offset, entry.nbytes)

    return find


def _box(entry: Entry, saved: Any, path: str) -> Box:
    starts = saved.get("saved_offsets") if isinstance(saved, dict) else None
    good = isinstance(starts, list) and len(starts) == len(entry.shape) <= DIMS
    if not good or not all(type(n) is int and 0 <= n < 1 << 63 for n in starts or ()):
        raise FormatError("a part of a tensor without its place", path=path, field=entry.name, found=repr(starts)[:80])
    return Box(tuple(starts or ()), entry.shape)


def _check_covered(shape: Shape, boxes: Sequence[Box], path: str, name: str) -> None:
    if 0 in shape:
        return
    try:
        tile(shape, boxes)
    except Hole as hole:
        raise FormatError(f"no file has {hole}", path=path, field=name, hint="a process's file is missing") from None
    if double := overlap(shape, boxes):
        raise FormatError(f"{plural(double, 'element')} of a tensor are in several files", path=path, field=name)


# ---- verifying --------------------------------------------------------------------------------------------------


def chunk_index(metadata: dcp.DcpMetadata, name: str, source: Source) -> tuple[Index, tuple[Finding, ...]]:
    """The chunks in the data file called `name` as tensors, and the problems of its items. Reads the header of each
    item."""
    entries: list[Entry] = []
    files: list[Source] = [source]
    findings: list[Finding] = []

    def note(rule: str, message: str, offset: int | None, tensor: str) -> None:
        findings.append(Finding(f"{dcp.NAME}/{rule}", dcp.RULES[rule].severity, message, source.name, offset, tensor))

    for tensor, chunk in metadata.by_file.get(name, ()):
        item = chunk if isinstance(chunk, dcp.DcpItem) else chunk.item
        if item.offset + item.length > source.size:
            note("cut-off", f"the file ends before byte {item.offset + item.length}", item.offset, tensor)
            continue
        if isinstance(chunk, dcp.DcpItem):
            continue
        whole = metadata.tensors[tensor]
        try:
            place = find_chunk(tensor, whole, chunk, source)
        except (FormatError, UnsupportedError) as error:
            note("item", error.reason if isinstance(error, FormatError) else error.message, item.offset, tensor)
            continue
        located = place.source.location(place.offset)
        if located is None:
            files.append(place.source)
        number, offset = (len(files) - 1, place.offset) if located is None else (0, located[1])
        title = tensor if len(whole.chunks) == 1 else f"{tensor} at {list(chunk.box.starts)}"
        entries.append(Entry(title, whole.dtype, chunk.box.shape, offset, place.nbytes, number, place.strides))
    index = Index(dcp.DATA, tuple(files), tuple(entries), data_start=(0,) * len(files), findings=tuple(findings))
    return index, tuple(findings[:PICKLE_FINDINGS])


def different_copies(chunked_tensor: Chunked) -> Box | None:
    """The first region that two chunks store with different bytes."""
    boxes = chunked_tensor.boxes
    if not overlap(chunked_tensor.spec.shape, boxes):
        return None
    order = sorted(range(len(boxes)), key=lambda n: boxes[n].starts)
    for position, first in enumerate(order):
        for second in order[position + 1 :]:
            if boxes[first].shape and boxes[second].starts[0] >= boxes[first].end(0):
                break
            common = boxes[first].common(boxes[second])
            if common.elements and not chunked_tensor.same(first, second, common):
                return common
    return None
