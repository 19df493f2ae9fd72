"""What a chat template could do to the program that renders it, from its expressions alone: nothing is rendered.

transformers renders templates in a sandbox, others (llama-cpp-python until 0.2.72, SGLang until 2026) did not, and
without one a template that gets at an object's underscored attributes runs anything. A template of a model needs none
of that, so that what points there is told, however it is spelled: constants are folded, a name that is built is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import JINJA_SIZE
from weighbridge.io.source import Source
from weighbridge.reports.scan.model import Budget, MemberPath, Piece, ScanFinding, ScanRule, ScanVerdict, finding
from weighbridge.reports.scan.template import jinja
from weighbridge.reports.scan.template.jinja import Expr

_D, _M, _U = ScanVerdict.DANGEROUS, ScanVerdict.MALFORMED, ScanVerdict.UNKNOWN_CODE

RULES: Final[Mapping[str, ScanRule]] = MappingProxyType(
    {
        "template/underscored": ScanRule(
            _D, "attribute or item with a leading underscore: the way to Python's insides"
        ),
        "template/attr": ScanRule(_D, "the filter `attr`, which gets around the sandbox's look at attributes"),
        "template/loading": ScanRule(_D, "statement that loads another template or file"),
        "template/built-name": ScanRule(_U, "attribute or item whose name is put together from pieces"),
        "template/underscored-text": ScanRule(_U, "text like `__class__` outside an attribute"),
        "template/foreign-global": ScanRule(_U, "name that only a web framework or jinja2's own globals provide"),
        "template/bomb": ScanRule(_M, "number, power, format or loop that keeps a renderer busy or fills its memory"),
        "template/unreadable": ScanRule(_M, "template that jinja2 would not compile, or that is too deep to be read"),
    }
)
_RENDERED: Final = "A program that renders templates without a sandbox runs what this leads to."

_DUNDER: Final = re.compile(r"__[A-Za-z]\w*__")
# Names of frames, code and generators that the sandbox guards as well (jinja2.sandbox).
_INSIDES: Final = frozenset(
    {"mro", "func_globals", "func_code", "func_closure", "gi_frame", "gi_code", "cr_frame", "cr_code", "ag_code",
     "ag_frame", "tb_frame", "f_globals", "f_locals", "f_builtins", "f_code", "f_back", "format_map"}
)  # fmt: skip
_FOREIGN: Final = frozenset(
    {"lipsum", "self", "url_for", "get_flashed_messages", "request", "session", "g", "config", "app", "environment",
     "caller_globals", "cycler", "joiner"}
)  # fmt: skip
# Filters that look up an attribute that an argument names, and those that make text of others.
_BY_ATTRIBUTE: Final = frozenset(
    {"map", "selectattr", "rejectattr", "groupby", "sum", "sort", "unique", "min", "max", "dictsort"}
)
_TEXTUAL: Final = frozenset({"join", "format", "replace", "reverse", "lower", "upper", "string", "trim", "title"})
_LARGE: Final = 1_000_000
_WIDE: Final = re.compile(r"%[-+ #0]*\d{6,}|[:<>^=]\d{6,}")
_FOLDED: Final = 4096  # characters of a constant that is put together


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
    told: set[tuple[str, str]] = set()
    for rule, words, at in _faults(template):
        if (rule, words) not in told:
            told.add((rule, words))
            line = text.count("\n", 0, at) + 1
            yield finding(RULES, rule, source, place, f"{what}, line {line}: {words}", consequence=_RENDERED)


_Fault = tuple[str, str, int]


def _faults(template: jinja.JinjaTemplate) -> Iterator[_Fault]:
    built = _built_names(template)
    own = {name.partition(".")[0] for s in template.statements for name in s.targets}
    for statement in template.statements:
        if statement.word in jinja.LOADING:
            yield "template/loading", f"`{statement.word}` loads another template", statement.at
        for part in statement.parts:
            for node in part.walk():
                yield from _at(node, built, own)
    yield from _loops(template)


def _at(node: Expr, built: set[str], own: set[str]) -> Iterator[_Fault]:
    match node.kind:
        case "attr" if _inner(node.value):
            yield "template/underscored", f"attribute {node.value!r}", node.at
        case "item":
            yield from _item(node.parts[1], node.at, built)
        case "filter" | "test":
            yield from _filter(node, built)
        case "name" if node.value in _FOREIGN and node.value not in own:
            yield "template/foreign-global", f"the name {node.value!r}", node.at
        case "const" | "op":
            yield from _constant(node)
        case "call":
            yield from _called(node)


def _inner(name: object) -> bool:
    return isinstance(name, str) and (name.startswith("_") or name in _INSIDES)


def _item(part: Expr | None, at: int, built: set[str]) -> Iterator[_Fault]:
    """`x[part]`, which for a text is the attribute of that name."""
    if part is None:
        return
    value = fold(part)
    if isinstance(value, str):
        if _inner(value):
            yield "template/underscored", f"item {value!r}", at
    elif _is_built(part, built):
        yield "template/built-name", "an item's name is put together", at


def _filter(node: Expr, built: set[str]) -> Iterator[_Fault]:
    name, arguments = node.value, node.parts[1:]
    if name == "attr":
        yield "template/attr", "the filter `attr`", node.at
    if name in _BY_ATTRIBUTE:
        for argument in arguments:
            inner = argument.parts[0] if argument is not None and argument.kind == "keyword" else argument
            value = fold(inner) if inner is not None else None
            if value == "attr":  # map('attr', ...)
                yield "template/attr", "the filter `attr`, by its name", node.at
            elif isinstance(value, str) and any(_inner(step) for step in value.split(".")):
                yield "template/underscored", f"attribute {value!r}", node.at
            elif value is None and inner is not None and _is_built(inner, built):
                yield "template/built-name", f"an attribute's name for `{name}` is put together", node.at


def _called(node: Expr) -> Iterator[_Fault]:
    callee, arguments = node.parts[0], node.parts[1:]
    if callee is None or callee.kind != "name" or callee.value != "range":
        return
    counts = [v for a in arguments if a is not None and isinstance(v := fold(a), int)]
    if any(abs(count) >= _LARGE for count in counts):
        yield "template/bomb", f"a loop over {max(counts, key=abs)} numbers", node.at


def _constant(node: Expr) -> Iterator[_Fault]:
    """A constant, written or put together."""
    if node.kind == "op" and node.value in ("*", "**"):
        yield from _product(node)
        return
    value = fold(node)
    if isinstance(value, str):
        if _DUNDER.search(value):
            yield "template/underscored-text", f"the text {_DUNDER.search(value)[0]!r}", node.at  # type: ignore[index]
        if _WIDE.search(value):
            yield "template/bomb", f"a field of {_WIDE.search(value)[0]!r}", node.at  # type: ignore[index]
    elif isinstance(value, int) and abs(value) >= _LARGE * 1000:
        yield "template/bomb", "a number beyond all lengths and counts", node.at


def _product(node: Expr) -> Iterator[_Fault]:
    sides = [fold(part) for part in node.parts if part is not None]
    if node.value == "**" and not all(isinstance(s, int) and abs(s) < 100 for s in sides):
        yield "template/bomb", "a power", node.at
    elif any(isinstance(s, int) and abs(s) >= _LARGE for s in sides):
        yield "template/bomb", "something is multiplied by a very large number", node.at


def _loops(template: jinja.JinjaTemplate) -> Iterator[_Fault]:
    """Loops over constant ranges inside each other: their counts multiply."""
    counts: list[int] = []
    for statement in template.statements:
        if statement.word == "endfor" and counts:
            counts.pop()
        elif statement.word == "for":
            counts.append(_count(statement.parts[0]))
            total = 1
            for count in counts:
                total *= count
            if total >= _LARGE and counts[-1] > 1:
                yield "template/bomb", f"loops that run {total} times", statement.at


def _count(over: Expr) -> int:
    callee = over.parts[0] if over.kind == "call" else None
    if callee is None or callee.kind != "name" or callee.value != "range":
        return 1
    values = [fold(a) for a in over.parts[1:] if a is not None]
    if not values or not all(isinstance(v, int) for v in values) or values[2:] == [0]:
        return 1
    return max(len(range(*[max(min(v, 1 << 62), -(1 << 62)) for v in values[:3]])), 1)


# ---- names that are put together ------------------------------------------------------------------------------


def fold(node: Expr) -> Any:
    """The value of an expression of constants; None where it isn't one, or is a long one."""
    if node.kind == "const":
        return node.value
    below = [fold(part) if part is not None else None for part in node.parts]
    if node.kind == "op" and node.value in ("~", "+") and len(below) == 2:
        return _join(below, "" if node.value == "~" else None)
    if node.kind == "op" and node.value == "*" and len(below) == 2:
        return _times(*below)
    if node.kind == "list" and all(isinstance(v, str) for v in below):
        return below
    if node.kind == "filter" and below:
        return _filtered(node.value, below)
    if node.kind == "item" and isinstance(below[0], str) and _backwards(node.parts[1]):
        return below[0][::-1]
    return None


