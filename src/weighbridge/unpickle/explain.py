"""Describes a pickle step by step: the effect of each opcode in a real unpickler. Nothing of it is executed.

for step in explain(Machine(source)): ...      one step per opcode; for a broken pickle, the last has the reason
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.unpickle.machine import Machine
from weighbridge.unpickle.values import preview

_SHOWN: Final = 4  # arguments of a call


class ExplainedStep(NamedTuple):
    """The opcode `op` in bytes [at, end). `depth`: values on the stack before it; `marks`: marks below them."""

    at: int
    end: int
    op: str
    effect: str
    depth: int
    marks: int
    broken: bool = False


class _Before(NamedTuple):
    """The state before an opcode. Values are previews, because the opcode may change them."""

    op: str
    at: int
    depth: int
    marks: int
    last: tuple[str, ...]  # the topmost values, the last one first
    below: str  # the value below the mark
    args: str
    first: str  # the first value since the mark


def explain(machine: Machine) -> Iterator[ExplainedStep]:
    """Yields the steps of a pickle as they run."""
    before: _Before | None = None
    try:
        for op in machine.trace():
            if before is not None:
                yield _step(before, machine)
            stack, marks = machine.stack, machine.marks
            before = _Before(
                op.name if op else "?", machine.end, len(stack), len(marks),
                last=tuple(preview(v) for v in stack[:-4:-1]),
                below=preview(marks[-1][-1]) if marks and marks[-1] else "",
                args=_arguments(stack[-1]) if stack else "",
                first=preview(stack[0]) if stack else "",
            )  # fmt: skip
    except (FormatError, UnsupportedError) as error:
        reason = f"broken here: {error.reason if isinstance(error, FormatError) else error}"
        name = before.op if before is not None and before.at == machine.at else "?"
        yield ExplainedStep(machine.at, machine.at, name, reason, len(machine.stack), len(machine.marks), True)
        return
    if before is not None:
        yield _step(before, machine)


def _arguments(value: Any) -> str:
    if not isinstance(value, tuple):
        return f"(*{preview(value)})"
    shown = []
    for v in value[:_SHOWN]:
        if isinstance(v, tuple) and len(v) <= _SHOWN and all(isinstance(x, int | str | None) for x in v):  # a shape
            shown.append(f"({', '.join(preview(x, 20) for x in v)}{',' if len(v) == 1 else ''})")
        else:
            shown.append(preview(v))
    return f"({', '.join(shown)}{', ...' if len(value) > _SHOWN else ',' if len(value) == 1 else ''})"


def _step(b: _Before, m: Machine) -> ExplainedStep:
    top = preview(m.stack[-1]) if m.stack else ""
    describe = _EFFECTS.get(b.op)
    effect = describe(b, top) if describe else f"pushes {top}"
    return ExplainedStep(b.at, m.end, b.op, effect, b.depth, b.marks)


def _value(b: _Before, i: int) -> str:
    return b.last[i] if i < len(b.last) else "nothing"


def _collects(kind: str) -> Callable[[_Before, str], str]:
    return lambda b, top: f"makes a {kind} of the {b.depth} values since the mark"


# Opcode -> the effect, from the state before it and a preview of the value on top after it.
_EFFECTS: Final[Mapping[str, Callable[[_Before, str], str]]] = MappingProxyType(
    {
        "PROTO": lambda b, top: "declares the pickle protocol",
        "FRAME": lambda b, top: "begins a frame, whose bytes are read at once",
        "EMPTY_LIST": lambda b, top: "pushes an empty list",
        "EMPTY_TUPLE": lambda b, top: "pushes an empty tuple",
        "EMPTY_DICT": lambda b, top: "pushes an empty dict",
        "EMPTY_SET": lambda b, top: "pushes an empty set",
        "MARK": lambda b, top: "marks this place on the stack",
        "TUPLE": _collects("tuple"),
        "TUPLE1": lambda b, top: f"makes a tuple of {_value(b, 0)}",
        "TUPLE2": lambda b, top: f"makes a tuple of {_value(b, 1)} and {_value(b, 0)}",
        "TUPLE3": lambda b, top: f"makes a tuple of {_value(b, 2)}, {_value(b, 1)} and {_value(b, 0)}",
        "LIST": _collects("list"),
        "DICT": _collects("dict"),
        "FROZENSET": _collects("frozenset"),
        "APPEND": lambda b, top: f"appends {_value(b, 0)} to {_value(b, 1)}",
        "APPENDS": lambda b, top: f"appends the {b.depth} values since the mark to {b.below}",
        "ADDITEMS": lambda b, top: f"adds the {b.depth} values since the mark to {b.below}",
        "SETITEM": lambda b, top: f"sets {_value(b, 1)} to {_value(b, 0)} in {_value(b, 2)}",
        "SETITEMS": lambda b, top: f"sets {b.depth // 2} keys with their values in {b.below}",
        "POP": lambda b, top: f"drops {_value(b, 0)}" if b.depth else "drops the mark",
        "POP_MARK": lambda b, top: f"drops the {b.depth} values since the mark",
        "DUP": lambda b, top: f"pushes {top} once more",
        **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), lambda b, top: f"memoizes {top}"),
        **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda b, top: f"pushes from the memo: {top}"),
        **dict.fromkeys(("GLOBAL", "STACK_GLOBAL"), lambda b, top: f"asks Python to import {top}"),
        "REDUCE": lambda b, top: f"calls {_value(b, 1)} with {b.args}",
        "INST": lambda b, top: f"imports and calls {top.removesuffix('(...)')} with {b.depth} values",
        "OBJ": lambda b, top: f"calls {b.first} with the {max(b.depth - 1, 0)} values above it",
        "NEWOBJ": lambda b, top: f"makes an object of {_value(b, 1)} with {b.args}",
        "NEWOBJ_EX": lambda b, top: f"makes an object of {_value(b, 2)} with {_value(b, 1)} and {_value(b, 0)}",
        "BUILD": lambda b, top: f"sets the state of {_value(b, 1)} (__setstate__ or attributes) to {_value(b, 0)}",
        **dict.fromkeys(("EXT1", "EXT2", "EXT4"), lambda b, top: "imports an entry of Python's extension registry"),
        "PERSID": lambda b, top: "asks the loader for an outside object by its id",
        "BINPERSID": lambda b, top: f"asks the loader for the outside object with the id {_inner(b.args)}",
        "NEXT_BUFFER": lambda b, top: "pushes an out-of-band buffer",
        "READONLY_BUFFER": lambda b, top: "makes the buffer read-only",
        "STOP": lambda b, top: f"ends: the result is {_value(b, 0)}",
    }
)  # fmt: skip


def _inner(args: str) -> str:
    """`args` without the marks of a splat."""
    return args.removeprefix("(*").removesuffix(")") if args.startswith("(*") else args
