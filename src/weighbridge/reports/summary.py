"""A summary of a model: the report of `wb inspect`, its licence, and its bytes by part of the model and number type."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from weighbridge.base.records import dataclass
from weighbridge.models.config.card import read_card, scalar
from weighbridge.models.model import OpenModel
from weighbridge.models.tensor_roles import PARTS
from weighbridge.reports.inspect.report import InspectReport, report_of
from weighbridge.reports.select import Selection
from weighbridge.reports.survey import Survey, survey

SCHEMA: Final = "weighbridge/summary/1"
_NO_TENSORS: Final = Selection(limit=0)


@dataclass(frozen=True, slots=True)
class ByteShare:
    """The tensors of one part of the model, or of one number type. `parameters`: logical ones."""

    name: str
    tensors: int
    parameters: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class PartTypes:
    """The stored types of one part of the model, most bytes first."""

    part: ByteShare
    dtypes: tuple[ByteShare, ...]


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """`report`: that of `wb inspect`, without tensors unless selected. `family`: the name of the table, None if none
    matches. `parts`: those of the model, in the order of `tensor_roles.PARTS`. `licence`: from the file or the model
    card."""

    report: InspectReport
    family: str | None
    licence: str | None
    parts: tuple[PartTypes, ...]
    dtypes: tuple[ByteShare, ...]
    schema: str = SCHEMA


def summary(model: OpenModel, surveyed: Survey | None = None, *, selection: Selection = _NO_TENSORS) -> ModelSummary:
    """Summarizes an open model. Reads headers and small files only. `selection`: the tensors in the report."""
    counted, roles = surveyed or survey(model)
    sums: dict[tuple[str, str], list[int]] = {}  # tensors, parameters, bytes by part and type
    for entry, row in zip(model.index.entries, roles.rows, strict=True):
        total = sums.setdefault((row.part, entry.dtype.name), [0, 0, 0])
        total[0] += 1
        total[1] += counted.of(entry)[0]
        total[2] += entry.nbytes
    parts: dict[str, list[ByteShare]] = {}
    dtypes: dict[str, list[ByteShare]] = {}
    for (part, dtype), total in sums.items():
        share = ByteShare(dtype, *total)
        parts.setdefault(part, []).append(share)
        dtypes.setdefault(dtype, []).append(share)
    return ModelSummary(
        report=report_of(model, model.index.entries, selection, counted),
        family=roles.family,
        licence=_licence(model),
        parts=tuple(PartTypes(_total(name, parts[name]), _ranked(parts[name])) for name in PARTS if name in parts),
        dtypes=_ranked(_total(name, shares) for name, shares in dtypes.items()),
    )


def _total(name: str, shares: Sequence[ByteShare]) -> ByteShare:
    columns = ([s.tensors for s in shares], [s.parameters for s in shares], [s.nbytes for s in shares])
    return ByteShare(name, *map(sum, columns))


def _ranked(shares: Iterable[ByteShare]) -> tuple[ByteShare, ...]:
    return tuple(sorted(shares, key=lambda share: (-share.nbytes, share.name)))


def _licence(model: OpenModel) -> str | None:
    """Returns the licence in the metadata of a GGUF, or in the model card of the folder."""
    licence: Any = model.metadata.get("general.license")
    if isinstance(licence, str) and licence:
        return licence
    licence = read_card(model.place.read("README.md"))[0].get("license")
    names = licence if isinstance(licence, list) else [licence]
    return ", ".join(filter(None, map(scalar, names))) or None
