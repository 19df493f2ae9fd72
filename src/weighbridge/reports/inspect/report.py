"""Reports the contents of a file, a folder or a sharded set: a summary, the tensors, the metadata. Reads headers and
small files only, and never loads numpy, so that `wb inspect` starts fast.

    inspect(path, filter=["size>1MB"], sort="size:desc", limit=20) -> InspectReport
    inspect("model.gguf::token_embd.weight")                        -> report on one tensor

The JSON form of a report is documented in docs/schema.md.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from math import prod
from pathlib import Path
from typing import Any, Final

import msgspec

from weighbridge.base import gc_pause
from weighbridge.base.dtypes import BY_NAME, F32, OLD, U32, Kind
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import MIB
from weighbridge.base.options import accepting
from weighbridge.base.records import dataclass
from weighbridge.base.words import check_globs, plural
from weighbridge.containers.base import Entry, Finding, Index, Severity
from weighbridge.io.inflate import InflateSource
from weighbridge.io.source import BytesSource
from weighbridge.models import parameter_count
from weighbridge.models.mlxlm.quantization import with_quantization
from weighbridge.models.model import OpenModel
from weighbridge.models.open import WHOLE, open_headers
from weighbridge.models.parameter_count import Count
from weighbridge.models.tensor_parallel.rank_set import RankStatus
from weighbridge.packings.schema.base import METADATA
from weighbridge.reports import tensor_path
from weighbridge.reports.inspect import adapter_info, model_info
from weighbridge.reports.inspect.model_info import ModelInfo, Quantization
from weighbridge.reports.inspect.schemes import SchemeSummary, schemes
from weighbridge.reports.options import InspectOptions
from weighbridge.reports.select import Selection, named, select

SCHEMA: Final = "weighbridge/inspect/1"

# Longer arrays of metadata are abbreviated.
_SHOWN: Final = 8


@dataclass(frozen=True, slots=True)
class InspectedFile:
    """One file with tensors. `nbytes`: its size. `data_start`: the offset of tensor data."""

    path: str
    nbytes: int
    tensors: int
    data_start: int


class InspectedTensor(msgspec.Struct, frozen=True, gc=False):
    """One stored tensor. `parameters`: logical ones (0 for scales and other companions of a packed weight, whose
    scheme is `packing`). `offset`: its first byte in the file. A Struct, since files may have 100,000."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    parameters: int
    nbytes: int
    file: str
    offset: int
    packing: str | None = None


@dataclass(frozen=True, slots=True)
class DTypeRow:
    """The tensors of one stored type."""

    dtype: str
    tensors: int
    elements: int
    nbytes: int


