"""What a pickle would make Python do, step by step and in words, and the names that it asks for. Nothing is done.

explain(path)                       -> ExplainReport of every pickle in the file, its first steps
explain(path, only_calls=True)      -> of the steps only those that import, call, or set a state
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.base.limits import PICKLE_READING
from weighbridge.containers.opening import format_of
from weighbridge.io.location import open_source
from weighbridge.io.source import Source
from weighbridge.unpickle import explain as steps
from weighbridge.unpickle.libraries.torch_calls import NAMES
from weighbridge.unpickle.machine import Event, Machine
from weighbridge.unpickle.values import Global, Object

SCHEMA: Final = "weighbridge/explain/1"

#: The default number of steps of a pickle in a report, and of names.
LIMIT: Final = 200
_NAMES: Final = 1000
#: Opcodes that do more than make plain data.
ACTS: Final = frozenset({"GLOBAL", "STACK_GLOBAL", "REDUCE", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "BUILD", "EXT1",
                         "EXT2", "EXT4", "PERSID", "BINPERSID", "NEXT_BUFFER"})  # fmt: skip


@dataclass(frozen=True, slots=True)
class OpcodeLine:
    """The opcode `op` at byte `at` of the pickle. `marks`: how deep it stands inside marks."""

    at: int
    op: str
    words: str
    marks: int


@dataclass(frozen=True, slots=True)
class NameUse:
    """A name that Python would import: how often it is asked for, called (or made an object of), given a state.
    `known`: what it does to a checkpoint is understood."""

    name: str
    imported: int
    called: int
    built: int
    known: bool


@dataclass(frozen=True, slots=True)
class ExplainedPickle:
    """A pickle in bytes [start, start + nbytes) of the file (start -1: it is deflated). `steps`: its opcodes in all."""

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


def explain(
    path: str | os.PathLike[str], *, member: str | None = None, only_calls: bool = False, limit: int | None = LIMIT
) -> ExplainReport:
    """The pickles of the file at `path`; `member`: only that one, by its name. `limit`: steps of each to report."""
    with open_source(resolve_path(path)) as source:
        form = format_of(source)
        found = [_PickleSpan(*row) for row in form.pickles_in(source)]
        chosen = [f for f in found if member is None or f.name == member or f.name.endswith(f"/{member}")]
        if not chosen:
            hint = f"it has {', '.join(f.name for f in found[:8])}"
            raise UsageError(f"{source.name} has no pickle {member!r}", hint=hint)
        return ExplainReport(os.fspath(path), form.name, tuple(_pickle(f, only_calls, limit) for f in chosen))


def _pickle(found: _PickleSpan, only_calls: bool, limit: int | None) -> ExplainedPickle:
    machine = Machine(found.source, 0, PICKLE_READING)
    broken = None
    try:
        machine.run()
    except (FormatError, UnsupportedError) as error:
        broken = str(error)
    return ExplainedPickle(
        found.name, found.start, machine.end, machine.protocol, machine.steps, tuple(_named(machine))[:_NAMES],
        tuple(_lines(found.source, only_calls, limit)), broken,
    )  # fmt: skip


def _lines(source: Source, only_calls: bool, limit: int | None) -> Iterator[OpcodeLine]:
    count = 0
    for step in steps.explain(Machine(source, 0, PICKLE_READING)):
        if only_calls and step.op not in ACTS and not step.broken:
            continue
        if count == limit:
            return
        count += 1
        yield OpcodeLine(step.at, step.op, step.words, step.marks)


def _named(machine: Machine) -> Iterator[NameUse]:
    """Every name, in the order in which they are asked for."""
    counts: dict[tuple[str, str], list[int]] = {}
    for event in machine.events:
        at = ("import", "call", "build").index(event.kind) if event.kind in ("import", "call", "build") else None
        of = _name_of(event)
        if at is not None and of is not None:
            counts.setdefault(of.path, [0, 0, 0])[at] += 1
    for path, (imported, called, built) in counts.items():
        yield NameUse(".".join(path), imported, called, built, path in NAMES)


def _name_of(event: Event) -> Global | None:
    what = event.what.callee if isinstance(event.what, Object) else event.what
    return what if isinstance(what, Global) else None
