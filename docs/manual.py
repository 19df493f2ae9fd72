"""Writes wb(1), the manual page in the wheel, from the command line. Called by docs/generate.py."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from weighbridge import __version__
from weighbridge.cli.main import COMMANDS, cli, common_options, load


def manual() -> Iterator[str]:
    yield '.\\" Made by docs/generate.py from the code.'
    yield f'.TH WB 1 "" "Weighbridge {__version__}" "User Commands"'
    yield ".SH NAME\nwb \\- identify, check and convert files of model weights"
    yield ".SH SYNOPSIS\n.B wb\n.I COMMAND\n[\\fIOPTIONS\\fR] [\\fIARGUMENTS\\fR]"
    yield ".SH DESCRIPTION"
    yield from paragraphs(cli.help or "")
    yield ".PP\nThe pages of the docs are part of the package: \\fBwb help topics\\fR lists them."
    yield ".SH OPTIONS OF EVERY COMMAND"
    yield from options(common_options())
    common = {name for option in common_options() for name in option.opts}
    yield ".SH COMMANDS"
    for row in COMMANDS:
        command = load(row)
        context = click.Context(command, info_name=f"wb {row.name}")
        yield f".SS wb {row.name} {roff(' '.join(command.collect_usage_pieces(context)))}"
        yield from paragraphs(command.help or "")
        yield from options(
            [p for p in command.params if isinstance(p, click.Option) and not p.hidden and not common & {*p.opts}]
        )
        if isinstance(command, click.Group):
            yield f".PP\nCommands: {', '.join(command.commands)}; \\fBwb {row.name} COMMAND \\-\\-help\\fR"
    yield ".SH EXIT STATUS"
    yield "0 fine; 1 a finding, a difference, a mismatch; 2 usage or trouble; 70 a fault of Weighbridge."


def paragraphs(text: str) -> Iterator[str]:
    for paragraph in inspect.cleandoc(text).replace("\b\n", "").split("\n\n"):
        yield f".PP\n{roff(paragraph)}"


def options(rows: list[click.Option]) -> Iterator[str]:
    for option in rows:
        names = ", ".join((*option.opts, *option.secondary_opts))
        value = "" if option.is_flag or option.count else f" {option.metavar or 'VALUE'}"
        yield f".TP\n\\fB{roff(names)}\\fR{roff(value)}\n{roff(option.help or '')}"


def roff(text: str) -> str:
    """Text with the characters that roff interprets escaped."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in escaped.splitlines())
