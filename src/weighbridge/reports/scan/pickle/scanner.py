"""Scans pickles: the abstract machine runs each pickle of a source, importing and calling nothing, and what it would do
is checked against a policy. Where a pickle breaks, what came before still counts, as an unpickler would have done it.

The machine is lenient: where it stops, every unpickler has stopped. A file is one pickle, or the five of torch's format
before 1.6 with its storages. Whatever else follows a pickle is read as one too: programs differ in whether they see it.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import MIB, SCAN_PLAIN
from weighbridge.base.native import plain_pickle_end
from weighbridge.io.source import BytesSource, FileSource, Source
from weighbridge.reports.scan.detect import PICKLES
from weighbridge.reports.scan.model import (
    Budget,
    MemberPath,
    Nested,
    OverLimit,
    Piece,
    ScanFinding,
    ScanRule,
    ScanVerdict,
    Use,
    finding,
)
from weighbridge.reports.scan.pickle import denylist, storages
from weighbridge.reports.scan.pickle.embedded import embedded_pickles
from weighbridge.reports.scan.pickle.plain import PLAIN_NAMES
from weighbridge.reports.scan.pickle.policy import PicklePolicy
from weighbridge.reports.scan.pickle.shapes import BYTES, callee_of, class_of, storage_id
from weighbridge.unpickle import machine as machines
from weighbridge.unpickle.libraries.joblib import JoblibMachine
from weighbridge.unpickle.libraries.torch import embed
from weighbridge.unpickle.machine import Event
from weighbridge.unpickle.opcodes import TABLE
from weighbridge.unpickle.values import Blob, Global, preview

_D, _M, _U, _NOTE = ScanVerdict.DANGEROUS, ScanVerdict.MALFORMED, ScanVerdict.UNKNOWN_CODE, ScanVerdict.DATA_ONLY

#: Rules on how a pickle is written. (Those on what it does are in `policy.py`.)
RULES: Final[Mapping[str, ScanRule]] = MappingProxyType(
    {
        "pickle/truncated": ScanRule(_M, "the pickle ends inside a value, or without STOP"),
        "pickle/frame": ScanRule(_M, "an opcode crosses its frame's end, or frames nest: readers differ"),
        "pickle/number": ScanRule(_M, "a number that readers take differently: hexadecimal, with a NUL, without end"),
        "pickle/text": ScanRule(_M, "text that is not in its encoding, or not in quotes"),
        "pickle/protocol": ScanRule(_M, "a protocol that is not known, or said in the middle"),
        "pickle/opcode": ScanRule(_M, "a byte that is no opcode"),
        "pickle/broken": ScanRule(_M, "a step that no unpickler can do"),
        "pickle/limit": ScanRule(ScanVerdict.UNPROVEN, "the pickle takes more memory or time than a scan allows"),
        "pickle/hidden-name": ScanRule(_D, "the bytes behind the break name something that is known to do harm"),
        "pickle/another-pickle": ScanRule(_M, "another pickle follows: some programs run it, others never see it"),
        "pickle/trailing-bytes": ScanRule(_M, "bytes follow the end, which programs take differently"),
        "pickle/legacy": ScanRule(_M, "a file of torch before 1.6 whose parts do not fit together"),
        "pickle/not-one": ScanRule(_M, "by its name a pickle, but what an unpickler would make of it breaks"),
        "pickle/carried": ScanRule(_U, "a value in it is a pickle of its own, which names what is not allowed"),
        "pickle/unresolved-bytes": ScanRule(_D, "the pickle doesn't show the bytes that torch would load as a file"),
        "pickle/leftover": ScanRule(_NOTE, "values are made and not used"),
    }
)  # fmt: skip

# Words of the machine's errors -> the rule. The first that fits; any other is `pickle/broken`.
_REASONS: Final = (
    ("frame", "pickle/frame"),
    ("ends", "pickle/truncated"),
    ("has no end", "pickle/truncated"),
    ("integer", "pickle/number"),
    ("no float", "pickle/number"),
    ("place in the memo", "pickle/number"),
    ("text is not", "pickle/text"),
    ("a string", "pickle/text"),
    ("PROTO", "pickle/protocol"),
    ("no opcode", "pickle/opcode"),
)
_DISPUTED: Final = "unpicklers take it differently, or stop here"
_NAMES: Final = 20  # names found after a break to report
_HIDDEN: Final = 4 * MIB  # how far behind a break names are looked for
_GLOBALS: Final = re.compile(rb"[ci]([A-Za-z_][\w.]{0,99})\n([A-Za-z_][\w.]{0,99})\n")
_STRING: Final = re.compile(rb"(?:[\x8cU]([\x01-\x64])|X([\x01-\x64])\0\0\0)(?=[A-Za-z_])", re.DOTALL)
_MEMO: Final = re.compile(rb"\x94|q.|r....|", re.DOTALL)
_NAME: Final = re.compile(rb"[A-Za-z_][\w.]*\Z")
# Opcodes of what may be no pickle at all: of a member, of a file.
_PROBED: Final = MIB
_PROBED_FILE: Final = 64 * MIB
FEW: Final = 1024  # bytes in which opcodes that import are rare
_IMPORTING: Final = frozenset(b"ci\x93\x95")  # GLOBAL, INST (a line may end with the file), STACK_GLOBAL, FRAME
_CARRIED: Final = 16 * MIB  # how far values are searched for pickles
_OPCODES: Final = bytes(TABLE)
_NAMED: Final = (".pkl", ".pickle", ".pt", ".pth", ".joblib", ".dill", ".p")
_WEIGHTS: Final = (*_NAMED, ".npy", ".npz", ".bin", ".ckpt", ".model", ".dat", ".data", ".weights", ".tar")
# Names under which text lies as well: lists of paths (.pth), notes without a suffix, tables.
_TEXTUAL: Final = (".pth", ".model", ".dat", ".data", ".p", ".weights")
#: joblib goes by the first bytes, whatever compression the name promises.
_PACKED: Final = re.compile(r"\.(gz|gzip|bz2|xz|lzma|z|zlib|lz4|zst)\Z")
_WORD: Final = re.compile(r"[A-Za-z_][\w.]*\Z", re.ASCII)
_TEXT: Final = 1024
_PRINTABLE: Final = MappingProxyType(dict.fromkeys((9, 10, 13)))  # lines and columns of text
# torch's format before 1.6: five pickles, the first two of these numbers (torch/serialization.py).
_LEGACY: Final = 5
_MAGIC: Final = 0x1950A86A20F9469CFC6C
_PROTOCOL: Final = 1001


class _Metered(Source):
    """A source whose reads are paid from a budget."""

    def __init__(self, parent: Source, budget: Budget) -> None:
        self.parent, self.budget = parent, budget
        self.name, self.size, self.sequential = parent.name, parent.size, parent.sequential

    def _readinto(self, offset: int, out: memoryview) -> int:
        self.budget.spend(len(out))
        return self.parent._readinto(offset, out)

    def location(self, offset: int) -> tuple[FileSource, int] | None:
        return self.parent.location(offset)


def scan(source: Source, place: MemberPath, budget: Budget, *, ids: bool = False) -> Iterator[Piece]:
    """What the pickles of `source` would do. `ids`: persistent ids that are numbers or text are fine."""
    yield from _Reading(source, place, budget, ids).run()


def probe(
    source: Source, place: MemberPath, budget: Budget, *, unknown: bool = False, storage: bool = False
) -> Iterator[Piece]:
    """Whether an unpickler would run bytes that are something else to us: protocols 0 and 1 have no magic. They are a
    pickle where they end as one, or where an unpickler would import or call before it stops. `unknown`: they are no
    other format. `storage`: they are a storage's, which no loader of checkpoints unpickles."""
    head = source.head(1)
    unfit = unknown and place.name.lower().endswith(_NAMED)  # if it turns out to be no pickle
    if not head or (is_idle(source.head(FEW), source.size) if not unfit else head not in _OPCODES):
        return
    most = _PROBED if place.members else _PROBED_FILE
    machine = JoblibMachine(_Metered(source, Budget(min(most, budget.nbytes))), strict=False)
    named = not storage and is_named_pickle(place.name)
    whole, text = False, is_text(source)
    prose = text and may_be_text(place.name)
    try:
        machine.run()
        whole = machine.end == source.size and machine.steps > 1
        whole = whole or (named and _goes_on(machine.source, machine.end, prose))
    except UnsupportedError:
        if not storage and not _acts(machine.events, named, prose):
            yield finding(
                RULES, "pickle/limit", source, place, "as a pickle it is too long to be followed", at=machine.at
            )
    except FormatError as error:
        if unfit and not text and not _acts(machine.events, named, prose):
            words = f"by its name a pickle: {error.message}"
            yield finding(RULES, "pickle/not-one", source, place, words, at=machine.at)
        whole = source.head(2) in PICKLES and any(_harmful(source.head(_PROBED)))
    if whole or _acts(machine.events, named, prose) or (named and machine.reframed):
        yield Nested(source, place, "pickle")


