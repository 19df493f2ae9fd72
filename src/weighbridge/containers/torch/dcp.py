"""PyTorch's distributed checkpoints (`torch.distributed.checkpoint`): a folder that several processes write together.

    .metadata        a pickle: of each tensor its type, shape and chunks; of each chunk its file, offset and length
    __0_0.distcp     items one after the other, each a file of torch.save: a chunk of a tensor, or a pickled object
    __1_0.distcp     those of the next process ...

Here `.metadata` is read: an abstract machine runs the pickle, which is never unpickled. `models/distributed` joins the
chunks. Reference: torch/distributed/checkpoint (metadata.py, filesystem.py, default_planner.py) of torch 2.13; the
classes of older versions have the same fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from weighbridge.base import gc_pause
from weighbridge.base.dtypes import DType
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import PICKLE_DEPTH, PICKLE_FINDINGS, PICKLE_READING, SHARDS, SIGNED_64
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Shape, Spec
from weighbridge.base.words import plural
from weighbridge.containers.base import Finding, Index, Region, Rule, Severity
from weighbridge.containers.boxes import Box, Hole, overlap, tile
from weighbridge.containers.formats import DISTRIBUTED, DISTRIBUTED_DATA
from weighbridge.containers.sharded import is_plain_name, raise_first
from weighbridge.containers.torch.entries import pickle_regions
from weighbridge.io.source import Source
from weighbridge.unpickle.libraries.torch_calls import NAMES
from weighbridge.unpickle.libraries.torch_types import DTYPES, counts, text
from weighbridge.unpickle.machine import Machine
from weighbridge.unpickle.values import Dict, Global, Object, UnexpectedOpcode, preview

NAME, DATA = DISTRIBUTED, DISTRIBUTED_DATA
#: The file that lists everything, and the suffix of the files with the items.
METADATA: Final = ".metadata"
SUFFIX: Final = ".distcp"
_E, _W = Severity.ERROR, Severity.WARNING

RULES: Final = MappingProxyType(
    {
        "name": Rule(_E, "a data file's name that isn't a plain name, and could lead out of the folder"),
        "no-item": Rule(_E, "a chunk of a tensor that no item stores"),
        "outside": Rule(_E, "a chunk that reaches outside its tensor"),
        "hole": Rule(_E, "elements of a tensor that no chunk covers"),
        "same-bytes": Rule(_E, "two items share bytes of a data file"),
        "overlap": Rule(_W, "elements that several chunks store; the first chunk counts"),
        "encoded": Rule(_E, "items that were compressed or encrypted by an extension: their tensor is left out"),
        "dtype": Rule(_W, "a tensor of a type that can't be read is left out"),
        "cut-off": Rule(_E, "an item that reaches beyond the end of its data file"),
        "item": Rule(
            _E, "an item that isn't the chunk that `.metadata` lists: no file of torch.save, or another tensor"
        ),
        "no-tensor": Rule(_W, "an item that belongs to no tensor and no object of the checkpoint"),
        "unknown-name": Rule(_W, "a name in `.metadata` that torch doesn't write there; it isn't imported"),
    }
)

#: The modules of the classes: today's, and those of torch before 2.2.
HERE: Final = "torch.distributed.checkpoint.metadata"
_MODULES: Final = (HERE, "torch.distributed._shard.sharded_tensor.metadata", "torch.distributed._shard.metadata")
FILESYSTEM: Final = "torch.distributed.checkpoint.filesystem"
#: Class -> its fields, in the order of its arguments.
CLASSES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "Metadata": ("state_dict_metadata", "planner_data", "storage_data", "storage_meta", "version"),
        "TensorStorageMetadata": ("properties", "size", "chunks"),
        "BytesStorageMetadata": (),
        "ChunkStorageMetadata": ("offsets", "sizes"),
        "MetadataIndex": ("fqn", "offset", "index"),
        "TensorProperties": ("dtype", "layout", "requires_grad", "memory_format", "pin_memory"),
        "StorageMeta": ("checkpoint_id", "save_id", "load_id", "modules"),
        "_StorageInfo": ("relative_path", "offset", "length", "transform_descriptors"),
    }
)
#: The names that torch writes besides types and layouts.
WRITTEN: Final = frozenset(
    {*((module, name) for name in CLASSES if name != "_StorageInfo" for module in _MODULES),
     (FILESYSTEM, "_StorageInfo"), *((m, n) for m in _MODULES for n in ("_MEM_FORMAT_ENCODING", "MEM_FORMAT_ENCODING")),
     *((m, n) for m in ("pathlib", "pathlib._local") for n in ("PosixPath", "WindowsPath"))}
)  # fmt: skip
_FORMATS: Final = frozenset(("torch", f"{n}_format") for n in ("contiguous", "preserve")) | {("torch", "channels_last")}


class DcpItem(NamedTuple):
    """`length` bytes of a data file from `offset` on: a file of torch.save."""

    file: str
    offset: int
    length: int


class Chunk(NamedTuple):
    """A part of a tensor, and the item that stores it."""

    box: Box
    item: DcpItem


class ChunkedTensor(NamedTuple):
    dtype: DType
    shape: Shape
    chunks: tuple[Chunk, ...]

    @property
    def spec(self) -> Spec:
        return Spec(self.shape, self.dtype)


@dataclass(frozen=True)
class DcpMetadata:
    """The content of a `.metadata`. `objects`: items that are pickled objects. `paths`: of a tensor or object, the keys
    that lead to it in the saved dict, if they are known."""

    path: str
    tensors: Mapping[str, ChunkedTensor]
    objects: Mapping[str, DcpItem]
    paths: Mapping[str, tuple[str | int, ...]]
    version: str = ""
    save_id: str = ""
    findings: tuple[Finding, ...] = field(default=())

    @cached_property
    def by_file(self) -> Mapping[str, Sequence[tuple[str, Chunk | DcpItem]]]:
        """The chunks and objects in each data file, by its name, each with the name of its tensor or its own."""
        out: dict[str, list[tuple[str, Chunk | DcpItem]]] = {}
        for name, tensor in self.tensors.items():
            for chunk in tensor.chunks:
                out.setdefault(chunk.item.file, []).append((name, chunk))
        for name, item in self.objects.items():
            out.setdefault(item.file, []).append((name, item))
        return dict(sorted(out.items()))

    @property
    def items(self) -> Iterator[DcpItem]:
        for stored in self.by_file.values():
            yield from (part if isinstance(part, DcpItem) else part.item for _, part in stored)

    @property
    def files(self) -> tuple[str, ...]:
        """The names of the data files, in their order."""
        return tuple(self.by_file)


@dataclass(frozen=True)
class DcpIndex(Index):
    """The whole tensors of a folder. `paths`: those of its `.metadata`; the keys of `metadata` are its objects."""

    paths: Mapping[str, tuple[str | int, ...]] = field(default_factory=dict)


# ---- a format's functions ---------------------------------------------------------------------------------------


def parse(source: Source) -> Index:
    """An index without entries, because the tensors are in other files. FormatError if `.metadata` is inconsistent."""
    metadata = read(source)
    return Index(NAME, (source,), (), _facts(metadata), findings=metadata.findings)


def examine(source: Source) -> tuple[Index, tuple[Finding, ...]]:
    """As `parse`, with every problem."""
    metadata = inspect(source)
    return Index(NAME, (source,), (), _facts(metadata), findings=metadata.findings), metadata.findings


def _facts(metadata: DcpMetadata) -> dict[str, Any]:
    return {
        "tensors": len(metadata.tensors), "objects": len(metadata.objects), "files": len(metadata.files),
        "version": metadata.version, "save_id": metadata.save_id,
    }  # fmt: skip


def pickles(source: Source) -> list[tuple[str, Source, int]]:
    return [(METADATA, source, 0)]


def regions(source: Source) -> list[Region]:
    """Every opcode, and the bytes after them."""
    if not source.size:
        return []
    out = pickle_regions(source, 0)
    return out if out[-1].end == source.size else [*out, Region(out[-1].end, source.size, "unknown")]


# ---- .metadata --------------------------------------------------------------------------------------------------


def read(source: Source) -> DcpMetadata:
    """The content of a `.metadata`. FormatError for the first problem that makes a tensor unreadable."""
    metadata = inspect(source)
    raise_first(metadata.findings)
    return metadata


@gc_pause.paused()
def inspect(source: Source, memory: int = PICKLE_READING) -> DcpMetadata:
    """As `read`, with every problem as a finding; tensors with a problem are left out. FormatError if nothing can be
    read, UnsupportedError if it takes more than `memory`."""
    machine = Machine(source, budget=memory)
    value = machine.run()
    if machine.end < source.size:
        raise FormatError("bytes follow the pickle", path=source.name, offset=machine.end)
    try:
        return _Reader(source.name).read(value, machine)
    except UnexpectedOpcode as odd:
        raise FormatError(f"not the metadata of a distributed checkpoint: {odd}", path=source.name) from None


class _Reader:
    def __init__(self, path: str) -> None:
        self.path = path
        self.notes: dict[str, list[Finding]] = {}
        self.budget = 0  # of chunks

    def note(self, rule: str, message: str, tensor: str | None = None, hint: str | None = None) -> None:
        finding = Finding(f"{NAME}/{rule}", RULES[rule].severity, message, self.path, None, tensor, hint)
        self.notes.setdefault(rule, []).append(finding)

    def findings(self) -> tuple[Finding, ...]:
        """The first findings of each rule, and the number of others."""
        out: list[Finding] = []
        for findings in self.notes.values():
            out += findings[:PICKLE_FINDINGS]
            if len(findings) > PICKLE_FINDINGS:
                more = f"and {len(findings) - PICKLE_FINDINGS} more of this kind"
                out.append(replace(findings[0], message=more, tensor=None))
        return tuple(out)

    def read(self, value: Any, machine: Machine) -> DcpMetadata:
        top = _fields(value, "Metadata")
        self.budget = 8 * machine.steps + 1024  # a pickle may repeat its parts endlessly
        written = {*WRITTEN, *NAMES, *_FORMATS}
        imports = (event.what for event in machine.events if event.kind == "import")
        for name in dict.fromkeys(str(what) for what in imports if what.path not in written):
            self.note("unknown-name", f"{name:.200} is named, and not imported")
        items = self.items(top.get("storage_data"))
        tensors: dict[str, ChunkedTensor] = {}
        objects: dict[str, DcpItem] = {}
        listed: set[str] = set()
        for key, entry in _pairs(top.get("state_dict_metadata"), "state_dict_metadata"):
            name = text(key, "a name")
            listed.add(name)
            stored = items.get(name, {})
            if _class(entry) == "BytesStorageMetadata":
                if None not in stored:
                    self.note("no-item", "the object is in no item", name)
                elif (item := stored[None]) is not None:
                    objects[name] = item
            elif (tensor := self.tensor(name, _fields(entry, "TensorStorageMetadata"), stored)) is not None:
                tensors[name] = tensor
        for name in items.keys() - listed:
            self.note("no-tensor", f"an item of {preview(name)}, which the checkpoint doesn't list")
        meta = top.get("storage_meta")
        save_id = _fields(meta, "StorageMeta").get("save_id") if meta is not None else None
        version = top.get("version")
        metadata = DcpMetadata(
            self.path, tensors, objects, self.paths(top.get("planner_data"), listed),
            version if isinstance(version, str) else "", save_id if isinstance(save_id, str) else "",
        )  # fmt: skip
        self.check_items(metadata)
        return replace(metadata, findings=self.findings())

    def items(self, value: Any) -> dict[str, dict[tuple[int, ...] | None, DcpItem | None]]:
        """The items by name and offset; None for one that can't be read."""
        out: dict[str, dict[tuple[int, ...] | None, DcpItem | None]] = {}
        for key, entry in _pairs(value, "storage_data"):
            index, info = _fields(key, "MetadataIndex"), _fields(entry, "_StorageInfo")
            name, offset = text(index.get("fqn"), "a name"), index.get("offset")
            place = None if offset is None else counts(offset, "an offset")
            (start,) = counts((info.get("offset"),), "an item's offset")
            (length,) = counts((info.get("length"),), "an item's length")
            file = text(info.get("relative_path"), "a file's name")
            item: DcpItem | None = DcpItem(file, start, length)
            if info.get("transform_descriptors"):
                self.note("encoded", f"its items were encoded by {preview(info['transform_descriptors'])}", name,
                          "save the checkpoint without extensions")  # fmt: skip
                item = None
            elif not is_plain_name(file):
                self.note("name", f"a data file is called {file!r:.100}", name,
                          "data files must be in the folder of .metadata")  # fmt: skip
                item = None
            out.setdefault(name, {})[place] = item
        return out

    def tensor(
        self, name: str, entry: Mapping[str, Any], stored: Mapping[tuple[int, ...] | None, DcpItem | None]
    ) -> ChunkedTensor | None:
        kind = _fields(entry.get("properties"), "TensorProperties").get("dtype")
        dtype = DTYPES.get(kind.name) if isinstance(kind, Global) and kind.module == "torch" else None
        shape = counts(entry.get("size"), "a tensor's shape")
        if dtype is not None and Spec(shape, dtype).nbytes >= SIGNED_64:
            raise UnexpectedOpcode(f"{name[:100]!r} has too many elements")
        if dtype is None or (dtype.block > 1 and not shape):
            self.note("dtype", f"it is left out: its type is {preview(kind)}", name)
            return None
        chunks: list[Chunk] = []
        listed = _items(entry.get("chunks"), "chunks")
        self.budget -= len(listed)
        if self.budget < 0:
            raise UnexpectedOpcode("tensors repeat their chunks endlessly")
        for part in listed:
            fields = _fields(part, "ChunkStorageMetadata")
            starts, sizes = counts(fields.get("offsets"), "a chunk's offset"), counts(fields.get("sizes"), "its shape")
            if len(starts) != len(shape) or len(sizes) != len(shape):
                raise UnexpectedOpcode(f"a chunk of {name[:100]!r} has another number of dimensions")
            if 0 in sizes:  # of a process that stores nothing of this tensor
                continue
            if any(a + n > size for a, n, size in zip(starts, sizes, shape, strict=True)):
                self.note("outside", f"a chunk {list(sizes)} at {list(starts)} isn't inside {list(shape)}", name)
                return None
            if starts not in stored:
                self.note("no-item", f"its chunk {list(sizes)} at {list(starts)} is in no item", name,
                          "the save was interrupted, or .metadata belongs to another step")  # fmt: skip
                return None
            if (item := stored[starts]) is None:
                return None
            chunks.append(Chunk(Box(starts, sizes), item))
        tensor = ChunkedTensor(dtype, shape, tuple(chunks))
        return _widened(tensor) if self.covered(name, tensor) else None

    def covered(self, name: str, tensor: ChunkedTensor) -> bool:
        """Whether the chunks cover the tensor; notes a hole or an overlap."""
        if 0 in tensor.shape:
            return True
        boxes = [chunk.box for chunk in tensor.chunks]
        try:
            tile(tensor.shape, boxes)
        except Hole as hole:
            self.note("hole", f"no chunk covers its {hole}", name, "a process didn't save its part")
            return False
        if double := overlap(tensor.shape, boxes):
            message = f"{plural(double, 'element')} are stored more than once; the first chunk counts"
            self.note("overlap", message, name, "wb verify --values compares the copies")
        return True

    def check_items(self, metadata: DcpMetadata) -> None:
        """Items must not share bytes."""
        names = [
            (item, name) for name, t in metadata.tensors.items() for item in dict.fromkeys(c.item for c in t.chunks)
        ]
        names += [(item, name) for name, item in metadata.objects.items()]
        for (a, first), (b, second) in pairwise(sorted(names)):
            if a.file == b.file and b.offset < a.offset + a.length:
                self.note(
                    "same-bytes", f"an item at byte {b.offset} of {b.file} is inside one of {first!r:.100}", second
                )
        if len(metadata.files) > SHARDS:
            raise FormatError("too many data files", path=self.path, expected=f"<= {SHARDS}")

    def paths(self, value: Any, listed: set[str]) -> dict[str, tuple[str | int, ...]]:
        """The keys that lead to each tensor, as the default planner stores them; {} by another planner."""
        out: dict[str, tuple[str | int, ...]] = {}
        for key, path in value.pairs if isinstance(value, Dict) else ():
            good = (
                isinstance(path, tuple | list)
                and len(path) <= PICKLE_DEPTH
                and all(isinstance(k, str | int) for k in path)
            )
            if isinstance(key, str) and key in listed and good and path:
                out[key] = tuple(path)
        return out


