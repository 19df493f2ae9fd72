"""What the expressions of a template can be: an abstract interpreter over constants and over what isn't known.

A value is a set of possible constants, and flags for what else it may be. Where a name is set several times it may be
any of these. Everything is one pass over each expression, children first, so time is linear in the template.

    number    an integer that isn't known: it selects an item, never an attribute
    data      what the caller passes in (messages, tools), or is made of it alone
    built     text that is put together, or comes from the model's own files (special tokens): any name
    begun     text that begins with a constant by which it can't be a name of Python's own
    derived   what an unknown name selects of a constant: the constant's own attributes among it
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from weighbridge.reports.scan.template import jinja
from weighbridge.reports.scan.template.jinja import Expr

NUMBER, DATA, BUILT, DERIVED, BEGUN = 1, 2, 4, 8, 16
#: Names of frames, code and generators that the sandbox guards as well (jinja2.sandbox).
INSIDES: Final = frozenset(
    {"mro", "func_globals", "func_code", "func_closure", "gi_frame", "gi_code", "cr_frame", "cr_code", "ag_code",
     "ag_frame", "tb_frame", "f_globals", "f_locals", "f_builtins", "f_code", "f_back", "format_map"}
)  # fmt: skip
_GLOBALS: Final = frozenset({"range", "namespace", "dict", "raise_exception", "strftime_now"})
_MOST: Final = 16  # constants that a value may be, beyond which it is any text
_LONGEST: Final = 4096
_PASSES: Final = 4


@dataclass(frozen=True, slots=True)
class Value:
    """`constants`: what it may be, a tuple for a list of constants; `flags`: what else; `items`: what the items of any
    other container may be."""

    constants: tuple[Any, ...] = ()
    flags: int = 0
    items: Value | None = None
    mapping: bool = False

    def join(self, other: Value) -> Value:
        if self == other:
            return self
        items = (
            other.items if self.items is None else self.items if other.items is None else self.items.join(other.items)
        )
        return _limited((*self.constants, *other.constants), self.flags | other.flags, items,
                        self.mapping and other.mapping)  # fmt: skip

    @property
    def is_constant(self) -> bool:
        """Whether it may be text, a number or a list that the template itself writes."""
        return bool(self.constants) or self.items is not None

    @property
    def is_container(self) -> bool:
        return self.items is not None or any(isinstance(c, tuple) for c in self.constants)

    @property
    def inside(self) -> Value:
        """What the items of a container may be, or the items of these; of text, nothing."""
        out = self.items or _NOTHING
        for constant in self.constants:
            for part in (constant, *constant) if isinstance(constant, tuple) else ():
                out = out.join(_limited(part, 0)) if isinstance(part, tuple) else out
        return out

    def split(self) -> tuple[Value, Value]:
        """What it is as text or a number, and as a container."""
        lists = tuple(c for c in self.constants if isinstance(c, tuple))
        plain = tuple(c for c in self.constants if not isinstance(c, tuple))
        return Value(plain, self.flags), Value(lists, self.flags, self.items, self.mapping)

    def grown(self, added: Value) -> Value:
        """A list or dict into which others were put, so that its own constants are not all of it."""
        kept = tuple(c for c in self.constants if not isinstance(c, tuple))
        return Value(kept, self.flags, self.element().join(added), self.mapping)

    def element(self) -> Value:
        """What iterating over it, or one of its items, gives."""
        out = Value(flags=self.flags) if self.items is None else self.items.join(Value(flags=self.flags))
        for constant in self.constants:
            out = out.join(_limited(tuple(constant), 0) if isinstance(constant, str | tuple) else _NOTHING)
        return out


def _limited(constants: tuple[Any, ...], flags: int, items: Value | None = None, mapping: bool = False) -> Value:
    unique = tuple({(type(c), c): c for c in constants}.values())
    if len(unique) > _MOST or any(isinstance(c, str) and len(c) > _LONGEST for c in unique):
        return Value((), flags | BUILT, items, mapping)
    return Value(unique, flags, items, mapping)


_NUMBER: Final = Value(flags=NUMBER)
_DATA: Final = Value(flags=DATA)
_BUILT: Final = Value(flags=BUILT)
_NOTHING: Final = Value()


class _Env(NamedTuple):
    """The values of the names, and of the expressions below the one at hand."""

    names: Mapping[str, Value]
    values: dict[int, Value]

    def of(self, node: Expr | None) -> Value:
        return _NOTHING if node is None else self.values[id(node)]


def evaluate(template: jinja.JinjaTemplate) -> dict[int, Value]:
    """The value of every expression, by its identity."""
    names: dict[str, Value] = {}
    for number in range(_PASSES):
        values, now = _pass(template, names)
        if now == names:
            return values
        widen = number == _PASSES - 2
        names = {k: v.join(_BUILT) if widen and v != names.get(k) else v for k, v in now.items()}
    return values


def _pass(template: jinja.JinjaTemplate, names: Mapping[str, Value]) -> tuple[dict[int, Value], dict[str, Value]]:
    values: dict[int, Value] = {}
    env = _Env(names, values)
    now: dict[str, Value] = dict(names)
    macros = {s.targets[0]: s.targets[1:] for s in template.statements if s.word == "macro"}

    def bind(bindings: Iterable[tuple[str, Value]]) -> None:
        for name, value in bindings:
            now[name] = now[name].join(value) if name in now else value

    for statement in template.statements:
        for part in statement.parts:
            for node in reversed(list(part.walk())):  # children first
                parts_of = [env.of(p) for p in node.parts]
                values[id(node)] = _KINDS.get(node.kind, _other)(node, parts_of, env)
                if node.kind == "call":
                    bind(_passed(node, parts_of, macros))
        bind(_bindings(statement, values))
    return values, now


_ADDED: Final = "(added)"  # what any method puts into any list or dict
_ADDING: Final = frozenset({"append", "extend", "insert", "update", "setdefault", "add"})
_EXTRA: Final = ("varargs", "kwargs")


def _passed(node: Expr, parts: list[Value], macros: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, Value]]:
    """What a call's arguments flow into: the parameters of a macro (of any, where its name is another's), a list."""
    callee = node.parts[0]
    if callee is None or len(parts) < 2:
        return
    passed = _flat(parts[1:]).join(_words(node))
    if callee.kind == "attr" and callee.value in _ADDING:
        yield _ADDED, passed
    elif macros and (callee.kind != "name" or callee.value not in _GLOBALS):
        own = macros.get(callee.value) if callee.kind == "name" else None
        for name in own if own is not None else [p for each in macros.values() for p in each]:
            yield name, passed
        yield from ((name, Value(items=passed)) for name in _EXTRA)


def _flat(parts: Iterable[Value]) -> Value:
    """Any of these values, or of their items."""
    out = _NOTHING
    for part in parts:
        out = out.join(part).join(part.inside)
    return out


def _words(node: Expr) -> Value:
    """The names of a call's keywords: keys of the dict that it makes."""
    return _limited(
        tuple(p.value for p in node.parts if p is not None and p.kind == "keyword" and p.value[:1] != "*"), 0
    )


