"""What can be shown of a model that can't be opened: a damaged file's header, and the files of a set that are there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from weighbridge.base.errors import FormatError, UnsupportedError, WeighbridgeError
from weighbridge.containers import model_suffixes, opening
from weighbridge.containers.base import Entry, Finding, Index, Severity
from weighbridge.io.location import open_source
from weighbridge.io.source import Source
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.models.locate import Place, locate
from weighbridge.reports.lenient import broken

_MISSING: Final = "sharded/missing-shard"


def open_damaged(path: Path, error: WeighbridgeError) -> Checkpoint:
    """The model at `path` as far as headers can be read; what is wrong is in the findings of its index. Raises `error`,
    for which it couldn't be opened, where there is nothing to show."""
    place, findings = _place(path, error)
    sources: list[Source] = []
    indexes: list[Index] = []
    try:
        for weight in place.weights:
            sources += _opened(weight, findings)
        for source in sources:
            indexes += _headers(source, findings)
        if not indexes:
            raise error
    except BaseException:
        for source in sources:
            source.close()
        raise
    return Checkpoint(place, _joined(indexes, findings))


def _place(path: Path, error: WeighbridgeError) -> tuple[Place, list[Finding]]:
    """Where the files are; those of a folder with a broken index by their names."""
    try:
        return locate(path), []
    except FormatError as wrong:
        folder = path if path.is_dir() else path.parent
        suffix = next((s for s in model_suffixes() if any(folder.glob(f"*{s}"))), None)
        if suffix is None:
            raise error from None
        files = tuple(sorted(folder.glob(f"*{suffix}")))
        return Place(folder, files, folder), [broken("sharded/broken", wrong, str(path))]


def _opened(weight: Path, findings: list[Finding]) -> list[Source]:
    """The file, if it is there."""
    try:
        return [open_source(weight)]
    except FileNotFoundError:
        words = f"{weight.name} is missing, and with it its tensors"
        findings.append(Finding(_MISSING, Severity.ERROR, words, str(weight.parent), hint="download it"))
        return []


def _headers(source: Source, findings: list[Finding]) -> list[Index]:
    """The index of a file as its header declares it; none of one whose header can't be read."""
    try:
        form = opening.format_of(source)
        index, found = form.headers(source)
    except FormatError as error:
        findings.append(broken("file/broken", error, source.name))
        return []
    except UnsupportedError as error:
        words = error.message.removeprefix(f"{source.name}: ")
        findings.append(Finding("file/unread", Severity.ERROR, words, source.name, hint=error.hint))
        return []
    findings += [replace(f, path=f.path or source.name) for f in found]
    return [index]


def _joined(indexes: Iterable[Index], findings: Iterable[Finding]) -> Index:
    """One index of several files' tensors; those of a name that two files have, once."""
    first, *others = indexes
    files, entries, starts = list(first.files), dict(first.by_name), list(first.data_start)
    for index in others:
        if index.format == first.format:
            entries |= {e.name: _moved(e, len(files)) for e in index if e.name not in entries}
            files += index.files
            starts += index.data_start
    return replace(
        first, files=tuple(files), entries=tuple(entries.values()), data_start=tuple(starts), findings=tuple(findings)
    )


def _moved(entry: Entry, by: int) -> Entry:
    return msgspec.structs.replace(entry, file=entry.file + by)
