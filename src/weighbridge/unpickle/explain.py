"""A pickle step by step, in words: what each opcode would make a real unpickler do. Nothing of it is done.

for step in explain(Machine(source)): ...      one step an opcode; where the pickle is broken, the last says why
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.unpickle.machine import Machine
from weighbridge.unpickle.opcodes import Opcode
from weighbridge.unpickle.values import preview

_SHOWN: Final = 4  # arguments of a call


class ExplainedStep(NamedTuple):
    """The opcode `op` in bytes [at, end). `depth`: values on the stack before it, `marks`: marks below them."""

    at: int
    end: int
    op: str
    words: str
    depth: int
    marks: int
    broken: bool = False


class _Before(NamedTuple):
    """What an opcode finds: its place, and words on the values it may use (they may be changed by it)."""

    op: str
    at: int
    depth: int
    marks: int
    last: tuple[str, ...]  # the topmost values, the last one first
    below: str  # what lies under the mark
    args: str
    first: str  # the first value since the mark


class _After(NamedTuple):
    top: str
    number: int  # of the memo


def explain(machine: Machine) -> Iterator[ExplainedStep]:
    """The steps of a pickle, each when it is done."""
    before: _Before | None = None
    try:
        for op in machine.trace():
            if before is not None:
                yield _step(before, machine)
            before = _look(op, machine)
    except (FormatError, UnsupportedError) as error:
        words = f"broken here: {error.reason if isinstance(error, FormatError) else error}"
        name = before.op if before is not None and before.at == machine.at else "?"
        yield ExplainedStep(machine.at, machine.at, name, words, len(machine.stack), len(machine.marks), True)
        return
    if before is not None:
        yield _step(before, machine)


def _look(op: Opcode | None, m: Machine) -> _Before:
    last = tuple(preview(v) for v in m.stack[:-4:-1])
    below = preview(m.marks[-1][-1]) if m.marks and m.marks[-1] else ""
    args = _arguments(m.stack[-1]) if m.stack else ""
    first = preview(m.stack[0]) if m.stack else ""
    return _Before(op.name if op else "?", m.end, len(m.stack), len(m.marks), last, below, args, first)


def _arguments(value: Any) -> str:
    if not isinstance(value, tuple):
        return f"(*{preview(value)})"
    shown = ", ".join(_argument(v) for v in value[:_SHOWN])
    return f"({shown}{', ...' if len(value) > _SHOWN else ',' if len(value) == 1 else ''})"


def _argument(value: Any) -> str:
    """A short tuple of numbers or words whole, as shapes are; else a preview."""
    if not isinstance(value, tuple) or len(value) > _SHOWN or not all(isinstance(v, int | str | None) for v in value):
        return preview(value)
    return f"({', '.join(preview(v, 20) for v in value)}{',' if len(value) == 1 else ''})"


def _step(b: _Before, m: Machine) -> ExplainedStep:
    top = preview(m.stack[-1]) if m.stack else ""
    return ExplainedStep(b.at, m.end, b.op, _WORDS.get(b.op, _pushes)(b, _After(top, len(m.memo))), b.depth, b.marks)


def _pushes(b: _Before, a: _After) -> str:
    return f"pushes {a.top}"


def _value(b: _Before, i: int) -> str:
    return b.last[i] if i < len(b.last) else "nothing"


def _imports(b: _Before, a: _After) -> str:
    return f"asks Python to import {a.top}"


def _makes(what: str) -> Callable[[_Before, _After], str]:
    return lambda b, a: f"makes a {what} of the {b.depth} values since the mark"


def _calls(b: _Before, a: _After) -> str:
    return f"calls {_value(b, 1)} with {b.args}"


_WORDS: Final[Mapping[str, Callable[[_Before, _After], str]]] = MappingProxyType(
    {
        "PROTO": lambda b, a: "says which protocol it is of",
        "FRAME": lambda b, a: "begins a frame: so many bytes are read at once",
        "EMPTY_LIST": lambda b, a: "pushes an empty list",
        "EMPTY_TUPLE": lambda b, a: "pushes an empty tuple",
        "EMPTY_DICT": lambda b, a: "pushes an empty dict",
        "EMPTY_SET": lambda b, a: "pushes an empty set",
        "MARK": lambda b, a: "marks this place on the stack",
        "TUPLE": _makes("tuple"),
        "TUPLE1": lambda b, a: f"makes a tuple of {_value(b, 0)}",
        "TUPLE2": lambda b, a: f"makes a tuple of {_value(b, 1)} and {_value(b, 0)}",
        "TUPLE3": lambda b, a: f"makes a tuple of {_value(b, 2)}, {_value(b, 1)} and {_value(b, 0)}",
        "LIST": _makes("list"),
        "DICT": _makes("dict"),
        "FROZENSET": _makes("frozenset"),
        "APPEND": lambda b, a: f"appends {_value(b, 0)} to {_value(b, 1)}",
        "APPENDS": lambda b, a: f"appends the {b.depth} values since the mark to {b.below}",
        "ADDITEMS": lambda b, a: f"adds the {b.depth} values since the mark to {b.below}",
        "SETITEM": lambda b, a: f"sets {_value(b, 1)} to {_value(b, 0)} in {_value(b, 2)}",
        "SETITEMS": lambda b, a: f"sets {b.depth // 2} keys with their values in {b.below}",
        "POP": lambda b, a: f"drops {_value(b, 0)}" if b.depth else "drops the mark",
        "POP_MARK": lambda b, a: f"drops the {b.depth} values since the mark",
        "DUP": lambda b, a: f"pushes {a.top} once more",
        **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), lambda b, a: f"remembers {a.top}"),
        **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda b, a: f"pushes what it remembers: {a.top}"),
        **dict.fromkeys(("GLOBAL", "STACK_GLOBAL"), _imports),
        "REDUCE": _calls,
        "INST": lambda b, a: f"imports and calls {a.top.removesuffix('(...)')} with {b.depth} values",
        "OBJ": lambda b, a: f"calls {b.first} with the {max(b.depth - 1, 0)} values above it",
        "NEWOBJ": lambda b, a: f"makes an object of {_value(b, 1)} with {b.args}",
        "NEWOBJ_EX": lambda b, a: f"makes an object of {_value(b, 2)} with {_value(b, 1)} and {_value(b, 0)}",
        "BUILD": lambda b, a: f"sets the state of {_value(b, 1)} (__setstate__ or attributes) to {_value(b, 0)}",
        **dict.fromkeys(
            ("EXT1", "EXT2", "EXT4"), lambda b, a: "asks Python for an entry of its extension registry, and imports it"
        ),
        "PERSID": lambda b, a: "asks the loader for what lies outside under an id",
        "BINPERSID": lambda b, a: f"asks the loader for what lies outside under the id {_arguments_of(b)}",
        "NEXT_BUFFER": lambda b, a: "pushes a buffer that lies outside",
        "READONLY_BUFFER": lambda b, a: "makes the buffer read-only",
        "STOP": lambda b, a: f"ends: the result is {_value(b, 0)}",
    }
)  # fmt: skip


def _arguments_of(b: _Before) -> str:
    return b.args.removeprefix("(*").removesuffix(")") if b.args.startswith("(*") else b.args
