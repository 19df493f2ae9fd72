"""A pickle step by step: each opcode with its bytes, what it would make Python do, and the stack and the memo after it.
Nothing of it is done."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import UsageError
from weighbridge.base.limits import PICKLE_READING, VIEW_MEMO, VIEW_STEPS
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
class MemoPlace:
    """A value in the memo, in a few words."""

    key: int
    words: str


@dataclass(frozen=True, slots=True)
class TracedStep:
    """Opcode `number` of a pickle: bytes [at, end), the first of them in hexadecimal.
    `words`: what it would make Python do. `stack`: after it, the topmost values, the top one last; `depth`:
    all of them. `memo`: places in the memo after it; `changed`: those that it put there, and those whose value it
    changed. `broken`: the pickle ends here, `words` says why."""

    number: int
    at: int
    end: int
    op: str
    raw: str
    words: str
    stack: tuple[StackValue, ...]
    depth: int
    memo: int
    changed: tuple[MemoPlace, ...]
    broken: bool


@dataclass(frozen=True, slots=True)
class PickleTrace:
    """Steps `start` and following of the pickle `member`, one of the `members` of the file. `offset`: of the pickle in
    the file; -1 if it is deflated. `memo`: before these steps, the last `VIEW_MEMO` places. `more`: there are steps
    after these."""

    path: str
    format: str
    members: tuple[str, ...]
    member: str
    offset: int
    start: int
    steps: tuple[TracedStep, ...]
    memo: tuple[MemoPlace, ...]
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
        walk = _Walk(inner)
        for _ in islice(walk.explained, start):
            pass
        memo = walk.remembered()
        steps = tuple(islice(walk.steps(start), count + 1))
        return PickleTrace(
            os.fspath(path), form.name, tuple(found), chosen, offset, start, steps[:count], memo, len(steps) > count
        )


class _Machine(Machine):
    """Also knows the place that was filled last."""

    filled: int | None = None

    def put(self, key: int) -> None:
        super().put(key)
        self.filled = key


class _Walk:
    """A pickle that is followed step by step."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._machine = _Machine(source, 0, PICKLE_READING)
        self.explained = explain(self._machine)
        self._words: dict[int, str] = {}  # of places of the memo, as last given
        self._places: dict[int, list[int]] = {}  # the same places by the identity of their value

    def remembered(self) -> tuple[MemoPlace, ...]:
        """The last places of the memo."""
        self._machine.filled = None
        memo = self._machine.memo
        pairs = enumerate(memo[-VIEW_MEMO:], max(0, len(memo) - VIEW_MEMO)) if isinstance(memo, list) else memo.items()
        last = list(pairs)[-VIEW_MEMO:]
        return tuple(self._remember(key, value) for key, value in last)

    def steps(self, start: int) -> Iterator[TracedStep]:
        """The steps from here on, the first of which has the number `start`."""
        for number, step in enumerate(self.explained, start):
            yield self._traced(number, step)

    def _remember(self, key: int, value: Any) -> MemoPlace:
        self._places.setdefault(id(value), []).append(key)
        self._words[key] = preview(value)
        return MemoPlace(key, self._words[key])

    def _changed(self) -> Iterator[MemoPlace]:
        """The place that the last step filled, and others of the value on top if that looks different now: opcodes
        change no other value."""
        machine = self._machine
        if not machine.stack:
            return
        top = machine.stack[-1]
        key, machine.filled = machine.filled, None
        if key is not None:
            yield self._remember(key, top)
        words = preview(top)
        for other in self._places.get(id(top), ()):
            if machine.memo[other] is top and self._words[other] != words:
                self._words[other] = words
                yield MemoPlace(other, words)

    def _traced(self, number: int, step: ExplainedStep) -> TracedStep:
        machine = self._machine
        frames = [[StackValue(preview(v)) for v in frame[-_SHOWN:]] for frame in machine.marks[-_SHOWN:]]
        below = [value for frame in frames for value in (*frame, StackValue("mark", mark=True))]
        stack = (*below, *(StackValue(preview(v)) for v in machine.stack[-_SHOWN:]))
        depth = len(machine.stack) + sum(len(frame) + 1 for frame in machine.marks)
        raw = self._source.read(step.at, min(step.end - step.at, _RAW)).hex()
        changed = tuple(self._changed())
        return TracedStep(
            number, step.at, step.end, step.op, raw, step.words, stack[-_SHOWN:], depth, len(machine.memo), changed,
            step.broken,
        )  # fmt: skip
