"""The containers that a plan can write, one function each: named nodes in, planned files out.

Names, types and order are decided before. These functions only assign offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import Any, Final

from weighbridge.base.dtypes import U8
from weighbridge.base.errors import UnsupportedError
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.containers import by_target, writable
from weighbridge.containers.base import Layout, Slot
from weighbridge.containers.formats import GRAPHS
from weighbridge.containers.ggml import whisper
from weighbridge.containers.gguf import container as gguf
from weighbridge.containers.safetensors import container as safetensors
from weighbridge.conversion.options import GgufFileOptions, SafetensorsOptions, ShardOptions, TargetOptions
from weighbridge.conversion.plan.contents import PlannedFile
from weighbridge.conversion.plan.losses.shared_storage import share
from weighbridge.io.source import Source
from weighbridge.tensors.nodes import Node, Stored, swap_bytes

Tensors = Mapping[str, Node]


@dataclass(frozen=True)
class Written:
    """The files of a target, and small extra files (an index).

    `storages`: the storage of each tensor, in a format whose tensors can share one.
    """

    files: tuple[PlannedFile, ...]
    texts: Mapping[str, bytes]
    notes: tuple[str, ...] = ()
    storages: Mapping[str, str] = field(default_factory=dict)


def specs(tensors: Tensors) -> list[tuple[str, Spec]]:
    return [(name, node.spec) for name, node in tensors.items()]


def planned(name: str, layout: Layout, tensors: Tensors) -> PlannedFile:
    """A file with the node of each slot, in the layout's order."""
    return PlannedFile(name, layout, tuple(tensors[s.name] for s in layout.slots))


def raw(name: str, source: Source) -> PlannedFile:
    """A file that is copied verbatim."""
    spec = Spec((source.size,), U8)
    return PlannedFile(name, Layout("raw", (), (Slot(name, spec, 0),), source.size), (Stored(spec, source, 0),))


def write_safetensors(stem: str, tensors: Tensors, metadata: Mapping[str, Any], options: TargetOptions) -> Written:
    """Plans one file, or a numbered set and its index if the options bound the size of a file."""
    meta = {k: v if isinstance(v, str) else str(v) for k, v in metadata.items()}
    align = (options.align if isinstance(options, SafetensorsOptions) else None) or 4096

    def layout(names: Sequence[str]) -> Layout:
        return safetensors.layout([(n, tensors[n].spec) for n in names], meta, align=align)

    if not (isinstance(options, ShardOptions) and options.sharded):
        file = planned(f"{stem}.safetensors", layout(list(tensors)), tensors)
        return Written((file,), {}, file.layout.notes)
    from weighbridge.containers import sharded

    parts = sharded.partition(specs(tensors), options.max_shard_size, options.max_shard_tensors)
    names = sharded.shard_names(len(parts), stem) if len(parts) > 1 else [f"{stem}.safetensors"]
    files = tuple(planned(name, layout(part), tensors) for name, part in zip(names, parts, strict=True))
    notes = tuple(f"{f.name}: {line}" for f in files for line in f.layout.notes)
    if len(parts) == 1:
        return Written(files, {}, notes)
    file_of = {tensor: name for name, part in zip(names, parts, strict=True) for tensor in part}
    total = sum(node.spec.nbytes for node in tensors.values())
    return Written(files, {f"{stem}.safetensors.index.json": sharded.index_json(file_of, total)}, notes)


def write_gguf(stem: str, tensors: Tensors, metadata: Mapping[str, Any], options: TargetOptions) -> Written:
    """Plans one file, or a set with the names and keys of llama-gguf-split."""
    big = isinstance(options, GgufFileOptions) and options.endian == "big"
    order = ">" if big else "<"
    tensors = swapped(tensors) if big else tensors
    if not (isinstance(options, ShardOptions) and options.sharded):
        layout = gguf.layout(specs(tensors), metadata, order=order)
        return Written((planned(f"{stem}.gguf", layout, tensors),), {}, layout.notes)
    layouts = gguf.split_layouts(
        specs(tensors), metadata, max_tensors=options.max_shard_tensors, max_bytes=options.max_shard_size, order=order
    )
    names = [gguf.shard_name(stem, i, len(layouts)) for i in range(len(layouts))]
    files = tuple(planned(name, layout, tensors) for name, layout in zip(names, layouts, strict=True))
    return Written(files, {}, tuple(f"{f.name}: {line}" for f in files for line in f.layout.notes))


def swapped(tensors: Tensors) -> dict[str, Node]:
    """The tensors in the other byte order. Raises UnsupportedError for a type that can't be swapped."""
    nodes = {}
    for name, node in tensors.items():
        try:
            nodes[name] = swap_bytes(node)
        except UnsupportedError as error:
            hint = "--dtype f16, or keep the file little-endian"
            raise UnsupportedError(f"{name}: {error.message}", hint=hint) from None
    return nodes


