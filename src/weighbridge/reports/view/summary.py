"""A model at a glance: what `wb inspect` reports of it, its licence, and how its bytes divide among the parts of the
model and the number types."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from weighbridge.containers.base import Entry
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.models.config.card import read_card, scalar
from weighbridge.reports.inspect.parameter_count import Count
from weighbridge.reports.inspect.report import InspectReport, counted_parameters, report_of
from weighbridge.reports.select import Selection
from weighbridge.reports.view.roles import PARTS, TensorRoles, roles_of

SCHEMA: Final = "weighbridge/summary/1"


@dataclass(frozen=True, slots=True)
class ByteShare:
    """All tensors of one part of the model, or of one number type. `parameters`: logical ones."""

    name: str
    tensors: int
    parameters: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class PartTypes:
    """The stored types of one part of the model, the one with most bytes first."""

    part: ByteShare
    dtypes: tuple[ByteShare, ...]


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """`report`: as of `wb inspect`, without tensors. `family`: the table's name; None where none knows the model.
    `parts`: in the order of `roles.PARTS`, those that the model has. `licence`: as the file or the model card says."""

    report: InspectReport
    family: str | None
    licence: str | None
    parts: tuple[PartTypes, ...]
    dtypes: tuple[ByteShare, ...]
    schema: str = SCHEMA


def summary(model: Checkpoint) -> ModelSummary:
    """The summary of an open model. Reads headers and small files only."""
    counted = counted_parameters(model)
    roles = roles_of(model, counted)
    return ModelSummary(
        report=report_of(model, model.index.entries, Selection(limit=0)),
        family=roles.family,
        licence=_licence(model),
        parts=tuple(_parts(model.index.entries, counted, roles)),
        dtypes=_shares((e.dtype.name, e, counted) for e in model.index.entries),
    )


def _parts(entries: Iterable[Entry], counted: Count, roles: TensorRoles) -> Iterable[PartTypes]:
    members: dict[str, list[Entry]] = {}
    for entry, row in zip(entries, roles.rows, strict=True):
        members.setdefault(row.part, []).append(entry)
    for name in PARTS:
        if name in members:
            whole = _shares((name, e, counted) for e in members[name])
            yield PartTypes(whole[0], _shares((e.dtype.name, e, counted) for e in members[name]))


def _shares(rows: Iterable[tuple[str, Entry, Count]]) -> tuple[ByteShare, ...]:
    """The sums by name, the one with most bytes first."""
    sums: dict[str, list[int]] = {}
    for name, entry, counted in rows:
        row = sums.setdefault(name, [0, 0, 0])
        row[0] += 1
        row[1] += counted.of(entry)[0]
        row[2] += entry.nbytes
    ordered = sorted(sums.items(), key=lambda item: (-item[1][2], item[0]))
    return tuple(ByteShare(name, *row) for name, row in ordered)


def _licence(model: Checkpoint) -> str | None:
    """The licence by a GGUF's key, or by the model card of the folder."""
    stated = model.metadata.get("general.license")
    if isinstance(stated, str) and stated:
        return stated
    card, _ = read_card(model.place.read("README.md"))
    stated = card.get("license")
    names = stated if isinstance(stated, list) else [stated]
    return ", ".join(filter(None, map(scalar, names))) or None
