"""The dialogue and the output of `wb choose`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from weighbridge.cli.guides import topic_of
from weighbridge.cli.render import clean, echo, note, pairs

if TYPE_CHECKING:
    from weighbridge.shipping.choose import Choice


def ask(given: Mapping[str, Any]) -> dict[str, Any]:
    """Asks for the answers that weren't given. Returns all answers."""
    from weighbridge.shipping.choice_table import table

    answers = dict(given)
    for question in table().question:
        if question.name in answers:
            continue
        for word, meaning in question.answers.items():
            echo(f"  {word.ljust(12)}  {meaning}", "dim")
        kind = click.Choice(list(question.answers)) if question.answers else None
        answer = str(click.prompt(question.text, default=question.default, type=kind, show_choices=False))
        answers[question.name] = answer == "yes" if question.name == "trusted" else answer
    return answers


def show(choice: Choice) -> None:
    """Prints the answer, the commands, and the rules that led to them."""
    names = {"gguf": "GGUF", "mlx": "MLX folder", "hf": "safetensors folder", "scheme": "safetensors folder, packed"}
    pairs([("format", names[choice.format]), ("type", choice.type or "unchanged")])
    echo()
    for line in choice.commands:
        echo(clean(line))
    echo()
    for rule in choice.rules:
        topic = topic_of(rule.source)
        note(clean(f"{rule.why} ({f'wb help {topic}' if topic else rule.source})"), "dim")
    for line in choice.notes:
        note(clean(line), "dim")