def _goes_on(source: Source, at: int, prose: bool) -> bool:
    """Whether one of the next pickles does something: torch's format before 1.6 has five."""
    for _ in range(_LEGACY - 1):
        machine = JoblibMachine(source, at, strict=False)
        try:
            machine.run()
        except UnsupportedError:
            return True
        except FormatError:
            return _acts(machine.events, True, prose)
        if _acts(machine.events, True, prose):
            return True
        at = machine.end
    return False


def is_idle(head: bytes, size: int) -> bool:
    """Whether no unpickler does more than fail with what begins so: by its first opcode, or since so few bytes can't
    import anything, end as a pickle or begin a frame."""
    if head[:1] not in _OPCODES:
        return True
    return len(head) == size <= FEW and head[-1:] != b"." and not _IMPORTING & set(head)


def is_named_pickle(name: str) -> bool:
    """Whether loaders unpickle a file of this name, whatever is in it."""
    plain = _PACKED.sub("", name.lower())
    return plain.endswith(_WEIGHTS) or "." not in plain


def may_be_text(name: str) -> bool:
    """Whether a file of this name may honestly be text."""
    return "." not in name or name.lower().endswith(_TEXTUAL) or not is_named_pickle(name)


def is_text(source: Source) -> bool:
    head = source.head(_TEXT)
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return text.translate(_PRINTABLE).isprintable()


