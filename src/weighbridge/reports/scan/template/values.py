"""The abstract values of a template's expressions: sets of possible constants, and flags for everything else.

NUMBER    an unknown number or truth value: it selects an item, never an attribute
DATA      data from the caller (messages, tools), a part of it, or text that contains no internal name
TEXT      text that the template's author may determine: assembled, or from the model's own files
BEGUN     text whose constant beginning rules out that it is an internal name
METHOD    a method of text, a list or a dict
OBJECT    a function, macro or class of Python or jinja2, or a loop
SPACE     a namespace of the template
NESTED    a container whose items may be such containers as well
DERIVED   the result of selecting an unknown name, which may be an attribute of Python's own
ANY       any Python object
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from itertools import product
from math import prod
from typing import Any, Final

from weighbridge.base.records import dataclass

NUMBER, DATA, TEXT, BEGUN, METHOD, OBJECT, SPACE, NESTED, DERIVED, ANY = (1 << n for n in range(10))
#: Names of frames, code and generators, which the sandbox blocks as well (jinja2.sandbox).
INSIDES: Final = frozenset(
    {"mro", "func_globals", "func_code", "func_closure", "gi_frame", "gi_code", "gi_yieldfrom", "cr_frame", "cr_code",
     "cr_await", "cr_origin", "ag_code", "ag_frame", "ag_await", "tb_frame", "tb_next", "f_globals", "f_locals",
     "f_builtins", "f_code", "f_back", "format_map"}
)  # fmt: skip
_MOST: Final = 16  # constants of a value, beyond which it is any text
_LONGEST: Final = 256  # no internal name is longer
_DEEPEST: Final = 3  # containers in containers that are distinguished


def is_inner(name: object) -> bool:
    """Whether an attribute of this name leads to Python internals."""
    return isinstance(name, str) and (name.startswith("_") or name in INSIDES)


def _begins_safely(text: str) -> bool:
    """Whether no internal name starts with `text`."""
    return bool(text) and text[0] != "_" and not any(name.startswith(text) for name in INSIDES)


@dataclass(frozen=True, slots=True)
class Value:
    """`constants`: the possible constants, a tuple for a list of them; `flags`: other possible values; `items`: the
    possible items of any other container; `mapping`: that container is a dict; `depth`: how deep it nests."""

    constants: tuple[Any, ...] = ()
    flags: int = 0
    items: Value | None = None
    mapping: bool = False
    depth: int = 0

    def join(self, value: Value) -> Value:
        if self == value or value == NOTHING:
            return self
        if self == NOTHING:
            return value
        items = self.items.join(value.items) if self.items and value.items else self.items or value.items
        mapping = (self.mapping or self.items is None) and (value.mapping or value.items is None)
        return _limited((*self.constants, *value.constants), self.flags | value.flags, items, mapping)

    @property
    def is_container(self) -> bool:
        return self.items is not None or any(isinstance(c, tuple) for c in self.constants)

    @property
    def is_number(self) -> bool:
        """Whether it is certainly a number."""
        numeric = all(isinstance(c, int | float) for c in self.constants)
        return self.items is None and self.flags in (0, NUMBER) and numeric and self != NOTHING

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(c for c in self.constants if isinstance(c, str))

    @property
    def plain(self) -> Value:
        """Its possible texts and numbers."""
        return Value(tuple(c for c in self.constants if not isinstance(c, tuple)), self.flags & ~NESTED)

    @property
    def element(self) -> Value:
        """Its possible items, as iteration returns them."""
        items = (self.items or NOTHING).join(Value(flags=within(self.flags)))
        for constant in self.constants:
            if isinstance(constant, str | tuple):
                items = items.join(_limited(tuple(constant), 0))
        return items if not self.flags & NESTED else items.join(self.container)

    @property
    def container(self) -> Value:
        """Its possible containers."""
        lists = tuple(c for c in self.constants if isinstance(c, tuple))
        return Value(lists, self.flags & NESTED, self.items, self.mapping, self.depth)

    @property
    def deep(self) -> Value:
        """Its items, their items, and so on."""
        items, level = NOTHING, self.element
        while True:
            items = items.join(level)
            if not level.is_container or level.flags & NESTED:
                return items
            level = level.container.element

    @property
    def widened(self) -> Value:
        """The same without constants, which might grow forever."""
        items = self.items.widened if self.items is not None else None
        return _generalized(self.constants, self.flags, items, self.mapping)

    @property
    def generalized(self) -> Value:
        """Widened, except for known internal names."""
        return self.widened.join(Value(tuple(c for c in self.constants if is_inner(c))))

    @property
    def loose(self) -> Value:
        """The same without knowledge of its beginning."""
        if not self.flags & BEGUN:
            return self
        return Value(self.constants, self.flags ^ BEGUN | TEXT, self.items, self.mapping, self.depth)


def within(flags: int) -> int:
    """The flags of an item of a value with these flags."""
    return flags & (DATA | ANY | DERIVED) | (TEXT if flags & (TEXT | BEGUN) else 0) | (ANY if flags & OBJECT else 0)


def _limited(constants: tuple[Any, ...], flags: int, items: Value | None = None, mapping: bool = False) -> Value:
    unique = tuple({(type(c), c): c for c in constants}.values())
    if len(unique) > _MOST or any(isinstance(c, str) and len(c) > _LONGEST for c in unique):
        return _generalized(unique, flags, items, mapping)
    return contained(items, mapping, unique, flags) if items is not None else Value(unique, flags)


def _generalized(constants: tuple[Any, ...], flags: int, items: Value | None, mapping: bool) -> Value:
    """Converts constants that are too many or too long to flags."""
    for constant in constants:
        if isinstance(constant, str):
            begun = len(constant) > _LONGEST and _begins_safely(constant[:_LONGEST])
            lower = constant.lower()  # no part of harmless text, in either case or direction, is an internal name
            harmless = "_" not in constant and "mro" not in lower and "orm" not in lower
            flags |= DATA if harmless else BEGUN if begun else TEXT
        elif isinstance(constant, tuple):
            inner = _generalized(constant, 0, None, False)
            items = inner if items is None else items.join(inner)
        else:
            flags |= NUMBER
    return contained(items, mapping, (), flags) if items is not None else Value((), flags)


def contained(items: Value, mapping: bool = False, constants: tuple[Any, ...] = (), flags: int = 0) -> Value:
    """A container of `items`."""
    if items.depth >= _DEEPEST:
        flat = items.join(items.deep)
        return Value(constants, flags | NESTED, Value(flat.plain.constants, flat.flags & ~NESTED), False, 1)
    return Value(constants, flags, items, mapping, items.depth + 1)


def constant(value: Any) -> Value:
    return _limited((value,), 0)


def listed(values: tuple[Any, ...]) -> Value:
    """A list of known constants."""
    return _limited((values,), 0) if len(values) <= _LONGEST else contained(_limited(values, 0))


NOTHING: Final = Value()
NUMERIC: Final = Value(flags=NUMBER)
GIVEN: Final = Value(flags=DATA)
BUILT: Final = Value(flags=TEXT)
BOUND: Final = Value(flags=OBJECT)
ANYTHING: Final = Value(flags=ANY)


def joined(values: Iterable[Value]) -> Value:
    return reduce(Value.join, values, NOTHING)


def flattened(values: Iterable[Value]) -> Value:
    """Any of these values, or of their items at any depth."""
    return joined(part for v in values for part in ((v, v.deep) if v.is_container or v.flags & ANY else (v,)))


# ---- text


def begins_safely(value: Value) -> bool:
    """Whether text that starts with this value can't be an internal name."""
    if value.items is not None or value.flags not in (0, BEGUN) or value == NOTHING:
        return False
    return all(isinstance(c, str) and _begins_safely(c) for c in value.constants)


