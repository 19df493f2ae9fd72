"""What several commands share: parameters, the spelling of sizes, the form of their examples."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from weighbridge.base.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])

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


def size_option(*names: str, help: str) -> Callable[[F], F]:
    """An option whose value is a size."""
    return click.option(*names, type=parse_size, metavar="SIZE", help=help)


def json_option(function: F) -> F:
    """`--json`: the answer as JSON on standard output. The parameter is called `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")(function)


def arch_file_option(function: F) -> F:
    """`--arch-file`: a family's table of the caller's own."""
    kind = click.Path(path_type=Path)
    told = "A table of your own for the model's family (docs/guide-families.md)."
    return click.option("--arch-file", type=kind, metavar="FILE.toml", help=told)(function)


def resume_option(function: F) -> F:
    """`--resume`: an interrupted run keeps what it has done; the same command goes on from there."""
    told = "Keep what is done when interrupted, as DST.partial; the next run with --resume goes on from there."
    return click.option("--resume", is_flag=True, help=told)(function)


def jobs_option(function: F) -> F:
    """`-j N`: how many threads. None where not given: the library's own choice."""
    return click.option("-j", "--jobs", type=click.IntRange(1, 1024), metavar="N", help="Threads to use [all cores].")(
        function
    )


def examples(*lines: str) -> str:
    """The `epilog` of a command: its examples, kept as they are typed (`\\b` tells click not to rewrap them)."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
