"""What PyTorch's checkpoints say, read from the values of an abstract machine: tensors by name, plain values, and all
that is left out. Nothing of torch is used, and what a checkpoint would import or call is not.

    reading = read(machine, value)
    reading.tensors     name -> Tensor: a view of a storage, by the storage's key
    reading.plain       name -> number, text or a list of them (epoch, learning rate)
    reading.remarks     what a loader would do that was not done, what could not be read

Names are the path through dicts, lists and attributes: `model.layers.0.weight`, `optimizer.state.0.exp_avg`. A module
that was saved whole has the names of its `state_dict()`. A call is understood only by its exact module and name and the
shape of its arguments (`torch_calls.KNOWN`); any other is left out, and a class that is not known is data: its state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from weighbridge.base.errors import UnsupportedError
from weighbridge.base.limits import PICKLE_DEPTH, PICKLE_FINDINGS, PICKLE_INLINE, PICKLE_NAME, PICKLE_PLAIN
from weighbridge.unpickle.libraries import numpy as numpy_calls
from weighbridge.unpickle.libraries.torch_calls import CLASSES, EMBEDDED, KNOWN, NAMES, interpret
from weighbridge.unpickle.libraries.torch_types import SavedTensor, Storage, class_of, embedded
from weighbridge.unpickle.machine import Event, Machine
from weighbridge.unpickle.values import Blob, Dict, Global, Object, Persistent, Record, Set, UnexpectedOpcode, preview

__all__ = ["Reading", "Remark", "SavedTensor", "Storage", "read"]

#: The name of a tensor that was saved alone.
ALONE: Final = "tensor"
_NONE: Final[Mapping[int | str, SavedTensor]] = MappingProxyType({})
_SCALARS: Final = (bool, int, float, str)
# Parts of a module's state that its state_dict does not name; their children are named as the module's own.
_MODULE: Final = ("_parameters", "_buffers", "_modules")
# No part of what a module is: versions; a list of its own parameters that torch's recurrent ones keep.
_KEPT_ATTRIBUTES: Final = ("_metadata", "_flat_weights")
_LONG_LIST: Final = 4096
# A name costs a step more for each so many characters.
_WORD: Final = 64


class Remark(NamedTuple):
    """`rule` is stable; `at` an offset in the pickle; `harmless`: no loader would mind, and nothing is lost."""

    rule: str
    words: str
    at: int
    tensor: str | None = None
    harmless: bool = False


@dataclass
class Reading:
    tensors: dict[str, SavedTensor] = field(default_factory=dict)
    plain: dict[str, Any] = field(default_factory=dict)
    remarks: list[Remark] = field(default_factory=list)


def read(machine: Machine, value: Any, outside: Mapping[int | str, SavedTensor] = _NONE) -> Reading:
    """The reading of a pickle's value and of what happened on the way. `outside`: tensors that lie beside the pickle,
    by their persistent id."""
    embed(machine)
    walk = _Walk(machine, outside)
    walk.run(value)
    walk.reading.remarks[:0] = _events(machine)
    return walk.reading


def embed(machine: Machine) -> None:
    """Read the storages that were pickled whole, each once, however often it is named."""
    known: dict[int, Storage | UnexpectedOpcode] = {}
    stored = 0  # bytes that are written as text
    for event in machine.events:
        call = event.what
        if event.kind != "call" or not isinstance(call.callee, Global) or call.callee.path != EMBEDDED:
            continue
        data = call.args[0] if isinstance(call.args, tuple) and len(call.args) == 1 else None
        key = data.args[0] if isinstance(data, Object) and isinstance(data.args, tuple) and data.args else data
        if id(key) not in known:
            try:
                bytes_of = numpy_calls.raw(data)
                stored += bytes_of.size if isinstance(bytes_of, Blob) and bytes_of.codec else 0
                known[id(key)] = embedded(bytes_of, PICKLE_INLINE - stored)
            except UnexpectedOpcode as odd:
                known[id(key)] = odd
        call.meaning = known[id(key)]


class _Walk:
    def __init__(self, machine: Machine, outside: Mapping[int | str, SavedTensor]) -> None:
        self.reading = Reading()
        self.outside = outside
        # A tree whose parts are shared is larger than its pickle; honest ones are not many times larger.
        self.budget = 8 * machine.steps + 1024
        self.made: dict[int, Any] = {}  # what each object was understood as

    def run(self, root: Any) -> None:
        above: set[int] = set()  # what is being walked: a cycle is not followed
        # Each level's parts are made as they are come to: their names are long where they lie deep.
        stack: list[tuple[int, Iterator[tuple[str, Any]]]] = [(0, iter([("", root)]))]
        while stack:
            part = next(stack[-1][1], None)
            if part is None:
                above.discard(stack.pop()[0])
                continue
            name, value = part[0], self.understood(*part)
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

    def understood(self, name: str, value: Any) -> Any:
        """The value itself; what a call gives where the call is known."""
        if not isinstance(value, Object | Persistent | Global):
            return value
        if isinstance(value, Persistent) and self.outside and isinstance(value.id, int | str):
            return self.outside.get(int(value.id) if isinstance(value.id, str) and value.id.isdecimal() else value.id)
        if id(value) not in self.made:
            try:
                self.made[id(value)] = interpret(value)
            except UnexpectedOpcode as odd:
                self.remark("left-out", f"{name or ALONE} is left out: {odd}", value, name or ALONE)
                self.made[id(value)] = None
        return self.made[id(value)]

    def remark(self, rule: str, words: str, value: Any, tensor: str | None = None) -> None:
        at = value.at if isinstance(value, Record) else 0
        self.reading.remarks.append(Remark(f"pickle.{rule}", words, at, tensor))

    # ---- leaves

    def leaf(self, name: str, value: Any) -> bool:
        """Take the value in where it is not a thing of parts."""
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
        """`name`, or where it is taken (`{"a.b": x, "a": {"b": y}}`) one beside it."""
        if name not in self.reading.tensors:
            return name
        number = 2
        while f"{name}#{number}" in self.reading.tensors:
            number += 1
        words = f"two tensors are called {name!r}; the second is listed as {name}#{number}"
        self.reading.remarks.append(Remark("pickle.name-twice", words, tensor.at, name))
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
        """What an object that is not known holds: its state, items and pairs; a new object's arguments, too."""
        for state in value.states:
            for part in state if isinstance(state, tuple) else (state,):  # (dict, dict of slots)
                yield from _attributes(name, part)
        yield from _named(name, _last_of(value))
        arguments = value.args if value.how == "NEWOBJ" and isinstance(value.args, tuple) else ()
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
    """Pairs as a dict has them: in the order in which keys came first, each with its last value."""
    kept: dict[tuple[bool, str] | int, tuple[str, Any]] = {}
    for i, (key, stored) in enumerate(value.pairs):
        plain = key is None or isinstance(key, str | bytes | int | float)
        kept[(isinstance(key, str), _key(key)) if plain else i] = (_key(key), stored)
    yield from kept.values()


