"""Makes the options of the commands from the fields that declare them (`base/options.py`), with their sections in the
help, and passes a command those that were given as one object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field
from functools import wraps
from types import MappingProxyType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import click

from weighbridge.base import options as declarations
from weighbridge.base.errors import UsageError
from weighbridge.base.records import dataclass

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


@dataclass(frozen=True, kw_only=True)
class CommandOptions(declarations.GivenOptions):
    """The options of every command."""

    json: bool = declarations.option("Print the answer as JSON.", False, section="Output")


@dataclass(frozen=True, kw_only=True)
class DryRunOptions(CommandOptions):
    dry_run: bool = declarations.option("Print the plan and write nothing.", False, aliases="n", section="Writing")


def command(
    *kinds: type[Any],
    group: click.Group | None = None,
    changed: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    **settings: Any,
) -> Callable[[Callable[..., Any]], click.Command]:
    """A command of `group` whose function gets its arguments, and `options`: an object of all the classes `kinds`.
    `changed`: settings of click by option."""
    kind = kinds[0] if len(kinds) == 1 else dataclass(frozen=True, kw_only=True)(type("Options", kinds, {}))

    def decorate(function: Callable[..., Any]) -> click.Command:
        arguments = [param.name for param in getattr(function, "__click_params__", ())]

        @wraps(function)
        def call(**values: Any) -> Any:
            places = {name: values.pop(name) for name in arguments}
            return function(**places, options=declarations.make(kind, given_only(values)))

        built: click.Command = (group.command if group else click.command)(cls=Command, **settings)(call)
        built.params += click_options(kind, changed)
        return built

    return decorate


def click_options(
    kind: type, changed: Mapping[str, Mapping[str, Any]] = MappingProxyType({}), **settings: Any
) -> list[click.Option]:
    """The options that a dataclass declares, in the order of the help. `changed`: settings of click by option,
    `settings`: of all.

    None of them has a default, so that a command knows which were given.
    """
    hints = get_type_hints(kind)
    options: list[click.Option] = []
    rows = sorted(declarations.options_of(kind), key=lambda row: _LAST.get(row[1].section, 0))
    for field, row in rows:
        keywords = {**_settings(field, row, hints[field.name]), **settings, **changed.get(field.name, {})}
        long = declarations.flag(field.name)  # or both: `--tokenizer/--no-tokenizer`
        if field.type in ("bool", "bool | None") and (field.default is not False or row.off):
            long += f"/{declarations.flag(row.off or f'no_{field.name}')}"
        options.append(Option([*([f"-{row.letter}"] if row.letter else []), long, field.name], **keywords))
        if row.shorthand:
            name, _, value = row.shorthand.partition("=")
            same = f"Same as {declarations.flag(field.name)} {value}."
            options.append(
                Option([declarations.flag(name), field.name], flag_value=value, section=row.section, help=same)
            )
    return options


def _settings(field: Field[Any], row: declarations.Declaration, hint: Any) -> dict[str, Any]:
    """The settings of click for a field."""
    aliases = tuple(f"-{word}" if len(word) == 1 else declarations.flag(word) for word in row.aliases.split())
    settings: dict[str, Any] = {"aliases": aliases, "default": None}
    settings |= {name: getattr(row, name) for name in ("help", "section", "metavar", "hidden", "required")}
    union = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    several = next((kind for kind in union if get_origin(kind) is Sequence), None)
    kind = get_args(several)[0] if several else union[0]
    if kind is bool:
        return settings | ({"is_flag": True} if field.default is False and not row.off else {})
    if row.kind == "count":
        return settings | {"count": True}
    if row.kind:
        from weighbridge.cli.values import KINDS  # late: `wb --help` needs none of them

        value: Any = KINDS[row.kind]
        settings["metavar"] = "SIZE" if row.kind == "size" else row.metavar
    elif choices := row.choices or (get_args(kind) if get_origin(kind) is Literal else ()):
        value = click.Choice(choices)
    elif kind in (int, float) and (row.least, row.above, row.most) != (None, None, None):
        ranged: Any = click.IntRange if kind is int else click.FloatRange
        value = ranged(row.least if row.above is None else row.above, row.most, min_open=row.above is not None)
    else:
        value = get_args(kind) or kind
    if row.bare:
        settings |= {"is_flag": False, "flag_value": row.bare}
    return settings | {"type": value, "multiple": several is not None and row.kind != "layers"}


def given_only(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given. The others are None or empty."""
    return {name: value for name, value in options.items() if value is not None and value != ()}


def refuse_others(mode: str, options: declarations.GivenOptions, names: Iterable[str], hint: str | None = None) -> None:
    """Raises UsageError for the first of the options `names` that was given: none applies to `mode`."""
    for name in names:
        if name in options.given:
            raise UsageError(f"{declarations.flag(name)} doesn't apply to {mode}", hint=hint)


def examples(*lines: str) -> str:
    """The `epilog` of a command: its examples, one per line (`\\b` keeps click from rewrapping them)."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
