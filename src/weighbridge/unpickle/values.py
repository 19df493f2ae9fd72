"""What an abstract pickle machine computes: plain values, and inert records where Python would have objects.

Plain are None, bool, int, float, str, bytes, list and tuple. All else is a record: nothing is looked up, called or
hashed. A dict is a list of pairs, as keys that an attacker chooses must not be hashed or compared (equal hashes, nested
tuples); records are equal to themselves alone. The graph is shared as in the pickle and may have cycles: walk it with
a set of what was seen, never recursively, and never print it whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from weighbridge.io.source import Source


class UnexpectedOpcode(Exception):
    """A known call with arguments that its library would not write, or with a result that can't be had."""


class Record:
    """Base of the records. `at` is the offset in the source of the opcode that made it."""

    __slots__ = ("at",)

    def __init__(self, at: int) -> None:
        self.at = at


def _pairs(flat: Sequence[Any]) -> list[tuple[Any, Any]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


class Dict(Record):
    """A dict: `flat` has each key, then its value, as they were set. Where a key comes twice, the last one counts."""

    __slots__ = ("flat",)

    def __init__(self, at: int, flat: list[Any]) -> None:
        self.at, self.flat = at, flat

    @property
    def pairs(self) -> list[tuple[Any, Any]]:
        return _pairs(self.flat)

    def set(self, flat: list[Any]) -> None:
        self.flat += flat


class Set(Record):
    """A set or frozenset: its items as they were added."""

    __slots__ = ("frozen", "items")

    def __init__(self, at: int, items: list[Any], frozen: bool = False) -> None:
        self.at, self.items, self.frozen = at, items, frozen

    def add(self, items: list[Any]) -> None:
        self.items += items


class Blob(Record):
    """Bytes or text too long to keep: they stay in `source`, at `start`. `codec`: of a text, else empty."""

    __slots__ = ("codec", "size", "source", "start")

    def __init__(self, at: int, source: Source, start: int, size: int) -> None:
        self.at, self.source, self.start, self.size, self.codec = at, source, start, size, ""


class Global(Record):
    """A name that Python would import, as written, by the opcode `how`."""

    __slots__ = ("how", "module", "name")
    kind = "import"

    def __init__(self, at: int, module: str, name: str, how: str = "GLOBAL") -> None:
        self.at, self.module, self.name, self.how = at, module, name, how

    @property
    def path(self) -> tuple[str, str]:
        return self.module, self.name

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


class Object(Record):
    """What a call would give: `callee` with `args` (`kwargs`), by the opcode `how`; and what was then done to it: each
    BUILD's state, items appended or added, pairs set (`flat`, as a dict's). `args` is a tuple, or a record where a call
    would make one."""

    __slots__ = ("args", "callee", "flat", "how", "items", "kwargs", "meaning", "states")
    kind = "call"

    def __init__(self, at: int, how: str, callee: Any, args: Any, kwargs: Any = None) -> None:
        self.at, self.how, self.callee, self.args, self.kwargs = at, how, callee, args, kwargs
        # Nothing is done to most objects, and there are many.
        self.states: Sequence[Any] = ()
        self.items: Sequence[Any] = ()
        self.flat: Sequence[Any] = ()
        self.meaning: Any = None  # what an interpreter has found it to be

    @property
    def pairs(self) -> list[tuple[Any, Any]]:
        return _pairs(self.flat)

    def build(self, state: Any) -> None:
        self.states = _grown(self.states, [state])

    def add(self, items: list[Any]) -> None:
        self.items = _grown(self.items, items)

    def set(self, flat: list[Any]) -> None:
        self.flat = _grown(self.flat, flat)


def _grown(kept: Sequence[Any], more: list[Any]) -> Sequence[Any]:
    if isinstance(kept, list):
        kept += more
        return kept
    return [*kept, *more]


class Persistent(Record):
    """An object that lies outside the pickle, by its id."""

    __slots__ = ("how", "id")
    kind = "persistent"

    def __init__(self, at: int, id: Any, how: str = "BINPERSID") -> None:
        self.at, self.id, self.how = at, id, how


class External(Record):
    """A value that the pickle alone doesn't determine. `kind`: an "extension" of the registry with its `code`, a
    "buffer" out of band, or a "computed-name": a name that a call returned."""

    __slots__ = ("code", "how", "kind")

    def __init__(self, at: int, how: str, kind: str, code: int | None = None) -> None:
        self.at, self.how, self.kind, self.code = at, how, kind, code


#: What a real unpickler would do something for; `kind` is what the machine's log calls it.
Done: TypeAlias = Global | Object | Persistent | External


def weight(value: Any, weights: dict[int, tuple[Any, int]]) -> int:
    """Parts of a tuple of tuples, each counted as often as it is reached: what hashing it visits. `weights` keeps those
    of all tuples in it, by identity: each is walked through once."""
    stack = [value]
    while stack:
        node = stack[-1]
        inner = [v for v in node if type(v) is tuple]
        missing = [v for v in inner if id(v) not in weights]
        if missing:
            stack += missing
        else:
            weights[id(node)] = node, len(node) + 1 + sum(weights[id(v)][1] for v in inner)
            stack.pop()
    return weights[id(value)][1]


def preview(value: Any, limit: int = 60) -> str:
    """A few words on a value; never walks into it."""
    match value:
        case str() | bytes():
            return repr(value[:limit]) + ("..." if len(value) > limit else "")
        case int() if not isinstance(value, bool) and value.bit_length() > 64:  # decimal digits cost quadratic time
            return f"integer of {value.bit_length()} bits"
        case None | bool() | int() | float():
            return repr(value)
        case Global():
            return str(value)
        case Object() if isinstance(value.callee, Global):
            return f"{value.callee}(...)"
        case list() | tuple():
            return f"{type(value).__name__} of {len(value)}"
        case Dict():
            return f"dict of {len(value.flat) // 2}"
        case Set():
            return f"set of {len(value.items)}"
        case Blob():
            return f"{value.size} bytes"
        case _:
            return type(value).__name__.lower()
