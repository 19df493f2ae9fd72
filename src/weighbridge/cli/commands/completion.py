"""`wb completion`: the script that makes a shell complete commands, options and paths."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

from weighbridge.cli.options import command, examples
from weighbridge.cli.render import echo

# bash would cut PATH::TENSOR into words at the colons.
_ONE_WORD: Final = "COMP_WORDBREAKS=${COMP_WORDBREAKS//:}"


@command(
    epilog=examples(
        "wb completion bash >> ~/.bashrc",
        "wb completion zsh >> ~/.zshrc",
        "wb completion fish > ~/.config/fish/completions/wb.fish",
    )
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that makes SHELL complete commands, options, paths, types and the names of tensors."""
    from weighbridge.cli.main import cli

    found = get_completion_class(shell)
    assert found is not None  # the choice above lists only shells that click knows
    echo(found(cli, {}, "wb", "_WB_COMPLETE").source())
    if shell == "bash":
        echo(_ONE_WORD)
