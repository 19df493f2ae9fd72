"""What an abstract pickle machine computes: plain values, and inert records where Python would have objects.

Plain are None, bool, int, float, str, bytes, list and tuple. All else is a record: nothing is looked up, called or
hashed. A dict is a list of pairs, as keys that an attacker chooses must not be hashed or compared (equal hashes, nested
tuples); records are equal to themselves alone. The graph is shared as in the pickle and may have cycles: walk it with
a set of what was seen, never recursively, and never print it whole.
"""

from __future__ import annotations

from typing import Any


class Record:
    """Base of the records. `at` is the offset in the source of the opcode that made it."""

    __slots__ = ("at",)

    def __init__(self, at: int) -> None:
        self.at = at


class Dict(Record):
    """A dict: its pairs as they were set. Where a key comes twice, the last one counts."""

    __slots__ = ("pairs",)

    def __init__(self, at: int, pairs: list[tuple[Any, Any]]) -> None:
        self.at, self.pairs = at, pairs


class Set(Record):
    """A set or frozenset: its items as they were added."""

    __slots__ = ("frozen", "items")

    def __init__(self, at: int, items: list[Any], frozen: bool = False) -> None:
        self.at, self.items, self.frozen = at, items, frozen


class Blob(Record):
    """Bytes too long to be held: they stay in the source, at `start`."""

    __slots__ = ("size", "start")

    def __init__(self, at: int, start: int, size: int) -> None:
        self.at, self.start, self.size = at, start, size


class Global(Record):
    """A name that Python would import, as written."""

    __slots__ = ("module", "name")

    def __init__(self, at: int, module: str, name: str) -> None:
        self.at, self.module, self.name = at, module, name

    @property
    def path(self) -> tuple[str, str]:
        return self.module, self.name

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


class Object(Record):
    """What a call would give: `callee` with `args` (`kwargs`), by the opcode `how`; and what was then done to it: each
    BUILD's state, items appended or added, pairs set. `args` is a tuple, or a record where a call would make one."""

    __slots__ = ("args", "callee", "how", "items", "kwargs", "pairs", "states")

    def __init__(self, at: int, how: str, callee: Any, args: Any, kwargs: Any = None) -> None:
        self.at, self.how, self.callee, self.args, self.kwargs = at, how, callee, args, kwargs
        self.states: list[Any] = []
        self.items: list[Any] = []
        self.pairs: list[tuple[Any, Any]] = []


class Persistent(Record):
    """An object that lies outside the pickle, by its id."""

    __slots__ = ("id",)

    def __init__(self, at: int, id: Any) -> None:
        self.at, self.id = at, id


class Outside(Record):
    """What the pickle alone does not tell: an extension's object (`code`), a buffer out of band (None)."""

    __slots__ = ("code",)

    def __init__(self, at: int, code: int | None = None) -> None:
        self.at, self.code = at, code


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
            return f"dict of {len(value.pairs)}"
        case Set():
            return f"set of {len(value.items)}"
        case Blob():
            return f"{value.size} bytes"
        case _:
            return type(value).__name__.lower()
