"""Finds files that no model uses: interrupted downloads, and unreferenced blobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from weighbridge.adapters.remote import ollama
from weighbridge.base.errors import WeighbridgeError
from weighbridge.base.records import dataclass
from weighbridge.reports.stores.files import StoreFile
from weighbridge.reports.stores.places import HUB, StorePlace

_BLOBS: Final = (HUB, "ollama")  # stores whose blobs are referenced


@dataclass(frozen=True, slots=True)
class Leftover:
    """An unused file. `kind`: "interrupted download" or "orphan"."""

    path: str
    kind: str
    bytes: int


def leftovers(
    files: Iterable[StoreFile], roots: Iterable[StorePlace], unreadable: Sequence[str]
) -> tuple[Leftover, ...]:
    """Returns interrupted downloads, and blobs that no model references. Roots with unreadable parts, which may contain
    references, have no orphans."""
    roots = tuple(roots)
    blind = [p.root.resolve() for p in roots if any(line.startswith(str(p.root)) for line in unreadable)]
    used = set()  # inodes referenced by snapshots (of models, datasets and Spaces) and manifests
    for place in roots:
        links = place.root.glob("*--*/snapshots/*/**/*") if place.store == HUB else ()
        paths = [p for p in links if p.is_file()]
        for path in place.root.glob("manifests/*/*/*/*") if place.store == "ollama" else ():
            with suppress(WeighbridgeError):
                paths += [ollama.blob(place.root, layer) for layer in ollama.read_manifest(path).layers]
        used |= {(s.st_dev, s.st_ino) for p in paths if p.is_file() and (s := p.stat())}
    unused = []
    for file in files:
        blob = file.store in _BLOBS and file.path.parent.name == "blobs"
        if file.is_unfinished:
            unused.append(Leftover(str(file.path), "interrupted download", file.stat.st_size))
        elif blob and file.inode not in used and not any(file.path.is_relative_to(root) for root in blind):
            unused.append(Leftover(str(file.path), "orphan", file.stat.st_size))
    return tuple(unused)
