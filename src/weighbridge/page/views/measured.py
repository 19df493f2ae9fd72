"""Saved measurements and plans of quantized models: sizes against errors, and the type of each tensor, for drawing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.dtypes import BY_NAME
from weighbridge.base.errors import FormatError
from weighbridge.base.limits import MIB
from weighbridge.base.records import dataclass
from weighbridge.conversion.quantize.plan import SCHEMA as PLANS
from weighbridge.forward.quality import SCHEMA as PREDICTIONS
from weighbridge.io.location import open_source, path_text
from weighbridge.page.views.layer_role import layer_and_role
from weighbridge.reports.diff.quality import SCHEMA as TENSORS

SCHEMA: Final = "weighbridge/measured/1"
_LARGEST: Final = 64 * MIB  # a report on 100,000 tensors has 30 MB
_WRITERS: Final = "wb quantize --report FILE.json, wb quality --json, wb quantize --dry-run --json"


class TensorError(msgspec.Struct, frozen=True):
    """A tensor of a report of `wb quantize --report`."""

    name: str
    type: str
    bytes: int
    bits: float
    nmse: float
    weighted: float | None = None


class _TensorReport(msgspec.Struct, frozen=True):
    nmse: float
    bytes: int
    tensors: tuple[TensorError, ...]


class _Mean(msgspec.Struct, frozen=True):
    value: float
    error: float | None = None


class _TextReport(msgspec.Struct, frozen=True):
    reference: str
    model: str | None = None
    reference_perplexity: _Mean | None = None
    perplexity: _Mean | None = None
    kl: _Mean | None = None
    same_top: _Mean | None = None


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """A model's predictions against a reference's. `nbytes`: the size of the page's file of this name, else None. `kl`:
    in nats, with its standard error."""

    name: str
    reference: str
    nbytes: int | None
    kl: float
    kl_error: float | None
    perplexity: float | None
    reference_perplexity: float | None
    same_top: float | None


@dataclass(frozen=True, slots=True)
class MeasuredTensors:
    """The errors of a quantized model's tensors. `file`: the name of the report."""

    file: str
    nmse: float
    nbytes: int
    tensors: tuple[TensorError, ...]


class _PlanRow(msgspec.Struct, frozen=True):
    name: str
    source: str
    target: str
    target_bytes: int
    wanted: str | None = None
    weighted: bool = False
    error: float | None = None


class ExpectedEffect(msgspec.Struct, frozen=True):
    """The expected KL divergence, in nats, with so many bytes of quantized tensors."""

    bytes: int
    kl: float


class _PlanReport(msgspec.Struct, frozen=True):
    bits_per_weight: float
    tensors: tuple[_PlanRow, ...]
    type: str = ""
    expected: tuple[ExpectedEffect, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """The planned type of a tensor. `replaced`: the type of the mixture, whose blocks don't divide its rows.
    `weighted`: the importance matrix has an entry for it. `nmse`: its error by a report of the page, else the one that
    the plan expects."""

    name: str
    layer: int
    role: str
    source: str
    type: str
    bytes: int
    bits: float
    replaced: str | None
    weighted: bool
    nmse: float | None


@dataclass(frozen=True, slots=True)
class PlannedTypes:
    """A plan of `wb quantize`. `file`: its name; `mixture`: the requested type, empty for a target size; `expected`: at
    this size, then at others."""

    file: str
    mixture: str
    bits: float
    nbytes: int
    tensors: tuple[PlannedTensor, ...]
    expected: tuple[ExpectedEffect, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    models: tuple[MeasuredModel, ...]
    tensors: tuple[MeasuredTensors, ...]
    plans: tuple[PlannedTypes, ...]
    schema: str = SCHEMA


def read_measured(paths: Iterable[str | Path], sizes: Mapping[str, int]) -> Measured:
    """Reads reports of `wb quantize --report` and of `wb quality --json`, and plans of `wb quantize --dry-run --json`.
    `sizes`: bytes by the name of a model. Raises FormatError for another file."""
    rows = [_READERS[schema](path, data, sizes) for path in paths for schema, data in [_parse(path)]]
    tensors = tuple(row for row in rows if isinstance(row, MeasuredTensors))
    errors = {(row.name, row.type): row.nmse for report in tensors for row in report.tensors}
    return Measured(
        tuple(row for row in rows if isinstance(row, MeasuredModel)),
        tensors,
        tuple(
            replace(plan, tensors=tuple(replace(t, nmse=errors.get((t.name, t.type), t.nmse)) for t in plan.tensors))
            for plan in rows
            if isinstance(plan, PlannedTypes)
        ),
    )


def _parse(path: str | Path) -> tuple[str, dict[str, Any]]:
    """Returns the schema and the content of a report."""
    with open_source(resolve_path(path)) as source:
        if source.size > _LARGEST:
            raise FormatError("the report is too large", path=path_text(path), expected=f"at most {_LARGEST:,} bytes")
        data = source.read(0, source.size)
    try:
        report = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FormatError("not a saved report", path=path_text(path), found=str(error), hint=_WRITERS) from None
    schema = report.get("schema")
    if not isinstance(schema, str) or schema not in _READERS:
        raise FormatError("not a report of errors", path=path_text(path), field="schema",
                          expected=" or ".join(_READERS), found=schema, hint=_WRITERS)  # fmt: skip
    return schema, report


def _converted(path: str | Path, data: dict[str, Any], kind: type) -> Any:
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise FormatError("the report is incomplete", path=path_text(path), found=str(error), hint=_WRITERS) from None


def _tensors(path: str | Path, data: dict[str, Any], sizes: Mapping[str, int]) -> MeasuredTensors:
    report: _TensorReport = _converted(path, data, _TensorReport)
    return MeasuredTensors(Path(path).name, report.nmse, report.bytes, report.tensors)


def _model(path: str | Path, data: dict[str, Any], sizes: Mapping[str, int]) -> MeasuredModel:
    report: _TextReport = _converted(path, data, _TextReport)
    if report.model is None or report.kl is None:
        raise FormatError("the report compares no models", path=path_text(path), hint="wb quality REFERENCE MODEL")
    name = Path(report.model).name
    values = (None if mean is None else mean.value for mean in
              (report.perplexity, report.reference_perplexity, report.same_top))  # fmt: skip
    return MeasuredModel(name, Path(report.reference).name, sizes.get(name), report.kl.value, report.kl.error, *values)


def _plan(path: str | Path, data: dict[str, Any], sizes: Mapping[str, int]) -> PlannedTypes:
    report: _PlanReport = _converted(path, data, _PlanReport)
    rows = tuple(_planned(path, report.tensors))
    return PlannedTypes(Path(path).name, report.type, report.bits_per_weight, sum(row.bytes for row in rows), rows,
                        report.expected)  # fmt: skip


def _planned(path: str | Path, rows: Iterable[_PlanRow]) -> Iterator[PlannedTensor]:
    for row in rows:
        if row.target not in BY_NAME:
            raise FormatError("unknown type", path=path_text(path), field=row.name, found=row.target[:80])
        bits = 8 * BY_NAME[row.target].size / BY_NAME[row.target].block
        yield PlannedTensor(row.name, *layer_and_role(row.name), row.source, row.target, row.target_bytes, bits,
                            row.wanted, row.weighted, row.error)  # fmt: skip


_READERS: Final = MappingProxyType[str, Callable[[str | Path, dict[str, Any], Mapping[str, int]], Any]](
    {TENSORS: _tensors, PREDICTIONS: _model, PLANS: _plan}
)
