"""A reader of Jinja templates that never runs them: tokens, and the trees of the expressions in them.

    read(template) -> Template    its statements (`for`, `set`, `include` ...) and every expression in them

The grammar is that of jinja2 3.1 with the options that transformers sets (trim_blocks, lstrip_blocks, loop controls,
`generation`), proven against its parser. FormatError for what it would not compile. How statements nest is not
checked: it matters to who renders, and nothing here does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import JINJA_SIZE
from weighbridge.reports.scan.template.expressions import Expr, Parser
from weighbridge.reports.scan.template.tokens import JinjaToken, blocks, wrong

__all__ = ["LOADING", "Expr", "JinjaTemplate", "Statement", "read"]

_Read = tuple[tuple[Expr, ...], tuple[str, ...]]  # expressions, names that are set


@dataclass(frozen=True, slots=True)
class Statement:
    """`word`: `print` for `{{ }}`, else the first word of `{% %}`. `targets`: names that it sets. `text`: of a
    `set` with a body, where that is text alone."""

    word: str
    at: int
    parts: tuple[Expr, ...] = ()
    targets: tuple[str, ...] = ()
    text: str | None = None


@dataclass(frozen=True, slots=True)
class JinjaTemplate:
    statements: tuple[Statement, ...] = field(default=())

    def nodes(self) -> Iterator[Expr]:
        for statement in self.statements:
            for part in statement.parts:
                yield from part.walk()


def _target(p: Parser) -> tuple[str, ...]:
    """What `set`, `for` and `with` assign to: names, in tuples and parentheses, or `namespace.name`."""
    names: list[str] = []
    depth = 0
    while True:
        while p.skip("("):
            depth += 1
        names.append(p.name())
        if p.skip("."):
            names[-1] += f".{p.name()}"
        while depth and p.skip(")"):
            depth -= 1
        if not p.skip(","):
            break
        if p.is_name("in") or p.is_op("="):
            break
    if depth:
        raise p.wrong("')' is missing")
    return tuple(names)


def _for(p: Parser) -> _Read:
    targets = _target(p)
    if not p.skip_name("in"):
        raise p.wrong("'in' is missing")
    parts = [p.several(conditional=False)]
    if p.skip_name("if"):
        parts.append(p.expression())
    p.skip_name("recursive")
    return tuple(parts), targets


def _set(p: Parser) -> _Read:
    targets = _target(p)
    if p.skip("="):
        return (p.several(),), targets
    if p.skip("|"):
        return (p.filters(),), targets
    return (), targets


def _macro(p: Parser) -> _Read:
    name = p.name()
    parts, targets = _signature(p)
    return parts, (name, *targets)


def _signature(p: Parser) -> _Read:
    parts: list[Expr] = []
    targets: list[str] = []
    p.need("(")
    while not p.is_op(")"):
        if targets:
            p.need(",")
        targets.append(p.name())
        if p.skip("="):
            parts.append(p.expression())
    p.need(")")
    return tuple(parts), tuple(targets)


def _call(p: Parser) -> _Read:
    parts, targets = _signature(p) if p.is_op("(") else ((), ())
    return (*parts, p.expression()), targets


def _with(p: Parser) -> _Read:
    parts: list[Expr] = []
    targets: tuple[str, ...] = ()
    while p.now.kind != "end":
        if parts:
            p.need(",")
        targets += _target(p)
        p.need("=")
        parts.append(p.expression())
    return tuple(parts), targets


def _one(p: Parser) -> _Read:
    return (p.several(),), ()


def _none(p: Parser) -> _Read:
    return (), ()


def _end(p: Parser) -> _Read:
    p.skip_name(p.now.value) if p.now.kind == "name" else None
    return (), ()


def _block(p: Parser) -> _Read:
    targets = (p.name(),)
    while p.is_name("scoped", "required"):
        p.next()
    return (), targets


def _rest(p: Parser) -> _Read:
    """A statement that is a finding in itself: only its first expression is read."""
    parts = (p.expression(),) if p.now.kind != "end" else ()
    p.place = len(p.tokens) - 1
    return parts, ()


_ENDED: Final = ("for", "if", "macro", "call", "filter", "with", "set", "block", "autoescape", "generation")
#: Statements that load other templates.
LOADING: Final = frozenset({"include", "import", "from", "extends"})
_STATEMENTS: Final[Mapping[str, Callable[[Parser], _Read]]] = MappingProxyType(
    {
        "for": _for, "set": _set, "macro": _macro, "call": _call, "with": _with, "block": _block,
        "if": _one, "elif": _one, "do": _one, "autoescape": lambda p: ((p.expression(),), ()),
        "filter": lambda p: ((p.filters(),), ()),
        "else": _none, "break": _none, "continue": _none, "generation": _none,
        **{f"end{word}": _end for word in _ENDED},
        **dict.fromkeys(LOADING, _rest),
    }
)  # fmt: skip


def read(text: str) -> JinjaTemplate:
    """The statements of a template. FormatError where it is none."""
    if len(text) > JINJA_SIZE:
        raise FormatError("the template is too long", expected=f"<= {JINJA_SIZE} characters", found=len(text))
    found = list(blocks(text))
    statements = [_statement(b.opening, b.tokens) for b in found]
    for i, (one, after) in enumerate(pairwise(statements)):
        if one.word == "set" and not one.parts and after.word == "endset":
            statements[i] = replace(one, text=text[found[i].end : found[i + 1].start])
    return JinjaTemplate(tuple(statements))


def _statement(opening: str, tokens: list[JinjaToken]) -> Statement:
    p = Parser(tokens)
    at = p.now.at
    if opening == "{{":
        statement = Statement("print", at, (p.several(),))
    else:
        word = p.name()
        if word not in _STATEMENTS:
            raise wrong(f"no such statement: {word!r}", at)
        parts, targets = _STATEMENTS[word](p)
        statement = Statement(word, at, parts, targets)
    if p.now.kind != "end":
        raise p.wrong("the block's end is missing")
    return statement
