"""A checkpoint: a model's tensors, config and metadata wherever they lie, as one thing. Opening reads headers only, and
loads neither numpy nor a tensor; nodes are built when they are asked for.

    stored      the tensors as they are in the files, by their names there
    logical     every group of a packing (MLX's weight, scales, biases) as one tensor
    held        those, and what a GGUF has in keys that is a tensor elsewhere
    roles       (role, index) of the family's table -> logical tensor in its canonical layout
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from weighbridge.base.closeable import Closing
from weighbridge.base.dtypes import F32
from weighbridge.base.errors import FormatError, UnsupportedError, WeighbridgeError
from weighbridge.base.limits import CONFIG_JSON, MIB
from weighbridge.base.spec import Spec
from weighbridge.containers import opening
from weighbridge.containers.base import Entry, Index
from weighbridge.io.source import FileSource, Source
from weighbridge.models.arch.config import with_mtp_layers
from weighbridge.models.jsonfile import decode
from weighbridge.models.locate import Place, locate

if TYPE_CHECKING:
    from weighbridge.models.arch.expand import Sizes
    from weighbridge.models.arch.family import Family
    from weighbridge.models.config.mapping import HfConfig
    from weighbridge.tensors.nodes import Node


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceOptions:
    """How a source is opened.

    `arch_file`: a family table (TOML) that takes precedence over the built-in ones. `allow_expand`: include views whose
    values take far more space than their stored bytes (a pickle's stride 0; can be terabytes). `join_ranks`: one file
    of a tensor-parallel set stands for the whole model (`models/open.py`)."""

    arch_file: str | os.PathLike[str] | None = None
    allow_expand: bool = False
    join_ranks: bool = True


def open_checkpoint(path: str | Path, options: SourceOptions = SourceOptions()) -> Checkpoint:
    """The checkpoint at `path`: a file, a folder, an index, one file of a numbered set. `models.open.open_model` also
    joins the ranks of a tensor-parallel set."""
    place = locate(path)
    sources: list[Source] = []
    try:
        for weight in place.weights:
            sources.append(_shard(place, weight))
        return Checkpoint(place, _index(place, sources, options.allow_expand), options.arch_file)
    except BaseException:
        for source in sources:
            source.close()
        raise


def _shard(place: Place, weight: Path) -> FileSource:
    """One of the place's files. FormatError where one of several is missing: the set is what is wrong then."""
    try:
        return FileSource(weight)
    except FileNotFoundError:
        if place.single:
            raise
        number, count = place.weights.index(weight) + 1, len(place.weights)
        raise FormatError(
            f"file {number} of {count} of the set is missing: {weight.name}", path=str(place.path),
            hint="download it again; wb verify tells everything that is missing",
        ) from None  # fmt: skip


def _index(place: Place, sources: list[Source], allow_expand: bool) -> Index:
    indexes = [i.whole() if allow_expand and i.capped else i for i in map(parse, sources)]
    formats = {i.format for i in indexes}
    if len(formats) > 1:
        raise FormatError(f"the shards are of different formats: {', '.join(sorted(formats))}", path=str(place.path))
    if indexes[0].format == "gguf" and len(indexes) > 1:
        from weighbridge.containers.gguf import container as gguf

        return gguf.merge(indexes)
    if place.index is None and place.single:
        return indexes[0]
    from weighbridge.containers import sharded

    if place.index is None:
        return sharded.merge(indexes)
    with FileSource(place.index) as source:
        return sharded.merge(indexes, sharded.parse_index(source))


def parse(source: Source) -> Index:
    """The index of a file, by what it is and not by what it is called."""
    return opening.parse(source)


@dataclass(frozen=True)
class Checkpoint(Closing):
    """See the module. Close it, or use it as a context manager, to free the files. Of a model that was operated on
    (`models/transform`), `nodes` are the tensors in the place of the index's, `texts` the files in the place of those
    beside the weights."""

    place: Place
    index: Index
    arch_file: str | os.PathLike[str] | None = None
    nodes: Mapping[str, Node] | None = None
    texts: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def format(self) -> str:
        return self.index.format

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.index.metadata

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """config.json of the folder, with the layers that its tensors alone tell of; for a GGUF the config that its
        keys stand for; {} where there is none."""
        if self.format == "gguf":
            return self.restored().config
        return with_mtp_layers(self.json("config.json") or {}, self.index.by_name if self.nodes is None else self.nodes)

    def restored(self, torch_dtype: str | None = None) -> HfConfig:
        """What a GGUF's keys say as config.json and generation_config.json, and what they can't say."""
        from weighbridge.models.config.mapping import gguf_to_config

        names = self.index.by_name
        return gguf_to_config(self.metadata, self.family, names, vectors=self._vector, torch_dtype=torch_dtype)

    def _vector(self, name: str) -> tuple[float, ...] | None:
        """A short F32 tensor's values; None where there is no such tensor."""
        entry = self.index.by_name.get(name)
        if entry is None or entry.dtype is not F32 or entry.nbytes > MIB:
            return None
        raw = self.index.files[entry.file].read(entry.offset, entry.nbytes)
        return struct.unpack(f"{self.index.byte_order}{entry.nbytes // 4}f", raw)

    def json(self, name: str) -> dict[str, Any] | None:
        """A JSON object beside the weights; None where there is no such file."""
        data = self.texts.get(name) or self.place.read(name, CONFIG_JSON)
        if data is None:
            return None
        found: dict[str, Any] = decode(data, str(self.place.folder / name), dict[str, Any])
        return found

    @property
    def files_of_tensors(self) -> dict[str, str]:
        """Tensor name -> the name of the file it is in."""
        return {e.name: self.index.files[e.file].name for e in self.index}

    # ---------------------------------------------------------------- the family's view

    @cached_property
    def family(self) -> Family:
        """The architecture's table. UnsupportedError where none knows the model."""
        from weighbridge.models.arch import registry

        own = (registry.read_family(Path(self.arch_file)),) if self.arch_file else ()
        if self.format == "gguf":
            return registry.family_of_gguf(self.metadata, own, self.index.by_name)
        return registry.family_of_hf(self.config, own)

    @cached_property
    def sizes(self) -> Sizes:
        """FormatError that names the file for a size that is missing, none, or contradicts another."""
        try:
            return self._sizes()
        except FormatError as error:
            if error.path is not None:
                raise
            gguf = self.format == "gguf"
            path = self.place.path if gguf else self.place.folder / "config.json"
            raise FormatError(
                error.reason, path=str(path), field=error.field, expected=error.expected, found=error.found,
                hint=error.hint or f"correct it{' with wb edit' if gguf else ''}, or get the original file",
            ) from None  # fmt: skip

    def _sizes(self) -> Sizes:
        if self.format == "gguf":
            return self.family.sizes_from_gguf(self.metadata, self.index.by_name)
        from weighbridge.models.arch.config import check_heads

        sizes = self.family.sizes_from_hf(self.config)
        if (query := self.family.rows.get("q")) is not None and query.shape[0] == "N":
            check_heads(sizes.facts, sizes["N"])
        return sizes

    @cached_property
    def dialect(self) -> str:
        """Whose names the tensors have."""
        return self.family.dialect_of(self.held, self.sizes)

    # ---------------------------------------------------------------- tensors

    @cached_property
    def stored(self) -> Mapping[str, Node]:
        return _StoredTensors(self.index, node_of) if self.nodes is None else self.nodes

    @property
    def told(self) -> Mapping[str, Any]:
        """What a packing may ask where shapes leave something open: config.json, and the files' own metadata in it."""
        from weighbridge.packings import METADATA

        return {} if self.format == "gguf" else {**self.config, METADATA: self.metadata}

    @cached_property
    def logical(self) -> Mapping[str, Node]:
        from weighbridge.packings import unpack

        return unpack(self.stored, self.told, self._unreadable)

    def _unreadable(self, name: str, error: WeighbridgeError) -> NoReturn:
        """A packed weight that can't be read: the same error with the file it is in, and what to do next."""
        path = self.files_of_tensors.get(name)
        if isinstance(error, FormatError):
            raise FormatError(
                error.reason, path=path, field=error.field, expected=error.expected, found=error.found,
                hint=error.hint or "wb verify tells of every weight what is wrong with it; download it again",
            ) from None  # fmt: skip
        raise UnsupportedError(f"{path}: {error.message}" if path else error.message, hint=error.hint) from None

    @cached_property
    def held(self) -> Mapping[str, Node]:
        """What the family's table speaks of."""
        from weighbridge.models.arch import kv_tensors as keyed

        inside = keyed.tensors(self.family, self.sizes, self.metadata) if self.format == "gguf" else {}
        return {**self.logical, **inside} if inside else self.logical

    @cached_property
    def roles(self) -> Mapping[Any, Node]:
        """MappingError that names the file, and what to do, unless all tensors fit."""
        from weighbridge.models.arch.mapping_report import MappingError

        try:
            return self.family.load(self.dialect, self.sizes, self.held)
        except MappingError as error:
            from weighbridge.models.arch.diagnose import advice

            path, shapes = str(self.place.path), {name: node.spec.shape for name, node in self.held.items()}
            how = self.family, self.dialect, self.sizes, shapes, error.report, path
            hint = advice(*how, gguf=self.format == "gguf")
            raise MappingError(error.family, error.dialect, error.report, path=path, hint=hint) from None

    @cached_property
    def canonical(self) -> Mapping[str, Node]:
        """The tensors by the same names whatever the file: `layers.0.attention.q.weight`."""
        return self.family.save("canonical", self.sizes, self.roles)

    @cached_property
    def folded(self) -> Mapping[str, Node]:
        """`canonical` with the numbers of the config that a GGUF has in its weights multiplied into them."""
        plain = replace(self.sizes, facts={})
        there = self.family.save("gguf", self.sizes, self.roles)
        return {**self.canonical, **self.family.save("canonical", plain, self.family.load("gguf", plain, there))}

    def close(self) -> None:
        self.index.close()


def node_of(index: Index, entry: Entry) -> Node:
    """A stored tensor as a node: its bytes as they lie, or a strided view of them."""
    from weighbridge.tensors.nodes import Stored, strided

    source, swap = index.files[entry.file], index.byte_order == ">"
    if entry.strides is None:
        return Stored(entry.spec, source, entry.offset, swap)
    window = Spec((entry.nbytes // entry.dtype.size,), entry.dtype)
    return strided(Stored(window, source, entry.offset, swap), 0, entry.shape, entry.strides)


class _StoredTensors(Mapping[str, "Node"]):
    """The stored tensors of an index, each made a node when it is first asked for: listing 100,000 names makes none."""

    def __init__(self, index: Index, make: Callable[[Index, Entry], Node]) -> None:
        self._index, self._make, self._made = index, make, dict[str, "Node"]()

    def __getitem__(self, name: str) -> Node:
        node = self._made.get(name)
        if node is None:
            node = self._made[name] = self._make(self._index, self._index.by_name[name])
        return node

    def __iter__(self) -> Iterator[str]:
        return iter(self._index.by_name)

    def __len__(self) -> int:
        return len(self._index.by_name)

    def __contains__(self, name: object) -> bool:
        return name in self._index.by_name
