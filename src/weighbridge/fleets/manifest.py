"""The manifest of a job, in the place of its target: chunks of items, then a header, whose appearance makes it valid.

_fleet/JOB/manifest/00000.jsonl ...   an item a line
_fleet/JOB/manifest.json              the job, how many chunks, items and bytes
_fleet/JOB/journal/CHUNK/BATCH.jsonl  a finished batch: a line an item, written once
_fleet/JOB/dead/CHUNK/BATCH.jsonl     a batch with items that failed; the next run tries it again
_fleet/JOB/report/CHUNK.jsonl ...     what the report says, in the order of the manifest
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from weighbridge.base.errors import FormatError
from weighbridge.fleets.job import Item, ItemBatch, Job, batches, canonical
from weighbridge.io.sink import Records

FORM: Final = "weighbridge/fleet/1"
#: Items of one chunk: what a driver has in memory.
CHUNK: Final = 4096
FOLDER: Final = "_fleet"


@dataclass(frozen=True)
class FleetManifest:
    """A job's items, read chunk by chunk."""

    job: Job
    records: Records
    chunks: int
    items: int
    nbytes: int

    def name(self, *parts: str) -> str:
        """The name of a record of this job."""
        return "/".join((FOLDER, self.job.id, *parts))

    def chunk(self, number: int) -> list[Item]:
        """The items of a chunk. FormatError where it is damaged."""
        data = self.records.read(self.name("manifest", f"{number:05d}.jsonl"))
        try:
            return [Item.parse(line) for line in (data or b"").splitlines()]
        except ValueError:
            raise FormatError("a damaged chunk", path=self.name("manifest", f"{number:05d}.jsonl")) from None

    def batches(self, number: int) -> Iterator[ItemBatch]:
        """The batches of a chunk."""
        return batches(self.job, number, self.chunk(number))

    def journaled(self, number: int) -> set[str]:
        """The ids of the batches of a chunk that are finished."""
        return _ids(self.records.names(self.name("journal", f"{number:05d}")))

    def lines(self, batch: ItemBatch) -> list[bytes] | None:
        """What became of a batch; None where that isn't known yet."""
        done = self.records.read(self.name("journal", batch.record))
        found = done if done is not None else self.records.read(self.name("dead", batch.record))
        return None if found is None else found.splitlines()


def _ids(names: Iterable[str]) -> set[str]:
    return {name.removesuffix(".jsonl") for name in names}


def opened(job: Job, records: Records) -> FleetManifest | None:
    """The manifest of a job that has been planned; None for one that hasn't. FormatError where it is another form."""
    header = records.read(f"{FOLDER}/{job.id}/manifest.json")
    if header is None:
        return None
    try:
        found = json.loads(header)
        if found["form"] != FORM:
            raise ValueError
        return FleetManifest(job, records, found["chunks"], found["items"], found["bytes"])
    except (ValueError, KeyError, TypeError):
        raise FormatError("no manifest of this version", path=f"{FOLDER}/{job.id}/manifest.json") from None


def written(job: Job, records: Records, items: Iterable[Item]) -> FleetManifest:
    """Write the manifest of a job, chunk by chunk; of two writers the one whose header comes first has planned it."""
    rest, chunks, count, size = iter(items), 0, 0, 0
    name = f"{FOLDER}/{job.id}"
    while chunk := list(islice(rest, CHUNK)):
        records.put(f"{name}/manifest/{chunks:05d}.jsonl", b"".join(canonical(item) + b"\n" for item in chunk))
        chunks, count, size = chunks + 1, count + len(chunk), size + sum(item.size for item in chunk)
    header = {"form": FORM, "op": job.op, "options": dict(job.options), "weighbridge": job.version,
              "chunks": chunks, "items": count, "bytes": size}  # fmt: skip
    records.add(f"{name}/manifest.json", canonical(header))
    made = opened(job, records)
    assert made is not None
    return made
