"""The storages of a checkpoint, as far as a scan must know them: their lengths, which torch before 2.10 believes where
the pickle tells another one, and the values of those that are indices.

    zip             a member data/KEY beside data.pkl
    before 1.6      behind the last of the five pickles
    pickle.dump     in the pickle itself
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import MIB
from weighbridge.containers.archive.zip import DeflatedMember, StoredMember, ZipMember, open_member
from weighbridge.io.source import Source
from weighbridge.reports.scan.model import Budget, MemberPath, OverLimit, ScanFinding, ScanRule, ScanVerdict, finding
from weighbridge.reports.scan.pickle.indices import StorageBytes, Unresolved, fault
from weighbridge.reports.scan.pickle.policy import PicklePolicy
from weighbridge.reports.scan.pickle.shapes import storage_id
from weighbridge.unpickle.libraries.torch_types import InlineBytes, Storage
from weighbridge.unpickle.machine import Event

RULES: Final[Mapping[str, ScanRule]] = MappingProxyType(
    {
        "pickle/indices": ScanRule(ScanVerdict.UNPROVEN, "indices of a sparse or nested tensor that can't be read"),
        "pickle/index-outside": ScanRule(
            ScanVerdict.DANGEROUS, "sparse or nested tensor whose indices lead outside it (CVE-2025-62164)"
        ),
        "pickle/storage-length": ScanRule(
            ScanVerdict.MALFORMED, "storage whose length is not that of its member (CVE-2026-24747)"
        ),
    }
)
_LONGEST: Final = 256 * MIB  # of a storage of indices
_BEYOND: Final = "torch before 2.10 reads or writes beyond the end of its memory"
_MEMORY: Final = "torch reads or writes other memory when it is used"
#: Elements of these are smaller than a byte: readers count them differently.
SMALL: Final = ("QUInt4x2Storage", "QUInt2x4Storage")


class Storages:
    """The storages of the pickle `source`."""

    def __init__(self, source: Source, budget: Budget) -> None:
        self.source, self.budget = source, budget
        self.legacy: dict[str, tuple[int, int]] = {}  # key -> place and bytes, of torch before 1.6
        self.members: dict[str, ZipMember] = {}
        self.folder = ""
        if isinstance(source, StoredMember | DeflatedMember):
            self.members = {m.name: m for m in source.archive.members}
            self.folder = source.member.name.removesuffix(".pkl")

    def fetch(self, storage: Storage) -> StorageBytes:
        """The bytes of a storage. Unresolved where they are not at hand."""
        if storage.kept is not None:
            return StorageBytes(self._inline(storage.kept), "<")
        place = self.legacy.get(storage.key)
        if place is not None:
            return StorageBytes(self._read(self.source, *place), "<")
        member = self.members.get(f"{self.folder}/{storage.key}")
        if member is None or not isinstance(self.source, StoredMember | DeflatedMember):
            raise Unresolved("its storage is not in the file")
        with open_member(self.source.container, member) as inner:
            return StorageBytes(self._read(inner, 0, inner.size), self._order())

    def _inline(self, kept: InlineBytes) -> bytes:
        if isinstance(kept.data, bytes):
            return kept.data[kept.start : kept.start + kept.size]
        return self._read(kept.data, kept.start, kept.size)

    def _order(self) -> str:
        member = self.members.get(f"{self.folder.rpartition('/')[0]}/byteorder")
        if member is None or member.size > 6:
            return "<"
        assert isinstance(self.source, StoredMember | DeflatedMember)
        with open_member(self.source.container, member) as inner:
            return ">" if inner.read(0, inner.size) == b"big" else "<"

    def _read(self, source: Source, at: int, size: int) -> bytes:
        if size > _LONGEST:
            raise Unresolved(f"its storage is longer than {_LONGEST} bytes")
        self.budget.spend(size)
        return source.read(at, size)

    def wrong(self, named: Iterable[tuple[str, int]]) -> Iterator[tuple[str, int, int]]:
        """Of storages, named by key and bytes, those whose member has another length: key, bytes, the member's."""
        for key, nbytes in named:
            member = self.members.get(f"{self.folder}/{key}")
            if member is not None and member.size != nbytes:
                yield key, nbytes, member.size


def named(events: Iterable[Event]) -> Iterator[tuple[str, int]]:
    """Key and bytes of the storages that a pickle names."""
    for event in events:
        found = storage_id(event.what) if event.kind == "persistent" else None
        if found is not None and event.what.id[1].name not in SMALL:
            yield found[0], found[1] * event.what.id[4]


def lengths(
    storages: Storages, found: Iterable[tuple[str, int]], source: Source, place: MemberPath
) -> Iterator[ScanFinding]:
    """The first storage whose length isn't its member's."""
    if not storages.members:
        return
    wrong = list(storages.wrong(found))
    if wrong:
        key, nbytes, size = wrong[0]
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        words = f"storage {key} has {nbytes} bytes by the pickle, {size} in the archive{more}"
        yield finding(RULES, "pickle/storage-length", source, place, words, consequence=_BEYOND)


def indices(storages: Storages, policy: PicklePolicy, source: Source, place: MemberPath) -> Iterator[ScanFinding]:
    """The sparse and nested tensors, each compared with its shape."""
    for event, made in policy.indexed:
        rule, words = _judged(made, storages)
        if words:
            yield finding(RULES, rule, source, place, f"{made.callee}: {words}", at=event.at, name=str(made.callee),
                          consequence=_MEMORY)  # fmt: skip


def _judged(made: Any, storages: Storages) -> tuple[str, str]:
    try:
        return "pickle/index-outside", fault(made, storages.fetch)
    except (Unresolved, OverLimit, FormatError) as error:
        return "pickle/indices", str(error)
