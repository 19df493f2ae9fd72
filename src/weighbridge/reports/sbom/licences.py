"""Licences as metadata states them: identifiers of SPDX for the Hub's tags (licences.toml), and contradictions between
two statements. No licence text is read, and nothing is concluded from one that isn't in the table."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any, Final, Literal

import msgspec

from weighbridge.base.imports.tables import read_table
from weighbridge.base.records import dataclass
from weighbridge.models.config.card import scalar, scalars

Limit = Literal["noncommercial", "no-derivatives", "share-alike", "own-terms"]
#: The sentence for each limit of a base model's licence that the model's licence contradicts.
_REASONS: Final[Mapping[Limit, str]] = {
    "noncommercial": "excludes commercial use",
    "no-derivatives": "excludes changed copies",
    "share-alike": "requires changed copies to keep it",
    "own-terms": "requires its own terms to be passed on",
}


class LicenceRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`spdx`: empty if SPDX has no identifier; then `name` is set."""

    spdx: str = ""
    name: str = ""
    limits: frozenset[Limit] = frozenset()


class LicenceTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    licence: dict[str, LicenceRow]


@dataclass(frozen=True, slots=True)
class StatedLicence:
    """A licence as written, and the `place` of the statement. `name`, `link`: of one that the tag leaves open."""

    text: str
    place: str
    name: str | None = None
    link: str | None = None

    @property
    def tag(self) -> str:
        """The Hub's tag; the text in lower case if it isn't in the table."""
        text = self.text.strip().lower()
        return by_spdx().get(text, text)

    @property
    def row(self) -> LicenceRow | None:
        return table().get(self.tag)

    @property
    def title(self) -> str:
        """The identifier of SPDX, else the name."""
        row = self.row
        return (row.spdx or row.name) if row else self.name or self.text

    @property
    def reference(self) -> str:
        """An identifier in an SPDX expression."""
        row = self.row
        custom = re.sub(r"[^A-Za-z0-9.-]+", "-", self.name or self.text).strip("-") or "unnamed"
        return row.spdx if row and row.spdx else f"LicenseRef-{custom}"


@cache
def table() -> Mapping[str, LicenceRow]:
    """The rows by the Hub's tag."""
    return msgspec.convert(read_table(__file__, "licences.toml"), LicenceTable).licence


@cache
def by_spdx() -> Mapping[str, str]:
    """Identifiers of SPDX in lower case -> the Hub's tag."""
    return {row.spdx.lower(): tag for tag, row in table().items() if row.spdx}


def of_card(card: Mapping[str, Any], place: str) -> tuple[StatedLicence, ...]:
    """Returns the licences in a model card's front matter."""
    name, link = scalar(card.get("license_name")), scalar(card.get("license_link"))
    return tuple(StatedLicence(text, place, name, link) for text in scalars(card.get("license")))


def of_metadata(metadata: Mapping[str, Any], place: str) -> tuple[StatedLicence, ...]:
    """Returns the licences in the metadata of a GGUF, which lists several with commas."""
    stated, name, link = (metadata.get(f"general.license{end}") for end in ("", ".name", ".link"))
    texts = [text.strip() for text in stated.split(",")] if isinstance(stated, str) else []
    return tuple(StatedLicence(text, place, scalar(name), scalar(link)) for text in texts if text)


def differ(first: Sequence[StatedLicence], second: Sequence[StatedLicence]) -> str:
    """Describes how two statements about one model differ; empty if they don't, or if one states nothing."""
    if not first or not second or {licence.tag for licence in first} & {licence.tag for licence in second}:
        return ""
    return f"{_statement(first)}, but {_statement(second)}"


def contradiction(model: Sequence[StatedLicence], base: Sequence[StatedLicence]) -> str:
    """Describes how a model's licence contradicts that of its base model; empty if it doesn't, or if a licence isn't in
    the table. Of several licences, any may be chosen."""
    if not model or not base or not all(licence.row for licence in (*model, *base)):
        return ""
    reasons = [lacking_limit(*pair) for pair in product(model, base)]
    if not all(reasons):
        return ""
    return (
        f"{_statement(model)}, but the base model's licence, {_statement(base)}, {_REASONS[reasons[0] or 'own-terms']}"
    )


def lacking_limit(model: StatedLicence, base: StatedLicence) -> Limit | None:
    """The limit of the base model's licence that the model's licence lacks."""
    assert model.row is not None
    assert base.row is not None
    kept = model.row.limits - {"own-terms"} if model.tag != base.tag else model.row.limits
    return next((limit for limit in _REASONS if limit in base.row.limits - kept), None)


def _statement(licences: Sequence[StatedLicence]) -> str:
    return f"{licences[0].place} states {' or '.join(licence.text for licence in licences)}"