def _widened(tensor: ChunkedTensor) -> ChunkedTensor:
    """The tensor with a type of several numbers in each of torch's elements (two 4-bit ones) counted in numbers."""
    block = tensor.dtype.block
    if block == 1:
        return tensor

    def wide(values: tuple[int, ...]) -> tuple[int, ...]:
        return (*values[:-1], values[-1] * block)

    chunks = tuple(Chunk(Box(wide(c.box.starts), wide(c.box.shape)), c.item) for c in tensor.chunks)
    return ChunkedTensor(tensor.dtype, wide(tensor.shape), chunks)


# ---- values of the machine --------------------------------------------------------------------------------------


def _class(value: Any) -> str:
    """The name of the class of an object that torch writes in `.metadata`; "" for anything else."""
    if isinstance(value, Object) and isinstance(value.callee, Global) and value.callee.path in WRITTEN:
        return value.callee.name
    return ""


def _fields(value: Any, name: str) -> dict[str, Any]:
    """The fields of an object: the arguments of its call, then those that its states set."""
    if _class(value) != name:
        raise UnexpectedOpcode(f"{preview(value)} isn't a {name}")
    if not isinstance(value.args, tuple) or len(value.args) > len(CLASSES[name]) or value.kwargs is not None:
        raise UnexpectedOpcode(f"a {name} has other arguments")
    fields = dict(zip(CLASSES[name], value.args, strict=False))
    for state in value.states:
        parts = state if isinstance(state, tuple) else (state,)
        if name == "TensorProperties" and len(parts) == len(CLASSES[name]):
            fields |= zip(CLASSES[name], parts, strict=True)
            continue
        for part in parts:
            if isinstance(part, Dict):
                fields |= {key: stored for key, stored in part.pairs if isinstance(key, str)}
            elif part is not None:
                raise UnexpectedOpcode(f"the state of a {name} is {preview(part)}")
    return fields


