"""Applies an edit: writes the changed bytes under a journal, or the whole file through the sink."""

from __future__ import annotations

import errno
import json
import os
from contextlib import closing
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from weighbridge.base.errors import FormatError, RefusedError
from weighbridge.base.limits import MIB
from weighbridge.conversion.edit.headers import changed_span
from weighbridge.io.sink import InPlace, OutFile, Sink, exclusive, is_alive, write_file
from weighbridge.io.source import FileSource

if TYPE_CHECKING:
    from weighbridge.conversion.edit.plan import EditPlan
    from weighbridge.conversion.result import Progress


def apply_edit(plan: EditPlan, progress: Progress | None = None) -> None:
    """Applies the plan; does nothing if nothing changes."""
    if plan.in_place and not plan.changes:
        return
    if plan.path == plan.target and not os.access(plan.path, os.W_OK):
        raise PermissionError(errno.EACCES, "the file is read-only", plan.path)
    with exclusive(plan.path), closing(FileSource(plan.path)) as source:
        old = source.read(0, min(plan.start, source.size))
        if stamp_of(source, old) != plan.stamp:
            raise FormatError("the file changed after the edit was planned", path=plan.path, hint="try again")
        if plan.in_place:
            _in_place(plan, old, source.size)
        else:
            if plan.backup:
                _keep(plan.path)
            _rewrite(plan, source, plan.overwrite or plan.path == plan.target, progress)


def stamp_of(source: FileSource, header: bytes) -> tuple[int, int, int, str]:
    """What tells a file from one that changed since: size, time, inode, and the digest of its header."""
    stat = os.fstat(source.fileno())
    return stat.st_size, stat.st_mtime_ns, stat.st_ino, blake2b(header, digest_size=16).hexdigest()


def journal_of(path: str | os.PathLike[str]) -> Path:
    """The journal in which an edit in place keeps the bytes that it overwrites."""
    real = Path(path).resolve()
    return real.with_name(f".{real.name}.journal")


def _in_place(plan: EditPlan, old: bytes, size: int) -> None:
    span = changed_span(old, plan.header)
    journal = journal_of(plan.path)
    head = {"weighbridge": "journal", "offset": span.start, "size": size, "pid": os.getpid()}
    with InPlace(plan.path) as out:  # opened first: a file that can't be written gets no journal
        write_file(journal, json.dumps(head).encode() + b"\n" + old[span.start : span.stop])
        out.write(span.start, plan.header[span.start : span.stop])
    journal.unlink()


def recover(path: str | os.PathLike[str]) -> bool:
    """Undoes an interrupted edit in place; True if there was one."""
    if not journal_of(path).exists():
        return False
    with exclusive(path):
        return _undo(path, journal_of(path))


def _undo(path: str | os.PathLike[str], journal: Path) -> bool:
    if not journal.exists():  # another process was faster
        return False
    line, _, old = journal.read_bytes().partition(b"\n")
    try:
        head = json.loads(line)
        offset, size, pid = int(head["offset"]), int(head["size"]), int(head["pid"])
    except (ValueError, KeyError, TypeError):
        raise FormatError("this is not a journal of weighbridge", path=str(journal)) from None
    if pid != os.getpid() and is_alive(pid):
        raise RefusedError(f"{os.fspath(path)} is being edited by process {pid}", hint="wait until it finishes")
    if offset < 0 or offset + len(old) > size or Path(path).stat().st_size != size:
        raise FormatError("the journal belongs to another file", path=str(journal), hint="remove it if you are sure")
    with InPlace(path) as out:
        out.write(offset, old)
    journal.unlink()
    return True


def _keep(path: str) -> None:
    """Keeps the old content under another name: a second link, which the rename of the new file leaves alone. One that
    an interrupted edit left is that link already."""
    backup = f"{path}.bak"
    if os.path.exists(backup) and os.path.samefile(path, backup) and not os.path.islink(backup):
        return
    if os.path.lexists(backup):
        raise RefusedError(f"{backup} exists already", hint="move it away")
    os.link(os.path.realpath(path), backup)


def _rewrite(plan: EditPlan, source: FileSource, overwrite: bool, progress: Progress | None) -> None:
    header, data = plan.header, max(source.size - plan.start, 0)
    size = len(header) + data
    with Sink(plan.target, folder=False, size=size, overwrite=overwrite) as sink:
        out = sink.create("", size)
        out.write(0, header)
        for at in range(0, data, 64 * MIB):
            part = min(64 * MIB, data - at)
            if not out.copy(source, plan.start + at, len(header) + at, part):
                _copy(source, out, plan.start + at, len(header) + at, part)
            if progress is not None:
                progress(at + part, data, "writing")


def _copy(source: FileSource, out: OutFile, start: int, offset: int, size: int) -> None:
    buffer = memoryview(bytearray(min(size, MIB)))
    for at in range(0, size, MIB):
        part = buffer[: min(MIB, size - at)]
        source.readinto(start + at, part)
        out.write(offset + at, part)
