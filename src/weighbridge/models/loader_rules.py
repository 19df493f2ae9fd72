"""Rules on whether a program loads a model: one function per rule, whose refusals become findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, NamedTuple, TypeVar

from weighbridge.containers.base import Finding, Severity

Candidate = TypeVar("Candidate")


class LoadRefusal(NamedTuple):
    """A reason for a refusal: a message, the tensor, the next step."""

    message: str
    tensor: str | None = None
    hint: str | None = None


class LoaderRule(NamedTuple, Generic[Candidate]):
    """`check` yields the reasons why the program refuses a model. `text` describes the fault; docs are made from it."""

    severity: Severity
    text: str
    check: Callable[[Candidate], Iterable[LoadRefusal]]


def check(rules: Mapping[str, LoaderRule[Candidate]], model: Candidate, path: str) -> Iterator[Finding]:
    """Yields the findings of all rules, by name. `path`: of the model."""
    for name, rule in rules.items():
        for message, tensor, hint in rule.check(model):
            yield Finding(name, rule.severity, f"{rule.text}: {message}", path, None, tensor, hint)