def _join(values: list[Any], glue: str | None) -> str | None:
    if all(isinstance(v, str) for v in values) or (glue is not None and all(isinstance(v, str | int) for v in values)):
        text = (glue or "").join(map(str, values))
        return text if len(text) <= _FOLDED else None
    return None


def _times(first: Any, second: Any) -> Any:
    if isinstance(first, int) and isinstance(second, str):
        first, second = second, first
    if isinstance(first, str) and isinstance(second, int) and 0 < second <= _FOLDED // max(len(first), 1):
        return first * second
    return None


def _filtered(name: str, values: list[Any]) -> Any:
    value = values[0]
    if name == "join" and isinstance(value, list):
        return _join(value, values[1] if len(values) > 1 and isinstance(values[1], str) else "")
    if not isinstance(value, str):
        return None
    plain = {"lower": value.lower(), "upper": value.upper(), "reverse": value[::-1], "trim": value.strip(),
             "string": value}  # fmt: skip
    if name == "replace" and len(values) == 3 and all(isinstance(v, str) for v in values) and values[1]:
        return value.replace(values[1], values[2])[:_FOLDED]
    return plain.get(name)


def _backwards(part: Expr | None) -> bool:
    """`[::-1]`."""
    if part is None or part.kind != "slice" or len(part.parts) != 3 or part.parts[:2] != (None, None):
        return False
    step = part.parts[2]
    return step is not None and step.kind == "op" and step.value == "-"


