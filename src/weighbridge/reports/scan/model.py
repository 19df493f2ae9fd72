"""Findings, skipped parts, verdicts and the budget of a scan.

A scanner is a function over one kind of file. It yields pieces, and raises only the errors of `base/errors.py`, which
the engine turns into pieces:

    scan(part) -> Iterator[ScanFinding | Skipped | Part]

A report answers two questions separately: how bad is the worst finding (`ScanVerdict`), and was everything scanned
(`complete`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from weighbridge.base.errors import UnsupportedError
from weighbridge.base.imports.tables import read_table
from weighbridge.base.limits import (
    SCAN_BYTES,
    SCAN_DEPTH,
    SCAN_FINDINGS,
    SCAN_LEAST_BYTES,
    SCAN_LEAST_MEMBERS,
    SCAN_MEMBER_BYTES,
    SCAN_MEMBERS,
    SCAN_PASSES,
    SCAN_SHOWN,
)
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.io.source import Source

SCHEMA: Final = "weighbridge/scan/1"


class ScanVerdict(StrEnum):
    """Verdicts from the mildest to the worst. A file's verdict is that of its worst finding, a folder's that of its
    worst file.

    NOT_SCANNED: nothing was read, so nothing is known. DATA_ONLY: every byte that a loader interprets was interpreted
    and is data. UNPROVEN: a part couldn't be followed (a limit, a failure of the scanner, a format that isn't
    unpacked). UNKNOWN_CODE: it names or runs code that isn't known to be harmless. MALFORMED: broken, or readers
    disagree on it. DANGEROUS: it does harm, or could do anything."""

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
    """The verdict that a rule leads to (DATA_ONLY: a note), and its description."""

    verdict: ScanVerdict
    text: str


#: Every rule by its id, from `rules.toml`.
RULES: Final[Mapping[str, ScanRule]] = MappingProxyType(
    {
        f"{group}/{name}": ScanRule(ScanVerdict(verdict), text)
        for group, rules in read_table(__file__, "rules.toml").items()
        for name, (verdict, text) in rules.items()
    }
)


class Use(StrEnum):
    """How a pickle or a config uses a name."""

    IMPORTED = "imported"
    CALLED = "called"
    BUILT = "built"  # its object is given a state: __setstate__, or attributes
    CHANGED = "changed"  # items are set or appended
    PERSISTENT = "persistent id"
    EXTENSION = "extension"


@dataclass(frozen=True, slots=True)
class MemberPath:
    """The path of a file, and the names that lead to a member of nested archives in it, outermost first."""

    path: str
    members: tuple[str, ...] = ()

    def inside(self, name: str) -> MemberPath:
        return MemberPath(self.path, (*self.members, name))

    @property
    def name(self) -> str:
        """The last component of the innermost member's name, or of the path."""
        return (self.members[-1] if self.members else self.path).replace("\\", "/").rpartition("/")[2]

    def __str__(self) -> str:
        return "!".join((self.path, *self.members))


@dataclass(frozen=True, slots=True)
class ScanFinding:
    """One finding. `members`: the names that lead into nested archives, outermost first. `offset`: the byte in the
    innermost member; `file_offset`: the byte in the file (None in compressed data). `name`: a global as written,
    escaped. `arguments`: previews. `consequence`: what happens to whoever loads the file, in plain words."""

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


class OverLimit(UnsupportedError):
    """The budget is spent: the rest isn't scanned, and the verdict is at least UNPROVEN."""


