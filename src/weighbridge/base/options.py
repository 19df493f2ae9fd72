"""Declares an option once, as a field of a dataclass: name, type, default and help. The command line, the keywords of
the Python functions, completion and docs/commands.md derive from it.

    @dataclass(frozen=True, kw_only=True)
    class ShardOptions:
        max_shard_size: int | None = option("Maximum size of one file, such as 5GB.", kind="size")

    @accepting(ShardOptions)
    def plan(src: Path, dst: Path, options: ShardOptions) -> Plan: ...    # plan(src, dst, max_shard_size=5 * 10**9)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import Field, field, fields
from functools import wraps
from inspect import Signature, signature
from typing import Any, Concatenate, Final, Generic, NamedTuple, ParamSpec, TypeVar, overload

from weighbridge.base.errors import UsageError

_KEY: Final = "option"

P = ParamSpec("P")
O = TypeVar("O")  # noqa: E741  # an options class
A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")


class Declaration(NamedTuple):
    """The help of an option, and how the command line spells and checks it. Name, type and default are the field's.

    `section`: its heading in the help. `letter`: its short form. `off`: the name that switches it off, if it isn't
    `no-name`. `aliases`: spellings of other tools, separated by spaces, which the help doesn't show. `kind`: the kind
    of text it accepts, if the type of the field doesn't determine it (cli/values.py lists them). `choices`: all
    accepted values. `least`, `most`: bounds of a number. `sources`: the kinds of source that it applies to; empty for
    all.
    """

    help: str
    section: str = ""
    metavar: str | None = None
    letter: str = ""
    off: str = ""
    aliases: str = ""
    kind: str = ""
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    sources: tuple[str, ...] = ()


def option(help: str, default: Any = None, **details: Any) -> Any:
    """A dataclass field that is an option. `details`: fields of `Declaration`."""
    return field(default=default, metadata={_KEY: Declaration(help, **details)})


def options_of(kind: type) -> Iterator[tuple[Field[Any], Declaration]]:
    """The fields of a dataclass that are options."""
    for one in fields(kind):
        if _KEY in one.metadata:
            yield one, one.metadata[_KEY]


def flag(name: str) -> str:
    """The command-line option of a keyword: `q_bits` -> `--q-bits`."""
    return "--" + name.replace("_", "-")


class accepting(Generic[P, O]):  # a decorator
    """Lets a function whose last parameter is an options object accept the object's fields as keywords instead.

    A keyword that is None counts as not given. If the class has a field `given`, the function finds the names of the
    given keywords there. An unknown keyword raises UsageError with the nearest known name.
    """

    def __init__(self, options: Callable[P, O]) -> None:
        self.options = options

    @overload
    def __call__(self, function: Callable[[A, O], R]) -> Callable[Concatenate[A, P], R]: ...
    @overload
    def __call__(self, function: Callable[[A, B, O], R]) -> Callable[Concatenate[A, B, P], R]: ...
    def __call__(self, function: Any) -> Any:
        *places, _ = signature(function).parameters.values()
        accepted = signature(self.options).parameters
        whole = Signature([*places, *accepted.values()])

        @wraps(function)
        def call(*args: Any, **keywords: Any) -> Any:
            for name in keywords.keys() - whole.parameters.keys():
                from weighbridge.base.words import suggest

                raise UsageError(f"unknown option {name!r}", hint=suggest(name, whole.parameters, count=1))
            values = {name: v for name, v in whole.bind(*args, **keywords).arguments.items() if v is not None}
            given = {name: values.pop(name) for name in (*keywords, *accepted) if name in values and name in accepted}
            options: Any = self.options(**given)  # type: ignore[call-arg]  # the names were checked
            if hasattr(options, "given"):
                object.__setattr__(options, "given", tuple(given))
            return function(*values.values(), options)

        call.__signature__ = whole  # type: ignore[attr-defined]
        listed = "\n".join(f"    {row.name}: {declared.help}" for row, declared in options_of(self.options))  # type: ignore[arg-type]
        call.__doc__ = f"{function.__doc__}\n\nOptions:\n{listed}"
        return call
