"""The containers that a plan can write to, each as one function: named nodes in, planned files out. Names, types and
order are settled before; here tensors only get their places."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from weighbridge.base.dtypes import U8
from weighbridge.base.errors import UnsupportedError
from weighbridge.base.spec import Spec
from weighbridge.containers import Format, by_target, writable
from weighbridge.containers.base import Layout, Slot
from weighbridge.containers.gguf import container as gguf
from weighbridge.containers.safetensors import container as safetensors
from weighbridge.conversion.options import SafetensorsOptions, ShardOptions, TargetOptions
from weighbridge.conversion.plan.losses.shared_storage import share
from weighbridge.conversion.plan.model import PlannedFile
from weighbridge.io.source import Source
from weighbridge.tensors.nodes import Node, Stored

Tensors = Mapping[str, Node]


@dataclass(frozen=True)
class Written:
    """The files of a target, and small extra files (an index). `storages`: the storage of each tensor, in a format
    whose tensors can share one."""

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
    """One file, or with a bound on its size a numbered set and its index."""
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
    where = {tensor: name for name, part in zip(names, parts, strict=True) for tensor in part}
    total = sum(node.spec.nbytes for node in tensors.values())
    return Written(files, {f"{stem}.safetensors.index.json": sharded.index_json(where, total)}, notes)


def write_gguf(stem: str, tensors: Tensors, metadata: Mapping[str, Any], options: TargetOptions) -> Written:
    """One file, or a set with the names and keys of llama-gguf-split."""
    if not (isinstance(options, ShardOptions) and options.sharded):
        layout = gguf.layout(specs(tensors), metadata)
        return Written((planned(f"{stem}.gguf", layout, tensors),), {}, layout.notes)
    layouts = gguf.split_layouts(
        specs(tensors), metadata, max_tensors=options.max_shard_tensors, max_bytes=options.max_shard_size
    )
    names = [gguf.shard_name(stem, i, len(layouts)) for i in range(len(layouts))]
    files = tuple(planned(name, layout, tensors) for name, layout in zip(names, layouts, strict=True))
    return Written(files, {}, tuple(f"{f.name}: {line}" for f in files for line in f.layout.notes))


def write_torch(stem: str, tensors: Tensors, metadata: Mapping[str, Any], options: TargetOptions) -> Written:
    """A state dict, or a numbered set with an index as on the Hub. Data that the source stores once is stored once."""
    from weighbridge.containers import sharded
    from weighbridge.containers.torch import write as torch_write

    shared = share(tensors)
    storages = {name: view.storage for name, view in shared.views.items()}

    def layout(names: Sequence[str]) -> Layout:
        here = set(names)
        views = {name: view for name, view in shared.views.items() if view.storage in here}
        return torch_write.layout([(n, shared.storages[n].spec) for n in names], metadata, views=views)

    if not (isinstance(options, ShardOptions) and options.sharded):
        file = planned(f"{stem}.bin", layout(list(shared.storages)), shared.storages)
        return Written((file,), {}, file.layout.notes, storages)
    parts = sharded.partition(specs(shared.storages), options.max_shard_size, options.max_shard_tensors)
    names = sharded.shard_names(len(parts), stem, ".bin")
    files = tuple(planned(n, layout(part), shared.storages) for n, part in zip(names, parts, strict=True))
    holder = {storage: name for name, part in zip(names, parts, strict=True) for storage in part}
    where = {name: holder[storage] for name, storage in storages.items()}
    total = sum(node.spec.nbytes for node in shared.storages.values())
    texts = {f"{stem}.bin.index.json": sharded.index_json(where, total)} if len(parts) > 1 else {}
    return Written(files, texts, files[0].layout.notes, storages)


def write_nothing(stem: str, tensors: Tensors, metadata: Mapping[str, Any], options: TargetOptions) -> Written:
    """A folder of small files alone."""
    return Written((), {})


def write_one(
    container: Format, stem: str, tensors: Tensors, metadata: Mapping[str, Any], options: TargetOptions
) -> Written:
    """One file of a format without shards."""
    layout = container.layout(specs(tensors), metadata)
    return Written((planned(f"{stem}{container.suffix}", layout, tensors),), {}, layout.notes)


Writer = Callable[[str, Tensors, Mapping[str, Any], TargetOptions], Written]
_SHARDED: Final[Mapping[str, Writer]] = MappingProxyType(
    {"safetensors": write_safetensors, "gguf": write_gguf, "torch": write_torch}
)


def writer(name: str) -> Writer:
    """The function that lays out the files of a target. UnsupportedError for an unknown target."""
    if name in _SHARDED:
        return _SHARDED[name]
    container = by_target(name)
    if container is None:
        raise UnsupportedError(f"{name} can't be written", hint=f"targets: {', '.join(writable())}, hf")
    return partial(write_one, container)