def _harmful(data: bytes) -> Iterator[tuple[int, str, str]]:
    """Names that do harm, as opcodes would have them, wherever they stand: place, name, what follows. Each once."""
    seen: set[str] = set()
    for at, *raw in (*((m.start(), m[1], m[2]) for m in _GLOBALS.finditer(data)), *_stacked(data)):
        module, name = (part.decode("ascii", "replace") for part in raw)
        harm, full = denylist.consequence(module, name), f"{module}.{name}"
        if harm and full not in seen and len(seen) < _NAMES:
            seen.add(full)
            yield at, full, harm


def _stacked(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Two strings before STACK_GLOBAL, wherever they stand."""
    for match in _STRING.finditer(data):
        module, at = _string(data, match)
        second = _STRING.match(data, at) if module else None
        name, at = _string(data, second) if second else (b"", at)
        if name and data[at : at + 1] == b"\x93":
            yield match.start(), module, name


def _string(data: bytes, match: re.Match[bytes]) -> tuple[bytes, int]:
    """The name that an opcode of a string holds (empty: it is none), and the place behind it and its memo."""
    end = match.end() + (match[1] or match[2])[0]
    memo = _MEMO.match(data, end)
    text = data[match.end() : end]
    return text if _NAME.match(text) else b"", memo.end() if memo else end


def _acts(events: Iterable[Event], named: bool, prose: bool) -> bool:
    """Whether an unpickler would do something: call a name that can be imported, or import one that does harm. `named`:
    the file's name says that it is a pickle, so that importing alone counts; in `prose` a module that is no identifier
    doesn't, as lines of it are read as such."""
    for event in events:
        if event.kind == "call":
            name = class_of(event.what.callee)
            if name is not None and _is_called(name, named):
                return True
        elif event.kind == "import" and _is_imported(event.what, named, prose):
            return True
    return False


def _is_called(name: Global, named: bool) -> bool:
    package = name.module.partition(".")[0]
    return _is_file_name(package) if named else package.isidentifier() and bool(_WORD.match(name.name))


def _is_imported(name: Global, named: bool, prose: bool) -> bool:
    package = name.module.partition(".")[0]
    if named:
        return package.isidentifier() or (not prose and _is_file_name(package))
    # INST needs a mark: without one Python's unpickler alone imports, and two lines of a list of words look like it.
    harmful = name.how != "INST" and denylist.consequence(*name.path)
    return bool(harmful) and package.isidentifier() and bool(_WORD.match(name.name))


def _is_file_name(package: str) -> bool:
    """Whether Python would look for a file of this name: it takes any, not only identifiers."""
    return bool(package) and not set(package) & {"/", "\0"}


class _Reading:
    """The pickles of one source, one behind the other."""

    def __init__(self, source: Source, place: MemberPath, budget: Budget, ids: bool) -> None:
        self.source, self.place, self.budget = source, place, budget
        self.metered = _Metered(source, budget)
        self.policy = PicklePolicy(source, place, ids)
        self.pieces: list[Piece] = []
        self.storages = storages.Storages(source, budget)
        self.named: list[tuple[str, int]] = []  # storages by key, with their bytes
        self.head = b""

    def run(self) -> Iterator[Piece]:
        end = self._plain()
        if not end:
            first = self._pickle(0)
            end = None if first is None else self._legacy(first.end) if first.is_magic else first.end
        if end is not None and end < self.source.size:
            self._behind(end)
        yield from self.policy.findings()
        yield from self.pieces
        yield from storages.lengths(self.storages, self.named, self.source, self.place)
        yield from storages.indices(self.storages, self.policy, self.source, self.place)
        for at, value in self.policy.loaded:
            yield from self._loaded(at, value)
        yield from self._carried()

    def _plain(self) -> int | None:
        """The end of a small pickle of plain data and tensors, by a walk that supports nothing else; None for any
        other."""
        self.head = self.metered.head(SCAN_PLAIN)
        end, named = plain_pickle_end(self.head, PLAIN_NAMES)
        self.named += named
        return end or None

    def _pickle(self, at: int) -> _Done | None:
        """One pickle, judged; None where it broke."""
        self.budget.spend(members=1)
        machine = JoblibMachine(self.metered, at, strict=False)
        try:
            value = machine.run()
        except FormatError as error:
            self._broken(machine, error)
            return None
        except OverLimit:
            self._check(machine)
            raise
        except UnsupportedError as error:
            rule = "pickle/protocol" if "protocol" in error.message else "pickle/limit"
            self._check(machine)
            self._say(rule, error.message, machine.at)
            return None
        self._check(machine)
        if machine.leftover:
            self._say("pickle/leftover", f"{machine.leftover} values are made and not used", machine.end - 1)
        return _Done(machine, value)

    def _check(self, machine: machines.Machine) -> None:
        """What a pickle did, and where unpicklers differ."""
        self.policy.check(machine)
        self.named += storages.named(machine.events)
        if self.policy.indexed:
            embed(machine)
        if not machine.disputes:
            return
        disputed = {_rule_of(e.what): e for e in reversed(list(machine.events)) if e.kind == "disputed"}
        for rule, event in disputed.items():
            self._say(rule, f"{event.op}: {event.what}", event.at, opcode=event.op, consequence=_DISPUTED)
            if rule == "pickle/frame":
                self.pieces += self._hidden(event.at)  # some unpicklers go on elsewhere

    def _say(self, rule: str, words: str, at: int, **more: Any) -> None:
        self.pieces.append(finding(RULES, rule, self.source, self.place, words, at=at, **more))

    # ---- broken ones

    def _broken(self, machine: JoblibMachine, error: FormatError) -> None:
        self._check(machine)
        rule = _rule_of(error.reason)
        value_text = f" ({error.found!r})" if isinstance(error.found, str | bytes) else ""
        words = f"{error.field or 'the pickle'}: {error.reason}{value_text}"
        self._say(rule, words, machine.at, opcode=error.field,
                  consequence="an unpickler stops here, or goes on as we would not")  # fmt: skip
        self.pieces += self._hidden(machine.at)

    def _hidden(self, at: int) -> Iterator[ScanFinding]:
        """Names that do harm in the bytes from `at` on: another reader might get to them."""
        length = min(self.source.size - at, _HIDDEN, self.budget.nbytes)
        if length <= 0:
            return
        self.budget.spend(length)
        for place, name, harm in _harmful(self.source.read(at, length)):
            yield finding(RULES, "pickle/hidden-name", self.source, self.place, f"behind the break stands {name}",
                        at=at + place, name=name, use=Use.IMPORTED, consequence=harm)  # fmt: skip

    # ---- what follows

    def _behind(self, at: int) -> None:
        """More pickles, or other bytes, behind the end."""
        first, count = at, 0
        while at < self.source.size:
            if self.source.read(at, 1) not in _OPCODES:
                break
            before = len(self.pieces)
            calls = len(self.policy.groups)
            done = self._pickle(at)
            if done is None:
                if len(self.policy.groups) == calls and not any(_worst(p) for p in self.pieces[before:]):
                    del self.pieces[before:]  # no pickle: only bytes
                break
            at, count = done.end, count + 1
        if count:
            self._say("pickle/another-pickle", f"{count} more pickles follow the first", first)
        if at < self.source.size:
            self._say("pickle/trailing-bytes", f"{self.source.size - at} bytes follow the pickle", at)

    # ---- torch before 1.6

    def _legacy(self, at: int) -> int | None:
        """The other four pickles and the storages; where they end."""
        done: list[_Done] = []
        for _ in range(_LEGACY - 1):
            one = self._pickle(at)
            if one is None:
                return None
            done.append(one)
            at = one.end
        if type(done[0].value) is not int or done[0].value != _PROTOCOL:
            self._say("pickle/legacy", f"the protocol is not {_PROTOCOL}", done[0].start)
        try:
            return self._storages(done[2].machine, done[3])
        except FormatError as error:
            self._say("pickle/legacy", error.reason, done[3].end)
            return None

    def _storages(self, machine: JoblibMachine, last: _Done) -> int:
        widths: dict[str, int] = {}
        for event in machine.events:
            named = storage_id(event.what) if event.kind == "persistent" else None
            if named is not None:
                widths.setdefault(*named)
        keys, at = last.value, last.end
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise FormatError("the last pickle is no list of storage keys")
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

    def _carried(self) -> Iterator[ScanFinding]:
        data, length = self.head, min(self.source.size, _CARRIED, self.budget.nbytes)
        if length > len(data):
            self.budget.spend(length)
            data = self.source.read(0, length)
        for one in embedded_pickles(data):
            words = f"{one.what} in it is a pickle of its own, which names {one.name}"
            yield finding(RULES, "pickle/carried", self.source, self.place, words, at=one.at, name=one.name,
                        consequence="loading does not run it; whoever unpickles that value does")  # fmt: skip

    def _loaded(self, at: int, value: Any) -> Iterator[Piece]:
        """The bytes that torch.storage._load_from_bytes would load as a file."""
        inner = self._bytes(value)
        if inner is not None:
            yield Nested(inner, self.place.inside(f"bytes at {at}"))
        else:
            words = f"_load_from_bytes reads {preview(value)}, which the file doesn't show"
            yield finding(RULES, "pickle/unresolved-bytes", self.source, self.place, words, at=at,
                          consequence="torch loads whatever these bytes are, without restrictions")  # fmt: skip

    def _encoded(self, text: Any) -> Any:
        """What protocol 2 writes bytes as: text, whose characters are their numbers."""
        if isinstance(text, Blob):
            self.budget.spend(text.size)
            text = self.source.read(text.start, text.size).decode("utf-8", "replace")
        return text.encode("latin-1", "replace") if isinstance(text, str) else None

    def _bytes(self, value: Any) -> Source | None:
        if isinstance(value, Blob):
            return self.source.window(value.start, value.size)
        if callee_of(value) == ("_codecs", "encode") and isinstance(value.args, tuple) and value.args:
            value = self._encoded(value.args[0])
        elif callee_of(value) in BYTES and isinstance(value.args, tuple):
            value = _joined(value.args)
        return BytesSource(value) if isinstance(value, bytes) else None


def _rule_of(reason: str) -> str:
    return next((rule for words, rule in _REASONS if words in reason), "pickle/broken")


def _joined(args: tuple[Any, ...]) -> bytes | None:
    """The result of bytes(...) or bytearray(...); None where it isn't plain."""
    if len(args) == 1 and isinstance(args[0], list | tuple):
        numbers = args[0]
        return bytes(numbers) if all(type(n) is int and 0 <= n < 256 for n in numbers) else None
    if len(args) == 1 and isinstance(args[0], bytes):
        return args[0]
    return None if args else b""


def _worst(piece: Piece) -> bool:
    return isinstance(piece, ScanFinding) and piece.verdict is ScanVerdict.DANGEROUS


class _Done:
    """A pickle that was read to its end."""

    def __init__(self, machine: JoblibMachine, value: Any) -> None:
        self.start, self.end, self.value = machine.start, machine.end, value
        self.machine = machine
        self.is_magic = type(value) is int and value == _MAGIC
