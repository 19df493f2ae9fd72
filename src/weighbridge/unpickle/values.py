"""The values of an abstract pickle machine: plain values, and inert records in place of Python's objects.

None, bool, int, float, str, bytes, list and tuple are plain. Anything else is a record: nothing is looked up, called or
hashed. A dict is a list of pairs, because keys that an attacker chooses must not be hashed or compared (equal hashes,
nested tuples). Records compare by identity. The graph is shared as in the pickle and may have cycles: walk it with a
set of visited ids, never recursively, and never print it whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, TypeAlias

from weighbridge.io.source import Source


class UnexpectedOpcode(Exception):
    """A known call with arguments that its library would not write, or with an unavailable result."""


class PickleFault(StrEnum):
    """The codes of a pickle's errors and disputes."""

    BROKEN = "broken"  # any fault without a code of its own
    FRAME = "frame"
    TRUNCATED = "truncated"
    NUMBER = "number"
    TEXT = "text"
    PROTOCOL = "protocol"
    OPCODE = "opcode"


class Record:
    """Base of the records. `at`: the offset in the source of the opcode that created it."""

    __slots__ = ("at",)

    def __init__(self, at: int) -> None:
        self.at = at


def _pairs(flat: Sequence[Any]) -> list[tuple[Any, Any]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


class Dict(Record):
    """A dict. `flat`: each key followed by its value, in the order of assignment; the last of equal keys counts."""

    __slots__ = ("flat",)

    def __init__(self, at: int, flat: list[Any]) -> None:
        self.at, self.flat = at, flat

    @property
    def pairs(self) -> list[tuple[Any, Any]]:
        return _pairs(self.flat)

    def set(self, flat: list[Any]) -> None:
        self.flat += flat


class Set(Record):
    """A set or frozenset: its items in the order of addition."""

    __slots__ = ("frozen", "items")

    def __init__(self, at: int, items: list[Any], frozen: bool = False) -> None:
        self.at, self.items, self.frozen = at, items, frozen

    def add(self, items: list[Any]) -> None:
        self.items += items


class Blob(Record):
    """Bytes or text too long for memory: they stay in `source`, at `start`. `codec`: of text; empty for bytes."""

    __slots__ = ("codec", "size", "source", "start")

    def __init__(self, at: int, source: Source, start: int, size: int) -> None:
        self.at, self.source, self.start, self.size, self.codec = at, source, start, size, ""


class Global(Record):
    """A name that Python would import, as written, by the opcode `op`."""

    __slots__ = ("module", "name", "op")
    kind = "import"

    def __init__(self, at: int, module: str, name: str, op: str = "GLOBAL") -> None:
        self.at, self.module, self.name, self.op = at, module, name, op

    @property
    def path(self) -> tuple[str, str]:
        return self.module, self.name

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


class Object(Record):
    """The result of a call: `callee` with `args` (`kwargs`), by the opcode `op`. It keeps its later changes: `states`
    of BUILD, `items` appended or added, pairs set (`flat`, as in `Dict`). `args` is a tuple, or a record if a call
    would create the tuple."""

    __slots__ = ("args", "callee", "flat", "items", "kwargs", "meaning", "op", "states")
    kind = "call"

    def __init__(self, at: int, op: str, callee: Any, args: Any, kwargs: Any = None) -> None:
        self.at, self.op, self.callee, self.args, self.kwargs = at, op, callee, args, kwargs
        # Most objects are never changed, and there are many.
        self.states: Sequence[Any] = ()
        self.items: Sequence[Any] = ()
        self.flat: Sequence[Any] = ()
        self.meaning: Any = None  # its interpretation, once known

    @property
    def pairs(self) -> list[tuple[Any, Any]]:
        return _pairs(self.flat)

    def build(self, state: Any) -> None:
        self.states = _extend(self.states, [state])

    def add(self, items: list[Any]) -> None:
        self.items = _extend(self.items, items)

    def set(self, flat: list[Any]) -> None:
        self.flat = _extend(self.flat, flat)


def _extend(values: Sequence[Any], more: list[Any]) -> Sequence[Any]:
    if isinstance(values, list):
        values += more
        return values
    return [*values, *more]


class Persistent(Record):
    """An object outside the pickle, by its id."""

    __slots__ = ("id", "op")
    kind = "persistent"

    def __init__(self, at: int, id: Any, op: str = "BINPERSID") -> None:
        self.at, self.id, self.op = at, id, op


class External(Record):
    """A value that the pickle doesn't determine. `kind`: an "extension" of the registry with its `code`, an
    out-of-band "buffer", or a "computed-name": a name that a call returned."""

    __slots__ = ("code", "kind", "op")

    def __init__(self, at: int, op: str, kind: str, code: int | None = None) -> None:
        self.at, self.op, self.kind, self.code = at, op, kind, code


#: Records of actions of a real unpickler; `kind` is their name in the machine's log.
Done: TypeAlias = Global | Object | Persistent | External


def weight(value: Any, weights: dict[int, tuple[Any, int]]) -> int:
    """The number of parts that hashing a tuple of tuples visits; a shared part counts each time. `weights` caches the
    numbers of all tuples in it by identity, so each is walked once."""
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
    """Describes a value in a few words, without walking into it."""
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