def _pairs(value: Any, name: str) -> Sequence[tuple[Any, Any]]:
    if not isinstance(value, Dict):
        raise UnexpectedOpcode(f"{name} is {preview(value)}")
    return value.pairs


def _items(value: Any, name: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise UnexpectedOpcode(f"{name} are {preview(value)}")
    return value


# ---- .distcp ----------------------------------------------------------------------------------------------------


def check_chunk(index: Index, chunk: Chunk, dtype: DType, path: str, name: str) -> None:
    """Checks that an item, whose index this is, stores one tensor of a chunk's type and shape. FormatError otherwise;
    UnsupportedError for a tensor that isn't plain, such as a quantized one."""
    expected = Spec(chunk.box.shape, dtype)
    stored = [str(entry.spec) for entry in index]
    if not stored and index.findings:
        raise UnsupportedError(f"{path}: {name} isn't a plain tensor: {index.findings[0].message}",
                               hint="convert it to plain tensors before it is saved")  # fmt: skip
    if len(stored) != 1 or index.entries[0].spec != expected:
        shown = ", ".join(stored[:3]) if stored else "no tensor"
        raise FormatError("an item doesn't store the chunk that .metadata lists", path=path, offset=chunk.item.offset,
                          field=name, expected=str(expected), found=shown)  # fmt: skip
