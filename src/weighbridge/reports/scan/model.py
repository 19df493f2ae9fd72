"""The vocabulary of a scan: findings, skipped parts and verdicts.

A scanner is a function over one kind of file. It yields pieces and raises only the errors of `base/errors.py`, which
the engine turns into pieces:

    scan(source, place, budget) -> Iterator[ScanFinding | Skipped | Nested]

Two questions stay apart: how bad is what was seen (`ScanVerdict`, the worst finding's), and was all of it seen
(`complete`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from weighbridge.base.errors import UnsupportedError
from weighbridge.base.limits import (
    SCAN_BYTES,
    SCAN_DEPTH,
    SCAN_FINDINGS,
    SCAN_MEMBERS,
    SCAN_SHOWN,
)
from weighbridge.io.source import Source

SCHEMA: Final = "weighbridge/scan/1"


class ScanVerdict(StrEnum):
    """From the mildest to the worst; the worst finding of a file is the file's, the worst file is the folder's.

    NOT_SCANNED: nothing was read, so nothing is known. DATA_ONLY: every byte that a loader would interpret was
    interpreted, and is data. UNPROVEN: something couldn't be followed (a limit, a failure of the scanner, a format that
    isn't unpacked). UNKNOWN_CODE: it names or runs code that isn't known to be harmless. MALFORMED: broken, or readers
    would take it differently. DANGEROUS: it would do harm, or could do anything."""

    NOT_SCANNED = "not-scanned"
    DATA_ONLY = "data-only"
    UNPROVEN = "unproven"
    UNKNOWN_CODE = "unknown-code"
    MALFORMED = "malformed"
    DANGEROUS = "dangerous"

    @property
    def rank(self) -> int:
        return _RANKS[self]


_RANKS: Final[Mapping[ScanVerdict, int]] = {verdict: rank for rank, verdict in enumerate(ScanVerdict)}


class ScanRule(NamedTuple):
    """A row of a scanner's table of rules: the verdict that it leads to (DATA_ONLY: a note), and a description."""

    verdict: ScanVerdict
    text: str


class Use(StrEnum):
    """What is done to a name."""

    IMPORTED = "imported"
    CALLED = "called"
    BUILT = "built"  # its object is given a state: __setstate__, or attributes
    CHANGED = "changed"  # items are set or appended
    PERSISTENT = "persistent id"
    EXTENSION = "extension"


@dataclass(frozen=True, slots=True)
class MemberPath:
    """A file, or a member of it (of a member of it ...)."""

    path: str
    members: tuple[str, ...] = ()

    def inside(self, name: str) -> MemberPath:
        return MemberPath(self.path, (*self.members, name))

    @property
    def name(self) -> str:
        """The last part of the path or of the innermost member's."""
        return (self.members[-1] if self.members else self.path).replace("\\", "/").rpartition("/")[2]

    def __str__(self) -> str:
        return "!".join((self.path, *self.members))


@dataclass(frozen=True, slots=True)
class ScanFinding:
    """One thing that was found. `members`: the way into nested archives, outermost first. `offset` is in the innermost
    member, `file_offset` in the file (None where its bytes are compressed). `name` is a global as written, escaped;
    `arguments` are previews. `consequence`: what follows for who loads the file, in plain words."""

    rule: str
    verdict: ScanVerdict
    message: str
    path: str
    members: tuple[str, ...] = ()
    offset: int | None = None
    file_offset: int | None = None
    opcode: str | None = None
    name: str | None = None
    use: Use | None = None
    arguments: tuple[str, ...] = ()
    consequence: str = ""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file or a part of one that wasn't scanned, and why."""

    path: str
    members: tuple[str, ...]
    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Nested:
    """A part to scan as a file of its own. `kind`: what it is, where the scanner knows better than its bytes tell (the
    objects of an .npy are a pickle)."""

    source: Source = field(repr=False)
    place: MemberPath
    kind: str | None = None


Piece = ScanFinding | Skipped | Nested


class OverLimit(UnsupportedError):
    """The budget is spent: what follows isn't scanned, and the verdict is at least UNPROVEN."""


