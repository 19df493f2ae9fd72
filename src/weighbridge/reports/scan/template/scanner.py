"""What a chat template could do to the program that renders it, from its expressions alone: nothing is rendered.

transformers renders templates in a sandbox, others (llama-cpp-python until 0.2.72, SGLang until 2026) did not, and
without one a template that gets at an object's underscored attributes runs anything. A template of a model needs none
of that, so whatever points there is a finding, however it is spelled: `values.py` says what each expression can be.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from string import Formatter
from types import MappingProxyType
from typing import Final

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import JINJA_SIZE
from weighbridge.io.source import Source
from weighbridge.reports.scan.model import Budget, MemberPath, Piece, ScanFinding, ScanRule, ScanVerdict, finding
from weighbridge.reports.scan.template import jinja
from weighbridge.reports.scan.template.jinja import Expr
from weighbridge.reports.scan.template.values import BEGUN, BUILT, DATA, DERIVED, INSIDES, Value, evaluate

_D, _M, _U = ScanVerdict.DANGEROUS, ScanVerdict.MALFORMED, ScanVerdict.UNKNOWN_CODE

RULES: Final[Mapping[str, ScanRule]] = MappingProxyType(
    {
        "template/underscored": ScanRule(
            _D, "attribute or item with a leading underscore: the way to Python's insides"
        ),
        "template/attr": ScanRule(_D, "the filter `attr`, which gets around the sandbox's look at attributes"),
        "template/loading": ScanRule(_D, "statement that loads another template or file"),
        "template/built-name": ScanRule(_U, "attribute or item whose name is put together from pieces"),
        "template/unproven-name": ScanRule(
            ScanVerdict.UNPROVEN, "attribute or item of a constant whose name isn't known before rendering"
        ),
        "template/underscored-text": ScanRule(_U, "text like `__class__` outside an attribute"),
        "template/foreign-global": ScanRule(_U, "name that only a web framework or jinja2's own globals provide"),
        "template/bomb": ScanRule(_M, "number, power, format or loop that keeps a renderer busy or fills its memory"),
        "template/unreadable": ScanRule(_M, "template that jinja2 would not compile, or that is too deep to be read"),
    }
)
_RENDERED: Final = "A program that renders templates without a sandbox runs what this leads to."

_DUNDER: Final = re.compile(r"__[A-Za-z]\w*__")
_FOREIGN: Final = frozenset(
    {"lipsum", "self", "url_for", "get_flashed_messages", "request", "session", "g", "config", "app", "environment",
     "caller_globals", "cycler", "joiner"}
)  # fmt: skip
# Filters that look up an attribute that an argument names, and those that make text of others.
_BY_ATTRIBUTE: Final = frozenset(
    {"map", "selectattr", "rejectattr", "groupby", "sum", "sort", "unique", "min", "max", "dictsort"}
)
_STEP: Final = re.compile(r"[.\[]\s*(\w+)")
_LARGE: Final = 1_000_000
_REPEATED: Final = 10_000  # of text that is long already
_WIDE: Final = re.compile(r"%[-+ #0]*\d{6,}|[:<>^=]\d{6,}")


def scan(source: Source, place: MemberPath, budget: Budget) -> Iterator[Piece]:
    """A file that is a template."""
    size = min(source.size, JINJA_SIZE + 1)
    budget.spend(size)
    yield from check(source.read(0, size).decode("utf-8", "replace"), source, place, "the template")


def check(text: str, source: Source, place: MemberPath, what: str) -> Iterator[ScanFinding]:
    """Findings on the template `text`, which is called `what`."""
    try:
        template = jinja.read(text)
    except FormatError as error:
        words = f"{what}: {error.reason}" + (f" at character {error.offset}" if error.offset is not None else "")
        yield finding(RULES, "template/unreadable", source, place, words)
        return
    reported: set[tuple[str, str]] = set()
    for rule, words, at in _faults(template):
        if (rule, words) not in reported:
            reported.add((rule, words))
            line = text.count("\n", 0, at) + 1
            yield finding(RULES, rule, source, place, f"{what}, line {line}: {words}", consequence=_RENDERED)


_Fault = tuple[str, str, int]
Values = Mapping[int, Value]


def _faults(template: jinja.JinjaTemplate) -> Iterator[_Fault]:
    values = evaluate(template)
    own = {name.partition(".")[0] for s in template.statements for name in s.targets}
    for statement in template.statements:
        if statement.word in jinja.LOADING:
            yield "template/loading", f"`{statement.word}` loads another template", statement.at
        for part in statement.parts:
            for node in part.walk():
                yield from _at(node, values, own)
    yield from _loops(template, values)


def _at(node: Expr, values: Values, own: set[str]) -> Iterator[_Fault]:
    match node.kind:
        case "attr" if _inner(node.value):
            yield "template/underscored", f"attribute {node.value!r}", node.at
        case "attr" if node.value == "format":
            yield from _format(values[id(node.parts[0])], node.at)
        case "item":
            yield from _item(node, values)
        case "filter" | "test":
            yield from _filter(node, values)
        case "name" if node.value in _FOREIGN and node.value not in own:
            yield "template/foreign-global", f"the name {node.value!r}", node.at
        case "const" | "op":
            yield from _constant(node, values)
        case "call":
            yield from _called(node, values)


def _inner(name: object) -> bool:
    return isinstance(name, str) and (name.startswith("_") or name in INSIDES)


def _item(node: Expr, values: Values) -> Iterator[_Fault]:
    """`x[part]`, which for a text is the attribute of that name."""
    owner, part = node.parts
    if owner is None or part is None or part.kind == "slice":
        return
    base, key = values[id(owner)], values[id(part)]
    yield from (("template/underscored", f"item {name!r}", node.at) for name in key.constants if _inner(name))
    if "format" in key.constants:
        yield from _format(base, node.at)
    if key.flags & BUILT:
        yield "template/built-name", "an item's name is put together", node.at
    elif key.flags & DATA and (base.flags & DERIVED or (base.is_constant and not base.mapping)):
        yield "template/unproven-name", "an item of a constant has a name that isn't known", node.at


def _filter(node: Expr, values: Values) -> Iterator[_Fault]:
    name, arguments = node.value, node.parts[1:]
    if name == "attr":
        yield "template/attr", "the filter `attr`", node.at
    for place, argument in enumerate(arguments):
        named = argument.value if argument is not None and argument.kind == "keyword" else None
        if name in _BY_ATTRIBUTE or named in ("attribute", "*", "**") or (name == "join" and place):
            value = values[id(argument)]
            spread = value.join(value.inside) if named in ("*", "**") else value
            yield from _attribute(name, spread, node.at)


def _attribute(name: str, value: Value, at: int) -> Iterator[_Fault]:
    """The argument of a filter that looks up the attribute that it names."""
    for text in value.constants:
        if text == "attr":  # map('attr', ...)
            yield "template/attr", "the filter `attr`, by its name", at
        elif isinstance(text, str) and any(_inner(step) for step in text.split(".")):
            yield "template/underscored", f"attribute {text!r}", at
    if value.flags & (BUILT | BEGUN):  # what it begins with may be followed by a dot, and another name
        yield "template/built-name", f"an attribute's name for `{name}` is put together", at


def _format(text: Value, at: int) -> Iterator[_Fault]:
    """The text of a `format`, whose fields walk along attributes and items."""
    for one in text.constants:
        steps = [step for field in _fields(one) for step in _STEP.findall(field)] if isinstance(one, str) else []
        yield from (("template/underscored", f"a field with {step!r}", at) for step in steps if _inner(step))
    if text.flags & (BUILT | BEGUN):
        yield "template/built-name", "the text of a `format` is put together", at


def _fields(text: str) -> list[str]:
    """The names in the fields of a format, those in their specifications too; all of it where it isn't one."""
    try:
        return [part for _, name, spec, _ in Formatter().parse(text) for part in (name, spec) if part]
    except ValueError:
        return [text]


