"""Explains the steps of a pickle in words, and lists the names that it uses. Nothing is run.

explain(path)                       -> ExplainReport: every pickle in the file, and its first steps
explain(path, calls=True)           -> only the steps that import, call, or set a state
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.base.limits import PICKLE_INLINE, PICKLE_READING, SCAN_DEPTH
from weighbridge.base.options import accepting
from weighbridge.base.records import dataclass
from weighbridge.containers.opening import format_of
from weighbridge.io.location import open_source, path_text
from weighbridge.io.source import Source
from weighbridge.models.archives import resolve
from weighbridge.reports.options import ExplainOptions
from weighbridge.unpickle import explain as steps
from weighbridge.unpickle.libraries.numpy import raw
from weighbridge.unpickle.libraries.torch_calls import EMBEDDED, NAMES
from weighbridge.unpickle.libraries.torch_types import embedded_file
from weighbridge.unpickle.machine import Machine
from weighbridge.unpickle.state import Event
from weighbridge.unpickle.values import Global, Object, UnexpectedOpcode

SCHEMA: Final = "weighbridge/explain/1"

#: The default number of steps of a pickle in a report, and of names.
LIMIT: Final = 200
_NAMES: Final = 1000
_NESTED: Final = 64  # pickles inside others
#: Opcodes that do more than create plain data.
ACTS: Final = frozenset({"GLOBAL", "STACK_GLOBAL", "REDUCE", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "BUILD", "EXT1",
                         "EXT2", "EXT4", "PERSID", "BINPERSID", "NEXT_BUFFER"})  # fmt: skip


@dataclass(frozen=True, slots=True)
class OpcodeLine:
    """The opcode `op` at byte `at` of the pickle. `marks`: the number of open marks."""

    at: int
    op: str
    words: str
    marks: int


@dataclass(frozen=True, slots=True)
class NameUse:
    """A name that Python would import: how often it is imported, called (or instantiated), and its objects get a state.
    `known`: its role in a checkpoint is understood."""

    name: str
    imported: int
    called: int
    built: int
    known: bool


@dataclass(frozen=True, slots=True)
class ExplainedPickle:
    """A pickle in bytes [start, start + nbytes) of the file; `start` is -1 if it is deflated or inside another pickle.
    `steps`: the number of opcodes."""

    name: str
    start: int
    nbytes: int
    protocol: int
    steps: int
    names: tuple[NameUse, ...]
    lines: tuple[OpcodeLine, ...]
    broken: str | None = None


@dataclass(frozen=True, slots=True)
class ExplainReport:
    path: str
    format: str
    pickles: tuple[ExplainedPickle, ...]
    schema: str = SCHEMA


class _PickleSpan(NamedTuple):
    name: str
    source: Source
    start: int


@accepting(ExplainOptions)
def explain(path: str | os.PathLike[str], options: ExplainOptions) -> ExplainReport:
    """Explains the pickles of the file at `path`."""
    member, limit = options.member, None if options.all else options.limit
    with open_source(resolve(path)) as source:
        form = format_of(source)
        spans = [_PickleSpan(*row) for row in form.pickles_in(source)]
        chosen = [s for s in spans if member is None or s.name == member or s.name.endswith(f"/{member}")]
        if not chosen:
            hint = f"it has {', '.join(s.name for s in spans[:8])}"
            raise UsageError(f"{source.name} has no pickle {member!r}", hint=hint)
        return ExplainReport(path_text(path), form.name, tuple(_explain_spans(chosen, options.calls, limit)))


def _explain_spans(spans: list[_PickleSpan], calls: bool, limit: int | None) -> Iterator[ExplainedPickle]:
    """Each pickle, followed by those in the bytes that torch would load for it."""
    stack = [(span, 0) for span in reversed(spans)]
    nested = 0
    while stack:
        span, depth = stack.pop()
        machine = Machine(span.source, 0, PICKLE_READING)
        broken = None
        try:
            machine.run()
        except (FormatError, UnsupportedError) as error:
            broken = str(error)
        every = steps.explain(Machine(span.source, 0, PICKLE_READING))
        shown = (step for step in every if not calls or step.op in ACTS or step.broken)
        yield ExplainedPickle(
            span.name, span.start, machine.end, machine.protocol, machine.steps, tuple(_names(machine))[:_NAMES],
            tuple(OpcodeLine(step.at, step.op, step.effect, step.marks) for step in islice(shown, limit)), broken,
        )  # fmt: skip
        inner = list(islice(_embedded(span, machine), _NESTED - nested)) if depth < SCAN_DEPTH else []
        nested += len(inner)
        stack += [(child, depth + 1) for child in reversed(inner)]


def _embedded(span: _PickleSpan, machine: Machine) -> Iterator[_PickleSpan]:
    """The pickles in the arguments of `torch.storage._load_from_bytes`."""
    for event in machine.events:
        call = event.what
        if event.kind != "call" or _name_of(event) is None or call.callee.path != EMBEDDED:
            continue
        try:
            source = embedded_file(raw(call.args[0]), PICKLE_INLINE)
            rows = format_of(source).pickles_in(source)
        except (UnexpectedOpcode, FormatError, UnsupportedError, LookupError, TypeError):
            continue  # `wb scan` reports such bytes
        for name, inner, _ in rows:
            yield _PickleSpan(f"{span.name}!bytes at {event.at}!{name}", inner, -1)


def _names(machine: Machine) -> Iterator[NameUse]:
    """Every name, in the order of first use."""
    counts: dict[tuple[str, str], list[int]] = {}
    for event in machine.events:
        at = ("import", "call", "build").index(event.kind) if event.kind in ("import", "call", "build") else None
        name = _name_of(event)
        if at is not None and name is not None:
            counts.setdefault(name.path, [0, 0, 0])[at] += 1
    for path, (imported, called, built) in counts.items():
        yield NameUse(".".join(path), imported, called, built, path in NAMES)


def _name_of(event: Event) -> Global | None:
    name = event.what.callee if isinstance(event.what, Object) else event.what
    return name if isinstance(name, Global) else None
