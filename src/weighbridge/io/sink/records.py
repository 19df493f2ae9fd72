"""Small files that many processes write to one place, each whole or not at all: in a folder, or in a bucket."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from weighbridge.base.errors import UsageError
from weighbridge.io.location import RemotePath
from weighbridge.io.sink.files import CANNOT, sync_file


class Records(Protocol):
    """Files by name, with slashes, below one place."""

    def add(self, name: str, data: bytes) -> bool:
        """Creates a file; returns False if it exists."""

    def put(self, name: str, data: bytes) -> None:
        """Writes or replaces a file."""

    def read(self, name: str) -> bytes | None:
        """Returns a file's bytes; None if it is missing."""

    def remove(self, name: str) -> None:
        """Deletes a file, which may be missing."""

    def names(self, folder: str) -> Collection[str]:
        """The names of the files in and below a folder, without the folder's."""


class FolderRecords:
    """Records in a folder, which may be on a file system that several machines share."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def _staged(self, name: str, data: bytes) -> tuple[Path, Path]:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        stage = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        with stage.open("xb") as file:
            file.write(data)
            file.flush()
            sync_file(file.fileno())
        return stage, path

    def add(self, name: str, data: bytes) -> bool:
        stage, path = self._staged(name, data)
        try:
            os.link(stage, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in CANNOT:
                raise
            # A file system without hard links: only a race of two equal records can replace one.
            if path.exists():
                return False
            os.replace(stage, path)
            return True
        finally:
            stage.unlink(missing_ok=True)
        return True

    def put(self, name: str, data: bytes) -> None:
        stage, path = self._staged(name, data)
        try:
            os.replace(stage, path)
        except BaseException:
            stage.unlink(missing_ok=True)
            raise

    def read(self, name: str) -> bytes | None:
        with contextlib.suppress(FileNotFoundError):
            return (self.root / name).read_bytes()
        return None

    def remove(self, name: str) -> None:
        (self.root / name).unlink(missing_ok=True)

    def names(self, folder: str) -> Collection[str]:
        root = self.root / folder
        found = (p for p in root.rglob("*") if not p.name.startswith(".") and p.is_file())
        return [p.relative_to(root).as_posix() for p in found] if root.is_dir() else []


def records_at(place: Path) -> Records:
    """The records of a place here or elsewhere. UsageError for one that takes no single files."""
    if not isinstance(place, RemotePath):
        return FolderRecords(place)
    tree, name = place.place
    if not hasattr(tree, "records"):
        raise UsageError(f"{place} takes no records of a fleet", hint="name a folder, or a bucket's prefix")
    made: Records = tree.records(name)
    return made