def _called(node: Expr, values: Values) -> Iterator[_Fault]:
    callee, arguments = node.parts[0], node.parts[1:]
    if callee is None or callee.kind != "name" or callee.value != "range":
        return
    counts = [v for a in arguments if a is not None for v in values[id(a)].constants if isinstance(v, int)]
    if any(abs(count) >= _LARGE for count in counts):
        yield "template/bomb", f"a loop over {max(counts, key=abs)} numbers", node.at


def _constant(node: Expr, values: Values) -> Iterator[_Fault]:
    """A constant, written or put together."""
    if node.kind == "op" and node.value in ("*", "**"):
        yield from _product(node, values)
        return
    for value in values[id(node)].constants:
        if isinstance(value, str):
            for rule, pattern, words in _TEXTS:
                match = pattern.search(value)
                if match is not None:
                    yield rule, f"{words} {match[0]!r}", node.at
        elif isinstance(value, int) and abs(value) >= _LARGE * 1000:
            yield "template/bomb", "a number beyond all lengths and counts", node.at


_TEXTS: Final = (("template/underscored-text", _DUNDER, "the text"), ("template/bomb", _WIDE, "a field of"))


def _product(node: Expr, values: Values) -> Iterator[_Fault]:
    sides = [values[id(part)].constants or (None,) for part in node.parts if part is not None]
    everything = [one for side in sides for one in side]
    built = any(values[id(part)].flags & BUILT for part in node.parts if part is not None)
    if node.value == "**" and not all(isinstance(s, int) and abs(s) < 100 for s in everything):
        yield "template/bomb", "a power", node.at
    elif any(isinstance(s, int) and abs(s) >= (_REPEATED if built else _LARGE) for s in everything):
        yield "template/bomb", "something is multiplied by a very large number", node.at


