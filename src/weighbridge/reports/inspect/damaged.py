"""Opens the readable part of a damaged model: the header of a damaged file, the existing files of a set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from weighbridge.base.errors import FormatError, UnsupportedError, WeighbridgeError
from weighbridge.containers import model_suffixes, opening
from weighbridge.containers.base import Finding, Index, Severity
from weighbridge.io.location import open_source
from weighbridge.io.source import Source
from weighbridge.models.locate import Place, locate
from weighbridge.models.model import OpenModel
from weighbridge.reports.lenient import broken

_MISSING: Final = "sharded/missing-shard"


def open_damaged(path: Path, error: WeighbridgeError, step: int | None = None) -> OpenModel:
    """Opens the model at `path`, or a training run's `step`, as far as headers can be read; its index lists the
    problems as findings. Raises `error`, for which it couldn't be opened, if nothing is readable."""
    place, findings = _locate(path, error, step)
    sources: list[Source] = []
    indexes: list[Index] = []
    try:
        for weight in place.weights:
            try:
                sources.append(open_source(weight, len(place.weights)))
            except FileNotFoundError:
                message = f"{weight.name} is missing, and with it its tensors"
                findings.append(Finding(_MISSING, Severity.ERROR, message, str(weight.parent), hint="download it"))
        if place.chunks is not None and sources:
            from weighbridge.models.distributed import declared  # late: few models are in parts

            return OpenModel(place, declared(place.chunks, sources, (*findings, *place.chunks.findings)))
        if place.trainer and isinstance(error, FormatError):  # its files are fine, each for itself
            findings.append(broken("torch-zip/broken", error, str(path)))
        for source in sources:
            if (index := _read_header(source, findings)) is not None:
                indexes.append(index)
        if not indexes:
            raise error
    except BaseException:
        for source in sources:
            source.close()
        raise
    # If two files have a tensor of the same name, the first counts.
    first, *rest = indexes
    files, entries, starts = list(first.files), dict(first.by_name), list(first.data_start)
    for index in rest:
        if index.format == first.format:
            for entry in index:
                if entry.name not in entries:
                    entries[entry.name] = msgspec.structs.replace(entry, file=entry.file + len(files))
            files += index.files
            starts += index.data_start
    joined = replace(
        first, files=tuple(files), entries=tuple(entries.values()), data_start=tuple(starts), findings=tuple(findings)
    )
    return OpenModel(place, joined)


def _locate(path: Path, error: WeighbridgeError, step: int | None) -> tuple[Place, list[Finding]]:
    """Locates the files, by name in a folder with a broken index."""
    try:
        return locate(path, step), []
    except FormatError as index_error:
        if step is not None:
            raise
        folder = path if path.is_dir() else path.parent
        suffix = next((s for s in model_suffixes() if any(folder.glob(f"*{s}"))), None)
        if suffix is None:
            raise error from None
        files = tuple(sorted(folder.glob(f"*{suffix}")))
        return Place(folder, files, folder), [broken("sharded/broken", index_error, str(path))]


def _read_header(source: Source, findings: list[Finding]) -> Index | None:
    """Returns the index that a file's header declares; None if it can't be read."""
    try:
        index, problems = opening.format_of(source).headers(source)
    except FormatError as error:
        findings.append(broken("file/broken", error, source.name))
        return None
    except UnsupportedError as error:
        message = error.message.removeprefix(f"{source.name}: ")
        findings.append(Finding("file/unread", Severity.ERROR, message, source.name, hint=error.hint))
        return None
    findings += [replace(f, path=f.path or source.name) for f in problems]
    return index
