"""The dialogue of `wb choose`, and what it prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from weighbridge.cli.render import clean, echo, note, pairs

if TYPE_CHECKING:
    from weighbridge.shipping.choice_table import Question
    from weighbridge.shipping.choose import Choice


def ask(given: Mapping[str, Any]) -> dict[str, Any]:
    """The answers, of which those that weren't given are asked for."""
    from weighbridge.shipping.choice_table import table

    found = dict(given)
    for question in table().question:
        if found[question.name] is None:
            answer = _answer(question)
            found[question.name] = answer == "yes" if question.name == "trusted" else answer
    return found


def _answer(question: Question) -> str:
    for word, meaning in question.answers.items():
        echo(f"  {word.ljust(12)}  {meaning}", "dim")
    kind = click.Choice(list(question.answers)) if question.answers else None
    return str(click.prompt(question.text, default=question.default, type=kind, show_choices=False))


def show(choice: Choice) -> None:
    """The answer, the commands, and the rules that led there."""
    names = {"gguf": "GGUF", "mlx": "MLX folder", "hf": "safetensors folder", "scheme": "safetensors folder, packed"}
    pairs([("format", names[choice.format]), ("type", choice.type or "as it is")])
    echo()
    for line in choice.commands:
        echo(clean(line))
    echo()
    for rule in choice.rules:
        note(clean(f"{rule.why} ({rule.source})"), "dim")
    for line in choice.notes:
        note(clean(line), "dim")