def _is_built(node: Expr, built: set[str]) -> bool:
    """Whether an expression makes text of pieces, or is a name that was set to such."""
    return any(
        (n.kind == "op" and (n.value == "~" or (n.value in ("+", "%", "*") and _has_text(n))))
        or (n.kind == "filter" and n.value in _TEXTUAL)
        or (n.kind == "attr" and n.value in ("format", "join", "replace", "lower", "upper", "strip"))
        or (n.kind == "name" and n.value in built)
        for n in node.walk()
    )


def _has_text(node: Expr) -> bool:
    return any(n.kind == "const" and isinstance(n.value, str) for n in node.walk())


def _built_names(template: jinja.JinjaTemplate) -> set[str]:
    """Names that `set` gives text that is put together from pieces of which one has an underscore."""
    built: set[str] = set()
    for statement in template.statements:
        if statement.word != "set" or not statement.parts:
            continue
        part = statement.parts[0]
        if _is_built(part, built) and (_mentions_underscore(part) or _uses(part, built)):
            built.update(statement.targets)
    return built


def _mentions_underscore(node: Expr) -> bool:
    return any(
        n.kind == "const" and isinstance(n.value, str) and (n.value[:1] == "_" or "__" in n.value or "%" in n.value)
        for n in node.walk()
    )


def _uses(node: Expr, names: set[str]) -> bool:
    return any(n.kind == "name" and n.value in names for n in node.walk())
