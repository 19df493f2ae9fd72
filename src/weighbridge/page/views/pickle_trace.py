"""A pickle step by step: each opcode with its bytes, its effect in Python, and the stack and the memo after it. Nothing
is executed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from weighbridge.base.errors import UsageError
from weighbridge.base.limits import PICKLE_READING, VIEW_MEMO, VIEW_STEPS
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.containers.opening import format_of
from weighbridge.io.location import open_source, path_text
from weighbridge.io.source import Source
from weighbridge.models.archives import resolve
from weighbridge.unpickle.explain import ExplainedStep, explain
from weighbridge.unpickle.machine import Machine
from weighbridge.unpickle.values import preview

SCHEMA: Final = "weighbridge/pickle-trace/1"
_SHOWN: Final = 24  # topmost values of the stack
STEPS: Final = 200  # of one answer
_RAW: Final = 48  # bytes of an opcode


@dataclass(frozen=True, slots=True)
class StackValue:
    """A preview of a value on the stack, or a mark."""

    words: str
    mark: bool = False


@dataclass(frozen=True, slots=True)
class MemoPlace:
    """A preview of a value in the memo."""

    key: int
    words: str


@dataclass(frozen=True, slots=True)
class TracedStep:
    """Opcode `number` of a pickle: bytes [at, end), the first of them in hexadecimal in `raw`. `words`: its effect in
    Python. `stack`: the topmost values after it, the top last; `depth`: the number of all values. `memo`: the number of
    values in the memo after it; `changed`: those that it stored or changed. `broken`: the pickle ends here, for the
    reason in `words`."""

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
    """Steps from number `start` of the pickle `member`, one of the `members` of the file. `offset`: of the pickle in
    the file, -1 if it is compressed. `memo`: the last `VIEW_MEMO` places before these steps. `more`: whether steps
    follow."""

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
    path: str | os.PathLike[str], *, member: str | None = None, start: int = 0, count: int = STEPS
) -> PickleTrace:
    """Returns `count` steps of a pickle in the file at `path`. `member`: its name, by default the first one. Raises
    UsageError for an unknown member and for more than `VIEW_STEPS` steps, UnsupportedError for a file without pickles.
    """
    if start < 0 or not 0 <= count <= VIEW_STEPS:
        raise UsageError(
            f"can't show {plural(count, 'step')} from {start:,}", hint=f"at most {VIEW_STEPS:,} steps, from 0 or later"
        )
    with open_source(resolve(path)) as source:
        form = format_of(source)
        pickles = {name: (inner, offset) for name, inner, offset in form.pickles_in(source)}
        chosen = next(iter(pickles), None) if member is None else member
        if chosen not in pickles:
            raise UsageError(f"{source.name} has no pickle {member!r}", hint=f"it has {', '.join(list(pickles)[:8])}")
        inner, offset = pickles[chosen]
        tracer = _Tracer(inner)
        for _ in islice(tracer.explained, start):
            pass
        memo = tracer.recent_memo()
        steps = tuple(
            tracer.trace(number, step) for number, step in enumerate(islice(tracer.explained, count + 1), start)
        )
        return PickleTrace(
            path_text(path), form.name, tuple(pickles), chosen, offset, start, steps[:count], memo, len(steps) > count
        )


class _Machine(Machine):
    """Records the memo place that was filled last."""

    filled: int | None = None

    def put(self, key: int) -> None:
        super().put(key)
        self.filled = key


class _Tracer:
    """Follows a pickle step by step, and detects changes of the memo."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._machine = _Machine(source, 0, PICKLE_READING)
        self.explained = explain(self._machine)
        self._previews: dict[int, str] = {}  # memo places as last shown
        self._places: dict[int, list[int]] = {}  # the same places by the identity of their value

    def recent_memo(self) -> tuple[MemoPlace, ...]:
        """Returns the last places of the memo."""
        self._machine.filled = None
        memo = self._machine.memo
        pairs = enumerate(memo[-VIEW_MEMO:], max(0, len(memo) - VIEW_MEMO)) if isinstance(memo, list) else memo.items()
        return tuple(self._remember(key, value) for key, value in list(pairs)[-VIEW_MEMO:])

    def trace(self, number: int, step: ExplainedStep) -> TracedStep:
        """Describes the state after a step."""
        machine = self._machine
        frames = [[StackValue(preview(v)) for v in frame[-_SHOWN:]] for frame in machine.marks[-_SHOWN:]]
        below = [value for frame in frames for value in (*frame, StackValue("mark", mark=True))]
        stack = (*below, *(StackValue(preview(v)) for v in machine.stack[-_SHOWN:]))
        depth = len(machine.stack) + sum(len(frame) + 1 for frame in machine.marks)
        raw = self._source.read(step.at, min(step.end - step.at, _RAW)).hex()
        changed = tuple(self._changed_places())
        return TracedStep(
            number, step.at, step.end, step.op, raw, step.effect, stack[-_SHOWN:], depth, len(machine.memo), changed,
            step.broken,
        )  # fmt: skip

    def _remember(self, key: int, value: Any) -> MemoPlace:
        self._places.setdefault(id(value), []).append(key)
        self._previews[key] = preview(value)
        return MemoPlace(key, self._previews[key])

    def _changed_places(self) -> Iterator[MemoPlace]:
        """Yields the place that the last step filled, and the other places of the value on top of the stack if its
        preview changed. Opcodes change no other value."""
        machine = self._machine
        if not machine.stack:
            return
        top = machine.stack[-1]
        key, machine.filled = machine.filled, None
        if key is not None:
            yield self._remember(key, top)
        text = preview(top)
        for place in self._places.get(id(top), ()):
            if machine.memo[place] is top and self._previews[place] != text:
                self._previews[place] = text
                yield MemoPlace(place, text)
