"""Opens the data files that a header names (`containers/data_files.py`)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from weighbridge.base.errors import FormatError
from weighbridge.containers.base import Index
from weighbridge.containers.data_files import DataFile
from weighbridge.containers.formats import PACKED_SIGN
from weighbridge.io.filesystem import check_link
from weighbridge.io.location import open_source, prepare
from weighbridge.io.source import Source


def data_paths(index: Index, folder: Path) -> tuple[Path, ...]:
    """Returns the paths of the data files that aren't open yet."""
    return tuple(folder / file.name for file in index.files if isinstance(file, DataFile))


def open_data_files(index: Index, folder: Path) -> Index:
    """Returns the index with its data files open. Raises FormatError if one is missing or too short, and RefusedError
    if it is a link to something outside the folder."""
    paths = data_paths(index, folder)
    if not paths:
        return index
    prepare(paths)
    files: list[Source] = []
    try:
        for file in index.files:
            files.append(_open(file, folder) if isinstance(file, DataFile) else file)
    except BaseException:
        for opened, file in zip(files, index.files, strict=False):
            if opened is not file:
                opened.close()
        raise
    return replace(index, files=tuple(files))


def _open(file: DataFile, folder: Path) -> Source:
    path = folder
    for part in file.name.split("/"):
        path = path / part
        check_link(path, folder)
    try:
        source = _original(open_source(path))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise FormatError(
            "the file with the data is missing", path=str(path), hint="put it next to the file that names it"
        ) from None
    if source.size < file.size:
        source.close()
        raise FormatError(
            "the data file is too short", path=str(path), offset=source.size, expected=f"{file.size} bytes",
            found=source.size, hint="download or copy it again",
        )  # fmt: skip
    return source


def _original(source: Source) -> Source:
    """The original of a packed data file; any other file itself."""
    if source.head(8 + len(PACKED_SIGN))[8:] != PACKED_SIGN:
        return source
    from weighbridge.containers.wbpack.container import original  # late: few files are packed

    return original(source)
