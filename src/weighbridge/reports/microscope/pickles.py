"""A pickle step by step: each opcode with its bytes, what it would make Python do, and the stack and the memo after it.
Nothing of it is done."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import UsageError
from weighbridge.base.limits import PICKLE_READING, VIEW_STEPS
from weighbridge.containers.opening import format_of
from weighbridge.io.location import open_source
from weighbridge.io.source import Source
from weighbridge.unpickle.explain import ExplainedStep, explain
from weighbridge.unpickle.machine import Machine
from weighbridge.unpickle.values import preview

SCHEMA: Final = "weighbridge/pickle-trace/1"
_SHOWN: Final = 24  # values of the stack, the topmost ones
_RAW: Final = 48  # bytes of an opcode


@dataclass(frozen=True, slots=True)
class StackValue:
    """A value on the stack, in a few words; or a mark."""

    words: str
    mark: bool = False


@dataclass(frozen=True, slots=True)
class TracedStep:
    """Opcode `number` of a pickle: bytes [at, end), the first of them in hexadecimal.
    `words`: what it would make Python do. `stack`: after it, the topmost values, the top one last; `depth`:
    all of them. `memo`: places in the memo after it; `remembered`: the value that this step put there. `broken`: the
    pickle ends here, `words` says why."""

    number: int
    at: int
    end: int
    op: str
    raw: str
    words: str
    stack: tuple[StackValue, ...]
    depth: int
    memo: int
    remembered: str | None
    broken: bool


@dataclass(frozen=True, slots=True)
class PickleTrace:
    """Steps `start` and following of the pickle `member`, one of the `members` of the file. `offset`: of the pickle in
    the file; -1 if it is deflated. `more`: there are steps after these."""

    path: str
    format: str
    members: tuple[str, ...]
    member: str
    offset: int
    start: int
    steps: tuple[TracedStep, ...]
    more: bool
    schema: str = SCHEMA


def pickle_trace(
    path: str | os.PathLike[str], *, member: str | None = None, start: int = 0, count: int = 200
) -> PickleTrace:
    """`count` steps of a pickle of the file at `path`; `member`: which one (the first). UsageError where there is none
    of that name, and for more than `VIEW_STEPS` steps at once; UnsupportedError for a file without pickles."""
    if start < 0 or not 0 <= count <= VIEW_STEPS:
        raise UsageError(f"{count:,} steps from {start:,}", hint=f"at most {VIEW_STEPS:,} at once, from 0")
    with open_source(resolve_path(path)) as source:
        form = format_of(source)
        found = {name: (inner, offset) for name, inner, offset in form.pickles_in(source)}
        chosen = next(iter(found), None) if member is None else member
        if chosen not in found:
            raise UsageError(f"{source.name} has no pickle {member!r}", hint=f"it has {', '.join(list(found)[:8])}")
        inner, offset = found[chosen]
        steps = tuple(islice(_steps(inner, start), count + 1))
        return PickleTrace(
            os.fspath(path), form.name, tuple(found), chosen, offset, start, steps[:count], len(steps) > count
        )


def _steps(source: Source, start: int) -> Iterator[TracedStep]:
    machine = Machine(source, 0, PICKLE_READING)
    memo = 0
    for number, step in enumerate(explain(machine)):
        if number >= start:
            yield _traced(source, machine, number, step, memo)
        memo = len(machine.memo)


def _traced(source: Source, machine: Machine, number: int, step: ExplainedStep, before: int) -> TracedStep:
    frames = [[StackValue(preview(v)) for v in frame[-_SHOWN:]] for frame in machine.marks[-_SHOWN:]]
    below = [value for frame in frames for value in (*frame, StackValue("mark", mark=True))]
    stack = (*below, *(StackValue(preview(v)) for v in machine.stack[-_SHOWN:]))
    depth = len(machine.stack) + sum(len(frame) + 1 for frame in machine.marks)
    memo = len(machine.memo)
    top = preview(machine.stack[-1]) if memo > before and machine.stack else None
    raw = source.read(step.at, min(step.end - step.at, _RAW)).hex()
    return TracedStep(
        number, step.at, step.end, step.op, raw, step.words, stack[-_SHOWN:], depth, memo, top, step.broken
    )
