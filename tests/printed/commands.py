"""Commands in texts, and whether the program takes them: `wb` by its own parser, others by the table of peers.toml."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import click
from tests.printed.texts import FILLED, Text

from weighbridge.cli import guides
from weighbridge.cli.main import BY_NAME, cli, load

PEERS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("peers.toml").read_text("utf-8"))
_NAMES = "|".join(sorted(map(re.escape, PEERS), reverse=True))
_HEADS = re.compile(rf"(?<![\w./:{{-])(?<!wb ship )(wb(?= [a-z-])|{_NAMES})(?=[ `\")]|$)")
_SHELL = re.compile(r" (?:\||>{1,2}|&&|2>) ?|</|`")  # another program, HTML or a sentence follows
_ENDS = re.compile(r"[;,:)]+$|\.$|'s$")
_ARGUMENT = re.compile(rf"^-{{1,2}}\w|^[A-Z][A-Z0-9_./\[\]:-]*(?:\.\w+)?$|[{FILLED}/<>*~='\"\d]|\.\w")


class Command(NamedTuple):
    """`exact`: written as it would be typed, without placeholders."""

    where: str
    words: tuple[str, ...]
    exact: bool


def commands(text: Text) -> Iterator[Command]:
    for match in _HEADS.finditer(text.text):
        if text.whole and match.start() == 0:
            line = _SHELL.split(text.text)[0]
            exact = not re.search(r"\.\.\.|\b[A-Z]{3,}\b|[\[{<$]", line)
            words = (word.strip("[]").partition("|")[0] for word in _split(line.replace("...", "")))
            yield Command(text.where, tuple(w for w in words if w not in ("OPTIONS", "ARGS", "")), exact)
        elif not text.whole:
            head = tuple(match[0].split())
            yield Command(text.where, (*head, *_words(head, text.text[match.end() :])), False)


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # an apostrophe of the sentence behind it
        return line.split()


def _words(head: tuple[str, ...], rest: str) -> Iterator[str]:
    """The words of a sentence that belong to the command at its start: up to one that is neither an option, the value
    of one, nor like a path, a number or a placeholder."""
    command, valued = None, False
    for word in _split(_SHELL.split(rest)[0]):
        bare = _ENDS.sub("", word)
        if command is None and head == ("wb",):
            if (row := BY_NAME.get(bare)) is None:
                yield bare
                yield from re.findall(r"^ help ([\w-]+)", rest)  # its topic
                return
            command = load(row)
        elif not valued and not _ARGUMENT.search(bare) and not _chosen(command, bare):
            return
        yield bare
        if isinstance(command, click.Group) and bare in command.commands:
            command = command.commands[bare]
        valued = _takes_value(command, bare)
        if bare != word:
            return


def _chosen(command: click.Command | None, word: str) -> bool:
    """Whether it is a subcommand or one of the words that an argument can be."""
    if isinstance(command, click.Group):
        return word in command.commands
    choices = [p.type for p in command.params if isinstance(p, click.Argument)] if command else []
    return any(isinstance(kind, click.Choice) and word in kind.choices for kind in choices)


def _takes_value(command: click.Command | None, word: str) -> bool:
    options = [p for p in command.params if isinstance(p, click.Option)] if command else []
    return any(word in option.opts and not option.is_flag and not option.count for option in options)


# ------------------------------------------------------------------------------------------------ is it taken?


def fault(command: Command) -> str | None:
    """Why the program doesn't take it; None if it does."""
    try:
        _wb(command) if command.words[0] == "wb" else _peer(command.words)
    except (click.ClickException, ValueError) as error:
        shown = error.format_message() if isinstance(error, click.ClickException) else str(error)
        return f"{command.where}: {' '.join(command.words)}: {shown}"
    return None


def _wb(command: Command) -> None:
    name, rest = command.words[1], list(command.words[2:])
    while name.startswith("-"):  # an option that stands before the command
        if name in ("--help", "--version", "-V", "-h") or not rest:
            return
        name, rest = rest[0], rest[1:]
    if name == "help" and rest and rest[0] not in (*BY_NAME, *guides.topics(), "COMMAND", "TOPIC", guides.LIST):
        raise ValueError("no such topic")
    if name in ("help", "version", "COMMAND"):
        return
    if name not in BY_NAME:
        raise ValueError("no such command")
    found = load(BY_NAME[name])
    context = click.Context(cli)
    while isinstance(found, click.Group) and rest and rest[0] in found.commands:
        context = click.Context(found, parent=context)
        found, rest = found.commands[rest[0]], rest[1:]
    if not rest or rest == ["--help"] or rest[0] == "COMMAND":  # the command is only named
        return
    if not command.exact:
        return _names_and_count(found, rest, context)
    try:
        found.make_context(name, [*rest], parent=context)
    except click.MissingParameter:  # the command with an option is only named
        _names_and_count(found, rest, context)


def _names_and_count(command: click.Command, rest: list[str], context: click.Context) -> None:
    """Like the parser, but a placeholder may stand for a value."""
    inner = click.Context(command, parent=context)
    try:
        values, left, _ = command.make_parser(inner).parse_args([*rest])
    except click.BadOptionUsage as error:
        if error.option_name != rest[-1]:
            raise
        return  # the option is only named
    if any(FILLED not in word for word in left):  # what is filled in may be options
        raise ValueError(f"too many arguments: {left}")
    arguments = [p for p in command.params if isinstance(p, click.Argument)]
    missing = [p.name for p in arguments if p.required and not values.get(p.name)]
    if missing and len(missing) < len(arguments):
        raise ValueError(f"arguments are missing: {missing}")


@cache
def _options(name: str) -> frozenset[str]:
    return frozenset(PEERS[name]["options"])


def _peer(words: tuple[str, ...]) -> None:
    name = next((n for n in sorted(PEERS, key=len, reverse=True) if words[: len(n.split())] == tuple(n.split())), None)
    if name is None:
        raise ValueError("peers.toml has no such command")
    row, rest = PEERS[name], words[len(name.split()) :]
    given = [word.partition("=")[0] for word in rest if word.startswith("-") and not word.lstrip("-").isdigit()]
    if unknown := [word for word in given if word not in _options(name)]:
        raise ValueError(f"{unknown} aren't options of {name}")
    if rest and (lacking := [one for one in row.get("required", ()) if one not in given]):
        raise ValueError(f"{name} needs {lacking}")
    if any(re.match(r"^(?:s3|gs|az|hf|https?|ollama)://", word) for word in rest) and not row.get("urls"):
        raise ValueError(f"{name} reads no such address")
