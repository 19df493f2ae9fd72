"""7-Zip archives, through py7zr: the names and sizes of their files, and each file's data as a source.

py7zr decodes all data in front of a file in the same block, and pushes it: all files are decoded when one is opened.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from weighbridge.base.errors import FormatError, UnsupportedError, WeighbridgeError
from weighbridge.base.limits import MIB, WRAPPED_MEMBERS
from weighbridge.containers.archive.spool import SpooledSource, check_space
from weighbridge.io.source import Source


class _File(io.RawIOBase):
    """A source as a binary file."""

    def __init__(self, source: Source) -> None:
        self._source, self._at = source, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(offset + (0, self._at, self._source.size)[whence], 0)
        return self._at

    def readinto(self, out: Any) -> int:
        size = max(min(len(out), self._source.size - self._at), 0)
        self._source.readinto(self._at, memoryview(out)[:size])
        self._at += size
        return size


class SevenZip:
    """An archive. `files`: the size of each file, by name; `left_out`: other members. FormatError if the archive is
    damaged, UnsupportedError if it is encrypted or py7zr is missing."""

    def __init__(self, source: Source) -> None:
        self._source = source
        with self._reader() as reader:
            if reader.needs_password():
                raise UnsupportedError(f"{source.name} is encrypted", hint="unpack it with 7z x first")
            rows = reader.list()
        if len(rows) > WRAPPED_MEMBERS:
            raise UnsupportedError(f"{source.name} has more than {WRAPPED_MEMBERS} members", hint="unpack it first")
        self.files: dict[str, int] = {row.filename: row.uncompressed for row in rows if row.is_file}
        if len(self.files) < sum(row.is_file for row in rows):
            raise FormatError("two members have one name", path=source.name)
        self._sources: dict[str, Source] = {}
        self.left_out = [f"{row.filename} (link or device)" for row in rows if not (row.is_file or row.is_directory)]

    def _reader(self) -> Any:
        try:
            library = import_module("py7zr")
        except ImportError:
            raise UnsupportedError(
                f"{self._source.name} is a 7-Zip archive, and reading it needs the package py7zr",
                hint="pip install 'weighbridge[archives]', or unpack it first",
            ) from None
        try:
            return library.SevenZipFile(_File(self._source))
        except library.exceptions.PasswordRequired:
            raise UnsupportedError(f"{self._source.name} is encrypted", hint="unpack it with 7z x first") from None
        except Exception as error:
            raise FormatError(f"the archive is damaged: {error}", path=self._source.name) from None

    def open(self, name: str) -> Source:
        """Returns the data of a file."""
        if not self._sources:
            self._decode()
        return self._sources[name]

    def _decode(self) -> None:
        """Decodes all files, the large ones to temporary files."""
        check_space(self._source.name, sum(self.files.values()))
        spools = {name: SpooledSource(iter(()), size, f"{self._source.name}/{name}", memory=size <= MIB)
                  for name, size in self.files.items()}  # fmt: skip
        with self._reader() as reader:
            try:
                reader.extract(targets=[*spools], factory=_factory(spools))
            except WeighbridgeError:
                raise
            except Exception as error:
                raise FormatError(f"the archive is damaged: {error!r}", path=self._source.name) from None
        self._sources.update(spools)


def _factory(spools: Mapping[str, SpooledSource]) -> Any:
    """Returns py7zr's factory of writers, which write each file to its spool."""
    interface = import_module("py7zr.io")

    class Writer(interface.Py7zIO):  # type: ignore[misc, name-defined]  # py7zr asks for its subclass
        read = seek = flush = size = lambda self, *_: 0  # not called while a file is extracted

        def __init__(self, name: str) -> None:
            self._spool = spools[name]

        def write(self, data: bytes) -> int:
            self._spool.write(data)
            return len(data)

    class Factory(interface.WriterFactory):  # type: ignore[misc, name-defined]
        create = staticmethod(Writer)

    return Factory()