class Budget:
    """The cost limits of one file with everything nested in it: bytes, members, findings. Scanners spend before they
    work. `size`: the file's size, which limits the cost further; bytes unpacked from the file count towards it."""

    def __init__(
        self,
        nbytes: int = SCAN_BYTES,
        members: int = SCAN_MEMBERS,
        findings: int = SCAN_FINDINGS,
        *,
        size: int | None = None,
    ) -> None:
        self.nbytes, self.members, self.findings = nbytes, members, findings
        self.depth = 0
        self._reserve = (0, 0)  # bytes and members that unpacking may still add
        if size is not None:
            self.nbytes = min(nbytes, SCAN_LEAST_BYTES + SCAN_PASSES * size)
            self.members = min(members, SCAN_LEAST_MEMBERS + size // SCAN_MEMBER_BYTES)
            self._reserve = (nbytes - self.nbytes, members - self.members)

    def spend(self, nbytes: int = 0, members: int = 0) -> None:
        """Spends bytes to unpack or interpret, and members. Raises OverLimit if fewer are left."""
        if nbytes > self.nbytes:
            raise OverLimit("the scan limit on bytes is reached: too many, or the same ones too often")
        if members > self.members:
            self.members = 0  # the next part would only fail after the same work
            raise OverLimit("the scan limit on members is reached: too many, or the same ones too often")
        self.nbytes -= nbytes
        self.members -= members

    def unpack(self, nbytes: int, content: int | None = None) -> None:
        """Spends the bytes that unpacking takes. They, or the `content` to unpack, extend the budget as the file's own
        bytes do."""
        content = nbytes if content is None else content
        more = min(SCAN_PASSES * content, self._reserve[0]), min(content // SCAN_MEMBER_BYTES, self._reserve[1])
        self.nbytes, self.members = self.nbytes + more[0], self.members + more[1]
        self._reserve = self._reserve[0] - more[0], self._reserve[1] - more[1]
        self.spend(nbytes)

    def enter(self, nbytes: int) -> None:
        """Enters a nested part, whose detection reads `nbytes`. Pair with `leave`."""
        if not self.members:
            self.spend(members=1)
        self.spend(nbytes)
        if self.depth >= SCAN_DEPTH:
            raise OverLimit(f"archives are nested more than {SCAN_DEPTH} deep")
        self.depth += 1

    def leave(self) -> None:
        self.depth -= 1


@dataclass(frozen=True, slots=True)
class Part:
    """A file, or a part of one that is scanned like a file. `kind`: overrides detection by content if the
    scanner knows better (the objects of an .npy are a pickle)."""

    source: Source = field(repr=False)
    place: MemberPath
    budget: Budget = field(default_factory=Budget, repr=False)
    kind: str | None = None

    def inside(self, name: str, source: Source, kind: str | None = None) -> Part:
        """A nested part called `name`."""
        return Part(source, self.place.inside(name), self.budget, kind)

    def skipped(self, item: str, reason: str) -> Skipped:
        return Skipped(self.place.path, self.place.members, item, reason)

    def finding(
        self, rule: str, message: str, *, at: int | None = None, opcode: str | None = None, name: str | None = None,
        use: Use | None = None, arguments: tuple[str, ...] = (), consequence: str = "",
        verdict: ScanVerdict | None = None,
    ) -> ScanFinding:  # fmt: skip
        """A finding of `rule`, at the offset `at` of the part. `verdict` overrides the rule's."""
        location = self.source.location(at) if at is not None and 0 <= at < self.source.size else None
        return ScanFinding(
            rule, verdict or RULES[rule].verdict, escape(message, 4 * SCAN_SHOWN), self.place.path,
            tuple(escape(m) for m in self.place.members), at, location[1] if location else None, opcode,
            None if name is None else escape(name), use, tuple(escape(a) for a in arguments), consequence,
        )  # fmt: skip


Piece = ScanFinding | Skipped | Part
Scanner = Callable[[Part], Iterator[Piece]]


@dataclass(frozen=True, slots=True)
class FileReport:
    """`kind`: the format by content, as `wb identify` names it. `complete`: nothing was skipped. `more`: the number of
    findings that aren't listed."""

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
    """`counts`: files by verdict. `files`: the reports in order, of very many files only those with findings.
    `unreadable`: files that couldn't be opened. `unproven`: files with a part that couldn't be followed."""

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
        return f"<ScanReport {', '.join(self.paths)}: {self.verdict.value}, {plural(self.scanned, 'file')}>"


def worst(verdicts: Iterable[ScanVerdict]) -> ScanVerdict:
    """The worst verdict; NOT_SCANNED of none."""
    return max(verdicts, key=_RANKS.__getitem__, default=ScanVerdict.NOT_SCANNED)


def escape(text: str, limit: int = SCAN_SHOWN) -> str:
    """`text` from a file for a report: unprintable characters are escaped, and the length is bounded."""
    cut = text[:limit]
    if not cut.isprintable():
        cut = "".join(c if c.isprintable() else _escape_code(ord(c)) for c in cut)
    return cut + ("..." if len(text) > limit else "")


def _escape_code(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