def _bindings(statement: jinja.Statement, values: Mapping[int, Value]) -> list[tuple[str, Value]]:
    """What a statement sets its names to."""
    first = values.get(id(statement.parts[0])) if statement.parts else None
    if statement.word == "set":
        if first is None:
            return [(name, Value((statement.text.strip(),)) if statement.text is not None else _BUILT)
                    for name in statement.targets]  # fmt: skip
        spread = first.element() if len(statement.targets) > 1 else first
        return [(name, spread) for name in statement.targets]
    if statement.word == "for" and first is not None:
        each = first.element()
        spread = each.join(each.element()) if len(statement.targets) > 1 else each
        return [(name, spread) for name in statement.targets]
    if statement.word == "with":
        everything = [values[id(p)] for p in statement.parts]
        return [(name, value) for name in statement.targets for value in everything]
    if statement.word == "macro":
        name, *parameters = statement.targets
        default = _flat(values[id(p)] for p in statement.parts).join(_DATA)
        return [(name, _BUILT), *((p, default) for p in parameters)]
    return [(name, _BUILT) for name in statement.targets]


def _const(node: Expr, parts: list[Value], env: _Env) -> Value:
    return Value((node.value,)) if isinstance(node.value, str | int | float | bool | None) else _DATA


def _name(node: Expr, parts: list[Value], env: _Env) -> Value:
    if node.value in env.names:
        value = env.names[node.value]
        added = env.names.get(_ADDED)
        return value if added is None or not value.is_container else value.grown(added)
    return _BUILT if node.value.endswith(("_token", "_tokens")) else _NUMBER if node.value == "loop" else _DATA


