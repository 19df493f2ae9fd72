"""What no model uses: interrupted downloads, and blobs that nothing refers to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from weighbridge.adapters.remote import ollama
from weighbridge.base.errors import WeighbridgeError
from weighbridge.reports.stores.files import StoreFile
from weighbridge.reports.stores.places import HUB, StorePlace

_BLOBS: Final = (HUB, "ollama")  # stores whose blobs something refers to


@dataclass(frozen=True, slots=True)
class Leftover:
    """A file that no model uses: `kind` is "interrupted download" or "orphan"."""

    path: str
    kind: str
    bytes: int


def leftovers(
    files: Iterable[StoreFile], roots: Iterable[StorePlace], unreadable: Sequence[str]
) -> tuple[Leftover, ...]:
    """Interrupted downloads, and blobs that no model refers to; the latter where all that may refer is readable."""
    roots = tuple(roots)
    blind = [p.root.resolve() for p in roots if any(words.startswith(str(p.root)) for words in unreadable)]
    return tuple(_leftovers(files, _referred(roots), blind))


def _leftovers(files: Iterable[StoreFile], used: set[tuple[int, int]], blind: Sequence[Path]) -> Iterator[Leftover]:
    for file in files:
        blob = file.store in _BLOBS and file.path.parent.name == "blobs"
        if file.is_unfinished:
            yield Leftover(str(file.path), "interrupted download", file.stat.st_size)
        elif blob and file.inode not in used and not any(file.path.is_relative_to(root) for root in blind):
            yield Leftover(str(file.path), "orphan", file.stat.st_size)


def _referred(roots: Iterable[StorePlace]) -> set[tuple[int, int]]:
    """The blobs that snapshots (of models, datasets and Spaces) and manifests lead to."""
    used = set()
    for place in roots:
        links = place.root.glob("*--*/snapshots/*/**/*") if place.store == HUB else ()
        paths = [p for p in links if p.is_file()]
        for path in place.root.glob("manifests/*/*/*/*") if place.store == "ollama" else ():
            try:
                paths += [ollama.blob(place.root, layer) for layer in ollama.read_manifest(path).layers]
            except WeighbridgeError:
                continue
        used |= {(s.st_dev, s.st_ino) for p in paths if p.is_file() and (s := p.stat())}
    return used
