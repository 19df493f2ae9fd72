"""Makes the options of the commands from the fields that declare them (`base/options.py`), with their sections in the
help. Options that only commands have are declared here or in the command."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field
from types import UnionType
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click

from weighbridge.base import options as declarations
from weighbridge.base.errors import UsageError
from weighbridge.cli.values import KINDS
from weighbridge.conversion.options import WriteOptions
from weighbridge.models.model import SourceOptions

F = TypeVar("F", bound=Callable[..., Any])


# Sections that every help ends with.
_LAST: Final = {"Source": 1, "Writing": 2, "Output": 3, "Global options": 4}


class Option(click.Option):
    """An option with a `section` in the help, and `aliases`: other tools' names, which the help doesn't show."""

    def __init__(self, *args: Any, section: str = "", aliases: tuple[str, ...] = (), **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.section, self.aliases = section, aliases

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        shown = self.opts
        self.opts = [*shown, *self.aliases]
        try:
            super().add_to_parser(parser, ctx)
        finally:
            self.opts = shown


def option(*names: str, **settings: Any) -> Callable[[F], F]:
    """An `Option` of a command."""
    return click.option(*names, cls=Option, **settings)


class Command(click.Command):
    """A command whose help lists the options by section."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                title = param.section if isinstance(param, Option) else "Global options"
                sections.setdefault(title or "Options", []).append(record)
        for title, records in sorted(sections.items(), key=lambda row: _LAST.get(row[0], 0)):
            with formatter.section(title):
                formatter.write_dl(records)


def command(**settings: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """A command with help by section."""
    return click.command(cls=Command, **settings)


def applied(options: Iterable[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """Options as one decorator, in the order of the help."""
    rows = list(options)

    def decorate(function: Any) -> Any:
        for row in reversed(rows):
            function = row(function)
        return function

    return decorate


def declared(kind: type, *names: str, **changed: Mapping[str, Any]) -> Callable[[Any], Any]:
    """The options that a dataclass declares, or those of `names`. `changed`: settings of click by option.

    None of them has a default, so that a command can tell which were given.
    """
    hints = get_type_hints(kind)
    rows = {field.name: (field, row) for field, row in declarations.options_of(kind)}
    return applied(
        option(*_names(*rows[name]), **{**_settings(*rows[name], hints[name]), **changed.get(name, {})})
        for name in names or rows
    )


def _names(field: Field[Any], row: declarations.Declaration) -> list[str]:
    """How the command line spells an option: `--tokenizer/--no-tokenizer`."""
    long = declarations.flag(field.name)
    if field.type in ("bool", "bool | None") and field.default is not False:
        long += f"/{declarations.flag(row.off or f'no_{field.name}')}"
    return [*([f"-{row.letter}"] if row.letter else []), long, field.name]


def _settings(field: Field[Any], row: declarations.Declaration, hint: Any) -> dict[str, Any]:
    """The settings of click for a field."""
    aliases = tuple(f"-{word}" if len(word) == 1 else declarations.flag(word) for word in row.aliases.split())
    settings = {"help": row.help, "section": row.section, "aliases": aliases, "metavar": row.metavar, "default": None}
    union = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    several = next((kind for kind in union if get_origin(kind) is Sequence), None)
    kind = get_args(several)[0] if several else union[0]
    bounds: dict[str, Any] = {"min": row.least, "max": row.most}
    if kind is bool:
        return settings | ({"is_flag": True} if field.default is False else {})
    if row.kind:
        value: Any = KINDS[row.kind]
        settings["metavar"] = "SIZE" if row.kind == "size" else row.metavar
    elif choices := row.choices or (get_args(kind) if get_origin(kind) is Literal else ()):
        value = click.Choice(choices)
    elif kind in (int, float) and (row.least is not None or row.most is not None):
        value = click.IntRange(**bounds) if kind is int else click.FloatRange(**bounds, min_open=row.least == 0)
    else:
        value = get_args(kind) or kind
    return settings | {"type": value, "multiple": several is not None and row.kind != "layers"}


#: `--json`: the answer as JSON on standard output. The parameter is called `as_json`.
json_option: Final = option("--json", "as_json", is_flag=True, help="Print the answer as JSON.", section="Output")

dry_run_option: Final = option(
    "--dry-run", is_flag=True, aliases=("-n",), help="Print the plan and write nothing.", section="Writing"
)
arch_file_option: Final = declared(SourceOptions, "arch_file")
jobs_option: Final = declared(WriteOptions, "jobs")
overwrite_option: Final = declared(WriteOptions, "overwrite", overwrite={"default": False})


def write_command(kind: type, **changed: Mapping[str, Any]) -> Callable[[Any], Any]:
    """The options of a command that writes: those that a dataclass declares, --dry-run and --json."""
    return applied((declared(kind, **changed), dry_run_option, json_option))


def given_only(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given. The others are None or empty."""
    return {name: value for name, value in options.items() if value is not None and value != ()}


def refuse_others(mode: str, given: Mapping[str, Any], hint: str | None = None) -> None:
    """Raises UsageError for the first of the options `given` (by flag) that has a value: none applies to `mode`."""
    for flag, value in given.items():
        if value:
            raise UsageError(f"{flag} doesn't apply to {mode}", hint=hint)


def examples(*lines: str) -> str:
    """The `epilog` of a command: its examples, kept as they are typed (`\\b` tells click not to rewrap them)."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
