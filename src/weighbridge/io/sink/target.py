"""A target that is being written: staged, checked, published at once."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from weighbridge.base.errors import RefusedError, UsageError
from weighbridge.io.file_names import check_name
from weighbridge.io.sink.checks import check_local_target, foreign_files, listed, partial_of, resolved
from weighbridge.io.sink.files import OutFile
from weighbridge.io.sink.journal import Journal, Piece
from weighbridge.io.sink.processes import remove_stale
from weighbridge.io.sink.publish import publish_file, publish_folder, sync_folder
from weighbridge.io.sink.staging import Staging, refused_if_taken

_DEPTH = 16  # of a file's path inside a folder
_FULL = frozenset({errno.ENOSPC, errno.EFBIG, errno.EDQUOT})


class Sink(Staging):
    """Files written under one target: a single file, or a folder of files. `key`: everything that determines the bytes,
    for a resumable write; `done` has the pieces finished by earlier runs.

    `overwrite` replaces a file, or a folder that contains only `names`, the files that will be written;
    `replace_folder` replaces any folder. `parents` creates more than one missing folder above the target. `reserved`:
    disk space is allocated first; otherwise a file's size may be a bound, and `OutFile.shrink` sets it."""

    def __init__(
        self,
        target: str | os.PathLike[str],
        *,
        folder: bool,
        size: int = 0,
        overwrite: bool = False,
        replace_folder: bool = False,
        parents: bool = False,
        names: Collection[str] = (),
        key: Mapping[str, str] | None = None,
        reserved: bool = True,
    ) -> None:
        check_local_target(target, overwrite=overwrite or (folder and replace_folder), parents=parents, folder=folder)
        self.target = Path(target)
        self.folder, self.overwrite = folder, overwrite or (folder and replace_folder)
        self._spared = None if replace_folder else frozenset(names)
        self._key, self._reserved = key, reserved
        self._journal: Journal | None = None
        self._real = resolved(self.target)  # a symlink stays: its target is replaced
        mine = self._real.with_name(f".{self._real.name}.{os.getpid()}.partial")
        self._stage = mine if key is None else partial_of(target)
        self._open: list[OutFile] = []
        self._made: list[Path] = []
        self._check(size)

    def _check(self, size: int) -> None:
        if self._real.is_dir() != self.folder and self._real.exists():
            kind = "a folder" if self._real.is_dir() else "a file"
            raise RefusedError(f"{self.target} is {kind}", hint="choose another target")
        if self.folder and self._exists():
            self._check_foreign()
        remove_stale(self._real)
        above = next(p for p in self._real.parents if p.exists())
        free = shutil.disk_usage(above).free + (_allocated(self._stage) if self._key is not None else 0)
        if size > free:
            raise OSError(errno.ENOSPC, f"not enough space: {size:,} bytes needed, {free:,} free", str(above))

    def _check_foreign(self) -> None:
        """RefusedError if the folder contains files that won't be written again."""
        foreign = [] if self._spared is None else foreign_files(self._real, self._spared)
        if foreign:
            words = f"{self.target} contains files that would be deleted: {listed(foreign)}"
            raise RefusedError(words, option="--replace-folder")

    def _exists(self) -> bool:
        if self.folder and self._real.is_dir():
            return any(self._real.iterdir())
        return self._real.exists()

    def __enter__(self) -> Sink:
        self._made = [p for p in self._real.parents if not p.exists()]
        self._real.parent.mkdir(parents=True, exist_ok=True)
        if self._key is not None:
            self._journal = Journal(self._stage, self._key, write_file, overwrite=self.overwrite)
            if not self._journal.done:
                self._remove_stage()
        if self.folder:
            self._stage.mkdir(exist_ok=self._journal is not None)
            if self._journal is not None:
                sync_folder(self._stage.parent)
        return self

    def crc_of(self, piece: Piece) -> int | None:
        """Returns the recorded crc32 of a piece finished by an earlier run; None for other pieces."""
        return self.done.get(piece)

    @property
    def done(self) -> Mapping[Piece, int]:
        """The pieces finished by earlier runs, with their recorded crc32."""
        return {} if self._journal is None else self._journal.done

    def finished(self, piece: Piece, crc: int) -> None:
        """Records a piece of a file as written. After an interrupt it counts once its bytes were synced."""
        if self._journal is not None and self._journal.add(piece, crc):
            self._note()

    def forget(self) -> None:
        """Discards everything written so far, because it is wrong; the next run starts over."""
        if self._journal is not None:
            self._journal.drop()
            self._journal.forget()

    def _note(self) -> None:
        if self._journal is not None and self._journal.waiting:
            try:
                for number in self._journal.waiting:
                    self._open[number].sync_data()
            except OSError:
                self._journal.drop()  # after a failed sync, the next one may succeed although the bytes are lost
                raise
            self._journal.write()

    def create(
        self, name: str, size: int, spans: Iterable[tuple[int, int]] | None = None, *, late: bool = False
    ) -> OutFile:
        """Creates a file of `size` bytes: `name` inside the folder (or `sub/name`), or the target itself if it is a
        file. `spans` and `late` matter only to remote targets (`UploadFile`)."""
        path = self._inside(name) if self.folder else self._stage
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            again = self._journal is not None and self._again(path, size)
            out = OutFile(path, size, again=again, reserved=self._reserved)
        except FileExistsError:
            # Names, since paths of Windows are equal whatever their case.
            names = (f.path.name for f in self._open)
            twin = next((one for one in names if one.casefold() == path.name.casefold()), path.name)
            if twin == path.name:
                raise
            raise RefusedError(
                f"{name} and {twin} are one name on this file system", hint="write to one that tells case apart"
            ) from None
        self._open.append(out)
        if self._journal is not None:  # records of a file are worthless without its name
            sync_folder(path.parent)
        return out

    def _again(self, path: Path, size: int) -> bool:
        """Whether the file exists from an earlier run. If it changed, all records of it are discarded."""
        if path.is_file() and not path.is_symlink() and path.stat().st_size == size:
            return True
        if self._journal is not None and self._journal.done:
            self._journal.forget()
        path.unlink(missing_ok=True)
        return False

    def _inside(self, name: str) -> Path:
        parts = name.split("/")
        if len(parts) > _DEPTH or any(part in ("", ".", "..") or Path(part).name != part for part in parts):
            raise UsageError(f"{name!r} is not a plain file name")
        for part in parts:
            check_name(part)
        return self._stage.joinpath(*parts)

    def _settle(self, error: BaseException | None) -> None:
        """Writes pending records, as far as the disk still allows."""
        if isinstance(error, OSError) and error.errno in _FULL and error.filename is None:
            error.filename = str(self.target)  # errors of calls on a descriptor have no file name
        with contextlib.suppress(OSError):
            self._note()

    def _kept_in(self) -> Path | None:
        return self._stage if self.done and self._stage.exists() else None

    def _close(self, *, kept: bool) -> None:
        for out in self._open:
            out.close()
        if self._journal is not None:
            self._journal.close(remove=not kept)

    def _publish(self) -> None:
        self._note()
        for out in self._open:
            out.sync()
            out.close()
        if self.folder and self._journal is not None and self._real.exists():
            self._journal.forget()  # the old folder may be in the place of the staged one for a moment
        if self.folder and self.overwrite and self._exists():
            self._check_foreign()  # files may have been added meanwhile
        publish = publish_folder if self.folder else publish_file
        with refused_if_taken(self.target):
            publish(self._stage, self._real, overwrite=self.overwrite)
        sync_folder(self._real.parent)

    def _discard(self) -> None:
        self._remove_stage()
        if not self._real.exists():
            for parent in self._made:  # deepest first
                with contextlib.suppress(OSError):
                    parent.rmdir()

    def _remove_stage(self) -> None:
        if self._stage.is_dir():
            shutil.rmtree(self._stage, ignore_errors=True)
        else:
            self._stage.unlink(missing_ok=True)


def _allocated(stage: Path) -> int:
    """The disk space of a file, or of a folder's files, in bytes."""
    files = stage.rglob("*") if stage.is_dir() else [stage] if stage.is_file() else []
    return sum(getattr(p.stat(), "st_blocks", 0) * 512 for p in files)


def write_file(target: str | os.PathLike[str], data: bytes, *, overwrite: bool = False) -> None:
    """Writes a small file in one go, as safely as any other. Errors: as `check_target`'s."""
    with Sink(target, folder=False, size=len(data), overwrite=overwrite) as sink:
        sink.create("", len(data)).write(0, data)
