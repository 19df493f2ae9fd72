"""Jinja2's filters and tests, and the methods of Python's plain objects: the abstract value that each returns.

A filter, test or method that isn't in these tables is unproven. `FILTERS` has those of jinja2 3.1.6
(`jinja2.filters.FILTERS`) except `attr` and `map`, which look up names. Each result covers all values that the callable
can return.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from weighbridge.reports.scan.template.values import (
    ANY,
    ANYTHING,
    BUILT,
    DATA,
    DERIVED,
    GIVEN,
    METHOD,
    NOTHING,
    NUMBER,
    NUMERIC,
    OBJECT,
    SPACE,
    Value,
    contained,
    flattened,
    folded,
    joined,
)

#: A callable: its result for a subject and arguments, positional and by name alike.
Meaning = Callable[[Value, list[Value]], Value]

_LONGEST: Final = 4096


def _always(result: Value) -> Meaning:
    return lambda subject, arguments: result


def _is_unchanged(value: Value) -> bool:
    """Whether it is certainly the caller's data, or numbers."""
    return not value.constants and value.items is None and not value.flags & ~(DATA | DERIVED | NUMBER)


def _element(subject: Value, arguments: list[Value]) -> Value:
    return joined([subject.element, *arguments])


def _items(subject: Value, arguments: list[Value]) -> Value:
    """A list of the items."""
    return contained(subject.element)


def _nested(subject: Value, arguments: list[Value]) -> Value:
    """A list of lists of the items, or of their items and letters, and of the arguments."""
    inner = flattened([subject.element, *arguments])
    inner = inner.join(Value(inner.texts).element)
    return contained(inner.join(contained(inner)))


def _gathered(subject: Value, arguments: list[Value]) -> Value:
    """A set or dict of the items, of the arguments and of their items and letters."""
    inner = flattened([subject, *arguments])
    return contained(inner.join(Value(inner.texts).element))


def _grouped(subject: Value, arguments: list[Value]) -> Value:
    """A list of pairs: an attribute of items, and the list of the items with it."""
    pairs = _nested(subject, arguments)
    return contained(pairs).join(pairs)


def _text(method: str, filtered: bool = False) -> Meaning:
    """A method of `str`, folded if everything is known. `filtered`: as a filter, which converts its subject to text."""

    def call(text: Any, *arguments: Any) -> Any:
        if not isinstance(text, str) and not filtered:
            raise TypeError
        if any(isinstance(a, int) and abs(a) > _LONGEST for a in arguments):
            raise OverflowError
        return getattr(str(text), method)(*arguments)

    def meaning(subject: Value, arguments: list[Value]) -> Value:
        odd = subject.is_container or (filtered and any(not all(isinstance(c, str) for c in a.constants)
                                                        for a in arguments))  # fmt: skip
        return BUILT if odd else folded(call, [subject, *arguments])

    return meaning


def _part(method: str, filtered: bool = False) -> Meaning:
    """A method of `str` whose result is a part of the text, or the text in another case."""
    fold = _text(method, filtered)

    def meaning(subject: Value, arguments: list[Value]) -> Value:
        if _is_unchanged(subject) and all(not a.flags & ~(DATA | NUMBER) for a in arguments):
            return Value(flags=subject.flags | DATA)
        return fold(subject, arguments)

    return meaning


def _parts(method: str) -> Meaning:
    """A method of `str` whose result is a list of parts of the text."""
    fold = _text(method)

    def meaning(subject: Value, arguments: list[Value]) -> Value:
        if _is_unchanged(subject):
            return contained(Value(flags=subject.flags | DATA))
        result = fold(subject, arguments)
        return result if not result.flags else contained(BUILT)

    return meaning


def _as_text(subject: Value, arguments: list[Value]) -> Value:
    if subject.is_container or subject.flags & (METHOD | OBJECT | SPACE | ANY):
        return BUILT
    text = Value(tuple(str(c) for c in subject.constants), subject.flags & ~NUMBER)
    return text.join(BUILT) if subject.flags & NUMBER else text


def _reversed(subject: Value, arguments: list[Value]) -> Value:
    """A list of the items, or text from its end."""
    plain = subject.plain
    text = plain if _is_unchanged(plain) else folded(lambda text: str(text)[::-1], [plain])
    return text if not subject.is_container else contained(subject.element).join(text if plain != NOTHING else NOTHING)


def _join_items(items: Value, glue: Value) -> Value:
    """The items as one text."""
    lists = [c for c in items.constants if isinstance(c, tuple) and all(isinstance(x, str | int) for x in c)]
    exact = len(lists) == len(items.constants) and not items.flags and items.items is None
    if exact and glue.texts and len(glue.texts) == len(glue.constants) and not glue.flags:
        return folded(lambda g, c: g.join(map(str, c)), [glue, Value(tuple(lists))])
    return BUILT


