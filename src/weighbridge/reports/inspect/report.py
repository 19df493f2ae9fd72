"""The contents of a file, a folder or a sharded set: a summary, the tensors, the metadata. Reads headers and small
files only, and never loads numpy, so that `wb inspect` starts fast.

    inspect(path, filter=["size>1MB"], sort="size:desc", limit=20) -> InspectReport
    inspect("model.gguf::token_embd.weight")                        -> one of that tensor alone

The JSON form of a report is documented in docs/schema.md.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any, Final

import msgspec

from weighbridge.base import gc_pause
from weighbridge.base.dtypes import BY_NAME, OLD, Kind
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.containers.base import Entry, Finding, Index
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.models.open import Headers, open_headers
from weighbridge.models.tensor_parallel.rank_set import RankStatus
from weighbridge.packings.schema.base import METADATA
from weighbridge.reports import tensor_path
from weighbridge.reports.inspect import adapter_info, model_info, parameter_count
from weighbridge.reports.inspect.model_info import ModelInfo, Quantization
from weighbridge.reports.inspect.schemes import SchemeSummary, schemes
from weighbridge.reports.select import Selection, named, select

SCHEMA: Final = "weighbridge/inspect/1"

# Arrays of metadata are abbreviated: a vocabulary isn't a summary.
_SHOWN: Final = 8


@dataclass(frozen=True, slots=True)
class InspectedFile:
    """One file with tensors. `nbytes`: its size; `data_start`: where tensor data begins."""

    path: str
    nbytes: int
    tensors: int
    data_start: int


class InspectedTensor(msgspec.Struct, frozen=True, gc=False):
    """One stored tensor. `parameters`: logical ones (0 for scales and other companions of a packed weight, whose
    scheme is `packing`). `offset`: its first byte in its file. (A Struct: files have 100,000.)"""

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
    """All tensors of one stored type."""

    dtype: str
    tensors: int
    elements: int
    nbytes: int


@dataclass(frozen=True, slots=True, repr=False)
class InspectReport:
    """`tensors` holds the rows that pass the selection, `selected` is their number before `limit`; all sums are over
    the whole model. `alignment`: of tensor data, as the file declares it or, where it doesn't, as it is. `schemes`: of
    a quantized model, what its matrices lie in. `ranks`: of a tensor-parallel set, or one of its files, what it is; a
    folder's tensors are then those of the whole model."""

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
        """The notes that are errors: the problems of the model."""
        return tuple(note for note in self.notes if note.severity == "error")

    def __bool__(self) -> bool:
        return not self.damage

    def __repr__(self) -> str:
        return f"<InspectReport {self.path} {self.format}, {self.tensor_count:,} tensors>"

    def _repr_html_(self) -> str:
        from weighbridge.reports.notebook import model_html

        return model_html(self)


def inspect(
    path: str | os.PathLike[str],
    *,
    filter: Sequence[str] = (),
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    sort: str | None = None,
    limit: int | None = None,
) -> InspectReport:
    """The contents of `path`. FormatError or UnsupportedError if it can't be read; UsageError for a bad selection."""
    selection = Selection(tuple(filter), tuple(include), tuple(exclude), sort, limit)
    place, name = tensor_path.split(path)
    with gc_pause.paused():
        model, ranks = _opened(place)
        with model:
            rows = (tensor_path.entry(model.index, name, place),) if name is not None else model.index.entries
            return replace(report_of(model, rows, selection), ranks=ranks)


def _opened(path: Path) -> Headers:
    """The headers at `path`; for a damaged model the readable ones, with the problems in the index's findings."""
    try:
        return open_headers(path)
    except (FormatError, UnsupportedError) as error:
        from weighbridge.reports.inspect.damaged import open_damaged  # late: inspect starts without it

        return Headers(open_damaged(path, error), None)


def counted_parameters(model: Checkpoint) -> parameter_count.Count:
    """The parameters of an open model, and its packed weights."""
    return _counted(model, model_facts(model))


def _counted(model: Checkpoint, facts: ModelInfo) -> parameter_count.Count:
    index = model.index
    return parameter_count.count(index.entries, _packing_config(model, facts), parameter_count.settings_of(index))


def report_of(
    model: Checkpoint,
    entries: Sequence[Entry],
    selection: Selection,
    counted: parameter_count.Count | None = None,
) -> InspectReport:
    """The report on an open model; `entries`: those to list, if the selection names them. `counted`: its parameters,
    where they are counted already."""
    index = model.index
    facts = model_facts(model)
    counted = _counted(model, facts) if counted is None else counted
    paths = _paths(model)
    chosen, selected = _chosen(entries, counted, paths, selection)
    data = index.nbytes
    return InspectReport(
        path=os.fspath(model.place.path),
        format=index.format,
        version=index.version,
        byte_order="big" if index.byte_order == ">" else "little",
        alignment=index.alignment if index.alignment > 1 else _alignment(index.entries),
        nbytes=sum(source.size for source in index.files),
        tensor_nbytes=data,
        tensor_count=len(index),
        parameters=counted.total,
        bits_per_weight=round(data * 8 / counted.total, 4) if counted.total else None,
        model=replace(
            facts,
            quantization=facts.quantization or _observed(index, counted),
            adapter=adapter_info.of(model),
        ),
        files=_files(index, paths),
        dtypes=_dtypes(index.entries),
        tensors=tuple(chosen),
        selected=selected,
        schemes=schemes(index.entries, counted),
        metadata={key: short(value) for key, value in index.metadata.items()},
        notes=(*index.findings, *_config_problems(model)),
    )


