"""Judges the effects of a pickle: each import, call and change that the abstract machine recorded is compared with the
allowlist. A name and use have one finding, at the first place, with the number of occurrences.

Arguments and states are judged when they are passed (`watch`), and must be the same at the end: a list may fit a call
and grow afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from weighbridge.base.records import dataclass
from weighbridge.reports.scan.model import RULES, Part, ScanFinding, ScanVerdict, Use, escape
from weighbridge.reports.scan.names import harm_of
from weighbridge.reports.scan.pickle import denylist
from weighbridge.reports.scan.pickle.allowlist import (
    BUILTINS,
    CALLS,
    REBUILDS,
    RECONSTRUCTORS,
    VALUES,
    WEIGHTS_ONLY,
    Allowed,
)
from weighbridge.reports.scan.pickle.indices import INDEXED
from weighbridge.reports.scan.pickle.shapes import LOADED, WORDS, class_of, fits, numpy_state, scheme_fits
from weighbridge.unpickle.libraries import numpy as numpy_calls
from weighbridge.unpickle.machine import Machine
from weighbridge.unpickle.state import Event
from weighbridge.unpickle.values import Dict, External, Global, Object, Persistent, Set, preview

_PLAIN_WORD: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*\Z")
_CLASS_PATH: Final = re.compile(r"([A-Z][A-Za-z0-9]*\.)+[A-Za-z][A-Za-z0-9]*\Z")
_IMPORTS: Final = "loading imports the module, which runs its code"
_CALLS: Final = "loading imports the module and calls this"
_OLDER: Final = "torch before 2.10 writes past the end of its memory here; others may crash"
_FROM_TYPE: Final = frozenset({"_rebuild_from_type_v2", "_rebuild_from_type"})
_RANGES: Final = frozenset({"range", "xrange"})
_SIZED: Final = 1 << 28
_RANGE: Final = 1 << 20  # of an argument: ordinary pickles write the numbers
_FEW: Final = 16  # more parts than any call or state looks at


@dataclass(slots=True)
class _FindingGroup:
    """Findings of one rule on one name."""

    finding: ScanFinding
    message: str
    times: int = 1


class _PassedValue(NamedTuple):
    """A mutable value, and its size when it was passed to a call."""

    value: Any
    size: int


@dataclass
class PicklePolicy:
    """The findings on the events of one pickle. `ids`: persistent ids other than torch's storages are allowed (the
    members of a tar checkpoint have keys)."""

    part: Part
    ids: bool = False
    groups: dict[tuple[str, str], _FindingGroup] = field(default_factory=dict)
    loaded: list[tuple[int, Any]] = field(default_factory=list)  # bytes that `_load_from_bytes` would read
    indexed: list[tuple[Event, Object]] = field(default_factory=list)  # tensors whose values are indices
    passed: list[tuple[Event, tuple[_PassedValue, ...]]] = field(default_factory=list)  # to allowed calls
    beyond_torch: Global | None = None  # the first name that torch.load refuses with weights_only=True

    def watch(self, event: Event) -> None:
        """Judges the arguments of an allowed call, or the state of its result, when they are passed."""
        result: Object = event.what
        row = CALLS.get(result.callee.path) if isinstance(result.callee, Global) else None
        if row is None or _unknown_class(result):
            return  # `check` reports it
        if event.kind == "call":
            self.check_arguments(event, result, row)
        else:
            state = _row_of_class(result, row).state
            if not state or len(result.states) > 1 or not WORDS[state](result.states[0]) or not _dtype_fits(result):
                name = str(result.callee)
                message = f"the result of {name} gets a state that no writer gives it"
                self.add("pickle/odd-state", event, message, name, Use.BUILT, tuple(result.states),
                         "readers may crash, or the state may change which code runs")  # fmt: skip
        passed = tuple(_mutable(result.args if event.kind == "call" else (result.states[-1],)))
        if passed:
            self.passed.append((event, passed))

    def check(self, machine: Machine) -> None:
        """Judges the events of a machine that this policy watched."""
        called = {id(class_of(e.what.callee)) for e in machine.events if e.kind == "call"}
        for event in machine.events:
            target = event.what
            if isinstance(target, Global) and self.beyond_torch is None and target.path not in WEIGHTS_ONLY:
                self.beyond_torch = target
            if event.kind != "import":
                _CHECKS[event.kind](self, event)
            elif id(target) not in called and target.path not in CALLS and target.path not in VALUES:
                self.check_name(event, target, Use.IMPORTED, (), "imported")
        for event, passed in self.passed:
            if any(_size(value) != size for value, size in passed):
                name = str(event.what.callee)
                self.add("pickle/changed-argument", event, f"an argument of {name} is changed later", name, Use.CHANGED,
                         consequence="the call got another value than the file shows in the end")  # fmt: skip
        self.passed.clear()

    def torch_load(self) -> Iterator[ScanFinding]:
        """A note on how torch.load treats a pickle that is more than data."""
        if all(group.finding.verdict is ScanVerdict.DATA_ONLY for group in self.groups.values()):
            return
        name = self.beyond_torch
        answer = f"refuses the file: {name} is not on its list" if name else "accepts every name in the file"
        yield self.part.finding(
            "pickle/torch-load", f"torch.load with weights_only=True (the default since torch 2.6) {answer}; with "
            "weights_only=False (the default before) it does everything reported here", at=name.at if name else None,
        )  # fmt: skip

    def findings(self) -> Iterator[ScanFinding]:
        for (rule, _), group in self.groups.items():
            f, times = group.finding, f", {group.times} times" if group.times > 1 else ""
            yield self.part.finding(
                rule, group.message + times, at=f.offset, opcode=f.opcode, name=f.name, use=f.use,
                arguments=f.arguments, consequence=f.consequence, verdict=f.verdict,
            )  # fmt: skip

    def add(self, rule: str, event: Event, message: str, name: str = "", use: Use | None = None, args: Any = (),
            consequence: str = "", verdict: ScanVerdict | None = None) -> None:  # fmt: skip
        group = self.groups.get((rule, name or message))
        if group is not None:
            group.times += 1
            return
        previews = tuple(escape(preview(a)) for a in args[:4]) if isinstance(args, tuple) else ("...",)
        finding = ScanFinding(
            rule, verdict or RULES[rule].verdict, "", self.part.place.path, offset=event.at, opcode=event.op,
            name=name or None, use=use, arguments=previews, consequence=consequence,
        )  # fmt: skip
        self.groups[rule, name or message] = _FindingGroup(finding, message)

    # ---- names

    def check_name(self, event: Event, target: Global, use: Use, args: Any, done: str) -> None:
        """Reports a name that isn't allowed."""
        name, consequence = str(target), denylist.consequence(*target.path)
        rule, verdict = "pickle/dotted-name", None
        if not _PLAIN_WORD.match(target.module) or not _PLAIN_WORD.match(target.name):
            self.add("pickle/odd-name", event, f"an invalid name is {done}: {name}", name, use, args,
                     consequence or "readers may read different names",
                     ScanVerdict.DANGEROUS if consequence else None)  # fmt: skip
            return
        if consequence:
            rule = "pickle/dangerous-import" if use is Use.IMPORTED else "pickle/dangerous-call"
        elif "." in target.name:
            consequence = harm_of(*target.path)
            if not consequence and _CLASS_PATH.match(target.name):  # a class in a class
                verdict = ScanVerdict.UNKNOWN_CODE
            consequence = consequence or "a chain of attributes reaches any object, including os.system"
        elif use is Use.IMPORTED:
            rule, consequence = "pickle/unknown-import", _IMPORTS
        else:
            rule, consequence = "pickle/unknown-call", _CALLS
        self.add(rule, event, f"{name} is {done}", name, use, args, consequence, verdict)

    # ---- calls

    def called(self, event: Event) -> None:
        result: Object = event.what
        callee = class_of(result.callee)
        if callee is not None and callee.path in numpy_calls.EVAL and numpy_calls.array_of(result) is not None:
            return  # a name is looked up in a dict
        if callee is None:
            message = f"the result of {preview(result.callee)} is called"
            self.add("pickle/computed-call", event, message, args=result.args, use=Use.CALLED,
                     consequence="the file doesn't show what runs")  # fmt: skip
        elif callee.path in CALLS and callee is result.callee:
            self.check_allowed(event, result, callee)
        elif callee.path in VALUES and callee is result.callee:
            self.add("pickle/value-called", event, f"{callee} is called", str(callee), Use.CALLED, result.args, _CALLS)
        else:
            use = Use.BUILT if result.states else Use.CALLED
            done = "created and given a state" if result.states else "called"
            self.check_name(event, callee, use, result.args, done)

    def check_arguments(self, event: Event, result: Object, row: Allowed) -> None:
        """Judges the arguments of an allowed call."""
        name = str(result.callee)
        new = result.op in ("NEWOBJ", "NEWOBJ_EX")
        if result.kwargs is not None or (new and not row.new) or not fits(row.args, result.args) or _mismatch(result):
            self.add("pickle/odd-arguments", event, f"{name} has arguments that no writer gives it", name, Use.CALLED,
                     result.args, "readers may crash, or do something else with them")  # fmt: skip
        ranges = [
            a.args for a in result.args if isinstance(a, Object) and isinstance(a.callee, Global)
            and a.callee.name in _RANGES and isinstance(a.args, tuple)
        ] if isinstance(result.args, tuple) else []  # fmt: skip
        if any(type(bound) is int and abs(bound) > _RANGE for args in ranges for bound in args):
            self.add("pickle/bomb", event, f"{name} is called with a range of numbers", name, Use.CALLED, result.args,
                     "loading fills the memory")  # fmt: skip
        if result.callee.path == LOADED and isinstance(result.args, tuple) and len(result.args) == 1:
            self.loaded.append((event.at, result.args[0]))
        # Keep a sparse or nested tensor, including one that another call creates.
        if result.callee.name in _FROM_TYPE and isinstance(result.args, tuple) and len(result.args) == 4:
            result = Object(result.at, result.op, result.args[0], result.args[2])
        path = result.callee.path if isinstance(result.callee, Global) else None
        if path in INDEXED and fits(CALLS[path].args, result.args):
            self.indexed.append((event, result))

    def check_allowed(self, event: Event, result: Object, callee: Global) -> None:
        """Judges the final result of an allowed call."""
        unknown = _unknown_class(result)
        if unknown is not None:
            use = Use.BUILT if result.states else Use.CALLED
            self.check_name(event, unknown, use, result.args, "created by copyreg")
            return
        row, name = _row_of_class(result, CALLS[callee.path]), str(callee)
        if not result.states and not _dtype_fits(result):
            self.add("pickle/odd-arguments", event, f"{name} has no state", name, Use.CALLED, result.args,
                     "readers may crash, or do something else with it")  # fmt: skip
        if (result.items and not row.items) or (result.pairs and not row.pairs):
            self.add("pickle/filled", event, f"items are put into the result of {name}", name, Use.CHANGED, result.args,
                     _OLDER)  # fmt: skip

    # ---- other events

    def odd(self, event: Event) -> None:
        target = event.what
        if isinstance(target, Global):
            self.add("pickle/patched", event, f"{target} is changed by {event.op}", str(target), Use.CHANGED,
                     consequence="code that uses it later does something else")  # fmt: skip
        elif isinstance(target, Persistent | External):
            self.add("pickle/filled", event, f"{event.op} on {preview(target)}", use=Use.CHANGED, consequence=_OLDER)
        else:
            self.add("pickle/odd", event, f"{event.op} on {preview(target)}, which doesn't support it")

    def persistent(self, event: Event) -> None:
        id = event.what.id
        if WORDS["storage"](event.what) or (self.ids and isinstance(id, int | str)):
            return
        if class_of(event.what) is None:
            self.add("pickle/persistent-id", event, f"a persistent id of {preview(id)}", use=Use.PERSISTENT,
                     consequence="the loading program resolves it")  # fmt: skip

    def bomb(self, event: Event) -> None:
        if isinstance(event.what, int):
            self.add("pickle/bomb", event, f"memo entry {event.what} is set, far beyond the others",
                     consequence="loading fills the memory: CPython allocates all entries before it")  # fmt: skip
        else:
            message = "a key of tuples that share their parts is hashed"
            self.add("pickle/bomb", event, message, consequence="loading takes forever")


