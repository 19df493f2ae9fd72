"""`wb completion`: the script for completion in a shell."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

from weighbridge.cli.options import CommandOptions, command, examples
from weighbridge.cli.render import echo, emit_json

# bash would cut PATH::TENSOR into words at the colons.
_ONE_WORD: Final = "COMP_WORDBREAKS=${COMP_WORDBREAKS//:}"


@command(
    CommandOptions,
    epilog=examples(
        "wb completion bash >> ~/.bashrc",
        "wb completion zsh >> ~/.zshrc",
        "wb completion fish > ~/.config/fish/completions/wb.fish",
    ),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str, options: CommandOptions) -> None:
    """Print the script with which SHELL completes commands, options, paths, types and tensor names."""
    from weighbridge.cli.main import cli

    completer = get_completion_class(shell)
    assert completer is not None  # the choice above lists only shells that click knows
    script = completer(cli, {}, "wb", "_WB_COMPLETE").source() + (f"\n{_ONE_WORD}" if shell == "bash" else "")
    emit_json({"shell": shell, "script": script}) if options.json else echo(script)