def _attr(node: Expr, parts: list[Value], env: _Env) -> Value:
    owner = node.parts[0]
    if owner is not None and owner.kind == "name" and owner.value == "loop":
        return _BUILT if node.value in ("previtem", "nextitem") else _NUMBER
    full = f"{owner.value}.{node.value}" if owner is not None and owner.kind == "name" else ""
    if full in env.names:
        return env.names[full].join(parts[0].inside)
    return _selected(parts[0], Value((node.value,)))


def _item(node: Expr, parts: list[Value], env: _Env) -> Value:
    base, key = parts[0], parts[1]
    part = node.parts[1]
    if part is not None and part.kind == "slice":
        return _sliced(base, part)
    return _selected(base, key)


def _selected(base: Value, key: Value) -> Value:
    """`base[key]`."""
    base = _loose(base)
    texts = [c for c in base.constants if isinstance(c, str | tuple)]
    places = [k for k in key.constants if type(k) is int]
    out = _NOTHING if base.items is None else base.items
    for text in texts:
        for place in places:
            out = out.join(Value((text[place],)) if -len(text) <= place < len(text) else _NOTHING)
        if key.flags:
            out = out.join(_limited(tuple(text), 0))
    derived = DERIVED if base.is_constant and key.flags & (DATA | BUILT) else 0
    return out.join(Value(flags=base.flags | derived | (key.flags & BUILT)))


def _sliced(base: Value, part: Expr) -> Value:
    base = _loose(base)
    bounds = [p.value if p is not None and p.kind == "const" else _negative(p) if p is not None else None
              for p in part.parts]  # fmt: skip
    if not all(b is None or type(b) is int for b in bounds) or (len(bounds) == 3 and bounds[2] == 0):
        return base.join(_BUILT) if base.constants else base
    cut = slice(*bounds) if len(bounds) > 1 else slice(bounds[0] if bounds else None, None)
    return Value(tuple(c[cut] if isinstance(c, str | tuple) else c for c in base.constants), base.flags, base.items)


def _negative(part: Expr) -> Any:
    inner = part.parts[0] if part.kind == "op" and part.value == "-" and len(part.parts) == 1 else None
    return -inner.value if inner is not None and inner.kind == "const" and type(inner.value) is int else part


def _op(node: Expr, parts: list[Value], env: _Env) -> Value:
    word = node.value
    if word == "if":
        return parts[1].join(parts[2])
    if word in ("and", "or"):
        return parts[0].join(parts[1])
    if word in ("~", "+") and len(parts) == 2 and _begins(parts[0]):
        return _folded(_FOLDS[word], parts) if not (parts[0].flags | parts[1].flags) else Value(flags=BEGUN)
    if len(parts) == 2 and word in _FOLDS:
        return _folded(_FOLDS[word], parts)
    return _NUMBER  # comparisons, arithmetic


def _begins(value: Value) -> bool:
    """Whether text of this value, with more behind it, can't be a name that leads inside."""
    begun = all(isinstance(c, str) and c and c[0] != "_" and not any(i.startswith(c) for i in INSIDES)
                for c in value.constants)  # fmt: skip
    return begun and value.items is None and (value.flags == BEGUN or (bool(value.constants) and not value.flags))


