"""`wb choose`: chooses a format, a type and commands by at most five questions."""

from __future__ import annotations

import sys
from typing import Any

import click

from weighbridge.cli.options import CommandOptions, command, examples
from weighbridge.cli.values import PATH
from weighbridge.shipping.choice_table import ChooseOptions


@command(
    ChooseOptions,
    CommandOptions,
    epilog=examples(
        "wb choose",
        "wb choose ./my-model/ --purpose chat --runtime ollama --device rtx4090 --loss little --trusted",
        "wb choose --purpose serve --device h100 --json",
    ),
)
@click.argument("model", type=PATH, required=False)
def choose(model: Any, options: CommandOptions) -> None:
    """Choose a format, a type and the commands for MODEL, or for any model.

    On a terminal, asks for answers that aren't given as options; otherwise uses the defaults. Each rule names its
    source; `wb help choosing` lists them.
    """
    from weighbridge.cli.render import emit_json
    from weighbridge.cli.views import choose as view
    from weighbridge.shipping.choose import choose

    given = options.keywords(choose)
    asking = sys.stdin.isatty() and sys.stdout.isatty() and not options.json
    choice = choose(model, **(view.ask(given) if asking else given))
    emit_json(choice) if options.json else view.show(choice)
