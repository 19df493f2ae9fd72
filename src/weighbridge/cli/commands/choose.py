"""`wb choose`: a format, a type and commands, by at most five questions."""

from __future__ import annotations

import sys
from typing import Any

import click

from weighbridge.cli.commands.fit import DeviceType
from weighbridge.cli.options import command, examples, json_option, option
from weighbridge.cli.paths import PATH
from weighbridge.shipping.choice_table import question


def _answers(name: str) -> click.Choice[str]:
    return click.Choice(list(question(name).answers))


@command(
    epilog=examples(
        "wb choose",
        "wb choose ./my-model/ --for chat --runtime ollama --device rtx4090 --loss little --trusted",
        "wb choose --for serve --device h100 --json",
    )
)
@click.argument("model", type=PATH, required=False)
@option("--for", "purpose", type=_answers("purpose"), help="What the model is for [chat].")
@option("--runtime", type=_answers("runtime"), help="The program that runs it [any].")
@option("--device", type=DeviceType(), help="A GPU or Mac, a size such as 8GB, or this [this].")
@option("--loss", type=_answers("loss"), help="How much loss is fine [little].")
@option("--trusted/--untrusted", default=None, help="Whether you trust where it comes from [no].")
@json_option
def choose(model: Any, as_json: bool, **given: Any) -> None:
    """Choose a format, a type and the commands for MODEL, or for any model.

    On a terminal, asks what isn't given as an option; elsewhere takes the defaults. Each rule names its source; they
    are listed in docs/choosing.md.
    """
    from weighbridge.cli.render import emit_json
    from weighbridge.cli.views import choose as view
    from weighbridge.shipping.choose import choose

    if sys.stdin.isatty() and sys.stdout.isatty() and not as_json:
        given = view.ask(given)
    found = choose(model, **{**given, "trusted": bool(given["trusted"])})
    emit_json(found) if as_json else view.show(found)