def _loose(value: Value) -> Value:
    """As `value`, which is no longer read from its beginning."""
    return value if not value.flags & BEGUN else Value(value.constants, value.flags ^ BEGUN | BUILT, value.items)


def _folded(fold: Callable[..., Any], parts: list[Value]) -> Value:
    """`fold` of every combination of constants; what isn't constant makes it built, or stays a number."""
    out: list[Any] = []
    flags, parts = 0, [_loose(p) for p in parts]
    combinations = 1
    for p in parts:
        combinations *= max(len(p.constants), 1)
        flags |= p.flags | (BUILT if p.is_container else 0)
    if all(p.constants for p in parts) and combinations <= _MOST * _MOST:
        for chosen in product(*(p.constants for p in parts)):
            try:
                result = fold(*chosen)
            except OverflowError:
                flags |= BUILT  # too long to be followed
                continue
            except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError):
                continue
            if isinstance(result, list):
                return Value((), BUILT, _limited(tuple(r for r in result if isinstance(r, str)), 0))
            out.append(result)
        if not flags:
            return _limited(tuple(out), 0)
    textual = any(isinstance(c, str) for p in parts for c in p.constants)
    unknown = NUMBER if not textual and not flags & (DATA | BUILT) else BUILT if textual or flags & BUILT else DATA
    return _limited(tuple(out), unknown)


def _times(a: Any, b: Any) -> Any:
    count, text = (a, b) if isinstance(b, str) else (b, a)
    if isinstance(text, str) and isinstance(count, int):
        if count > _LONGEST // max(len(text), 1):
            raise OverflowError
        return text * count
    if abs(a) > 1 << 62 or abs(b) > 1 << 62:
        raise OverflowError
    return a * b


def _plus(a: Any, b: Any) -> Any:
    return a + b


def _percent(a: Any, b: Any) -> Any:
    if isinstance(a, str):
        raise TypeError
    return a % b


_FOLDS: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType(
    {"~": lambda a, b: f"{a}{b}", "+": _plus, "*": _times, "%": _percent}
)


def _container(node: Expr, parts: list[Value], env: _Env) -> Value:
    if node.kind != "dict" and all(len(p.constants) == 1 and not p.flags and p.items is None for p in parts):
        listed = tuple(p.constants[0] for p in parts)
        if not any(isinstance(c, tuple) and any(isinstance(inner, tuple) for inner in c) for c in listed):
            return Value((listed,))
    return Value((), 0, _flat(parts), node.kind == "dict")


# Filters and methods of text whose result on constants is Python's own.
_TEXTS: Final = frozenset(
    {"lower", "upper", "capitalize", "title", "strip", "lstrip", "rstrip", "swapcase", "casefold", "replace",
     "removeprefix", "removesuffix", "split", "rsplit", "splitlines", "zfill", "center", "ljust", "rjust", "trim",
     "reverse", "string"}
)  # fmt: skip


# Filters and methods that give items as they are, and those that give lists of them.
_KEEPING: Final = frozenset(
    {"sort", "unique", "reverse", "select", "reject", "selectattr", "rejectattr", "keys", "values"}
)
_PAIRING: Final = frozenset({"dictsort", "items", "groupby", "batch", "slice"})


def _text_method(name: str) -> Callable[..., Any]:
    if name == "reverse":
        return lambda text: text[::-1]
    method = {"trim": "strip", "string": "__str__"}.get(name, name)

    def call(text: Any, *arguments: Any) -> Any:
        if not isinstance(text, str) or any(isinstance(a, int) and abs(a) > _LONGEST for a in arguments):
            raise TypeError
        return getattr(text, method)(*arguments)

    return call


