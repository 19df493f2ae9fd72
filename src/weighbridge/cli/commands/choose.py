"""`wb choose`: chooses a format, a type and commands by at most five questions."""

from __future__ import annotations

import sys
from typing import Any

import click

from weighbridge.cli.options import command, examples, json_option, option
from weighbridge.cli.values import PATH, DeviceType
from weighbridge.shipping.choice_table import question


def _answers(name: str) -> click.Choice[str]:
    return click.Choice(list(question(name).answers))


@command(
    epilog=examples(
        "wb choose",
        "wb choose ./my-model/ --purpose chat --runtime ollama --device rtx4090 --loss little --trusted",
        "wb choose --purpose serve --device h100 --json",
    )
)
@click.argument("model", type=PATH, required=False)
@option("--purpose", type=_answers("purpose"), help="Purpose of the model [chat].")
@option("--runtime", type=_answers("runtime"), help="Program that runs the model [any].")
@option("--device", type=DeviceType(), help="A GPU or Mac, a size such as 8GB, or this [this].")
@option("--loss", type=_answers("loss"), help="Acceptable loss [little].")
@option("--trusted/--untrusted", default=None, help="Whether you trust its origin [no].")
@json_option
def choose(model: Any, as_json: bool, **answers: Any) -> None:
    """Choose a format, a type and the commands for MODEL, or for any model.

    On a terminal, asks for answers that aren't given as options; otherwise uses the defaults. Each rule names its
    source; the page "Choosing" of the docs lists them.
    """
    from weighbridge.cli.render import emit_json
    from weighbridge.cli.views import choose as view
    from weighbridge.shipping.choose import choose

    if sys.stdin.isatty() and sys.stdout.isatty() and not as_json:
        answers = view.ask(answers)
    choice = choose(model, **{**answers, "trusted": bool(answers["trusted"])})
    emit_json(choice) if as_json else view.show(choice)