def _rows(rows: Mapping[str, Meaning]) -> Mapping[str, Meaning]:
    return MappingProxyType({name: meaning for names, meaning in rows.items() for name in names.split()})


FILTERS: Final[Mapping[str, Meaning]] = _rows(
    {
        "center e escape filesizeformat forceescape format indent pprint striptags title tojson urlencode urlize "
        "wordwrap xmlattr": _always(BUILT),
        "truncate": lambda subject, arguments: subject.join(BUILT),  # what is short stays itself, a list too
        "abs count length round wordcount": _always(NUMERIC),
        "float int": lambda subject, arguments: joined(arguments).join(NUMERIC),  # or the default
        "first last max min random": _element,
        "d default": lambda subject, arguments: joined([subject, *arguments]),
        "reject rejectattr select selectattr sort unique": _items,
        "list": lambda subject, arguments:
        subject.join(contained(Value(subject.texts).element)) if subject.texts else subject,
        "batch dictsort items slice": _nested,
        "groupby": _grouped,
        "sum": lambda subject, arguments:
        contained(flattened([subject.element, *arguments])).join(NUMERIC).join(joined(arguments)),
        "join": lambda subject, arguments: _join_items(subject, arguments[0] if arguments else Value(("",))),
        "reverse": _reversed,
        "safe string": _as_text,
        "trim": _part("strip", filtered=True),
        **{name: _part(name, filtered=True) for name in ("capitalize", "lower", "upper")},
        "replace": _text("replace", filtered=True),
    }
)  # fmt: skip
#: Filters and methods whose results are folded by the position of their arguments, not by name.
FOLDED: Final = frozenset(
    {"trim", "capitalize", "lower", "upper", "replace", "strip", "lstrip", "rstrip", "removeprefix", "removesuffix",
     "title", "casefold", "swapcase", "center", "ljust", "rjust", "zfill", "expandtabs", "split", "rsplit",
     "splitlines", "partition", "rpartition"}
)  # fmt: skip
#: Filters that look up the attribute that an argument names.
BY_ATTRIBUTE: Final = frozenset(
    {"map", "selectattr", "rejectattr", "groupby", "sum", "sort", "unique", "min", "max", "dictsort"}
)
TESTS: Final = frozenset(
    {"!=", "<", "<=", "==", ">", ">=", "boolean", "callable", "defined", "divisibleby", "eq", "equalto", "escaped",
     "even", "false", "filter", "float", "ge", "greaterthan", "gt", "in", "integer", "iterable", "le", "lessthan",
     "lower", "lt", "mapping", "ne", "none", "number", "odd", "sameas", "sequence", "string", "test", "true",
     "undefined", "upper"}
)  # fmt: skip

#: Methods that put their arguments into their object, or change its order.
CHANGING: Final = frozenset(
    {"append", "extend", "insert", "update", "setdefault", "add", "pop", "popitem", "remove", "discard", "clear",
     "reverse", "sort"}
)  # fmt: skip
METHODS: Final[Mapping[str, Meaning]] = _rows(
    {
        **{name: _part(name) for name in ("strip", "lstrip", "rstrip", "removeprefix", "removesuffix", "lower", "upper",
           "capitalize", "title", "casefold", "swapcase")},
        **{name: _text(name) for name in ("replace", "center", "ljust", "rjust", "zfill", "expandtabs")},
        **{name: _parts(name) for name in ("split", "rsplit", "splitlines", "partition", "rpartition")},
        "format translate": _always(BUILT),
        "join": lambda subject, arguments: _join_items(arguments[0] if arguments else NOTHING, subject),
        "startswith endswith find rfind index rindex count isalnum isalpha isascii isdecimal isdigit isidentifier "
        "islower isnumeric isprintable isspace istitle isupper bit_length is_integer": _always(NUMERIC),
        "encode decode": _always(ANYTHING),
        # lists, dicts, sets
        "get pop setdefault": _element,
        "popitem items": _nested,
        "keys values copy": _items,
        "append extend insert update add remove discard clear reverse sort": _always(NOTHING),
        "union intersection difference fromkeys": _gathered,  # sets, or dicts made of other dicts
        # times
        "strftime isoformat": _always(BUILT),
    }
)  # fmt: skip
#: Functions that jinja2 and loaders define, in addition to the caller's variables.
FUNCTIONS: Final[Mapping[str, Meaning]] = MappingProxyType(
    {
        "range": _always(contained(NUMERIC)),
        "dict": lambda subject, arguments: contained(flattened(arguments), mapping=True),
        "namespace": _always(Value(flags=SPACE)),
        "raise_exception": _always(NOTHING),
        "strftime_now": _always(BUILT),
    }
)
#: The caller's variables whose names a model's own files can't take.
CALLERS: Final[Mapping[str, Value]] = MappingProxyType(
    {"messages": GIVEN, "tools": GIVEN, "documents": GIVEN, "add_generation_prompt": NUMERIC}
)
