"""An open model: tensors, config and metadata as one object, whatever the format. Opening reads only headers and
imports no numpy; nodes are built on access.

    stored      the tensors as the files have them, by their stored names
    logical     every group of a packing (MLX's weight, scales, biases) as one tensor
    resolved    the model through its family's table: dialect, roles, names in other dialects"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn

from weighbridge.base.closeable import Closing
from weighbridge.base.dtypes import F32
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError, WeighbridgeError
from weighbridge.base.limits import CONFIG_JSON, MIB, TOKENIZER_JSON
from weighbridge.base.options import option
from weighbridge.base.records import dataclass
from weighbridge.containers import opening
from weighbridge.containers.base import Index
from weighbridge.containers.formats import DIFFUSERS_CLASS, PIPELINES
from weighbridge.io.location import open_source, prepare
from weighbridge.io.source import FileSource, Source
from weighbridge.models.jsonfile import decode, numbers_as_text, oddities
from weighbridge.models.locate import DCP_METADATA, HEADER, Place, locate, locate_tokenizer, stands_alone
from weighbridge.models.stored_tensors import Dropped, StoredTensors, node_builder

if TYPE_CHECKING:
    from weighbridge.models.arch.expand import Instance, Sizes
    from weighbridge.models.arch.family import Family
    from weighbridge.models.config.mapping import HfConfig
    from weighbridge.models.diffusion.model import DiffusionModel
    from weighbridge.models.resolved import ResolvedModel
    from weighbridge.packings.unpacking import PackedGroup
    from weighbridge.tensors.nodes import LogicalTensor, Node


@dataclass(frozen=True, kw_only=True)
class FamilyOptions:
    """Options of everything that looks at a model's family."""

    arch_file: str | os.PathLike[str] | None = option(
        "Family table of your own for the model, as `wb help guide-families` describes it.",
        metavar="FILE.toml", kind="path", section="Source",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    step: int | None = option(
        "Step of a training run's folder; the newest complete one by default.", metavar="N", least=0, section="Source"
    )


#: The ends of the names of headers whose data is in other files: ONNX, OpenVINO, TensorFlow, Core ML.
WITH_DATA: Final = (".onnx", ".xml", ".index", ".mlmodel")


@dataclass(frozen=True, kw_only=True)
class ConfigOptions(FamilyOptions):
    """Options of everything that depends on a model's config. `config` may also be a dict."""

    config: str | os.PathLike[str] | Mapping[str, Any] | None = option(
        "config.json, or the folder or hf:// name with config and tokenizer, of weights that have none.",
        metavar="PATH", kind="path", section="Source",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SourceOptions(StepOptions, ConfigOptions):
    """How a source is opened."""

    allow_expand: bool = option(
        "Also write a pickle's expanded views (stride 0), however large they become.", False, section="Source"
    )
    ema: bool = option("Use a training checkpoint's averaged (EMA) weights.", False, section="Source")
    all_parts: bool = option(
        "Use every tensor of a training checkpoint, the optimizer's too, under its stored name.", False,
        section="Source",
    )  # fmt: skip
    #: Whether one file of a tensor-parallel set is opened as the whole model (`models/open.py`).
    join_ranks: ClassVar[bool] = True
    #: Whether `all_parts` opens the files of a step's processes without joining them.
    split_ranks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.ema and self.all_parts:
            raise UsageError("ema and all_parts exclude each other", hint="ema replaces the weights by their averages")


def open_single_file(path: Path, options: SourceOptions) -> OpenModel | None:
    """Opens a file whose name marks it as a whole model, the fast path for most models. Returns None for other names
    and for files that can't be opened; `open_weights` reports why."""
    if options.step is not None or not stands_alone(path):
        return None
    try:
        source = FileSource(path)
    except OSError:
        return None
    try:
        return OpenModel(Place(path, (path,), path.parent), _parsed(source, options.allow_expand), options.arch_file)
    except BaseException:
        source.close()
        raise


def open_weights(path: str | Path, options: SourceOptions = SourceOptions()) -> OpenModel:
    """Opens the model at `path`: a file, a folder, an index, or one file of a numbered set. `models.open.open_model`
    also joins the ranks of a tensor-parallel set. Raises FormatError if a file of a set is missing."""
    place = locate(path, options.step)
    together = len(place.weights) if place.trainer else 1  # shards stay open: they are mapped, or copied by the kernel
    sources: list[Source] = []
    try:
        prepare(place.weights)
        for number, weight in enumerate(place.weights, 1):
            try:
                sources.append(open_source(weight, together))
            except FileNotFoundError:
                if place.single:
                    raise
                raise FormatError(
                    f"file {number} of {len(place.weights)} of the set is missing: {weight.name}", path=str(place.path),
                    hint="download it again; wb verify lists everything that is missing",
                ) from None  # fmt: skip
        for source in sources:  # requests the headers of all files at once
            if source.remote:
                source.stream(HEADER)
        if place.trainer:
            from weighbridge.models.processes import open_joined  # late, as is the next

            apart = options.all_parts and options.split_ranks
            joined = open_joined(place, sources, apart=apart)
            place = replace(place, notes=(*place.notes, *joined.notes))
            return OpenModel(place, joined.index, options.arch_file, joined.tensors, left_out=joined.left_out)
        if place.parts:
            from weighbridge.models.distributed import open_parts  # late: few models are in parts

            place, index, tensors = open_parts(place, sources)
            return OpenModel(place, index, options.arch_file, tensors)
        index = _index(place, sources, options.allow_expand)
        if len(index.files) > len(sources):  # members of an archive, or other files, which the header names
            from weighbridge.models.data_files import data_paths, open_data_files  # late: few models have them

            folder = place.weights[0].parent
            index, place = open_data_files(index, folder), replace(place, data=data_paths(index, folder))
        kept = place if place.shards is None else replace(place, shards=None)  # the index has the same names
        return OpenModel(kept, index, options.arch_file)
    except BaseException:
        for source in sources:
            source.close()
        raise


def files_of(path: str | Path) -> tuple[Path, ...]:
    """Returns the files of the model at `path`, also those with data that its header names. Raises the errors of
    `locate`, and of `open_weights` for a header."""
    place = locate(path)
    if place.single and place.weights[0].name.endswith(WITH_DATA):
        with open_weights(path) as model:
            return model.place.files
    return place.files


def data_elsewhere(path: Path) -> tuple[Path, ...]:
    """The files with the data of a file that has only the header or the list of a model, as an ONNX graph with external
    data; empty for any other path, and if it can't be read."""
    if not path.name.endswith((*WITH_DATA, ".index.json", DCP_METADATA)) or not path.is_file():
        return ()
    try:
        return tuple(file for file in files_of(path) if file != path)
    except (WeighbridgeError, OSError):
        return ()


def open_tokenizer(path: str | os.PathLike[str], options: SourceOptions = SourceOptions()) -> OpenModel | None:
    """Opens a folder with a config and a tokenizer but no weights, as a model without tensors. Returns None for any
    other path."""
    place = locate_tokenizer(path)
    return None if place is None else OpenModel(place, Index("safetensors", (), ()), options.arch_file)


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
    index = opening.parse(source)
    return index.whole() if allow_expand and index.capped else index


@dataclass(frozen=True)
class OpenModel(Closing):
    """Close it, or use it as a context manager, to free the files. A transformed model (`models/transform`) has `nodes`
    instead of the index's tensors, and `texts` instead of some files of the folder. `left_out`: the parts of a training
    checkpoint that are not the model. `whole`: the class of the model of which a GGUF is the language model; it decides
    between families with the same graph. `borrowed`: the config of `SourceOptions.config`."""

    place: Place
    index: Index
    arch_file: str | os.PathLike[str] | None = None
    nodes: Mapping[str, Node] | None = None
    texts: Mapping[str, bytes] = field(default_factory=dict)
    left_out: tuple[Dropped, ...] = ()
    whole: str = ""
    borrowed: str | os.PathLike[str] | Mapping[str, Any] | None = None

    @property
    def format(self) -> str:
        return self.index.format

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.index.metadata

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The folder's config.json, with the kinds of layers that only the tensors show. For a GGUF, the config that
        its keys stand for. Empty if there is none."""
        if self.format == "gguf":
            return self.to_hf_config().config
        from weighbridge.models.arch.registry import with_mtp_layers

        stated = self.json("config.json")
        if stated is None:
            from weighbridge.models.arch.rules.without_config import derived_config  # late: few folders have no config

            stated = derived_config({entry.name: entry.shape for entry in self.index}, self.json)
        return with_mtp_layers(stated or {}, self.index.by_name if self.nodes is None else self.nodes)

    def to_hf_config(self, torch_dtype: str | None = None, class_: str | None = None) -> HfConfig:
        """Returns a GGUF's keys as config.json and generation_config.json, and what they can't express. `class_`: the
        class of a model of several parts, of which this is one."""
        from weighbridge.models.config.mapping import gguf_to_config

        names = self.index.by_name
        return gguf_to_config(
            self.metadata, self.family, names, vectors=self.vector, torch_dtype=torch_dtype, class_=class_
        )

    def vector(self, name: str) -> tuple[float, ...] | None:
        """Returns the values of a short F32 tensor, or None if the file has none of this name."""
        entry = self.index.by_name.get(name)
        if entry is None or entry.dtype is not F32 or entry.nbytes > MIB:
            return None
        raw = self.index.files[entry.file].read(entry.offset, entry.nbytes)
        return struct.unpack(f"{self.index.byte_order}{entry.nbytes // 4}f", raw)

    def read(self, name: str, limit: int = TOKENIZER_JSON) -> bytes | None:
        """Returns a small file of the model's folder, or None if it doesn't exist."""
        return self.texts.get(name) or self.place.read(name, limit)

    def json(self, name: str) -> dict[str, Any] | None:
        """Returns a JSON object from the model's folder, or None if the file doesn't exist."""
        data = self.texts.get(name) or self.place.read(name, CONFIG_JSON)
        if data is None:
            return None
        parsed: dict[str, Any] = decode(data, str(self.place.folder / name), dict[str, Any])
        return parsed

    @property
    def oddities(self) -> list[str]:
        """The archives around the model, and unusual properties of the folder's files that were tolerated."""
        texts = {name: self.place.read(name, CONFIG_JSON) for name in ("config.json", "generation_config.json")}
        odd = {name: ", ".join(oddities(data)) for name, data in texts.items() if data is not None}
        notes = [f"{name} isn't valid JSON, but was read: it has {oddity}" for name, oddity in odd.items() if oddity]
        with suppress(FormatError):  # whatever needs the config reports this
            if quoted := numbers_as_text(self.json("config.json") or {}):
                notes.append(f"config.json has numbers in quotes: {', '.join(quoted)}")
        return [*getattr(self.place.path, "notes", ()), *self.place.notes, *notes]

    @property
    def files_of_tensors(self) -> dict[str, str]:
        """The name of the file of each tensor, by tensor name."""
        files = [file.name for file in self.index.files]
        return {e.name: files[e.file] for e in self.index}

    # ---------------------------------------------------------------- the family's view

    @cached_property
    def family(self) -> Family:
        """The model's family table. Raises UnsupportedError if no table describes the model."""
        from weighbridge.models.arch import registry

        extra = (registry.read_family(Path(self.arch_file)),) if self.arch_file else ()
        if self.format == "gguf":
            if self.whole:
                graph = registry.families_of_graph(self.metadata.get("general.architecture"))
                extra = (*extra, *(f for f in graph if self.whole in f.architectures))
            return registry.family_of_gguf(self.metadata, extra, self.index.by_name)
        try:
            return registry.family_of_hf(self.config, extra)
        except UnsupportedError:
            from weighbridge.models.not_a_model import check_names

            check_names(self.place.path, self.index.by_name)
            raise

    @cached_property
    def diffusion(self) -> DiffusionModel | None:
        """The image or video model that this is; None for other models."""
        from weighbridge.containers.sniff import diffusion
        from weighbridge.models.diffusion.model import diffusion_model

        architecture = self.metadata.get("general.architecture") if self.format == "gguf" else None
        if self.described if self.format != "gguf" else architecture not in (None, *diffusion.architectures()):
            return None
        shapes = {e.name: e.shape for e in self.index}
        return diffusion_model(shapes, self.place.path)

    @property
    def makes_pictures(self) -> bool:
        """Whether it is a pipeline, or an image or video model. Doesn't read a language model's tensors."""
        if self.place.trainer in PIPELINES:
            return True
        config = self.config if self.format != "gguf" else {}
        return (not config or DIFFUSERS_CLASS in config) and self.diffusion is not None

    @cached_property
    def sizes(self) -> Sizes:
        """The family's sizes. Raises FormatError, with the file's name, if one is missing, invalid or contradictory."""
        from weighbridge.models.arch.config import check_heads

        gguf = self.format == "gguf"
        try:
            if gguf:
                return self.family.sizes_from_gguf(self.metadata, self.index.by_name, self.whole)
            sizes = self.family.sizes_from_hf(self.config)
            if (query := self.family.rows.get("q")) is not None and query.shape[0] == "N":
                check_heads(sizes.facts, sizes["N"])
            return sizes
        except FormatError as error:
            if error.path is not None:
                raise
            path = self.place.path if gguf else self.place.folder / "config.json"
            raise FormatError(
                error.reason, path=str(path), field=error.field, expected=error.expected, found=error.found,
                hint=error.hint or f"correct it{' with wb edit' if gguf else ''}, or get the original file",
            ) from None  # fmt: skip

    @cached_property
    def resolved(self) -> ResolvedModel:
        """The model through its family's table. Raises UnsupportedError if no tensor has a name of the family."""
        from weighbridge.models.resolved import ResolvedModel

        dialect, prefix = self.family.dialect_and_prefix(self.tensors, self.sizes)
        path = str(self.place.path)
        return ResolvedModel(self.family, self.sizes, dialect, prefix, self.tensors, self.format, path)

    @cached_property
    def tensors(self) -> Mapping[str, LogicalTensor]:
        """The tensors that the family's table covers: the logical ones, and those that a GGUF stores as key-values."""
        from weighbridge.models.arch import kv_tensors

        from_keys = kv_tensors.tensors(self.family, self.sizes, self.metadata) if self.format == "gguf" else {}
        return {**self.logical, **from_keys} if from_keys else self.logical

    @cached_property
    def described(self) -> bool:
        """Whether a family's table describes the model's tensors."""
        try:
            return bool(self.resolved.family)
        except UnsupportedError:
            return False

    @property
    def dialect(self) -> str:
        """The dialect of the tensor names."""
        return self.resolved.dialect

    @property
    def roles(self) -> Mapping[Instance, LogicalTensor]:
        """The tensors by (role, index) of the family's table; see `ResolvedModel.roles`."""
        return self.resolved.roles

    # ---------------------------------------------------------------- tensors

    @cached_property
    def stored(self) -> Mapping[str, Node]:
        if self.nodes is not None:
            return self.nodes
        return StoredTensors(self.index)

    @property
    def packing_hints(self) -> Mapping[str, Any]:
        """Metadata that a packing may consult if shapes are ambiguous: config.json and the files' metadata."""
        from weighbridge.models.mlxlm.quantization import with_quantization
        from weighbridge.packings.schema.base import METADATA

        if self.format == "gguf":
            return {}
        return {**with_quantization(self.config, self.index.by_name), METADATA: self.metadata}

    @cached_property
    def packed(self) -> Mapping[str, PackedGroup]:
        """The packed weight that each stored tensor belongs to, by the name of the stored tensor."""
        from weighbridge.packings.schema.registry import any_present

        if not any_present(self.stored, self.index.name_ends if self.nodes is None else None):
            return {}  # config.json isn't read
        from weighbridge.packings.unpacking import groups

        described = self.index.by_name if self.nodes is None else None
        return groups(self.stored, self.packing_hints, self._unreadable, described)

    def packed_near(self, names: Collection[str]) -> Mapping[str, PackedGroup]:
        """Returns `packed`, restricted to stored tensors that may share a packed weight with `names`: building a
        hundred thousand packed weights takes time and memory. `names` may also be those of packed weights."""
        if "packed" in self.__dict__ or self.nodes is not None:
            return self.packed
        from weighbridge.packings.schema.registry import any_present
        from weighbridge.packings.unpacking import groups, near

        candidates = near(names)
        entries = {name: entry for name, entry in self.index.by_name.items() if name in candidates}
        if not any_present(entries):
            return {}
        build = node_builder(self.index)
        tensors = {name: build(entry) for name, entry in entries.items()}
        return groups(tensors, self.packing_hints, self._unreadable, entries)

    @cached_property
    def logical(self) -> Mapping[str, LogicalTensor]:
        if not self.packed:
            return self.stored
        from weighbridge.packings.unpacking import replaced

        return replaced(self.stored, self.packed)

    def _unreadable(self, name: str, error: WeighbridgeError) -> NoReturn:
        """Raises the error of an unreadable packed weight with its file's name and advice."""
        path = self.files_of_tensors.get(name)
        if isinstance(error, FormatError):
            raise FormatError(
                error.reason, path=path, field=error.field, expected=error.expected, found=error.found,
                hint=error.hint or "download it again; wb verify lists the faults of each weight",
            ) from None  # fmt: skip
        raise UnsupportedError(f"{path}: {error.message}" if path else error.message, hint=error.hint) from None

    def close(self) -> None:
        self.index.close()
