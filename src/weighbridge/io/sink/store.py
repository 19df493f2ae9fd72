"""Files added to another program's store: all of them, or none.

Each is staged next to its target and renamed, in the order in which they are added; the manifest, which makes them
visible, is added last. An error removes every file and folder that was added before it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from pathlib import Path
from types import TracebackType
from typing import Final

from weighbridge.base.errors import RefusedError
from weighbridge.io.sink.files import CANNOT, OutFile
from weighbridge.io.sink.publish import publish_file, sync_folder
from weighbridge.io.source import FileSource

_FICLONE: Final = 0x40049409  # linux/fs.h: share all blocks of a file with another
_CHUNK: Final = 4 << 20
#: Prefix of staged files: Ollama removes `sha256-...` files that aren't digests after an hour.
PREFIX: Final = "sha256-wb"


class StoreWriter:
    """Use as a context manager. `root`: a folder, created if missing. Raises PermissionError if it isn't writable."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._added: list[Path] = []
        self._folders: list[Path] = []
        self._replaced: list[tuple[Path, bytes]] = []
        above = next(p for p in (root, *root.absolute().parents) if p.exists())
        if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(above))

    def __enter__(self) -> StoreWriter:
        return self

    def folder(self, path: Path) -> Path:
        """Returns a folder below the root, created if missing."""
        missing = [p for p in (path, *path.parents) if not p.exists()]
        for one in reversed(missing):
            one.mkdir(mode=0o755)
            self._folders.append(one)
        return path

    def stage(self, folder: Path, prefix: str) -> Path:
        """Returns a new name in a folder, for a file that the caller writes and passes to `publish`."""
        path = self.folder(folder) / f"{prefix}{secrets.token_hex(8)}"
        self._added.append(path)
        return path

    def expect(self, staged: Path) -> None:
        """Registers a file that the caller writes, to be removed if an error follows."""
        self._added.append(staged)

    def keep(self, target: Path) -> None:
        """Updates a file's mtime so that stores don't purge it."""
        with contextlib.suppress(OSError):  # another user's
            os.utime(target)

    def publish(self, staged: Path, target: Path, *, mode: int | None = 0o644) -> None:
        """Renames a staged file to its target."""
        self.folder(target.parent)
        if mode is not None:
            staged.chmod(mode)
        publish_file(staged, target, overwrite=False)
        self._added.remove(staged)
        self._added.append(target)
        sync_folder(target.parent)

    def discard(self, staged: Path) -> None:
        """Removes a staged file whose target exists."""
        staged.unlink()
        self._added.remove(staged)

    def add(self, target: Path, data: bytes, *, overwrite: bool = False, staged_in: Path | None = None) -> None:
        """Adds a small file, staged next to its target or in `staged_in`. Raises RefusedError if the target exists,
        unless `overwrite`."""
        if target.exists():
            if not overwrite:
                raise RefusedError(f"{target} exists already", option="--overwrite")
            self._replaced.append((target, target.read_bytes()))
        staged = self._staged(staged_in or target.parent, data)
        if target.exists():
            publish_file(staged, target, overwrite=True)
            self._added.remove(staged)
            return
        self.publish(staged, target)

    def _staged(self, folder: Path, data: bytes) -> Path:
        staged = self.stage(folder, PREFIX)
        out = OutFile(staged, len(data))
        try:
            out.write(0, data)
            out.sync()
        finally:
            out.close()
        return staged

    def add_file(self, target: Path, source: Path, *, link: bool = False, overwrite: bool = False) -> str:
        """Adds a file with the bytes of `source`. Returns how: "reflink" if the file system shares blocks, with `link`
        a "hard link" if possible, else "copy". `overwrite`: the new file replaces an older one once it is complete."""
        staged = self.stage(target.parent, PREFIX)
        how = "hard link" if link and _linked(source, staged) else _copied(source, staged)
        if how == "hard link":
            self.keep(staged)
        if overwrite and target.exists():
            publish_file(staged, target, overwrite=True)
            self._added.remove(staged)
        else:
            self.publish(staged, target, mode=None if how == "hard link" else 0o644)
        return how

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            return
        for path, data in reversed(self._replaced):
            with contextlib.suppress(OSError):
                publish_file(self._staged(path.parent, data), path, overwrite=True)
        for path in reversed(self._added):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        for folder in reversed(self._folders):
            with contextlib.suppress(OSError):  # another program's file is in it by now
                folder.rmdir()


def _linked(source: Path, target: Path) -> bool:
    try:
        os.link(source.resolve(), target)
    except OSError as error:
        if error.errno not in {*CANNOT, errno.EMLINK, errno.EACCES}:
            raise
        return False
    return True


def _copied(source: Path, target: Path) -> str:
    """Copies a file, sharing its blocks if the file system can."""
    with FileSource(source) as opened:
        free = shutil.disk_usage(target.parent).free
        if _cloned(opened, target):
            return "reflink"
        if opened.size > free:
            raise OSError(
                errno.ENOSPC, f"not enough space: {opened.size:,} bytes needed, {free:,} free", str(target.parent)
            )
        out = OutFile(target, opened.size)
        try:
            if not out.copy(opened, 0, 0, opened.size):
                for at in range(0, opened.size, _CHUNK):
                    out.write(at, opened.read(at, min(_CHUNK, opened.size - at)))
            out.sync()
        finally:
            out.close()
    return "copy"


def _cloned(source: FileSource, target: Path) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows
        return False
    out = OutFile(target, 0)
    try:
        fcntl.ioctl(out.fileno(), _FICLONE, source.fileno())
        out.sync()
    except OSError as error:
        target.unlink(missing_ok=True)
        if error.errno in CANNOT or error.errno == errno.ENOTTY:
            return False
        raise
    finally:
        out.close()
    return True
