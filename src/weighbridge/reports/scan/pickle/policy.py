"""What a pickle would do, judged: each import, call and change that the abstract machine recorded, against the table of
what is allowed. One finding a name and use, at its first place, with how often.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from weighbridge.io.source import Source
from weighbridge.reports.scan.model import MemberPath, ScanFinding, ScanRule, ScanVerdict, Use, escape, finding
from weighbridge.reports.scan.pickle import denylist
from weighbridge.reports.scan.pickle.allowlist import CALLS, REBUILDS, VALUES
from weighbridge.reports.scan.pickle.indices import INDEXED
from weighbridge.reports.scan.pickle.shapes import LOADED, WORDS, class_of, fits, numpy_state, scheme_fits
from weighbridge.unpickle.machine import Event, Machine
from weighbridge.unpickle.values import External, Global, Object, Persistent, preview

_D, _M, _U, _NOTE = ScanVerdict.DANGEROUS, ScanVerdict.MALFORMED, ScanVerdict.UNKNOWN_CODE, ScanVerdict.DATA_ONLY

#: Rules on what a pickle does. (Those on how it is written are in `pickles.py`.)
RULES: Final[Mapping[str, ScanRule]] = MappingProxyType(
    {
        "pickle/dangerous-import": ScanRule(_D, "a name that is known to do harm is imported"),
        "pickle/dangerous-call": ScanRule(_D, "a name that is known to do harm is called"),
        "pickle/unknown-import": ScanRule(_U, "a name that is not in the table of what is allowed is imported"),
        "pickle/unknown-call": ScanRule(_U, "a name that is not in the table of what is allowed is called"),
        "pickle/dotted-name": ScanRule(_D, "a name with dots walks from a module to anything that it can reach"),
        "pickle/odd-name": ScanRule(_M, "a module or name that is none: empty, with spaces or control characters"),
        "pickle/computed-call": ScanRule(_D, "what is called was itself computed by a call"),
        "pickle/value-called": ScanRule(_U, "a name that stands for a value is called"),
        "pickle/odd-arguments": ScanRule(_M, "an allowed call has arguments that no writer gives it"),
        "pickle/odd-state": ScanRule(_M, "the result of an allowed call is given a state that no writer gives it"),
        "pickle/filled": ScanRule(_D, "items are put into something that has none, such as a tensor (CVE-2026-24747)"),
        "pickle/patched": ScanRule(_D, "a class, function or module is changed in place"),
        "pickle/odd": ScanRule(_M, "something is done to a plain value that has no such thing"),
        "pickle/persistent-id": ScanRule(_U, "a persistent id that is none of torch's storages"),
        "pickle/extension": ScanRule(_D, "a code of the extension registry, which only the loading program knows"),
        "pickle/bomb": ScanRule(_M, "a call that makes far more of its arguments than the file holds"),
        "pickle/computed-name": ScanRule(_D, "a name is imported that was itself computed by a call"),
        "pickle/buffer": ScanRule(_M, "a buffer that is not in the file"),
    }
)  # fmt: skip

_PLAIN_WORD: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*\Z")
_CLASS_PATH: Final = re.compile(r"([A-Z][A-Za-z0-9]*\.)+[A-Za-z][A-Za-z0-9]*\Z")
_IMPORTS: Final = "loading imports the module, which runs its code"
_CALLS: Final = "loading imports the module and runs this, whatever it does"
_OLDER: Final = "torch before 2.10 writes past the end of its memory here; others may crash"


@dataclass(slots=True)
class _FindingGroup:
    """Findings of one rule on one name."""

    finding: ScanFinding
    words: str
    times: int = 1


@dataclass
class PicklePolicy:
    """The findings on the events of one pickle of `source`. `ids`: persistent ids that are none of torch's storages are
    fine (the members of a tar checkpoint have keys)."""

    source: Source
    place: MemberPath
    ids: bool = False
    groups: dict[tuple[str, str], _FindingGroup] = field(default_factory=dict)
    loaded: list[tuple[int, Any]] = field(default_factory=list)  # bytes that `_load_from_bytes` would read
    indexed: list[tuple[Event, Object]] = field(default_factory=list)  # tensors whose values are indices
    calls: int = 0

    def check(self, machine: Machine) -> None:
        called = {id(class_of(e.what.callee)) for e in machine.events if e.kind == "call"}
        for event in machine.events:
            if event.kind != "import":
                _CHECKS[event.kind](self, event)
            elif id(event.what) not in called:
                self.imported(event)

    def findings(self) -> Iterator[ScanFinding]:
        for group in self.groups.values():
            times = f", {group.times} times" if group.times > 1 else ""
            yield finding(
                RULES, group.finding.rule, self.source, self.place, group.words + times, at=group.finding.offset,
                opcode=group.finding.opcode, name=group.finding.name, use=group.finding.use,
                arguments=group.finding.arguments, consequence=group.finding.consequence,
                verdict=group.finding.verdict,
            )  # fmt: skip

    def add(self, rule: str, event: Event, words: str, name: str = "", use: Use | None = None, args: Any = (),
            consequence: str = "", verdict: ScanVerdict | None = None) -> None:  # fmt: skip
        group = self.groups.get((rule, name or words))
        if group is not None:
            group.times += 1
            return
        previews = tuple(escape(preview(a)) for a in args[:4]) if isinstance(args, tuple) else ("...",)
        finding = ScanFinding(
            rule, verdict or RULES[rule].verdict, "", self.place.path, offset=event.at, opcode=event.op,
            name=name or None, use=use, arguments=previews, consequence=consequence,
        )  # fmt: skip
        self.groups[rule, name or words] = _FindingGroup(finding, words)

    # ---- names

    def imported(self, event: Event) -> None:
        path = event.what.path
        if path not in CALLS and path not in VALUES:
            self.name(event, event.what, Use.IMPORTED, (), "imported")

    def name(self, event: Event, what: Global, use: Use, args: Any, done: str) -> None:
        """A finding on a name that is not allowed."""
        name, consequence = str(what), denylist.consequence(*what.path)
        if not _PLAIN_WORD.match(what.module) or not _PLAIN_WORD.match(what.name):
            harm = consequence or "readers may take it for different names"
            self.add("pickle/odd-name", event, f"a name that is none is {done}: {name}", name, use, args, harm,
                     _D if consequence else None)  # fmt: skip
            return
        if consequence:
            rule = "pickle/dangerous-import" if use is Use.IMPORTED else "pickle/dangerous-call"
            self.add(rule, event, f"{name} is {done}", name, use, args, consequence)
        elif "." in what.name:
            verdict = _U if _CLASS_PATH.match(what.name) else None  # a class in a class; what it is stays unknown
            self.add("pickle/dotted-name", event, f"{name} is {done}", name, use, args,
                     "a walk along attributes reaches any object, os.system too", verdict)  # fmt: skip
        else:
            rule = "pickle/unknown-import" if use is Use.IMPORTED else "pickle/unknown-call"
            self.add(rule, event, f"{name} is {done}", name, use, args, _IMPORTS if use is Use.IMPORTED else _CALLS)

    # ---- calls

    def called(self, event: Event) -> None:
        self.calls += 1
        made: Object = event.what
        callee = class_of(made.callee)
        if callee is None:
            words = f"the result of {preview(made.callee)} is called"
            self.add("pickle/computed-call", event, words, args=made.args, use=Use.CALLED,
                     consequence="the file doesn't show what runs")  # fmt: skip
        elif callee.path in CALLS and callee is made.callee:
            self.allowed(event, made, callee)
        elif callee.path in VALUES and callee is made.callee:
            self.add("pickle/value-called", event, f"{callee} is called", str(callee), Use.CALLED, made.args, _CALLS)
        else:
            use = Use.BUILT if made.states else Use.CALLED
            done = "made and given a state" if made.states else "called"
            self.name(event, callee, use, made.args, done)

    def allowed(self, event: Event, made: Object, callee: Global) -> None:
        """An allowed call: its arguments, and what is done to its result."""
        row, name = CALLS[callee.path], str(callee)
        new = made.how in ("NEWOBJ", "NEWOBJ_EX")
        if made.kwargs is not None or (new and not row.new) or not fits(row.args, made.args) or _deeper(made):
            self.add("pickle/odd-arguments", event, f"{name} has arguments that no writer gives it", name, Use.CALLED,
                     made.args, "readers may crash, or do something else with them")  # fmt: skip
        if made.states and not self._states_fit(made, row.state):
            self.add("pickle/odd-state", event, f"the result of {name} is given a state that no writer gives it", name,
                     Use.BUILT, tuple(made.states), "readers may crash, or let it change what code finds")  # fmt: skip
        if (made.items and not row.items) or (made.pairs and not row.pairs):
            self.add("pickle/filled", event, f"items are put into the result of {name}", name, Use.CHANGED, made.args,
                     _OLDER)  # fmt: skip
        if isinstance(made.args, tuple) and any(_long_range(a) for a in made.args):
            self.add("pickle/bomb", event, f"{name} is called with a range of numbers", name, Use.CALLED, made.args,
                     "loading fills the memory")  # fmt: skip
        self._keep_indexed(event, made)
        if callee.path == LOADED and isinstance(made.args, tuple) and len(made.args) == 1:
            self.loaded.append((event.at, made.args[0]))

    def _keep_indexed(self, event: Event, made: Object) -> None:
        """Keep a sparse or nested tensor, also one that another call makes."""
        if made.callee.name in _FROM_TYPE and isinstance(made.args, tuple) and len(made.args) == 4:
            made = Object(made.at, made.how, made.args[0], made.args[2])
        if (
            isinstance(made.callee, Global)
            and made.callee.path in INDEXED
            and fits(CALLS[made.callee.path].args, made.args)
        ):
            self.indexed.append((event, made))

    def _states_fit(self, made: Object, word: str) -> bool:
        if not word or len(made.states) > 1:
            return False
        return WORDS[word](made.states[0])

    # ---- the rest

    def odd(self, event: Event) -> None:
        what = event.what
        if isinstance(what, Global):
            self.add("pickle/patched", event, f"{what} is changed by {event.op}", str(what), Use.CHANGED,
                     consequence="code that uses it later does something else")  # fmt: skip
        elif isinstance(what, Persistent | External):
            self.add("pickle/filled", event, f"{event.op} on {preview(what)}", use=Use.CHANGED, consequence=_OLDER)
        else:
            self.add("pickle/odd", event, f"{event.op} on {preview(what)}, which has no such thing")

    def persistent(self, event: Event) -> None:
        id = event.what.id
        if WORDS["storage"](event.what) or (self.ids and isinstance(id, int | str)):
            return
        if class_of(event.what) is None:
            self.add("pickle/persistent-id", event, f"a persistent id of {preview(id)}", use=Use.PERSISTENT,
                     consequence="the loading program decides what it stands for")  # fmt: skip

    def extension(self, event: Event) -> None:
        words = f"extension {event.what.code} is used"
        self.add("pickle/extension", event, words, use=Use.EXTENSION, consequence=denylist.ANY)

    def computed_name(self, event: Event) -> None:
        self.add("pickle/computed-name", event, "a computed name is imported", use=Use.IMPORTED,
                 consequence=denylist.ANY)  # fmt: skip

    def bomb(self, event: Event) -> None:
        if isinstance(event.what, int):
            self.add("pickle/bomb", event, f"place {event.what} of the memo is taken, far behind the others",
                     consequence="loading fills the memory: CPython makes room for all places before it")  # fmt: skip
            return
        self.add("pickle/bomb", event, "a key of tuples that share their parts is hashed",
                 consequence="loading takes forever")  # fmt: skip

    def buffer(self, event: Event) -> None:
        self.add("pickle/buffer", event, "a buffer from outside the file is used")


_CHECKS: Final[Mapping[str, Callable[[PicklePolicy, Event], None]]] = MappingProxyType(
    {
        "call": PicklePolicy.called,
        "build": lambda policy, event: None,  # judged with the call that made it
        "odd": PicklePolicy.odd,
        "persistent": PicklePolicy.persistent,
        "extension": PicklePolicy.extension,
        "buffer": PicklePolicy.buffer,
        "computed-name": PicklePolicy.computed_name,
        "bomb": PicklePolicy.bomb,
        "disputed": lambda policy, event: None,  # a fault of the writing, not of what is done
    }
)
_FROM_TYPE: Final = frozenset({"_rebuild_from_type_v2", "_rebuild_from_type"})
_SIZED: Final = 1 << 28
_RANGE: Final = 1 << 20


def _long_range(v: Any) -> bool:
    """A range that something is made of: plain pickles write the numbers."""
    args = v.args if isinstance(v, Object) and isinstance(v.callee, Global) and v.callee.name in _RANGES else ()
    return isinstance(args, tuple) and any(type(a) is int and abs(a) > _RANGE for a in args)


_RANGES: Final = frozenset({"range", "xrange"})


def _deeper(made: Object) -> bool:
    """Whether the arguments of a call that fit one by one are wrong together."""
    name = made.callee.name
    if name in _FROM_TYPE:  # it calls its first argument with its third
        function, _, args, _ = made.args
        row = REBUILDS.get(function.path) if isinstance(function, Global) else None
        return row is None or not fits(row.args, args)
    if name == "dtype":
        return not numpy_state(made)
    if name == "_rebuild_qtensor":
        return not scheme_fits(made.args[4], made.args[2])
    if name in ("bytes", "bytearray"):
        return any(isinstance(a, int) and abs(a) > _SIZED for a in made.args)
    if name in _RANGES:
        return any(isinstance(a, int) and abs(a) > 1 << 31 for a in made.args)
    return False