def folded(fold: Callable[..., Any], values: list[Value]) -> Value:
    """`fold` of every combination of constants; TEXT if any value is unknown."""
    values = [v.loose for v in values]
    combinations = prod(max(len(value.constants), 1) for value in values)
    all_known = all(v.constants for v in values) and combinations <= _MOST * _MOST
    results: list[Any] = []
    exact = all_known and not any(v.flags or v.items is not None for v in values)
    for chosen in product(*(v.constants for v in values)) if all_known else ():
        try:
            result = fold(*chosen)
        except OverflowError:
            exact = False  # too long to be followed
            continue
        except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError):
            continue
        results.append(tuple(result) if isinstance(result, list) else result)
    return _limited(tuple(results), 0 if exact else TEXT)


def times(a: Any, b: Any) -> Any:
    count, text = (a, b) if isinstance(b, str) else (b, a)
    if isinstance(text, str) and isinstance(count, int):
        if count > _LONGEST // max(len(text), 1):
            raise OverflowError
        return text * count
    if abs(a) > 1 << 62 or abs(b) > 1 << 62:
        raise OverflowError
    return a * b


def _concatenate(a: Any, b: Any) -> str:
    if isinstance(a, tuple) or isinstance(b, tuple):
        raise OverflowError
    return f"{a}{b}"


def text_of(values: list[Value]) -> Value:
    """The values concatenated to one text."""
    if len(values) == 1 and not values[0].flags & (METHOD | OBJECT | SPACE | ANY) and not values[0].is_container:
        return values[0]
    text = _EMPTY
    for value in values:
        if begins_safely(text) and (text.flags or value.flags or value.is_container):
            text = Value(flags=BEGUN)
        elif text.flags & TEXT and not text.constants:
            return BUILT
        elif text == _EMPTY and value.constants and not value.flags:
            text = value
        else:
            text = folded(_concatenate, [text, value])
    return text


_EMPTY: Final = constant("")
