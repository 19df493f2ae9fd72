"""The storages of a checkpoint, as far as a scan needs them: their lengths, which the pickle may contradict (torch
before 2.10 trusts it), and the values of those that are indices.

    zip             a member data/KEY next to data.pkl
    before 1.6      after the last of the five pickles
    pickle.dump     in the pickle itself
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import MIB
from weighbridge.containers.archive.zip import DeflatedMember, StoredMember, ZipMember, open_member
from weighbridge.io.source import Source
from weighbridge.reports.scan.model import OverLimit, Part, ScanFinding
from weighbridge.reports.scan.pickle.indices import StorageBytes, Unresolved, fault
from weighbridge.reports.scan.pickle.policy import PicklePolicy
from weighbridge.reports.scan.pickle.shapes import storage_id
from weighbridge.unpickle.libraries.torch_types import SMALL_STORAGES, Storage
from weighbridge.unpickle.state import Event

_LONGEST: Final = 256 * MIB  # of a storage of indices


class Storages:
    """The storages of the pickle `part`."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.legacy: dict[str, tuple[int, int]] = {}  # key -> offset and bytes, in files of torch before 1.6
        self.members: dict[str, ZipMember] = {}
        self.folder = ""
        if isinstance(part.source, StoredMember | DeflatedMember):
            self.members = {m.name: m for m in part.source.archive.members}
            self.folder = part.source.member.name.removesuffix(".pkl")

    def fetch(self, storage: Storage) -> StorageBytes:
        """The bytes of a storage. Raises Unresolved if they aren't in the file."""
        if storage.inline is not None:
            kept = storage.inline
            if isinstance(kept.data, bytes):
                return StorageBytes(kept.data[kept.start : kept.start + kept.size], "<")
            return StorageBytes(self._read(kept.data, kept.start, kept.size), "<")
        place = self.legacy.get(storage.key)
        if place is not None:
            return StorageBytes(self._read(self.part.source, *place), "<")
        member = self.members.get(f"{self.folder}/{storage.key}")
        if member is None or not isinstance(self.part.source, StoredMember | DeflatedMember):
            raise Unresolved("its storage is not in the file")
        container = self.part.source.container
        big_endian = False
        order = self.members.get(f"{self.folder.rpartition('/')[0]}/byteorder")
        with open_member(container, member) as inner:
            data = self._read(inner, 0, inner.size)
        if order is not None and order.size <= 6:
            with open_member(container, order) as inner:
                big_endian = inner.read(0, inner.size) == b"big"
        return StorageBytes(data, ">" if big_endian else "<")

    def _read(self, source: Source, at: int, size: int) -> bytes:
        if size > _LONGEST:
            raise Unresolved(f"its storage is longer than {_LONGEST} bytes")
        self.part.budget.spend(size)
        return source.read(at, size)

    def check_lengths(self, named: Iterable[tuple[str, int]]) -> Iterator[ScanFinding]:
        """Reports the first storage whose length isn't its member's. `named`: key and bytes of each."""
        members = [(key, nbytes, self.members.get(f"{self.folder}/{key}")) for key, nbytes in named]
        wrong = [(key, nbytes, m.size) for key, nbytes, m in members if m is not None and m.size != nbytes]
        if wrong:
            key, nbytes, size = wrong[0]
            more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            message = f"storage {key} has {nbytes} bytes in the pickle, {size} in the archive{more}"
            yield self.part.finding("pickle/storage-length", message,
                                    consequence="torch before 2.10 accesses memory out of bounds")  # fmt: skip

    def check_indices(self, policy: PicklePolicy) -> Iterator[ScanFinding]:
        """Compares the indices of sparse and nested tensors with the shapes."""
        for event, tensor in policy.indexed:
            try:
                rule, reason = "pickle/index-outside", fault(tensor, self.fetch)
            except (Unresolved, OverLimit, FormatError) as error:
                rule, reason = "pickle/indices", str(error)
            if reason:
                yield self.part.finding(rule, f"{tensor.callee}: {reason}", at=event.at, name=str(tensor.callee),
                                        consequence="torch accesses memory out of bounds when it is used")  # fmt: skip


def named(events: Iterable[Event]) -> Iterator[tuple[str, int]]:
    """Key and bytes of the storages that a pickle names."""
    for event in events:
        key_and_width = storage_id(event.what) if event.kind == "persistent" else None
        if key_and_width is not None and event.what.id[1].path not in SMALL_STORAGES:
            key, width = key_and_width
            yield key, width * event.what.id[4]
