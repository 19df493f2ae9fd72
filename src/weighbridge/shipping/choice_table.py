"""The questions and rules of `wb choose` (choose.toml), of which docs/choosing.md is made too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources

import msgspec


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`answers`: each with what it means; none where any text is one."""

    name: str
    flag: str
    text: str
    default: str
    answers: dict[str, str]


class ChoiceRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Holds where every key of `when` has one of its values; then the answer is `gives`."""

    id: str
    when: dict[str, tuple[str, ...]]
    gives: str
    why: str
    source: str

    def holds(self, facts: Mapping[str, str]) -> bool:
        return all(facts.get(name) in values for name, values in self.when.items())


class Correction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A common statement that is wrong, and what is so."""

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
    """The parsed table."""
    text = (resources.files(__package__ or "") / "choose.toml").read_text(encoding="utf-8")
    return msgspec.toml.decode(text, type=ChoiceTable)


def question(name: str) -> Question:
    """The question of this name."""
    return next(q for q in table().question if q.name == name)


def rows(rules: tuple[ChoiceRule, ...]) -> Iterator[tuple[str, ChoiceRule]]:
    """Each rule behind its conditions in words."""
    for rule in rules:
        words = "; ".join(f"{name}: {', '.join(values)}" for name, values in rule.when.items())
        yield words or "else", rule
