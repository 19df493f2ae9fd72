"""The manifest of a job, in the place of its target: chunks of items, then a header, whose appearance makes it valid.

_fleet/JOB/manifest/DIGEST.jsonl ...  an item a line; named by what is in it, so no other plan can change it
_fleet/JOB/manifest.json              the job, its chunks in their order, how many items and bytes
_fleet/JOB/journal/CHUNK/BATCH.jsonl  a finished batch: a line an item, written once
_fleet/JOB/dead/CHUNK/BATCH.jsonl     a batch with items that failed; the next run tries it again
_fleet/JOB/report/CHUNK.jsonl ...     what the report says, in the order of the manifest
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import Final

from weighbridge.base.errors import FormatError
from weighbridge.fleets.job import Item, ItemBatch, Job, batches, canonical
from weighbridge.io.sink import Records

FORM: Final = "weighbridge/fleet/2"
#: Items of one chunk: what a driver has in memory.
CHUNK: Final = 4096
FOLDER: Final = "_fleet"


@dataclass(frozen=True)
class FleetManifest:
    """A job's items, read chunk by chunk."""

    job: Job
    records: Records
    digests: tuple[str, ...]
    items: int
    nbytes: int

    @property
    def chunks(self) -> int:
        return len(self.digests)

    def name(self, *parts: str) -> str:
        """The name of a record of this job."""
        return "/".join((FOLDER, self.job.id, *parts))

    def chunk(self, number: int) -> list[Item]:
        """The items of a chunk. FormatError where it is damaged."""
        name = _chunk_name(self.job, self.digests[number])
        data = self.records.read(name)
        if data is None or _digest_of(data) != self.digests[number]:
            raise FormatError("a chunk of the manifest is damaged", path=name, hint="plan again with --replan")
        return [Item.parse(line) for line in data.splitlines()]

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


def _chunk_name(job: Job, digest: str) -> str:
    return f"{FOLDER}/{job.id}/manifest/{digest}.jsonl"


def _digest_of(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()


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
        return FleetManifest(job, records, tuple(map(str, found["chunks"])), found["items"], found["bytes"])
    except (ValueError, KeyError, TypeError):
        raise FormatError("no manifest of this version", path=f"{FOLDER}/{job.id}/manifest.json") from None


def written(job: Job, records: Records, items: Iterable[Item]) -> FleetManifest:
    """Write the manifest of a job, chunk by chunk; of two writers the one whose header comes first has planned it."""
    rest, count, size = iter(items), 0, 0
    chunks: list[str] = []
    while chunk := list(islice(rest, CHUNK)):
        data = b"".join(canonical(item) + b"\n" for item in chunk)
        chunks.append(_digest_of(data))
        records.put(_chunk_name(job, chunks[-1]), data)
        count, size = count + len(chunk), size + sum(item.size for item in chunk)
    header = {"form": FORM, "op": job.op, "options": dict(job.options), "weighbridge": job.version,
              "chunks": chunks, "items": count, "bytes": size}  # fmt: skip
    records.add(f"{FOLDER}/{job.id}/manifest.json", canonical(header))
    made = opened(job, records)
    assert made is not None
    return made
