"""Scans HDF5 files, Keras' among them: attributes that hold configs and pickles, links and data elsewhere, filters.
Numbers are not read. Whatever this reader doesn't follow is unproven.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from weighbridge.base.errors import UnsupportedError
from weighbridge.io.source import Source
from weighbridge.reports.scan.archive import streams
from weighbridge.reports.scan.detect import STORAGE
from weighbridge.reports.scan.hdf5 import attributes, datasets, headers, links
from weighbridge.reports.scan.hdf5.heaps import GlobalHeap
from weighbridge.reports.scan.hdf5.structure import Hdf5, starts
from weighbridge.reports.scan.model import (
    Budget,
    MemberPath,
    Nested,
    Piece,
    ScanFinding,
    ScanRule,
    ScanVerdict,
    escape,
    finding,
)

_D, _M, _U, _UNPROVEN = ScanVerdict.DANGEROUS, ScanVerdict.MALFORMED, ScanVerdict.UNKNOWN_CODE, ScanVerdict.UNPROVEN

RULES: Final[Mapping[str, ScanRule]] = MappingProxyType(
    {
        "hdf5/outside": ScanRule(_D, "HDF5 link or data that leads to a file outside the folder"),
        "hdf5/another-file": ScanRule(_U, "HDF5 link or data that leads to another file of the folder"),
        "hdf5/pickles": ScanRule(_UNPROVEN, "HDF5 dataset of pickles, which PyTables or hickle unpickles"),
        "hdf5/filter": ScanRule(_UNPROVEN, "HDF5 filter that only a library of the loading system knows"),
        "hdf5/not-followed": ScanRule(_UNPROVEN, "part of an HDF5 file that isn't read, and may hold anything"),
        "hdf5/several-starts": ScanRule(_M, "HDF5 file that other readers start elsewhere"),
        "hdf5/repeated-name": ScanRule(_M, "two links or attributes of one name: readers take different ones"),
    }
)
_ELSEWHERE: Final = "Loaders read that file as a part of this one."
#: Attributes that Keras reads JSON from.
_JSON: Final = frozenset({"model_config", "training_config"})
#: Attributes of datasets whose items a loader unpickles, with a part of the value that says so.
_PICKLED: Final = MappingProxyType({"PSEUDOATOM": b"object", "base_type": b"pickle", "type": b"pickle"})
_VALUE: Final = 4096


def scan(source: Source, place: MemberPath, budget: Budget) -> Iterator[Piece]:
    """An HDF5 file, from each place where a reader may find its start."""
    for start in starts(source):
        yield from _Tree(Hdf5(source, start), place, budget).pieces()


class _Tree:
    """The objects of one file, each once."""

    def __init__(self, file: Hdf5, place: MemberPath, budget: Budget) -> None:
        self.file, self.place, self.budget = file, place, budget
        self.heap = GlobalHeap(file)
        self.values: set[tuple[int, int]] = set()

    def say(self, rule: str, words: str, name: str | None = None) -> ScanFinding:
        consequence = _ELSEWHERE if name else ""
        return finding(RULES, rule, self.file.source, self.place, words, name=name, consequence=consequence)

    def pieces(self) -> Iterator[Piece]:
        yield from self._frame()
        stack, seen = [("/", self.file.root)], {self.file.root}
        for link in self._cached():
            yield from self._link("/", link, stack, seen)
        while stack:
            path, address = stack.pop()
            self.budget.spend(members=1)
            yield from self._object(path, address, stack, seen)

    def _frame(self) -> Iterator[ScanFinding]:
        file = self.file
        if file.declared is not None and file.declared not in (0, file.base):
            yield self.say("hdf5/several-starts", f"its addresses count from {file.declared}, it begins at {file.base}")
        if file.driver is not None or (file.extension is not None and self._has_driver(file.extension)):
            yield self.say("hdf5/not-followed", "its data are spread over several files")

    def _has_driver(self, extension: int) -> bool:
        return any(m.kind == headers.DRIVER for m in headers.messages(self.file, extension))

    def _cached(self) -> Iterator[links.Hdf5Link]:
        """The links of the root group by the superblock, which readers take where its header has none."""
        if self.file.cached is not None:
            yield from links.of_table(self.file, *self.file.cached)

    def _object(self, path: str, address: int, stack: list[tuple[str, int]], seen: set[int]) -> Iterator[Piece]:
        """What the messages of an object hold, each on its own: one that isn't read leaves the others."""
        names: Counter[str] = Counter()
        kind: attributes.Datatype | None = None
        stored: tuple[int, int] | None = None
        for message in headers.messages(self.file, address):
            start = message.body.place
            try:
                for link in links.of_message(self.file, message):
                    names[link.name] += 1
                    yield from self._link(path, link, stack, seen)
                for attribute in attributes.of_message(self.file, self.heap, message):
                    names[f"{attribute.name} (attribute)"] += 1
                    yield from self._attribute(path, attribute)
                yield from self._elsewhere(path, message)
            except UnsupportedError as error:
                yield self.say("hdf5/not-followed", f"{escape(path)}: {error.message}")
            message.body.place = start
            if message.kind == headers.DATATYPE and not message.shared:
                kind = attributes.datatype(message.body)
            stored = datasets.stored(self.file, message) or stored
        for name, count in names.items():
            if count > 1:
                yield self.say("hdf5/repeated-name", f"{escape(path)} has {count} times {escape(name)}")
        if kind is not None and kind.is_bytes and stored is not None and stored[1]:
            yield self._nested(path, *stored, STORAGE)

    def _link(
        self, path: str, link: links.Hdf5Link, stack: list[tuple[str, int]], seen: set[int]
    ) -> Iterator[ScanFinding]:
        full = f"{path.rstrip('/')}/{link.name}"
        if link.kind is not None:
            yield self.say("hdf5/not-followed", f"{escape(full)} is a link of kind {link.kind}, for a plug-in")
        if link.outside is not None:
            yield self._outside(f"the link {escape(full)} leads to {escape(link.outside)}", link.outside)
        if link.address is not None and link.address not in seen:
            seen.add(link.address)
            stack.append((full, link.address))

    def _outside(self, words: str, name: str) -> ScanFinding:
        away = streams.leads_out(name) or "://" in name
        return self.say("hdf5/outside" if away else "hdf5/another-file", words, name)

    def _elsewhere(self, path: str, message: headers.Message) -> Iterator[ScanFinding]:
        start = message.body.place
        for name in dict.fromkeys(datasets.files(self.file, self.heap, message)):
            yield self._outside(f"the data of {escape(path)} lie in {escape(name)}", name)
        message.body.place = start
        for number in datasets.filters(message):
            if number not in datasets.KNOWN:
                yield self.say("hdf5/filter", f"{escape(path)} passes through filter {number}")

    def _attribute(self, path: str, attribute: attributes.Attribute) -> Iterator[Piece]:
        sign = _PICKLED.get(attribute.name)
        for address, size in attribute.values:
            if (address, size) in self.values or not size:
                continue
            self.values.add((address, size))
            self.file.pay(size)
            data = self.file.source.read(self.file.base + address, min(size, _VALUE))
            if sign is not None and sign in data:
                yield self.say("hdf5/pickles", f"the data of {escape(path)} are pickles ({attribute.name})")
            configured = attribute.name in _JSON or data.lstrip()[:1] in (b"{", b"[")
            yield self._nested(f"{path.rstrip('/')}/@{attribute.name}", address, size, "json" if configured else "text")

    def _nested(self, path: str, address: int, size: int, kind: str) -> Nested:
        self.budget.spend(members=1)
        window = self.file.source.window(self.file.base + address, size, f"{self.file.source.name}::{escape(path)}")
        return Nested(window, self.place.inside(path), kind)
