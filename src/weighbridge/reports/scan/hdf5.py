"""Scans HDF5 files, including Keras models: attributes with configs and pickles, links and data in other files, and
filters. Numbers aren't read. Anything that the reader doesn't follow is unproven.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import MappingProxyType
from typing import Final

from weighbridge.base.errors import UnsupportedError
from weighbridge.containers.hdf5 import attributes, datasets, headers, links
from weighbridge.containers.hdf5.heaps import GlobalHeap
from weighbridge.containers.hdf5.structure import Hdf5, starts
from weighbridge.reports.scan.archive import streams
from weighbridge.reports.scan.detect import STORAGE
from weighbridge.reports.scan.model import OverLimit, Part, Piece, ScanFinding, escape

#: Attributes that Keras reads JSON from.
_JSON: Final = frozenset({"model_config", "training_config"})
#: Attributes of datasets whose items a loader unpickles, and the part of the value that marks them.
_PICKLED: Final = MappingProxyType({"PSEUDOATOM": b"object", "base_type": b"pickle", "type": b"pickle"})
_VALUE: Final = 4096


def scan(part: Part) -> Iterator[Piece]:
    """Scans an HDF5 file from each offset at which a reader may find its start."""
    for start in starts(part.source):
        yield from _Tree(Hdf5(part.source, start, OverLimit), part).pieces()


class _Tree:
    """The objects of one file, each visited once."""

    def __init__(self, file: Hdf5, part: Part) -> None:
        self.file, self.part = file, part
        self.heap = GlobalHeap(file)
        self.values: set[tuple[int, int]] = set()
        self.stack, self.seen = [("/", file.root)], {file.root}

    def pieces(self) -> Iterator[Piece]:
        file = self.file
        if file.declared is not None and file.declared not in (0, file.base):
            message = f"its addresses count from {file.declared}, it begins at {file.base}"
            yield self.part.finding("hdf5/several-starts", message)
        extension = headers.messages(file, file.extension) if file.extension is not None else ()
        if file.driver is not None or any(m.kind == headers.DRIVER for m in extension):
            yield self.part.finding("hdf5/not-followed", "its data is spread over several files")
        if file.cached is not None:  # readers use these links of the root group if its header has none
            for link in links.of_table(file, *file.cached):
                yield from self._follow(link, "/")
        while self.stack:
            path, address = self.stack.pop()
            self.part.budget.spend(members=1)
            yield from self._scan_object(path, address)

    def _scan_object(self, path: str, address: int) -> Iterator[Piece]:
        """Scans each message of an object separately: one that can't be read doesn't hide the others."""
        names: Counter[str] = Counter()
        kind: attributes.Datatype | None = None
        stored: tuple[int, int] | None = None
        for message in headers.messages(self.file, address):
            start = message.body.place
            try:
                for link in links.of_message(self.file, message):
                    names[link.name] += 1
                    yield from self._follow(link, path)
                for attribute in attributes.of_message(self.file, self.heap, message):
                    names[f"{attribute.name} (attribute)"] += 1
                    yield from self._scan_attribute(path, attribute)
                place = message.body.place
                for name in dict.fromkeys(datasets.files(self.file, self.heap, message)):
                    yield self._outside(f"the data of {escape(path)} is in {escape(name)}", name)
                message.body.place = place
                for number in datasets.filters(message):
                    if number not in datasets.KNOWN:
                        yield self.part.finding("hdf5/filter", f"{escape(path)} uses filter {number}")
            except UnsupportedError as error:
                yield self.part.finding("hdf5/not-followed", f"{escape(path)}: {error.message}")
            message.body.place = start
            if message.kind == headers.DATATYPE and not message.shared:
                kind = attributes.datatype(message.body)
            stored = datasets.stored(self.file, message) or stored
        for name, count in names.items():
            if count > 1:
                yield self.part.finding("hdf5/repeated-name", f"{escape(path)} has {escape(name)} {count} times")
        if kind is not None and kind.is_bytes and stored is not None and stored[1]:
            yield self._nested(path, *stored, STORAGE)

    def _follow(self, link: links.Hdf5Link, folder: str) -> Iterator[ScanFinding]:
        path = f"{folder.rstrip('/')}/{link.name}"
        if link.kind is not None:
            yield self.part.finding("hdf5/not-followed", f"{escape(path)} is a link of type {link.kind}, for a plug-in")
        if link.outside is not None:
            yield self._outside(f"the link {escape(path)} leads to {escape(link.outside)}", link.outside)
        if link.address is not None and link.address not in self.seen:
            self.seen.add(link.address)
            self.stack.append((path, link.address))

    def _outside(self, message: str, name: str) -> ScanFinding:
        rule = "hdf5/outside" if streams.leads_out(name) or "://" in name else "hdf5/another-file"
        consequence = "Loaders read that file as a part of this one." if name else ""
        return self.part.finding(rule, message, name=name, consequence=consequence)

    def _scan_attribute(self, path: str, attribute: attributes.Attribute) -> Iterator[Piece]:
        mark = _PICKLED.get(attribute.name)
        for address, size in attribute.values:
            if (address, size) in self.values or not size:
                continue
            self.values.add((address, size))
            self.file.pay(size)
            data = self.file.source.read(self.file.base + address, min(size, _VALUE))
            if mark is not None and mark in data:
                yield self.part.finding("hdf5/pickles", f"the data of {escape(path)} is pickles ({attribute.name})")
            configured = attribute.name in _JSON or data.lstrip()[:1] in (b"{", b"[")
            yield self._nested(f"{path.rstrip('/')}/@{attribute.name}", address, size, "json" if configured else "text")

    def _nested(self, path: str, address: int, size: int, kind: str) -> Part:
        self.part.budget.spend(members=1)
        window = self.file.source.window(self.file.base + address, size, f"{self.file.source.name}::{escape(path)}")
        return self.part.inside(path, window, kind)
