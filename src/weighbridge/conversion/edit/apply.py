"""Plans of edits, and how they are applied: the changed bytes under a journal, or the whole file through the sink."""

from __future__ import annotations

import errno
import json
import os
import time
from contextlib import closing
from dataclasses import field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from weighbridge.base.errors import FormatError, RefusedError
from weighbridge.base.limits import MIB
from weighbridge.base.records import dataclass
from weighbridge.containers.gguf.values import KV
from weighbridge.conversion.edit.headers import changed_span
from weighbridge.conversion.result import Loss, Progress, Result
from weighbridge.io.sink import InPlace, Sink, exclusive, is_alive, write_file
from weighbridge.io.source import FileSource


@dataclass(frozen=True, slots=True)
class MetadataChange:
    """The change of one key; None: the key is absent."""

    key: str
    before: KV | None
    after: KV | None


@dataclass(frozen=True)
class EditPlan:
    """An edit that is ready to run. `in_place`: write only the bytes that differ, not the whole file."""

    path: str
    target: str
    format: str
    changes: tuple[MetadataChange, ...]
    in_place: bool
    reason: str
    written: int
    header: bytes = field(repr=False)
    start: int = field(repr=False)
    stamp: tuple[int, int, int, str] = field(repr=False)
    overwrite: bool = False
    backup: bool = False
    losses: tuple[Loss, ...] = ()  # edits have none

    def run(self, progress: Progress | None = None) -> Result:
        """Applies the edit. Raises RefusedError, OSError, or FormatError if the file changed since planning."""
        start = time.monotonic()
        apply_edit(self, progress)
        return Result(self.target, (self.target,), self.written, time.monotonic() - start)

    def describe(self) -> dict[str, Any]:
        """The plan as plain data."""
        changes = [
            {"key": c.key, "before": c.before and c.before._asdict(), "after": c.after and c.after._asdict()}
            for c in self.changes
        ]
        return {
            "schema": "weighbridge/edit/1",
            "path": self.path,
            "target": self.target,
            "format": self.format,
            "in_place": self.in_place,
            "reason": self.reason,
            "bytes": self.written,
            "changes": changes,
        }


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
        if not plan.in_place:
            if plan.backup:
                _back_up(plan.path)
            _rewrite(plan, source, progress)
            return
        span = changed_span(old, plan.header)
        journal = journal_of(plan.path)
        head = {"weighbridge": "journal", "offset": span.start, "size": source.size, "pid": os.getpid()}
        with InPlace(plan.path) as out:  # first, so that an unwritable file gets no journal
            write_file(journal, json.dumps(head).encode() + b"\n" + old[span.start : span.stop])
            out.write(span.start, plan.header[span.start : span.stop])
        journal.unlink()


def stamp_of(source: FileSource, header: bytes) -> tuple[int, int, int, str]:
    """The state of a file, to detect changes since planning: size, time, inode, and the digest of its header."""
    stat = os.fstat(source.fileno())
    return stat.st_size, stat.st_mtime_ns, stat.st_ino, blake2b(header, digest_size=16).hexdigest()


def journal_of(path: str | os.PathLike[str]) -> Path:
    """The journal in which an edit in place keeps the bytes that it overwrites."""
    real = Path(path).resolve()
    return real.with_name(f".{real.name}.journal")


def recover(path: str | os.PathLike[str]) -> bool:
    """Undoes an interrupted edit in place; True if there was one."""
    journal = journal_of(path)
    if not journal.exists():
        return False
    with exclusive(path):
        if not journal.exists():  # another process has recovered the file
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
            hint = "remove it if you are sure"
            raise FormatError("the journal belongs to another file", path=str(journal), hint=hint)
        with InPlace(path) as out:
            out.write(offset, old)
        journal.unlink()
        return True


def _back_up(path: str) -> None:
    """Links the old content as NAME.bak, which the rename of the new file leaves unchanged.

    An interrupted edit may have created that link already.
    """
    backup = f"{path}.bak"
    if os.path.exists(backup) and os.path.samefile(path, backup) and not os.path.islink(backup):
        return
    if os.path.lexists(backup):
        raise RefusedError(f"{backup} exists already", hint="move it away")
    os.link(os.path.realpath(path), backup)


def _rewrite(plan: EditPlan, source: FileSource, progress: Progress | None) -> None:
    header, data = plan.header, max(source.size - plan.start, 0)
    size, overwrite = len(header) + data, plan.overwrite or plan.path == plan.target
    with Sink(plan.target, folder=False, size=size, overwrite=overwrite) as sink:
        out = sink.create("", size)
        out.write(0, header)
        for at in range(0, data, 64 * MIB):
            part = min(64 * MIB, data - at)
            if not out.copy(source, plan.start + at, len(header) + at, part):
                buffer = memoryview(bytearray(min(part, MIB)))
                for done in range(at, at + part, MIB):
                    piece = buffer[: min(MIB, at + part - done)]
                    source.readinto(plan.start + done, piece)
                    out.write(len(header) + done, piece)
            if progress is not None:
                progress(at + part, data, "writing")