@dataclass(frozen=True, slots=True, repr=False)
class InspectReport:
    """`tensors`: the selected rows. `selected`: their number before `limit`. All sums cover the whole model.
    `alignment`: of tensor data, as declared or, without a declaration, as observed. `schemes`: the quantization of
    matrices. `ranks`: the status of a tensor-parallel set, whose folder lists the tensors of the whole model."""

    path: str
    format: str
    version: int | None
    byte_order: str
    alignment: int
    nbytes: int
    tensor_nbytes: int
    tensor_count: int
    parameters: int
    bits_per_weight: float | None
    model: ModelInfo
    files: tuple[InspectedFile, ...]
    dtypes: tuple[DTypeRow, ...]
    tensors: tuple[InspectedTensor, ...]
    selected: int
    schemes: tuple[SchemeSummary, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[Finding, ...] = ()
    ranks: RankStatus | None = None
    schema: str = SCHEMA

    @property
    def damage(self) -> tuple[Finding, ...]:
        """The notes that are errors."""
        return tuple(note for note in self.notes if note.severity == "error")

    @property
    def type_words(self) -> str | None:
        """The quantization, else the number type with the most bytes."""
        if self.model.quantization:
            return self.model.quantization.words
        return max(self.dtypes, key=lambda row: row.nbytes).dtype if self.dtypes else None

    def __bool__(self) -> bool:
        return not self.damage

    def __repr__(self) -> str:
        return f"<InspectReport {self.path} {self.format}, {plural(self.tensor_count, 'tensor')}>"

    def html(self, parts: Sequence[tuple[str, int]] = ()) -> str:
        """Returns the report for a notebook. `parts`: the name and bytes of each part of the model."""
        from weighbridge.reports.notebook import model_html

        figures = [self.model.architecture, self.format, plural(self.tensor_count, "tensor"),
                   f"{self.nbytes:,} bytes", plural(self.parameters, "parameter")]  # fmt: skip
        if self.bits_per_weight is not None:
            figures.append(f"{self.bits_per_weight:.2f} bits per weight")
        if self.model.context_length:
            figures.append(f"{plural(self.model.context_length, 'token')} of context")
        types = [(row.dtype, row.nbytes) for row in self.dtypes]
        return model_html(self.path, filter(None, figures), types, parts, self.tensors)

    def _repr_html_(self) -> str:
        return self.html()


@accepting(InspectOptions)
def inspect(path: str | os.PathLike[str], options: InspectOptions) -> InspectReport:
    """Inspects `path`. Raises FormatError or UnsupportedError if it can't be read, UsageError for a bad selection."""
    globs = tuple(options.include), tuple(options.exclude)
    selection = Selection(tuple(options.filter), *globs, options.sort, options.limit)
    place, name = tensor_path.split(path)
    with gc_pause.paused():
        try:
            model, ranks = open_headers(place, replace(WHOLE, arch_file=options.arch_file, step=options.step))
        except (FormatError, UnsupportedError) as error:
            from weighbridge.reports.inspect.damaged import open_damaged  # late: few files are damaged

            model, ranks = open_damaged(place, error, options.step), None
        with model:
            rows = (tensor_path.entry(model.index, name, place),) if name is not None else model.index.entries
            return replace(report_of(model, rows, selection), ranks=ranks)


def _circumstances(model: OpenModel) -> Iterator[Finding]:
    """The archives around the model; the step of a training run that it is, the others, and those that were cut off;
    values that need fewer bits than they have."""
    for note in getattr(model.place.path, "notes", ()):
        yield Finding("file/wrapped", Severity.INFO, note, os.fspath(model.place.path))
    for coder in dict.fromkeys(source.coder for source in model.index.files if source.coder and source.is_part):
        note = f"decoded from the code of {coder} as it is read"
        yield Finding("file/coded", Severity.INFO, note, os.fspath(model.place.path))
    run = model.place.run
    for number, note in enumerate(run.notes if run is not None else ()):
        rule, severity = ("run/unfinished", Severity.WARNING) if number else ("run/step", Severity.INFO)
        yield Finding(rule, severity, note, os.fspath(model.place.path))
    if any(entry.dtype is F32 and entry.nbytes >= MIB for entry in model.index):
        from weighbridge.reports.inspect.width import wider  # late: most models have 16-bit types

        yield from wider(model.index)


def counted_parameters(model: OpenModel) -> Count:
    """Returns the parameters of an open model, and its packed weights."""
    return _count(model, model_facts(model))


def _count(model: OpenModel, facts: ModelInfo) -> Count:
    """Counts the parameters. The config, with the settings of the family's table, and the metadata decide between
    packings if shapes don't."""
    index, settings = model.index, {}
    if model.format != "gguf":
        packed = facts.quantization or any(entry.dtype is U32 for entry in index)
        config = model.json("config.json") if packed and not _config_problems(model) else None
        settings = {**with_quantization(config or {}, index.by_name), METADATA: model.metadata}
    return parameter_count.count(index.entries, settings, parameter_count.settings_of(index))


def report_of(
    model: OpenModel, entries: Sequence[Entry], selection: Selection, counted: Count | None = None
) -> InspectReport:
    """Reports on an open model. `entries`: those to list, if selected. `counted`: its parameters, if already
    counted."""
    index = model.index
    facts = model_facts(model)
    counted = _count(model, facts) if counted is None else counted
    # The number of each source's file: unpacked data (compressed arrays, data inside a pickle) follows its file.
    owners: list[int] = []
    for number, source in enumerate(index.files):
        inner = owners and (source.is_part or isinstance(source, BytesSource | InflateSource))
        owners.append(owners[-1] if inner else number)
    tensors = Counter(owners[e.file] for e in index.entries)
    starts = [*index.data_start, *[0] * len(owners)]
    sources = {owner: index.files[owner] for owner in owners}
    files = tuple(InspectedFile(Path(s.name).name, s.stored, tensors[n], starts[n]) for n, s in sources.items())
    chosen, selected = _select_rows(entries, counted, [Path(index.files[n].name).name for n in owners], selection)
    sums: dict[str, list[int]] = {}
    for e in index.entries:
        row = sums.setdefault(e.dtype.name, [0, 0, 0])
        row[0] += 1
        row[1] += prod(e.shape)
        row[2] += e.nbytes
    rows = [*BY_NAME, *OLD]
    ordered = sorted(sums, key=lambda name: (-sums[name][2], rows.index(name)))
    return InspectReport(
        path=os.fspath(model.place.path),
        format=index.format,
        version=index.version,
        byte_order="big" if index.byte_order == ">" else "little",
        alignment=index.alignment if index.alignment > 1 else _alignment(index.entries),
        nbytes=sum(file.nbytes for file in files),
        tensor_nbytes=index.nbytes,
        tensor_count=len(index),
        parameters=counted.total,
        bits_per_weight=round(index.nbytes * 8 / counted.total, 4) if counted.total else None,
        model=replace(
            facts,
            quantization=facts.quantization or _observed_quantization(index, counted),
            adapter=adapter_info.of(model),
        ),
        files=files,
        dtypes=tuple(DTypeRow(name, *sums[name]) for name in ordered),
        tensors=tuple(chosen),
        selected=selected,
        schemes=schemes(index.entries, counted),
        metadata={key: short(value) for key, value in index.metadata.items()},
        notes=(*_circumstances(model), *index.findings, *_config_problems(model)),
    )


def _config_problems(model: OpenModel) -> tuple[Finding, ...]:
    """Returns the problems of the config.json for the summary."""
    if model.format == "gguf":
        return ()
    try:
        model.json("config.json")
    except FormatError as error:
        from weighbridge.reports.lenient import broken

        return (broken("config/broken", error, str(model.place.folder / "config.json")),)
    return ()


def _select_rows(
    entries: Sequence[Entry], counted: Count, files: Sequence[str], selection: Selection
) -> tuple[Sequence[InspectedTensor], int]:
    """Returns the rows to show, and their number without the limit. Only shown rows are created, since a file may have
    a million tensors. `files`: the file name of each source."""

    def row(e: Entry) -> InspectedTensor:
        parameters, scheme = counted.of(e)
        return InspectedTensor(e.name, e.dtype.name, e.shape, parameters, e.nbytes, files[e.file], e.offset, scheme)

    if not replace(selection, limit=None):
        return [row(e) for e in entries[: selection.limit]], len(entries)
    names = [e.name for e in entries] if selection.include or selection.exclude else []
    check_globs(selection.include, names, "--include")
    check_globs(selection.exclude, names, "--exclude")
    rows = (row(e) for e in entries if named(e.name, selection))
    chosen = select(rows, replace(selection, limit=None))
    return chosen[: selection.limit], len(chosen)


def model_facts(model: OpenModel) -> ModelInfo:
    """Returns the facts that the model declares. The config doesn't describe a single file next to a model that it
    isn't part of (an adapter, a projector), but `model*.safetensors`."""
    from weighbridge.containers.sniff import diffusion

    if model.format == "gguf":
        facts = model_info.of_gguf(model.metadata)
        if facts.architecture not in diffusion.architectures():
            return facts
        title = diffusion.title_of({e.name: e.shape for e in model.index}, None)
        return replace(facts, kind=title or facts.kind)
    if model.place.path.is_dir() or model.place.index or model.place.path.name.startswith(("model", "pytorch_model")):
        facts = model_info.of_folder(model.place.folder)
        if facts != ModelInfo():
            return facts
    from weighbridge.containers.sniff import tensor_names as sniff_names

    names = sniff_names.distinct(model.index.by_name)
    if adapter := sniff_names.first(sniff_names.ADAPTERS, names):
        return ModelInfo(kind=adapter.evidence)
    family = sniff_names.first(sniff_names.FAMILIES, names)
    title = diffusion.title_of({e.name: e.shape for e in model.index}, family.id if family else None)
    return ModelInfo(kind=title or (family.evidence if family else None))


def _observed_quantization(index: Index, counted: Count) -> Quantization | None:
    """Returns the quantization of the tensors if no config declares it."""
    if counted.schemes:
        name = max(counted.schemes, key=lambda scheme: counted.schemes[scheme])
        return Quantization(name, words=f"{name} (by tensor names)")
    sums = Counter[str]()
    for e in index.entries:
        if e.dtype.kind is Kind.BLOCK:
            sums[e.dtype.name] += e.nbytes
    return Quantization("ggml", words=f"mostly {max(sums, key=lambda name: sums[name])}") if sums else None


def _alignment(entries: Sequence[Entry], most: int = 4096) -> int:
    """Returns the largest power of two, up to a page, that divides the offset of every tensor."""
    bits = most
    for e in entries:
        if e.nbytes:
            bits |= e.offset
    return bits & -bits


def short(value: Any) -> Any:
    """Returns a metadata value with long arrays reduced to their length and first elements."""
    if isinstance(value, str | bytes | bool | int | float) or value is None:
        return value
    if isinstance(value, Sequence):
        kind = getattr(value, "type", None)
        if len(value) <= _SHOWN and kind is None:
            return list(value)
        return {
            "array": str(kind) if kind else "mixed",
            "length": len(value),
            "first": [short(v) for v in value[:_SHOWN]],
        }
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, Mapping) else str(value)