def write_torch(stem: str, tensors: Tensors, metadata: Mapping[str, Any], options: TargetOptions) -> Written:
    """Plans a state dict, or a numbered set with an index as on the Hub. Tensors that share bytes keep sharing them."""
    from weighbridge.containers import sharded
    from weighbridge.containers.torch import write as torch_write

    shared = share(tensors)
    storage_of = {name: view.storage for name, view in shared.views.items()}

    def layout(names: Sequence[str]) -> Layout:
        storages = set(names)
        views = {name: view for name, view in shared.views.items() if view.storage in storages}
        return torch_write.layout([(n, shared.storages[n].spec) for n in names], metadata, views=views)

    if not (isinstance(options, ShardOptions) and options.sharded):
        file = planned(f"{stem}.bin", layout(list(shared.storages)), shared.storages)
        return Written((file,), {}, file.layout.notes, storage_of)
    parts = sharded.partition(specs(shared.storages), options.max_shard_size, options.max_shard_tensors)
    names = sharded.shard_names(len(parts), stem, ".bin")
    files = tuple(planned(n, layout(part), shared.storages) for n, part in zip(names, parts, strict=True))
    file_of = {storage: name for name, part in zip(names, parts, strict=True) for storage in part}
    index = {name: file_of[storage] for name, storage in storage_of.items()}
    total = sum(node.spec.nbytes for node in shared.storages.values())
    texts = {f"{stem}.bin.index.json": sharded.index_json(index, total)} if len(parts) > 1 else {}
    return Written(files, texts, files[0].layout.notes, storage_of)


def write_dcp(stem: str, tensors: Tensors, metadata: Mapping[str, Any], options: TargetOptions) -> Written:
    """Plans a distributed checkpoint of one process: data files and `.metadata`."""
    from weighbridge.containers import sharded
    from weighbridge.containers.torch import dcp, dcp_write
    from weighbridge.containers.torch.write import no_metadata

    bounds = (options.max_shard_size, options.max_shard_tensors) if isinstance(options, ShardOptions) else ()
    chunks: dict[str, tuple[Spec, list[dcp.Chunk]]] = {}
    files: list[PlannedFile] = []
    for number, part in enumerate(sharded.partition(specs(tensors), *bounds)):
        name = dcp_write.data_file_name(number)
        layout, items = dcp_write.data_file(name, [(n, tensors[n].spec) for n in part])
        files.append(planned(name, layout, tensors))
        chunks |= {n: (tensors[n].spec, dcp_write.whole(tensors[n].spec, item)) for n, item in items.items()}
    texts = {dcp.METADATA: dcp_write.metadata_file(chunks)}
    return Written(tuple(files), texts, tuple(no_metadata(metadata)))


def write_ggml(stem: str, tensors: Tensors, metadata: Mapping[str, Any], options: TargetOptions) -> Written:
    """Plans a whisper.cpp file, under its name there (`conversion/whisper`)."""
    layout = whisper.layout(specs(tensors), metadata["sizes"], metadata["filters"], metadata["tokens"])
    return Written((planned(metadata["file"], layout, tensors),), {})


def write_graph(stem: str, tensors: Tensors, metadata: Mapping[str, Any], options: TargetOptions) -> Written:
    """Plans the files of an existing model, laid out again (`conversion/graph.py`)."""
    return Written(tuple(planned(name, layout, tensors) for name, layout in metadata["layouts"].items()), {})


Writer = Callable[[str, Tensors, Mapping[str, Any], TargetOptions], Written]
_WRITERS: Final[Mapping[str, Writer]] = MappingProxyType(
    {
        "safetensors": write_safetensors,
        "gguf": write_gguf,
        "torch": write_torch,
        "ggml": write_ggml,
        "dcp": write_dcp,
        **dict.fromkeys(GRAPHS, write_graph),
    }
)


def writer(name: str) -> Writer:
    """The function that lays out the files of a target. Raises UnsupportedError for an unknown target."""
    if name in _WRITERS:
        return _WRITERS[name]
    container = by_target(name)
    if container is None:
        raise UnsupportedError(f"{name} can't be written", hint=f"targets: {', '.join(writable())}, hf")

    def write_one(stem: str, tensors: Tensors, metadata: Mapping[str, Any], options: TargetOptions) -> Written:
        layout = container.layout(specs(tensors), metadata)
        return Written((planned(f"{stem}{container.suffix}", layout, tensors),), {}, layout.notes)

    return write_one
