"""The questions and rules of `wb choose` (choose.toml), from which docs/choosing.md is generated too."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import cache

import msgspec

from weighbridge.base.imports.tables import read_table
from weighbridge.base.options import option
from weighbridge.base.records import dataclass


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`answers`: each with its meaning; empty if any text is an answer."""

    name: str
    flag: str
    text: str
    default: str
    answers: dict[str, str]


class ChoiceRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Applies if every key of `when` has one of its values; the result is `gives`."""

    id: str
    when: dict[str, tuple[str, ...]]
    gives: str
    why: str
    source: str

    def holds(self, facts: Mapping[str, str]) -> bool:
        return all(facts.get(name) in values for name, values in self.when.items())


class Correction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A common wrong statement, and the correct one."""

    claim: str
    so: str
    source: str


class ChoiceTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    question: tuple[Question, ...]
    format: tuple[ChoiceRule, ...]
    type: tuple[ChoiceRule, ...]
    correction: tuple[Correction, ...]


@cache
def table() -> ChoiceTable:
    """Returns the parsed table."""
    return msgspec.convert(read_table(__file__, "choose.toml"), ChoiceTable)


def question(name: str) -> Question:
    """Returns the question with this name."""
    return next(q for q in table().question if q.name == name)


def rows(rules: tuple[ChoiceRule, ...]) -> Iterator[tuple[str, ChoiceRule]]:
    """Yields each rule after its conditions as text."""
    for rule in rules:
        conditions = "; ".join(f"{name}: {', '.join(values)}" for name, values in rule.when.items())
        yield conditions or "else", rule


def _answers(name: str) -> tuple[str, ...]:
    return tuple(question(name).answers)


@dataclass(frozen=True, kw_only=True)
class ChooseOptions:
    """The answers. The table has defaults for missing ones."""

    model: str | os.PathLike[str] | None = field(default=None, kw_only=False)
    purpose: str | None = option("Purpose of the model [chat].", choices=_answers("purpose"))
    runtime: str | None = option("Program that runs the model [any].", choices=_answers("runtime"))
    device: str | None = option("A GPU or Mac, a size such as 8GB, or this [this].", kind="device")
    loss: str | None = option("Acceptable loss [little].", choices=_answers("loss"))
    trusted: bool = option("Whether you trust its origin [no].", False, off="untrusted")