class Budget:
    """What one file, with all that is nested in it, may cost. Each scanner spends before it works."""

    def __init__(self, nbytes: int = SCAN_BYTES, members: int = SCAN_MEMBERS, findings: int = SCAN_FINDINGS) -> None:
        self.nbytes, self.members, self.findings = nbytes, members, findings
        self.depth = 0

    def spend(self, nbytes: int = 0, members: int = 0) -> None:
        """OverLimit where not so much is left. Bytes are those that are unpacked or interpreted."""
        if nbytes > self.nbytes:
            raise OverLimit(f"more than {SCAN_BYTES} bytes would have to be scanned")
        if members > self.members:
            raise OverLimit(f"more than {SCAN_MEMBERS} members would have to be scanned")
        self.nbytes -= nbytes
        self.members -= members

    def enter(self) -> None:
        """One level deeper into nested archives; pair with `leave`."""
        if self.depth >= SCAN_DEPTH:
            raise OverLimit(f"archives are nested more than {SCAN_DEPTH} deep")
        self.depth += 1

    def leave(self) -> None:
        self.depth -= 1


Scanner = Callable[[Source, MemberPath, Budget], Iterator[Piece]]


class Registration(NamedTuple):
    """A row of `registry.SCANNERS`: `scanner` runs on files whose kind is among `kinds`, or whose lower-case name
    matches one of `names` (as in `fnmatch`)."""

    scanner: Scanner
    kinds: frozenset[str] = frozenset()
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FileReport:
    """`kind`: by content, a word of `wb identify`. `complete`: nothing in it was passed over. `more`: findings beyond
    those that are listed."""

    path: str
    kind: str
    nbytes: int
    verdict: ScanVerdict
    complete: bool
    findings: tuple[ScanFinding, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    more: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class ScanReport:
    """`counts`: files by verdict. `files`: their reports in order; of very many only those that found something.
    `unreadable`: files that could not be opened. `unproven`: files with something that couldn't be followed."""

    paths: tuple[str, ...]
    verdict: ScanVerdict
    complete: bool
    counts: Mapping[str, int]
    files: tuple[FileReport, ...]
    scanned: int
    unreadable: int
    unproven: int
    nbytes: int
    schema: str = SCHEMA

    def __bool__(self) -> bool:
        return self.complete and self.verdict is ScanVerdict.DATA_ONLY

    def __repr__(self) -> str:
        return f"<ScanReport {', '.join(self.paths)}: {self.verdict.value}, {self.scanned} files>"


def worst(verdicts: Iterator[ScanVerdict] | tuple[ScanVerdict, ...]) -> ScanVerdict:
    """The worst of them; NOT_LOOKED_INTO of none."""
    return max(verdicts, key=_RANKS.__getitem__, default=ScanVerdict.NOT_SCANNED)


def escape(text: str, limit: int = SCAN_SHOWN) -> str:
    """`text` from a file, as it may stand in a report: what does not print is escaped, and its length bounded."""
    cut = text[:limit]
    clear = cut if cut.isprintable() else "".join(c if c.isprintable() else _escaped(ord(c)) for c in cut)
    return clear + ("..." if len(text) > limit else "")


def _escaped(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def finding(
    rules: Mapping[str, ScanRule], rule: str, source: Source, place: MemberPath, message: str, *, at: int | None = None,
    opcode: str | None = None, name: str | None = None, use: Use | None = None, arguments: tuple[str, ...] = (),
    consequence: str = "", verdict: ScanVerdict | None = None,
) -> ScanFinding:  # fmt: skip
    """A finding of the rule with the id `rule` of `rules`; `at`: its offset in `source`. The verdict is the rule's,
    unless a table says a worse one."""
    where = source.location(at) if at is not None and 0 <= at < source.size else None
    return ScanFinding(
        rule, verdict or rules[rule].verdict, escape(message, 4 * SCAN_SHOWN), place.path,
        tuple(escape(m) for m in place.members), at, where[1] if where else None, opcode,
        None if name is None else escape(name), use, tuple(escape(a) for a in arguments), consequence,
    )  # fmt: skip