def _named(name: str, pairs: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    return ((f"{name}.{key}" if name else key, value) for key, value in pairs)


def _attributes(name: str, state: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(state, Dict):
        yield name, state
        return
    for key, value in _last_of(state):
        if key in _MODULE:
            inner = value
            if isinstance(value, Object) and isinstance(value.callee, Global) and value.callee.path in KNOWN:
                inner = _contents(value)
            if isinstance(inner, Dict):
                yield from _named(name, _last_of(inner))
        elif key not in _KEPT_ATTRIBUTES:
            yield (f"{name}.{key}" if name else key), value


def _contents(value: Object) -> Any:
    try:
        return interpret(value)
    except UnexpectedOpcode:
        return None


# ---- what a loader would do -----------------------------------------------------------------------------------


def _events(machine: Machine) -> Iterator[Remark]:
    """A remark for each name that is not known, once, with how often; imports that lead to a call count as the call."""
    groups: dict[tuple[str, str], list[Event]] = {}
    called: set[int] = set()
    for event in machine.events:
        if event.kind == "call":
            called.add(id(event.what.callee))
        found = _unknown(event)
        if found is not None:
            groups.setdefault(found, []).append(event)
    if machine.leftover:
        yield Remark("pickle.leftover", f"{machine.leftover} values are made and not used", machine.end, harmless=True)
    rest = {
        key: [e for e in events if e.kind != "import" or id(e.what) not in called] for key, events in groups.items()
    }
    shown = [(key, events) for key, events in rest.items() if events]
    for i, ((rule, words), events) in enumerate(shown):
        if i == PICKLE_FINDINGS:
            yield Remark("pickle.more", f"{len(shown) - i} more things of this kind", events[0].at)
            return
        times = f" ({len(events)} times)" if len(events) > 1 else ""
        yield Remark(rule, words + times, events[0].at)


def _unknown(event: Event) -> tuple[str, str] | None:
    """Rule and words for what is done to names that are not known."""
    what = event.what
    match event.kind:
        case "import" if what.path not in NAMES:
            return "pickle.unknown-name", f"{what.module}.{what.name} is named, and not imported"
        case "call":
            return _unknown_call(what)
        case "extension" | "buffer":
            return f"pickle.{event.kind}", "something that the file does not hold is left out"
        case "odd":
            words = f"{event.op} on {preview(what)}, which has no such thing, is not done"
            return "pickle.odd", words
    return None


def _unknown_call(what: Object) -> tuple[str, str] | None:
    callee = class_of(what.callee)
    if callee is None:
        return "pickle.unknown-call", f"the result of {preview(what.callee)} is not called"
    if callee is what.callee and (callee.path in KNOWN or callee.path in CLASSES):
        return None
    if what.how in ("NEWOBJ", "NEWOBJ_EX"):
        return "pickle.unknown-class", f"no object of {callee} is made; what it holds is read as data"
    return "pickle.unknown-call", f"{callee}{_arguments(what.args)} is not called; its result is left out"


def _arguments(args: Any) -> str:
    if not isinstance(args, tuple):
        return "(...)"
    shown = ", ".join(preview(a) for a in args[:3])
    return f"({shown}{', ...' if len(args) > 3 else ''})"