_CHECKS: Final[Mapping[str, Callable[[PicklePolicy, Event], None]]] = MappingProxyType(
    {
        "call": PicklePolicy.called,
        "build": lambda policy, event: None,  # judged by `watch`
        "odd": PicklePolicy.odd,
        "persistent": PicklePolicy.persistent,
        "extension": lambda policy, event: policy.add(
            "pickle/extension", event, f"extension {event.what.code} is used", use=Use.EXTENSION,
            consequence=denylist.ANY),
        "buffer": lambda policy, event: policy.add("pickle/buffer", event, "a buffer from outside the file is used"),
        "computed-name": lambda policy, event: policy.add(
            "pickle/computed-name", event, "a computed name is imported", use=Use.IMPORTED, consequence=denylist.ANY),
        "bomb": PicklePolicy.bomb,
        "disputed": lambda policy, event: None,  # a fault in the writing, not an effect
    }
)  # fmt: skip


def _mismatch(result: Object) -> bool:
    """Whether the arguments of a call fit one by one but not together."""
    name = result.callee.name
    if name in _FROM_TYPE:  # it calls its first argument with its third
        function, _, args, _ = result.args
        row = REBUILDS.get(function.path) if isinstance(function, Global) else None
        return row is None or not fits(row.args, args) or _mismatch(Object(result.at, result.op, function, args))
    if name == "_reconstructor":
        cls, base, value = result.args
        return RECONSTRUCTORS.get(cls.path) != base.name or (value is not None) is not (base.name == "str")
    if name == "_rebuild_qtensor":
        return not scheme_fits(result.args[4], result.args[2])
    if name == "_rebuild_sparse_tensor":
        return any(isinstance(part, list) for part in result.args[1])
    limit = _SIZED if name in ("bytes", "bytearray") else 1 << 31 if name in _RANGES else None
    return limit is not None and any(isinstance(a, int) and abs(a) > limit for a in result.args)


