"""The only code that writes. Existing files are never harmed, and nothing half-written stays behind.

A file goes to a temporary sibling (space checked, preallocated), then fsync, then one rename. A folder is staged beside
its place and exchanged by one rename; one with files that aren't written again is replaced only with `replace_folder`.
On any error the staging is removed; after `kill -9` a stale sibling stays, named `.NAME.PID.partial`, and the next
write to the same target removes it if that process is gone.

A write with a journal (`io/sink/journal.py`) is staged as `NAME.partial` instead. It stays there when it is
interrupted, and the next run resumes it.

A target elsewhere has a sink of the same interface: `UploadSink` sends parts while it writes, `CommitSink` stages a
folder and hands it over whole. `open_sink` chooses. `parallel_target` is a target of several processes.
"""

from __future__ import annotations

from weighbridge.io.sink.commit import CommitSink
from weighbridge.io.sink.files import InPlace, OutFile
from weighbridge.io.sink.journal import FileRange
from weighbridge.io.sink.lock import exclusive
from weighbridge.io.sink.open import AnySink, check_target, disk_needed, open_sink
from weighbridge.io.sink.parallel import ParallelTarget, ParallelUploads, ParallelWrite, parallel_target
from weighbridge.io.sink.partials import is_alive
from weighbridge.io.sink.records import FolderRecords, Records, records_at
from weighbridge.io.sink.spool import spooled
from weighbridge.io.sink.store import StoreWriter
from weighbridge.io.sink.target import Sink, foreign_files, listed, partial_of, write_file
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
    "listed",
    "open_sink",
    "parallel_target",
    "partial_of",
    "records_at",
    "spooled",
    "write_file",
]
