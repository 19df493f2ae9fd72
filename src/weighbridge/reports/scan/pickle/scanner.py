"""Scans pickles: the abstract machine runs each pickle of a source without importing or calling anything, and its steps
are checked against a policy. If a pickle breaks, the steps before count, as an unpickler would have performed them.

The machine is lenient: if it stops, every unpickler has stopped. A file is one pickle, or the five of torch's format
before 1.6 with its storages. Anything after a pickle is read as another pickle, since some programs run it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import MIB, SCAN_PLAIN
from weighbridge.base.native import plain_pickle_end
from weighbridge.base.words import plural
from weighbridge.io.source import BytesSource, FileSource, Source
from weighbridge.reports.scan.model import Budget, OverLimit, Part, Piece, ScanFinding, ScanVerdict, Use
from weighbridge.reports.scan.pickle import arrays, denylist, storages
from weighbridge.reports.scan.pickle.embedded import embedded_pickles
from weighbridge.reports.scan.pickle.plain import PLAIN_NAMES
from weighbridge.reports.scan.pickle.policy import PicklePolicy
from weighbridge.reports.scan.pickle.shapes import BYTES, callee_of, storage_id
from weighbridge.unpickle.libraries.joblib import JoblibMachine
from weighbridge.unpickle.libraries.torch import embed
from weighbridge.unpickle.opcodes import TABLE
from weighbridge.unpickle.values import Blob, PickleFault, preview

#: Code of an error or a dispute -> the rule. An error without a code, such as a file that shrinks, is `pickle/broken`.
RULES_OF: Final[Mapping[str, str]] = MappingProxyType(
    {
        PickleFault.BROKEN: "pickle/broken",
        PickleFault.FRAME: "pickle/frame",
        PickleFault.TRUNCATED: "pickle/truncated",
        PickleFault.NUMBER: "pickle/number",
        PickleFault.TEXT: "pickle/text",
        PickleFault.PROTOCOL: "pickle/protocol",
        PickleFault.OPCODE: "pickle/opcode",
        "": "pickle/broken",
    }
)
_NAMES: Final = 20  # names after an error that are reported
_HIDDEN: Final = 4 * MIB  # bytes after an error that are searched for names
_GLOBALS: Final = re.compile(rb"[ci]([A-Za-z_][\w.]{0,99})\n([A-Za-z_][\w.]{0,99})\n")
_STRING: Final = re.compile(rb"(?:[\x8cU]([\x01-\x64])|X([\x01-\x64])\0\0\0)(?=[A-Za-z_])", re.DOTALL)
_MEMO: Final = re.compile(rb"\x94|q.|r....|", re.DOTALL)
_NAME: Final = re.compile(rb"[A-Za-z_][\w.]*\Z")
FEW: Final = 1024  # bytes in which opcodes that import are rare
_IMPORTING: Final = frozenset(b"ci\x93\x95")  # GLOBAL, INST (a line may end with the file), STACK_GLOBAL, FRAME
_CARRIED: Final = 16 * MIB  # bytes whose values are searched for pickles
OPCODES: Final = bytes(TABLE)
# torch's format before 1.6: five pickles, the first two of these numbers (torch/serialization.py).
LEGACY: Final = 5
_MAGIC: Final = 0x1950A86A20F9469CFC6C
_PROTOCOL: Final = 1001


class Metered(Source):
    """A source whose reads are charged to a budget."""

    def __init__(self, parent: Source, budget: Budget) -> None:
        self.parent, self.budget = parent, budget
        self.name, self.size, self.sequential = parent.name, parent.size, parent.sequential

    def _readinto(self, offset: int, out: memoryview) -> int:
        self.budget.spend(len(out))
        return self.parent._readinto(offset, out)

    def location(self, offset: int) -> tuple[FileSource, int] | None:
        return self.parent.location(offset)


def scan(part: Part, *, ids: bool = False) -> Iterator[Piece]:
    """Scans the pickles of a part. `ids`: persistent ids that are numbers or text are allowed."""
    yield from _Reading(part, ids).run()


def is_idle(head: bytes, size: int) -> bool:
    """Whether every unpickler fails at once on a source that starts with `head`: by its first opcode, or because so few
    bytes can't import anything, end as a pickle or start a frame."""
    if head[:1] not in OPCODES:
        return True
    return len(head) == size <= FEW and head[-1:] != b"." and not _IMPORTING & set(head)


def harmful_names(data: bytes) -> Iterator[tuple[int, str, str]]:
    """Names that do harm, written as opcodes anywhere in `data`: offset, name, consequence. Each once."""
    seen: set[str] = set()
    for at, *raw in (*((m.start(), m[1], m[2]) for m in _GLOBALS.finditer(data)), *_stacked_names(data)):
        module, name = (text.decode("ascii", "replace") for text in raw)
        harm, full = denylist.consequence(module, name), f"{module}.{name}"
        if harm and full not in seen and len(seen) < _NAMES:
            seen.add(full)
            yield at, full, harm