def _called(name: str, subject: Value, arguments: list[Value]) -> Value:
    """The filter or method `name` of `subject`."""
    subject, arguments = _loose(subject), [_loose(a) for a in arguments]
    if name == "join":
        items, glue = (subject, arguments[0]) if arguments else (subject, Value(("",)))
        return _joined(items, glue)
    if name in ("first", "last", "random", "pop", "min", "max"):
        return subject.element()
    if name in ("int", "float"):
        return _flat(arguments).join(_NUMBER)  # the default
    if name == "sum":
        return Value(items=_flat([subject, *arguments]), flags=NUMBER)
    if name in ("length", "count", "abs", "round", "index", "find"):
        return _NUMBER
    if name in ("default", "d", "get"):
        return (subject if name != "get" else subject.element()).join(arguments[-1] if arguments else _NOTHING)
    text, container = subject.split()
    if not subject.is_container:
        return _of_text(name, text, arguments)
    kept = _of_container(name, container)
    return kept if not text.constants else kept.join(_of_text(name, text, arguments))


def _of_text(name: str, subject: Value, arguments: list[Value]) -> Value:
    if name in _TEXTS:
        if not arguments and not subject.constants and not subject.flags & BUILT:
            return Value(flags=subject.flags)
        return _folded(_text_method(name), [subject, *arguments])
    if subject.constants or subject.flags & BUILT or any(_is_text(a) or a.flags & BUILT for a in arguments):
        return Value((), BUILT | subject.flags, None)
    return Value(flags=subject.flags | DATA)


def _of_container(name: str, subject: Value) -> Value:
    if name in ("list", "copy"):
        return subject
    if name in _PAIRING:
        return Value((), subject.flags, subject.inside.join(Value(items=subject.inside)))
    if name in _KEEPING:
        return Value((), subject.flags, subject.inside)
    inner = subject.inside  # text of it, or a list of other text
    return _BUILT if inner.constants or inner.flags & BUILT else inner.join(Value(flags=subject.flags))


def _is_text(value: Value) -> bool:
    return any(isinstance(c, str) for c in value.constants)


def _joined(items: Value, glue: Value) -> Value:
    whole = [c for c in items.constants if isinstance(c, tuple) and all(isinstance(x, str | int) for x in c)]
    if whole and len(whole) == len(items.constants) and not items.flags and items.items is None and _is_text(glue):
        return _limited(tuple(g.join(map(str, c)) for c in whole for g in glue.constants if isinstance(g, str)), 0)
    parts = _flat([items])
    if parts.flags & (DATA | NUMBER) and not parts.constants and not parts.flags & BUILT and not glue.flags:
        return Value(flags=DATA)
    return Value((), BUILT)


def _filter(node: Expr, parts: list[Value], env: _Env) -> Value:
    return _called(node.value, parts[0] if parts else _DATA, parts[1:])


def _call(node: Expr, parts: list[Value], env: _Env) -> Value:
    callee = node.parts[0]
    if callee is None:
        return _DATA
    if callee.kind == "attr" and callee.value == "join" and len(parts) == 2:
        return _joined(parts[1], env.of(callee.parts[0]))
    if callee.kind == "attr":
        return _called(callee.value, env.of(callee.parts[0]), parts[1:])
    if callee.kind == "name" and callee.value in env.names:
        return _loose(env.names[callee.value])  # a macro's text
    if callee.kind == "name" and callee.value in ("range", "namespace", "dict"):
        items = _NUMBER if callee.value == "range" else _flat(parts[1:]).join(_words(node))
        return Value((), 0, items, callee.value != "range")
    return _BUILT if any(p.constants or p.flags & BUILT for p in parts[1:]) else _DATA


def _keyword(node: Expr, parts: list[Value], env: _Env) -> Value:
    return parts[0] if parts else _NOTHING


def _other(node: Expr, parts: list[Value], env: _Env) -> Value:
    return _NUMBER  # tests and slices


_KINDS: Final[Mapping[str, Callable[[Expr, list[Value], _Env], Value]]] = MappingProxyType(
    {"const": _const, "name": _name, "attr": _attr, "item": _item, "op": _op, "filter": _filter, "call": _call,
     "keyword": _keyword, "list": _container, "tuple": _container, "dict": _container}
)  # fmt: skip