def _loops(template: jinja.JinjaTemplate, values: Values) -> Iterator[_Fault]:
    """Loops over constant ranges inside each other: their counts multiply."""
    totals: list[int] = []
    doubled = 0
    for statement in template.statements:
        if statement.word == "set" and _doubles(statement):
            doubled += _DOUBLINGS if totals else 1
            if doubled >= _DOUBLINGS:
                yield "template/bomb", f"{statement.targets[0]} grows by itself again and again", statement.at
        if statement.word == "endfor" and totals:
            totals.pop()
        elif statement.word == "for":
            count = _count(statement.parts[0], values)
            total = min(count * (totals[-1] if totals else 1), _MANY)
            totals.append(total)
            if total >= _LARGE and count > 1:
                yield "template/bomb", f"loops that run {total} times" if total < _MANY else _ENDLESS, statement.at


def _doubles(statement: jinja.Statement) -> bool:
    """Whether text that a statement sets holds what it was before, twice."""
    own: set[int] = set()  # expressions that name it
    for part in statement.parts:
        for node in reversed(list(part.walk())):  # children first
            inner = [id(p) in own for p in node.parts if p is not None]
            if node.kind == "op" and node.value in ("~", "+") and len(inner) == 2 and all(inner):
                return True
            owner = node.parts[0] if node.kind == "attr" else None
            name = f"{owner.value}.{node.value}" if owner is not None and owner.kind == "name" else node.value
            if any(inner) or (node.kind in ("name", "attr") and name in statement.targets):
                own.add(id(node))
    return False


_DOUBLINGS: Final = 20
_MANY: Final = 1 << 62
_ENDLESS: Final = "loops that never end"


def _count(over: Expr, values: Values) -> int:
    callee = over.parts[0] if over.kind == "call" else None
    if callee is None or callee.kind != "name" or callee.value != "range":
        return 1
    bounds = [max(values[id(a)].constants, default=None, key=_size) for a in over.parts[1:] if a is not None]
    numbers = [b for b in bounds if isinstance(b, int)]
    if not numbers or len(numbers) != len(bounds) or numbers[2:] == [0]:
        return 1
    return max(len(range(*[max(min(n, _MANY), -_MANY) for n in numbers[:3]])), 1)


def _size(value: object) -> int:
    return abs(value) if isinstance(value, int) else -1