def _stacked_names(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Offset, module and name of two strings before STACK_GLOBAL."""
    for match in _STRING.finditer(data):
        module, at = _string_at(data, match)
        second = _STRING.match(data, at) if module else None
        name, at = _string_at(data, second) if second else (b"", at)
        if name and data[at : at + 1] == b"\x93":
            yield match.start(), module, name


def _string_at(data: bytes, match: re.Match[bytes]) -> tuple[bytes, int]:
    """The name in a string opcode (b"" if it isn't one), and the offset after it and its memo opcode."""
    end = match.end() + (match[1] or match[2])[0]
    memo = _MEMO.match(data, end)
    text = data[match.end() : end]
    return text if _NAME.match(text) else b"", memo.end() if memo else end


class _Reading:
    """Reads the pickles of one part, one after the other."""

    def __init__(self, part: Part, ids: bool) -> None:
        self.part, self.source = part, part.source
        self.metered = Metered(part.source, part.budget)
        self.policy = PicklePolicy(part, ids)
        self.pieces: list[Piece] = []
        self.storages = storages.Storages(part)
        self.named: list[tuple[str, int]] = []  # storages by key, with their bytes
        self.head = b""

    def run(self) -> Iterator[Piece]:
        # A walk that supports only plain data and tensors finds the end of small pickles of these.
        self.head = self.metered.head(SCAN_PLAIN)
        plain_end, self.named = plain_pickle_end(self.head, PLAIN_NAMES)
        end: int | None = plain_end
        if not plain_end:
            first = self._read_pickle(0)
            end = None if first is None else self._read_legacy(first.end) if first.is_magic else first.end
        if end is not None and end < self.source.size:
            self._read_trailing(end)
        yield from self.policy.findings()
        yield from self.policy.torch_load()
        yield from self.pieces
        yield from self.storages.check_lengths(self.named)
        yield from self.storages.check_indices(self.policy)
        for at, value in self.policy.loaded:
            yield from self._load(at, value)
        data, length = self.head, min(self.source.size, _CARRIED, self.part.budget.nbytes)
        if length > len(data):
            self.part.budget.spend(length)
            data = self.source.read(0, length)
        for pickle in embedded_pickles(data):
            message = f"a value ({pickle.form}) is itself a pickle, which names {pickle.name}"
            yield self.part.finding("pickle/carried", message, at=pickle.at, name=pickle.name,
                                    consequence="loading doesn't run it; unpickling that value does")  # fmt: skip

    def _read_pickle(self, at: int) -> _FinishedPickle | None:
        """Reads and judges one pickle; None if it is broken."""
        self.part.budget.spend(members=1)
        machine = JoblibMachine(self.metered, at, strict=False, watch=self.policy.watch)
        try:
            value = machine.run()
        except FormatError as error:
            self._check(machine)
            value_text = f" ({error.found!r})" if isinstance(error.found, str | bytes) else ""
            message = f"{error.field or 'the pickle'}: {error.reason}{value_text}"
            self._report(RULES_OF[error.code], message, machine.at, opcode=error.field,
                         consequence="an unpickler stops here, or continues differently")  # fmt: skip
            self.pieces += self._hidden_names(machine.at)
            return None
        except OverLimit:
            self._check(machine)
            raise
        except UnsupportedError as error:
            self._check(machine)
            self._report("pickle/limit", error.message, machine.at)
            return None
        self._check(machine)
        if machine.leftover:
            message = f"{plural(machine.leftover, 'value', 'are')} created and not used"
            self._report("pickle/leftover", message, machine.end - 1)
        return _FinishedPickle(machine, value)

    def _check(self, machine: JoblibMachine) -> None:
        """Judges the steps of a pickle, and reports opcodes on which unpicklers differ."""
        self.policy.check(machine)
        if machine.array is not None:
            metered = Part(self.metered, self.part.place, self.part.budget)
            self.pieces += arrays.opcodes(metered, machine, self._load)
        self.named += storages.named(machine.events)
        if self.policy.indexed:
            embed(machine)
        if not machine.disputes:
            return
        disputed = {RULES_OF[e.what.code]: e for e in reversed(list(machine.events)) if e.kind == "disputed"}
        for rule, event in disputed.items():
            self._report(rule, f"{event.op}: {event.what.reason}", event.at, opcode=event.op,
                         consequence="unpicklers read it differently, or stop here")  # fmt: skip
            if rule == "pickle/frame":
                self.pieces += self._hidden_names(event.at)  # some unpicklers continue elsewhere

    def _report(self, rule: str, message: str, at: int, **more: Any) -> None:
        self.pieces.append(self.part.finding(rule, message, at=at, **more))

    def _hidden_names(self, at: int) -> Iterator[ScanFinding]:
        """Names that do harm in the bytes from `at`, which another reader might reach."""
        length = min(self.source.size - at, _HIDDEN, self.part.budget.nbytes)
        if length <= 0:
            return
        self.part.budget.spend(length)
        for place, name, harm in harmful_names(self.source.read(at, length)):
            yield self.part.finding("pickle/hidden-name", f"the bytes after the error name {name}",
                                    at=at + place, name=name, use=Use.IMPORTED, consequence=harm)  # fmt: skip

    # ---- after the first pickle

    def _read_trailing(self, at: int) -> None:
        """Reads more pickles, or other bytes, after the end."""
        first, count = at, 0
        while at < self.source.size and self.source.read(at, 1) in OPCODES:
            pieces, groups = len(self.pieces), len(self.policy.groups)
            done = self._read_pickle(at)
            if done is None:
                harmful = (
                    isinstance(p, ScanFinding) and p.verdict is ScanVerdict.DANGEROUS for p in self.pieces[pieces:]
                )
                if len(self.policy.groups) == groups and not any(harmful):
                    del self.pieces[pieces:]  # not a pickle: only bytes
                break
            at, count = done.end, count + 1
        if count:
            self._report("pickle/another-pickle", f"{plural(count, 'more pickle')} after the first", first)
        if at < self.source.size:
            message = f"{plural(self.source.size - at, 'byte')} after the pickle"
            self._report("pickle/trailing-bytes", message, at)

    def _read_legacy(self, at: int) -> int | None:
        """Reads the other four pickles of a file of torch before 1.6, and finds its storages. Returns their end."""
        done: list[_FinishedPickle] = []
        for _ in range(LEGACY - 1):
            pickle = self._read_pickle(at)
            if pickle is None:
                return None
            done.append(pickle)
            at = pickle.end
        if type(done[0].value) is not int or done[0].value != _PROTOCOL:
            self._report("pickle/legacy", f"the protocol is not {_PROTOCOL}", done[0].start)
        try:
            return self._find_storages(done[2].machine, done[3])
        except FormatError as error:
            self._report("pickle/legacy", error.reason, done[3].end)
            return None

    def _find_storages(self, machine: JoblibMachine, last: _FinishedPickle) -> int:
        widths: dict[str, int] = {}
        for event in machine.events:
            key_and_width = storage_id(event.what) if event.kind == "persistent" else None
            if key_and_width is not None:
                widths.setdefault(*key_and_width)
        keys, at = last.value, last.end
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise FormatError("the last pickle is not a list of storage keys")
        for key in keys:
            if key not in widths:
                raise FormatError("a storage that the object does not name")
            size = int.from_bytes(self.source.read(at, 8), "little", signed=True) * widths[key]
            if not 0 <= size <= self.source.size - at - 8:
                raise FormatError("the file ends inside a storage")
            self.storages.legacy[key] = at + 8, size
            at += 8 + size
        return at

    # ---- files in bytes

    def _load(self, at: int, value: Any) -> Iterator[Piece]:
        """Scans the bytes that torch.storage._load_from_bytes would load as a file."""
        inner = self._resolve_bytes(value)
        if inner is not None:
            yield self.part.inside(f"bytes at {at}", inner)
        else:
            message = f"_load_from_bytes reads {preview(value)}, which the file doesn't show"
            yield self.part.finding("pickle/unresolved-bytes", message, at=at,
                                    consequence="torch loads these bytes without restrictions")  # fmt: skip

    def _resolve_bytes(self, value: Any) -> Source | None:
        if isinstance(value, Blob):
            return self.source.window(value.start, value.size)
        callee = callee_of(value)
        if callee == ("_codecs", "encode") and isinstance(value.args, tuple) and value.args:
            text = value.args[0]  # protocol 2 writes bytes as text, whose characters are the numbers
            if isinstance(text, Blob):
                self.part.budget.spend(text.size)
                text = self.source.read(text.start, text.size).decode("utf-8", "replace")
            value = text.encode("latin-1", "replace") if isinstance(text, str) else None
        elif callee in BYTES and isinstance(value.args, tuple):
            value = _joined(value.args)
        return BytesSource(value) if isinstance(value, bytes) else None


def _joined(args: tuple[Any, ...]) -> bytes | None:
    """The result of bytes(...) or bytearray(...), or None if an argument isn't plain."""
    if len(args) == 1 and isinstance(args[0], list | tuple):
        numbers = args[0]
        return bytes(numbers) if all(type(n) is int and 0 <= n < 256 for n in numbers) else None
    if len(args) == 1 and isinstance(args[0], bytes):
        return args[0]
    return None if args else b""


class _FinishedPickle:
    """A pickle that was read to its end."""

    def __init__(self, machine: JoblibMachine, value: Any) -> None:
        self.start, self.end, self.value = machine.start, machine.end, value
        self.machine = machine
        self.is_magic = type(value) is int and value == _MAGIC
