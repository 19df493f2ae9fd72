"""Reads PyTorch's checkpoints from the values of an abstract machine: tensors by name, plain values, and everything
that is left out. torch isn't used, and imports and calls of a checkpoint don't run.

    reading = read(machine, value)
    reading.tensors     name -> SavedTensor: a view of a storage, by the storage's key
    reading.plain       name -> number, text or a list of them (epoch, learning rate)
    reading.remarks     actions of a loader that were skipped, and unreadable values

A name is the path through dicts, lists and attributes: `model.layers.0.weight`, `optimizer.state.0.exp_avg`. A module
that was pickled whole has the names of its `state_dict()`. A call is known by its exact module and name and its
arguments (`torch_calls.KNOWN`). Other calls are left out. An object of an unknown class is read as data: its state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from weighbridge.base.errors import UnsupportedError
from weighbridge.base.limits import PICKLE_DEPTH, PICKLE_FINDINGS, PICKLE_INLINE, PICKLE_NAME, PICKLE_PLAIN
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.unpickle.libraries import numpy as numpy_calls
from weighbridge.unpickle.libraries.torch_calls import CLASSES, EMBEDDED, KNOWN, NAMES, interpret
from weighbridge.unpickle.libraries.torch_types import SavedTensor, Storage, class_of, embedded
from weighbridge.unpickle.machine import Machine
from weighbridge.unpickle.state import Event
from weighbridge.unpickle.values import Blob, Dict, Global, Object, Persistent, Record, Set, UnexpectedOpcode, preview

__all__ = ["Reading", "Remark", "SavedTensor", "Storage", "read"]

#: The name of a tensor that is the whole value.
ALONE: Final = "tensor"
_NONE: Final[Mapping[int | str, SavedTensor]] = MappingProxyType({})
_SCALARS: Final = (bool, int, float, str)
# Parts of a module's state whose names a state_dict omits: their children are named like the module's own.
_MODULE: Final = ("_parameters", "_buffers", "_modules")
# Not parts of a module: versions, and the list of its parameters in torch's recurrent modules.
_BOOKKEEPING: Final = ("_metadata", "_flat_weights")
_LONG_LIST: Final = 4096
# Characters of a name that cost one step.
_WORD: Final = 64


class Remark(NamedTuple):
    """`rule` is stable. `at`: an offset in the pickle. `harmless`: loaders accept it, and nothing is lost."""

    rule: str
    text: str
    at: int
    tensor: str | None = None
    harmless: bool = False


@dataclass
class Reading:
    tensors: dict[str, SavedTensor] = field(default_factory=dict)
    plain: dict[str, Any] = field(default_factory=dict)
    remarks: list[Remark] = field(default_factory=list)


def read(machine: Machine, value: Any, outside: Mapping[int | str, SavedTensor] = _NONE) -> Reading:
    """Reads a pickle's value and the events on the way to it. `outside`: tensors outside the pickle, by persistent
    id."""
    embed(machine)
    walk = _Walk(machine, outside)
    walk.run(value)
    walk.reading.remarks[:0] = _event_remarks(machine)
    return walk.reading


def embed(machine: Machine) -> None:
    """Reads the storages that were pickled whole, each once, however often it occurs."""
    storages: dict[int, Storage | UnexpectedOpcode] = {}
    stored = 0  # bytes that are encoded as text
    for event in machine.events:
        call = event.what
        if event.kind != "call" or not isinstance(call.callee, Global) or call.callee.path != EMBEDDED:
            continue
        data = call.args[0] if isinstance(call.args, tuple) and len(call.args) == 1 else None
        key = data.args[0] if isinstance(data, Object) and isinstance(data.args, tuple) and data.args else data
        if id(key) not in storages:
            try:
                raw = numpy_calls.raw(data)
                stored += raw.size if isinstance(raw, Blob) and raw.codec else 0
                storages[id(key)] = embedded(raw, PICKLE_INLINE - stored)
            except UnexpectedOpcode as odd:
                storages[id(key)] = odd
        call.meaning = storages[id(key)]


class _Walk:
    def __init__(self, machine: Machine, outside: Mapping[int | str, SavedTensor]) -> None:
        self.reading = Reading()
        self.outside = outside
        # A tree with shared parts is larger than its pickle, but not many times larger in honest files.
        self.budget = 8 * machine.steps + 1024
        self.interpreted: dict[int, Any] = {}  # by the id of the object

    def run(self, root: Any) -> None:
        above: set[int] = set()  # ids of the values around the current one: cycles aren't followed
        # Parts are generated lazily, because deep parts have long names.
        stack: list[tuple[int, Iterator[tuple[str, Any]]]] = [(0, iter([("", root)]))]
        while stack:
            part = next(stack[-1][1], None)
            if part is None:
                above.discard(stack.pop()[0])
                continue
            name, value = part[0], self.interpret(*part)
            self.budget -= 1 + len(name) // _WORD
            if self.budget < 0:
                raise UnsupportedError("the checkpoint repeats its own parts without end")
            if self.leaf(name, value) or id(value) in above:
                continue
            if len(stack) > PICKLE_DEPTH:
                self.remark("too-deep", f"{name[:100]} is nested too deeply and left out", value)
                continue
            above.add(id(value))
            stack.append((id(value), self.children(name, value)))

    def interpret(self, name: str, value: Any) -> Any:
        """The result of a known call; other values unchanged."""
        if not isinstance(value, Object | Persistent | Global):
            return value
        if isinstance(value, Persistent) and self.outside and isinstance(value.id, int | str):
            return self.outside.get(int(value.id) if isinstance(value.id, str) and value.id.isdecimal() else value.id)
        if id(value) not in self.interpreted:
            try:
                self.interpreted[id(value)] = interpret(value)
            except UnexpectedOpcode as odd:
                self.remark("left-out", f"{name or ALONE} is left out: {odd}", value, name or ALONE)
                self.interpreted[id(value)] = None
        return self.interpreted[id(value)]

    def remark(self, rule: str, text: str, value: Any, tensor: str | None = None) -> None:
        at = value.at if isinstance(value, Record) else 0
        self.reading.remarks.append(Remark(f"pickle.{rule}", text, at, tensor))

    # ---- leaves

    def leaf(self, name: str, value: Any) -> bool:
        """Adds the value to the reading, unless it has parts. Returns whether it has none."""
        if isinstance(value, SavedTensor):
            self.reading.tensors[self.free(name or ALONE, value)] = value
        elif isinstance(value, _SCALARS):
            self.plain(name, value)
        elif isinstance(value, list | tuple) and value and len(value) <= _LONG_LIST and _flat(value):
            self.plain(name, list(value))
        elif isinstance(value, Set) and value.items and len(value.items) <= _LONG_LIST and _flat(value.items):
            self.plain(name, list(value.items))
        else:
            return not isinstance(value, list | tuple | Dict | Set | Object)
        return True

    def free(self, name: str, tensor: SavedTensor) -> str:
        """`name`, or a new name if it is taken (`{"a.b": x, "a": {"b": y}}`)."""
        if name not in self.reading.tensors:
            return name
        number = 2
        while f"{name}#{number}" in self.reading.tensors:
            number += 1
        text = f"two tensors are called {name!r}; the second is listed as {name}#{number}"
        self.reading.remarks.append(Remark("pickle.name-twice", text, tensor.at, name))
        return f"{name}#{number}"

    def plain(self, name: str, value: Any) -> None:
        if isinstance(value, int) and value.bit_length() > 64:
            value = preview(value)
        if len(self.reading.plain) < PICKLE_PLAIN:
            self.reading.plain[name or "value"] = value
        elif len(self.reading.plain) == PICKLE_PLAIN:
            self.reading.plain["..."] = "more values follow"
            self.remark("left-out", f"plain values beyond the first {PICKLE_PLAIN} are left out", None)

    # ---- parts

    def children(self, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, Dict):
            yield from _named(name, _last_of(value))
        elif isinstance(value, Set):
            yield from ((f"{name}.{i}".lstrip("."), v) for i, v in enumerate(value.items))
        elif isinstance(value, Object):
            yield from self.parts(name, value)
        else:
            yield from ((f"{name}.{i}".lstrip("."), v) for i, v in enumerate(value))

    def parts(self, name: str, value: Object) -> Iterator[tuple[str, Any]]:
        """The data of an unknown object: its state, items and pairs, and the arguments of NEWOBJ."""
        for state in value.states:
            for part in state if isinstance(state, tuple) else (state,):  # (dict, dict of slots)
                yield from _attributes(name, part)
        yield from _named(name, _last_of(value))
        arguments = value.args if value.op == "NEWOBJ" and isinstance(value.args, tuple) else ()
        yield from ((f"{name}.{i}".lstrip("."), v) for i, v in enumerate((*arguments, *value.items)))


def _flat(values: list[Any] | tuple[Any, ...]) -> bool:
    return all(isinstance(v, bool | float | str) or (isinstance(v, int) and v.bit_length() <= 64) for v in values)


def _key(key: Any) -> str:
    if isinstance(key, str):
        return key if len(key) <= PICKLE_NAME else f"{key[:PICKLE_NAME]}..."
    if isinstance(key, bytes):
        return key.decode("utf-8", "replace")
    return preview(key) if isinstance(key, int | float | None) else f"<{preview(key)}>"


def _last_of(value: Dict | Object) -> Iterator[tuple[str, Any]]:
    """Pairs like a dict has them: in the order of first assignment, each with its last value."""
    last: dict[tuple[bool, str] | int, tuple[str, Any]] = {}
    for i, (key, stored) in enumerate(value.pairs):
        plain = key is None or isinstance(key, str | bytes | int | float)
        last[(isinstance(key, str), _key(key)) if plain else i] = (_key(key), stored)
    yield from last.values()


def _named(name: str, pairs: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    return ((f"{name}.{key}" if name else key, value) for key, value in pairs)


def _attributes(name: str, state: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(state, Dict):
        yield name, state
        return
    for key, value in _last_of(state):
        if key in _MODULE:
            if isinstance(value, Object) and isinstance(value.callee, Global) and value.callee.path in KNOWN:
                with suppress(UnexpectedOpcode):
                    value = interpret(value)
            if isinstance(value, Dict):
                yield from _named(name, _last_of(value))
        elif key not in _BOOKKEEPING:
            yield (f"{name}.{key}" if name else key), value


# ---- actions of a loader -----------------------------------------------------------------------------------


def _event_remarks(machine: Machine) -> Iterator[Remark]:
    """One remark per unknown name, with the number of its uses. Imports that lead to a call count as the call."""
    groups: dict[tuple[str, str], list[Event]] = {}
    called: set[int] = set()
    for event in machine.events:
        if event.kind == "call":
            called.add(id(event.what.callee))
        description = _describe(event)
        if description is not None:
            groups.setdefault(description, []).append(event)
    if machine.leftover:
        yield Remark("pickle.leftover", plural(machine.leftover, "unused value"), machine.end, harmless=True)
    separate = {
        key: [e for e in events if e.kind != "import" or id(e.what) not in called] for key, events in groups.items()
    }
    shown = [(key, events) for key, events in separate.items() if events]
    for i, ((rule, text), events) in enumerate(shown):
        if i == PICKLE_FINDINGS:
            yield Remark("pickle.more", f"{len(shown) - i} more remarks of this kind", events[0].at)
            return
        times = f" ({len(events)} times)" if len(events) > 1 else ""
        yield Remark(rule, text + times, events[0].at)


def _describe(event: Event) -> tuple[str, str] | None:
    """The rule and text for an event that involves an unknown name; None for other events."""
    subject = event.what
    match event.kind:
        case "import" if subject.path not in NAMES:
            return "pickle.unknown-name", f"{subject.module}.{subject.name} is named, and not imported"
        case "extension" | "buffer":
            return f"pickle.{event.kind}", "something that the file doesn't contain is left out"
        case "odd":
            return "pickle.odd", f"{event.op} on {preview(subject)}, which doesn't have it, is skipped"
        case "call":
            callee = class_of(subject.callee)
            if callee is None:
                return "pickle.unknown-call", f"the result of {preview(subject.callee)} is not called"
            if callee is subject.callee and (callee.path in KNOWN or callee.path in CLASSES):
                return None
            if callee.path in numpy_calls.EVAL and numpy_calls.array_of(subject) is not None:
                return None
            if subject.op in ("NEWOBJ", "NEWOBJ_EX"):
                return "pickle.unknown-class", f"{callee} is not constructed; its contents are read as data"
            args, shown = subject.args, "..."
            if isinstance(args, tuple):
                shown = ", ".join(preview(a) for a in args[:3]) + (", ..." if len(args) > 3 else "")
            return "pickle.unknown-call", f"{callee}({shown}) is not called; its result is left out"
    return None