def _config_problems(model: Checkpoint) -> tuple[Finding, ...]:
    """The problems of the config.json on which the summary would be based."""
    if model.format == "gguf":
        return ()
    try:
        model.json("config.json")
    except FormatError as error:
        from weighbridge.reports.lenient import broken

        return (broken("config/broken", error, str(model.place.folder / "config.json")),)
    return ()


def _packing_config(model: Checkpoint, facts: ModelInfo) -> Mapping[str, Any]:
    """The settings that decide between packings if shapes don't: the config, if it belongs to this file, and the
    file's metadata."""
    if model.format == "gguf":
        return {}
    config = model.json("config.json") if facts.quantization and not _config_problems(model) else None
    return {**(config or {}), METADATA: model.metadata}


def _chosen(
    entries: Sequence[Entry], counted: parameter_count.Count, paths: Sequence[str], selection: Selection
) -> tuple[Sequence[InspectedTensor], int]:
    """The rows to show, and their number without the limit. A file may have a million tensors, so rows are made only
    for those that are shown."""
    if not replace(selection, limit=None):
        return [_row(e, counted, paths) for e in entries[: selection.limit]], len(entries)
    rows = (_row(e, counted, paths) for e in entries if named(e.name, selection))
    chosen = select(rows, replace(selection, limit=None))
    return chosen[: selection.limit], len(chosen)


def model_facts(model: Checkpoint) -> ModelInfo:
    """The model's own description. A single file next to a model that it doesn't belong to (an adapter, a projector)
    isn't described by the config there: that belongs to `model*.safetensors`."""
    if model.format == "gguf":
        return model_info.of_gguf(model.metadata)
    if model.place.path.is_dir() or model.place.index or model.place.path.name.startswith(("model", "pytorch_model")):
        found = model_info.of_folder(model.place.folder)
        if found != ModelInfo():
            return found
    from weighbridge.containers.sniff import tensor_names as sniff_names

    names = sniff_names.distinct(model.index.by_name)
    look = sniff_names.first(sniff_names.ADAPTERS, names) or sniff_names.first(sniff_names.FAMILIES, names)
    return ModelInfo(kind=look.words if look else None)


def _observed(index: Index, counted: parameter_count.Count) -> Quantization | None:
    """The quantization by the tensors alone, if no config names it."""
    if counted.schemes:
        name = max(counted.schemes, key=lambda scheme: counted.schemes[scheme])
        return Quantization(name, words=f"{name} (by tensor names)")
    blocks = {e.dtype.name: e.nbytes for e in index.entries if e.dtype.kind is Kind.BLOCK}
    if blocks:
        sums: dict[str, int] = {}
        for e in index.entries:
            if e.dtype.name in blocks:
                sums[e.dtype.name] = sums.get(e.dtype.name, 0) + e.nbytes
        return Quantization("ggml", words=f"mostly {max(sums, key=lambda name: sums[name])}")
    return None


def _paths(model: Checkpoint) -> list[str]:
    """The file names in rows: relative to the model's folder."""
    return [Path(source.name).name for source in model.index.files]


def _row(entry: Entry, counted: parameter_count.Count, paths: Sequence[str]) -> InspectedTensor:
    parameters, scheme = counted.of(entry)
    return InspectedTensor(
        entry.name, entry.dtype.name, entry.shape, parameters, entry.nbytes, paths[entry.file], entry.offset, scheme
    )


def _files(index: Index, paths: Sequence[str]) -> tuple[InspectedFile, ...]:
    tensors = [0] * len(paths)
    for e in index.entries:
        tensors[e.file] += 1
    starts = list(index.data_start) + [0] * (len(paths) - len(index.data_start))
    return tuple(
        InspectedFile(path, source.size, n, start)
        for path, source, n, start in zip(paths, index.files, tensors, starts, strict=False)
    )


def _dtypes(entries: Sequence[Entry]) -> tuple[DTypeRow, ...]:
    """One row a type, the one with most bytes first."""
    sums: dict[str, list[int]] = {}
    for e in entries:
        row = sums.setdefault(e.dtype.name, [0, 0, 0])
        row[0] += 1
        row[1] += prod(e.shape)
        row[2] += e.nbytes
    rows = [*BY_NAME, *OLD]
    ordered = sorted(sums, key=lambda name: (-sums[name][2], rows.index(name)))
    return tuple(DTypeRow(name, *sums[name]) for name in ordered)


def _alignment(entries: Sequence[Entry], most: int = 4096) -> int:
    """The largest power of two, up to a page, that every tensor starts at a multiple of."""
    bits = most
    for e in entries:
        if e.nbytes:
            bits |= e.offset
    return bits & -bits


def short(value: Any) -> Any:
    """A metadata value as a report shows it: arrays by length and first elements."""
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
    return str(value)
