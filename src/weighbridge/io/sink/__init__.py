"""The only code that writes. It never harms existing files and leaves no partial ones.

A file is written to a temporary sibling (space checked, preallocated), synced, and renamed. A folder is staged next to
its target and swapped in by one rename; a folder with files that aren't rewritten is replaced only with
`replace_folder`. After an error the staging is removed. After `kill -9` a stale sibling named `.NAME.PID.partial`
remains; the next write to the same target removes it if that process has ended.

A write with a journal (`io/sink/journal.py`) is staged as `NAME.partial` instead. After an interruption it remains, and
the next run resumes it.

Remote targets have sinks with the same interface: `UploadSink` sends parts while it writes, `CommitSink` stages a
folder and commits it as a whole. `open_sink` chooses. `parallel_target` is a target that several processes write.

Each name is fetched from its module on first use: a plan needs the checks only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weighbridge.base.imports.lazy import lazy_names

if TYPE_CHECKING:
    from weighbridge.io.sink.checks import check_target, disk_needed, foreign_files, link_notes, listed, partial_of
    from weighbridge.io.sink.commit import CommitSink
    from weighbridge.io.sink.files import InPlace, OutFile, spooled
    from weighbridge.io.sink.journal import FileRange
    from weighbridge.io.sink.open import AnySink, open_sink
    from weighbridge.io.sink.parallel import ParallelTarget, ParallelUploads, ParallelWrite, parallel_target
    from weighbridge.io.sink.processes import exclusive, is_alive
    from weighbridge.io.sink.records import FolderRecords, Records, records_at
    from weighbridge.io.sink.store import StoreWriter
    from weighbridge.io.sink.target import Sink, write_file
    from weighbridge.io.sink.upload import Origin, UploadFile, UploadSink, check_uploads

__all__ = [
    "AnySink",
    "CommitSink",
    "FileRange",
    "FolderRecords",
    "InPlace",
    "Origin",
    "OutFile",
    "ParallelTarget",
    "ParallelUploads",
    "ParallelWrite",
    "Records",
    "Sink",
    "StoreWriter",
    "UploadFile",
    "UploadSink",
    "check_target",
    "check_uploads",
    "disk_needed",
    "exclusive",
    "foreign_files",
    "is_alive",
    "link_notes",
    "listed",
    "open_sink",
    "parallel_target",
    "partial_of",
    "records_at",
    "spooled",
    "write_file",
]

__getattr__ = lazy_names(
    globals(),
    {
        "checks": "check_target disk_needed foreign_files link_notes listed partial_of",
        "commit": "CommitSink",
        "files": "InPlace OutFile spooled",
        "journal": "FileRange",
        "open": "AnySink open_sink",
        "parallel": "ParallelTarget ParallelUploads ParallelWrite parallel_target",
        "processes": "exclusive is_alive",
        "records": "FolderRecords Records records_at",
        "store": "StoreWriter",
        "target": "Sink write_file",
        "upload": "Origin UploadFile UploadSink check_uploads",
    },
)
