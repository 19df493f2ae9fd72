"""Declares an option once, as a field of a dataclass: name, type, default and help. The command line, the keywords of
the Python functions, completion and docs/commands.md derive from it.

    @dataclass(frozen=True, kw_only=True)
    class ShardOptions:
        max_shard_size: int | None = option("Maximum size of one file, such as 5GB.", kind="size")

    @accepting(ShardOptions)
    def plan(src: Path, dst: Path, options: ShardOptions) -> Plan: ...    # plan(src, dst, max_shard_size=5 * 10**9)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, field, fields
from functools import wraps
from inspect import BoundArguments, Parameter, Signature, signature
from typing import Any, Concatenate, Final, Generic, NamedTuple, ParamSpec, TypeVar, overload

from weighbridge.base.errors import UsageError
from weighbridge.base.records import dataclass

_KEY: Final = "option"

P = ParamSpec("P")
O = TypeVar("O")  # noqa: E741  # an options class
A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")


class Declaration(NamedTuple):
    """The help of an option, and how the command line spells and checks it. Name, type and default are the field's.

    `section`: its heading in the help. `letter`: its short form. `off`: the name that switches it off, if it isn't
    `no-name`. `aliases`: spellings of other tools, separated by spaces, which the help doesn't show. `shorthand`: a
    flag for one value, as `flag=value`. `kind`: the kind of text it accepts, if the type of the field doesn't determine
    it (cli/values.py lists them). `choices`: all accepted values. `least`, `above`, `most`: bounds of a number.
    `sources`: the kinds of source that it applies to; empty for all. `hidden`: the help doesn't show it. `required`:
    the command line needs it. `bare`: its value if the command line gives none.
    """

    help: str
    section: str = ""
    metavar: str | None = None
    letter: str = ""
    off: str = ""
    aliases: str = ""
    shorthand: str = ""
    kind: str = ""
    choices: tuple[str, ...] = ()
    least: float | None = None
    above: float | None = None
    most: float | None = None
    sources: tuple[str, ...] = ()
    hidden: bool = False
    required: bool = False
    bare: str = ""


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


Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, kw_only=True)
class ProgressKeyword:
    """`progress(done, total, name)`: called as the work advances."""

    progress: Progress | None = None


@dataclass(frozen=True, kw_only=True)
class GivenOptions:
    """Options that know which of them were given. The others have their defaults."""

    given: tuple[str, ...] = field(init=False, default=(), repr=False)

    def keywords(self, function: Callable[..., Any]) -> dict[str, Any]:
        """The given options that a function accepts as keywords."""
        accepted = {p.name for p in signature(function).parameters.values() if p.default is not Parameter.empty}
        return {name: getattr(self, name) for name in self.given if name in accepted}


def make(options: Callable[..., O], given: Mapping[str, Any]) -> O:
    """An options object with the values of `given`."""
    made = options(**given)
    if isinstance(made, GivenOptions):
        object.__setattr__(made, "given", tuple(given))
    return made


class accepting(Generic[P, O]):  # a decorator
    """Lets a function with a parameter `options`, an options object, accept the object's fields as keywords instead.

    A keyword that is None counts as not given. An unknown keyword raises UsageError with the nearest known name, unless
    the function accepts any.
    """

    def __init__(self, options: Callable[P, O]) -> None:
        self.options = options

    @overload
    def __call__(self, function: Callable[[O], R]) -> Callable[P, R]: ...
    @overload
    def __call__(self, function: Callable[[A, O], R]) -> Callable[Concatenate[A, P], R]: ...
    @overload
    def __call__(self, function: Callable[[A, B, O], R]) -> Callable[Concatenate[A, B, P], R]: ...
    @overload  # a function with *args or **kwargs: no type expresses its other keywords
    def __call__(self, function: Callable[..., R]) -> Callable[..., R]: ...
    def __call__(self, function: Any) -> Any:
        own = Signature([p for p in signature(function).parameters.values() if p.name != "options"])
        accepted = signature(self.options).parameters
        whole = Signature(sorted([*own.parameters.values(), *accepted.values()], key=lambda p: p.kind))
        any_keyword = any(p.kind is Parameter.VAR_KEYWORD for p in whole.parameters.values())

        @wraps(function)
        def call(*args: Any, **keywords: Any) -> Any:
            for name in () if any_keyword else keywords.keys() - whole.parameters.keys():
                from weighbridge.base.words import suggest

                raise UsageError(f"unknown option {name!r}", hint=suggest(name, whole.parameters, count=1))
            values = whole.bind(*args, **keywords).arguments
            passed = BoundArguments(own, OrderedDict((n, values[n]) for n in own.parameters if n in values))
            given = {n: values[n] for n in (*keywords, *accepted) if n in accepted and values.get(n) is not None}
            return function(*passed.args, options=make(self.options, given), **passed.kwargs)

        call.__signature__ = whole  # type: ignore[attr-defined]
        listed = "\n".join(f"    {row.name}: {declared.help}" for row, declared in options_of(self.options))  # type: ignore[arg-type]
        call.__doc__ = f"{function.__doc__}\n\nOptions:\n{listed}"
        return call
