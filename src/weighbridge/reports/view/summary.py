"""A model at a glance: what `wb inspect` reports of it, its licence, and how its bytes divide among the parts of the
model and the number types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from weighbridge.containers.base import Entry
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.models.config.card import read_card, scalar
from weighbridge.reports.inspect.parameter_count import Count
from weighbridge.reports.inspect.report import InspectReport, report_of
from weighbridge.reports.select import Selection
from weighbridge.reports.view.roles import PARTS, Survey, TensorRoles, survey

SCHEMA: Final = "weighbridge/summary/1"
_NO_TENSORS: Final = Selection(limit=0)


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
    """`report`: as of `wb inspect`, without tensors unless asked for. `family`: the table's name; None where none knows
    the model. `parts`: in the order of `roles.PARTS`, those that the model has. `licence`: by the file or the model
    card."""

    report: InspectReport
    family: str | None
    licence: str | None
    parts: tuple[PartTypes, ...]
    dtypes: tuple[ByteShare, ...]
    schema: str = SCHEMA


def summary(model: Checkpoint, surveyed: Survey | None = None, *, selection: Selection = _NO_TENSORS) -> ModelSummary:
    """The summary of an open model. Reads headers and small files only. `surveyed`: where it is known already.
    `selection`: the tensors that its report lists."""
    counted, roles = surveyed or survey(model)
    shares = _shares(model.index.entries, counted, roles)
    return ModelSummary(
        report=report_of(model, model.index.entries, selection, counted),
        family=roles.family,
        licence=_licence(model),
        parts=tuple(_parts(shares)),
        dtypes=_ranked(_merged((dtype, sums) for (_, dtype), sums in shares.items())),
    )


_Sums = list[int]  # tensors, parameters, bytes


def _shares(entries: Sequence[Entry], counted: Count, roles: TensorRoles) -> dict[tuple[str, str], _Sums]:
    """The sums of every part and type."""
    sums: dict[tuple[str, str], _Sums] = {}
    for entry, row in zip(entries, roles.rows, strict=True):
        at = row.part, entry.dtype.name
        found = sums.get(at) or sums.setdefault(at, [0, 0, 0])
        found[0] += 1
        found[1] += counted.of(entry)[0]
        found[2] += entry.nbytes
    return sums


def _parts(shares: Mapping[tuple[str, str], _Sums]) -> Iterator[PartTypes]:
    for name in PARTS:
        own = {dtype: sums for (part, dtype), sums in shares.items() if part == name}
        if own:
            yield PartTypes(_ranked(_merged((name, sums) for sums in own.values()))[0], _ranked(own))


def _merged(rows: Iterable[tuple[str, _Sums]]) -> dict[str, _Sums]:
    out: dict[str, _Sums] = {}
    for name, sums in rows:
        out[name] = [a + b for a, b in zip(out.get(name, [0, 0, 0]), sums, strict=True)]
    return out


def _ranked(sums: Mapping[str, _Sums]) -> tuple[ByteShare, ...]:
    """The one with most bytes first."""
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
