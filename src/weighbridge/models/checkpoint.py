"""A checkpoint: a model's tensors, config and metadata as one object, whatever the format. Opening reads headers only
and imports no numpy; nodes are built on access.

    stored      the tensors as the files have them, by their stored names
    logical     every group of a packing (MLX's weight, scales, biases) as one tensor
    resolved    the model as its family's table sees it: dialect, roles, names in other dialects
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from weighbridge.base.closeable import Closing
from weighbridge.base.dtypes import F32
from weighbridge.base.errors import FormatError, UnsupportedError, WeighbridgeError
from weighbridge.base.limits import CONFIG_JSON, MIB
from weighbridge.containers import opening
from weighbridge.containers.base import Index
from weighbridge.io.location import open_source, prepare
from weighbridge.io.source import FileSource, Source
from weighbridge.models.jsonfile import decode, numbers_as_text, oddities
from weighbridge.models.locate import HEADER, Place, header_length, locate, locate_tokenizer, stands_alone
from weighbridge.models.stored_tensors import StoredTensors

if TYPE_CHECKING:
    from weighbridge.models.arch.expand import Instance, Sizes
    from weighbridge.models.arch.family import Family
    from weighbridge.models.config.mapping import HfConfig
    from weighbridge.models.resolved import ResolvedModel
    from weighbridge.packings.unpacking import PackedGroup
    from weighbridge.tensors.nodes import LogicalTensor, Node


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceOptions:
    """How a source is opened.

    `arch_file`: a family table (TOML) that takes precedence over the built-in ones. `allow_expand`: include views whose
    values take far more space than their stored bytes (a pickle's stride 0; can be terabytes). `join_ranks`: one file
    of a tensor-parallel set stands for the whole model (`models/open.py`)."""

    arch_file: str | os.PathLike[str] | None = None
    allow_expand: bool = False
    join_ranks: bool = True


def open_alone(path: Path, options: SourceOptions) -> Checkpoint | None:
    """The checkpoint in a file whose name says that it is a whole model: the short way to most of them. None for other
    names and what can't be opened, of which `open_checkpoint` knows more."""
    if not stands_alone(path):
        return None
    try:
        source = FileSource(path)
    except OSError:
        return None
    try:
        return Checkpoint(Place(path, (path,), path.parent), _parsed(source, options.allow_expand), options.arch_file)
    except BaseException:
        source.close()
        raise


def open_checkpoint(path: str | Path, options: SourceOptions = SourceOptions()) -> Checkpoint:
    """The checkpoint at `path`: a file, a folder, an index, one file of a numbered set. `models.open.open_model` also
    joins the ranks of a tensor-parallel set."""
    place = locate(path)
    sources: list[Source] = []
    try:
        prepare(place.weights)
        for weight in place.weights:
            sources.append(_shard(place, weight))
        for number, source in enumerate(sources):  # the headers of all files come at the same time
            if source.remote:
                source.stream(header_length(source.name) if number == 0 else HEADER)
        index = _index(place, sources, options.allow_expand)
        kept = place if place.shards is None else replace(place, shards=None)  # its names would be there twice
        return Checkpoint(kept, index, options.arch_file)
    except BaseException:
        for source in sources:
            source.close()
        raise


def open_tokenizer(path: str | os.PathLike[str], options: SourceOptions = SourceOptions()) -> Checkpoint | None:
    """A folder with a config and a tokenizer and no weights, as a model without tensors; None for any other path."""
    place = locate_tokenizer(path)
    return None if place is None else Checkpoint(place, Index("safetensors", (), ()), options.arch_file)


def _shard(place: Place, weight: Path) -> Source:
    """One weight file. FormatError where one of several is missing."""
    try:
        return open_source(weight)
    except FileNotFoundError:
        if place.single:
            raise
        number, count = place.weights.index(weight) + 1, len(place.weights)
        raise FormatError(
            f"file {number} of {count} of the set is missing: {weight.name}", path=str(place.path),
            hint="download it again; wb verify lists everything that is missing",
        ) from None  # fmt: skip


def _index(place: Place, sources: list[Source], allow_expand: bool) -> Index:
    if not sources:
        raise FormatError("the index lists no file", path=str(place.index or place.path), field="weight_map")
    indexes = [_parsed(source, allow_expand) for source in sources]
    if place.index is None and len(indexes) == 1:
        return indexes[0]
    formats = {i.format for i in indexes}
    if len(formats) > 1:
        raise FormatError(f"the shards are of different formats: {', '.join(sorted(formats))}", path=str(place.path))
    if indexes[0].format == "gguf" and len(indexes) > 1:
        from weighbridge.containers.gguf import container as gguf

        return gguf.merge(indexes)
    from weighbridge.containers import sharded

    return sharded.merge(indexes, place.shards)


def _parsed(source: Source, allow_expand: bool) -> Index:
    index = parse(source)
    return index.whole() if allow_expand and index.capped else index


def parse(source: Source) -> Index:
    """The index of a file; its content decides the format, not its name."""
    return opening.parse(source)


@dataclass(frozen=True)
class Checkpoint(Closing):
    """Close it, or use it as a context manager, to free the files. Of a transformed model (`models/transform`), `nodes`
    replace the index's tensors, and `texts` replace files of the folder."""

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
        """The folder's config.json, with the layer kinds that only its tensors show; for a GGUF the config that its
        keys stand for; {} where there is none."""
        if self.format == "gguf":
            return self.to_hf_config().config
        from weighbridge.models.arch.registry import with_mtp_layers

        return with_mtp_layers(self.json("config.json") or {}, self.index.by_name if self.nodes is None else self.nodes)

    def to_hf_config(self, torch_dtype: str | None = None) -> HfConfig:
        """A GGUF's keys as config.json and generation_config.json, and what they can't express."""
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
        """A JSON object in the model's folder; None where there is no such file."""
        data = self.texts.get(name) or self.place.read(name, CONFIG_JSON)
        if data is None:
            return None
        parsed: dict[str, Any] = decode(data, str(self.place.folder / name), dict[str, Any])
        return parsed

    @property
    def oddities(self) -> list[str]:
        """What is unusual about the folder's files and was read all the same."""
        texts = {name: self.place.read(name, CONFIG_JSON) for name in ("config.json", "generation_config.json")}
        odd = {name: ", ".join(oddities(data)) for name, data in texts.items() if data is not None}
        words = [f"{name} is no JSON, but was read: it has {found}" for name, found in odd.items() if found]
        with suppress(FormatError):  # who needs the config refuses it
            if quoted := numbers_as_text(self.json("config.json") or {}):
                words.append(f"config.json has numbers in quotes: {', '.join(quoted)}")
        return [*self.place.notes, *words]

    @property
    def files_of_tensors(self) -> dict[str, str]:
        """Tensor name -> name of its file."""
        files = [file.name for file in self.index.files]
        return {e.name: files[e.file] for e in self.index}

    # ---------------------------------------------------------------- the family's view

    @cached_property
    def family(self) -> Family:
        """The model's family table. UnsupportedError where none knows the model."""
        from weighbridge.models.arch import registry

        own = (registry.read_family(Path(self.arch_file)),) if self.arch_file else ()
        if self.format == "gguf":
            return registry.family_of_gguf(self.metadata, own, self.index.by_name)
        return registry.family_of_hf(self.config, own)

    @cached_property
    def sizes(self) -> Sizes:
        """FormatError, with the file's name, where a size is missing, invalid or contradicts another."""
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
    def resolved(self) -> ResolvedModel:
        """The model through its family's table. UnsupportedError where no tensor has a name of the family."""
        from weighbridge.models.resolved import ResolvedModel

        dialect, prefix = self.family.dialect_and_prefix(self.tensors, self.sizes)
        path = str(self.place.path)
        return ResolvedModel(self.family, self.sizes, dialect, prefix, self.tensors, self.format, path)

    @cached_property
    def tensors(self) -> Mapping[str, LogicalTensor]:
        """The tensors that the family's table covers: the logical ones, and those that a GGUF keeps in key-values."""
        from weighbridge.models.arch import kv_tensors

        inside = kv_tensors.tensors(self.family, self.sizes, self.metadata) if self.format == "gguf" else {}
        return {**self.logical, **inside} if inside else self.logical

    @property
    def dialect(self) -> str:
        """Whose names the tensors have."""
        return self.resolved.dialect

    @property
    def roles(self) -> Mapping[Instance, LogicalTensor]:
        """(role, index) of the family's table -> tensor; see `ResolvedModel.roles`."""
        return self.resolved.roles

    # ---------------------------------------------------------------- tensors

    @cached_property
    def stored(self) -> Mapping[str, Node]:
        if self.nodes is not None:
            return self.nodes
        return StoredTensors(self.index)

    @property
    def packing_hints(self) -> Mapping[str, Any]:
        """What a packing may consult where shapes leave something open: config.json, and the files' own metadata."""
        from weighbridge.packings.schema.base import METADATA

        return {} if self.format == "gguf" else {**self.config, METADATA: self.metadata}

    @cached_property
    def packed(self) -> Mapping[str, PackedGroup]:
        """The packed weight that each of its stored tensors belongs to."""
        from weighbridge.packings.schema.registry import any_present

        if not any_present(self.stored):
            return {}  # without a look at config.json
        from weighbridge.packings.unpacking import groups

        described = self.index.by_name if self.nodes is None else None
        return groups(self.stored, self.packing_hints, self._unreadable, described)

    @cached_property
    def logical(self) -> Mapping[str, LogicalTensor]:
        if not self.packed:
            return self.stored
        from weighbridge.packings.unpacking import replaced

        return replaced(self.stored, self.packed)

    def _unreadable(self, name: str, error: WeighbridgeError) -> NoReturn:
        """Raises the error of a packed weight that can't be read with its file's name and advice."""
        path = self.files_of_tensors.get(name)
        if isinstance(error, FormatError):
            raise FormatError(
                error.reason, path=path, field=error.field, expected=error.expected, found=error.found,
                hint=error.hint or "download it again; wb verify lists what is wrong with each weight",
            ) from None  # fmt: skip
        raise UnsupportedError(f"{path}: {error.message}" if path else error.message, hint=error.hint) from None

    def close(self) -> None:
        self.index.close()
