"""What several commands share: options and their sections in the help, the spelling of sizes, the form of examples."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import click

from weighbridge.base.errors import UsageError
from weighbridge.cli.paths import PATH
from weighbridge.cli.targets import TargetType

F = TypeVar("F", bound=Callable[..., Any])


class Option(click.Option):
    """An option with a `section` in the help, and `aliases`: other tools' names for it, which the help doesn't show."""

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
        for title, records in sections.items():
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


# Decimal unless an `i` says otherwise, as the reference tools read them: llama-gguf-split takes `5G` for 5 * 10^9,
# transformers takes `5GB` for 5 * 10^9 and `5GiB` for 5 * 2^30.
_UNITS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([kmgtp]?)(i?)(b?)\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """A number of bytes as people write it: `5GB`, `5G` (5 * 10^9), `5GiB` (5 * 2^30), `1.5 MB`, `4096`."""
    match = _SIZE.fullmatch(text)
    number, unit, binary, _ = match.groups() if match else ("", "", "", "")
    if not number or (binary and not unit):
        raise UsageError(f"{text!r} is not a size", hint="write it like 5GB, 500M, 4GiB or 4096")
    base = 1024 if binary else 1000
    whole, _, part = number.partition(".")
    # Exact in integers: 0.1 of a unit is not a binary fraction.
    scale: int = base ** _UNITS[unit.lower()]
    fraction: int = int(part or 0) * scale // 10 ** len(part)
    return int(whole or 0) * scale + fraction


def size_option(*names: str, help: str, **settings: Any) -> Callable[[Any], Any]:
    """An option whose value is a size."""
    return option(*names, type=parse_size, metavar="SIZE", help=help, **settings)


#: `--json`: the answer as JSON on standard output. The parameter is called `as_json`.
json_option: Final = option("--json", "as_json", is_flag=True, help="Print the answer as JSON.", section="Output")

dry_run_option: Final = option(
    "--dry-run", is_flag=True, aliases=("-n",), help="Print the plan and write nothing.", section="Writing"
)

#: `-j N`: number of threads. None where not given: the library's own choice.
jobs_option: Final = option(
    "-j", "--jobs", type=click.IntRange(1, 1024), metavar="N", aliases=("-t", "--threads", "--nthread"),
    help="Threads [all cores].", section="Writing",
)  # fmt: skip

overwrite_option: Final = option(
    "--overwrite", is_flag=True, aliases=("-f", "--force", "-y", "--yes"), help="Replace an existing target.",
    section="Writing",
)  # fmt: skip

replace_folder_option: Final = option(
    "--replace-folder", is_flag=True, section="Writing",
    help="Replace an existing folder even if it holds files that aren't written again; these are deleted.",
)  # fmt: skip

arch_file_option: Final = option(
    "--arch-file", type=PATH, metavar="FILE.toml", section="Source",
    help="Family table of your own for the model (docs/guide-families.md).",
)  # fmt: skip

#: How a source is opened: the fields of SourceOptions.
source_options: Final = applied(
    (
        arch_file_option,
        option(
            "--allow-expand", is_flag=True, section="Source",
            help="Also write a pickle's expanded views (stride 0), however large they become.",
        ),
    )
)  # fmt: skip

#: How anything is written: the fields of WriteOptions, and --dry-run.
write_options: Final = applied(
    (
        overwrite_option,
        replace_folder_option,
        option(
            "--resume", is_flag=True, section="Writing",
            help="Keep finished work as DST.partial when interrupted; the next run with --resume continues from it.",
        ),
        option(
            "--parents", is_flag=True, section="Writing",
            help="Create missing parent folders of the target, more than one level deep.",
        ),
        jobs_option,
        size_option("--max-memory", help="Memory limit, excluding the interpreter.", section="Writing"),
        dry_run_option,
        json_option,
    )
)  # fmt: skip


def to_option(*others: str) -> Callable[[Any], Any]:
    """`--to`: the target's format. `others`: words besides the formats that hold models."""
    return option("--to", type=TargetType(*others), help="Format of the target [from DST's extension].",
                  section="Target")  # fmt: skip


def shard_options(
    size: tuple[str, ...] = ("--max-shard-size",), tensors: tuple[str, ...] = ("--max-shard-tensors",)
) -> Callable[[Any], Any]:
    """Bounds on one file of the target, under the names that a command gives them."""
    return applied(
        (
            size_option(
                *size, "max_shard_size", aliases=("--split-max-size",), section="Target",
                help="Maximum size of one file, such as 5GB.",
            ),
            option(
                *tensors, "max_shard_tensors", type=click.IntRange(1), metavar="N", aliases=("--split-max-tensors",),
                section="Target", help="Maximum number of tensors in one file.",
            ),
        )
    )  # fmt: skip


def refuse_others(mode: str, given: Mapping[str, Any], hint: str | None = None) -> None:
    """UsageError for the first of the options `given` (by flag) that has a value: none of them applies to `mode`."""
    for flag, value in given.items():
        if value:
            raise UsageError(f"{flag} doesn't apply to {mode}", hint=hint)


def examples(*lines: str) -> str:
    """The `epilog` of a command: its examples, kept as they are typed (`\\b` tells click not to rewrap them)."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