def _dtype_fits(result: Object) -> bool:
    """Whether a `numpy.dtype` and its state match; True of anything else."""
    return result.callee.path != ("numpy", "dtype") or numpy_state(result)


def _row_of_class(result: Object, row: Allowed) -> Allowed:
    """The row of the class that copyreg's function creates, or `row` of any other call."""
    if result.callee.name != "_reconstructor" or not fits(row.args, result.args):
        return row
    return CALLS.get(result.args[0].path, row)


def _unknown_class(result: Object) -> Global | None:
    """The class that copyreg's function creates, if it is in no table and its base is a builtin."""
    if result.callee.name != "_reconstructor" or not isinstance(result.args, tuple) or len(result.args) != 3:
        return None
    cls, base, _ = result.args
    if not isinstance(cls, Global) or not isinstance(base, Global) or base.module not in BUILTINS:
        return None
    return None if cls.path in CALLS or cls.path in VALUES else cls


def _mutable(value: Any, depth: int = 3) -> Iterator[_PassedValue]:
    """The mutable values among arguments: lists, dicts, sets, and objects that may still get a state."""
    if isinstance(value, tuple):
        if depth and len(value) <= _FEW:
            for part in value:
                yield from _mutable(part, depth - 1)
        return
    result = value if isinstance(value, Object) and isinstance(value.callee, Global) else None
    row = CALLS.get(result.callee.path) if result is not None else None
    if isinstance(value, list | Dict | Set) or (row is not None and row.state not in ("", "metadata")):
        yield _PassedValue(value, _size(value))


def _size(value: Any) -> int:
    if isinstance(value, Dict):
        return len(value.flat)
    if isinstance(value, Set):
        return len(value.items)
    if isinstance(value, Object):
        return len(value.states) + len(value.items) + len(value.flat)
    return len(value)
