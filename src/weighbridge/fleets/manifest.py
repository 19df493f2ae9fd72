"""The manifest of a job, stored at its target: chunks of items, then a header, which makes it valid.

_fleet/JOB/manifest/DIGEST.jsonl ...  one item per line; named by its content, so no other plan can change it
_fleet/JOB/manifest.json              the job, its chunks in order, the number of items and bytes
_fleet/JOB/journal/CHUNK/BATCH.jsonl  a finished batch: one line per item, written once
_fleet/JOB/dead/CHUNK/BATCH.jsonl     a batch with failed items, which the next run retries
_fleet/JOB/report/CHUNK.jsonl ...     the report, in the order of the manifest
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import islice
from typing import Final

from weighbridge.base.errors import FormatError
from weighbridge.base.records import dataclass
from weighbridge.fleets.job import Item, ItemBatch, Job, batches, canonical
from weighbridge.io.sink import Records

FORM: Final = "weighbridge/fleet/2"
#: Items of one chunk, which a driver holds in memory.
CHUNK: Final = 4096
FOLDER: Final = "_fleet"


@dataclass(frozen=True)
class FleetManifest:
    """The items of a job, read chunk by chunk."""

    job: Job
    records: Records
    digests: tuple[str, ...]
    items: int
    nbytes: int

    @property
    def chunks(self) -> int:
        return len(self.digests)

    def name(self, *parts: str) -> str:
        """Returns the name of a record of this job."""
        return "/".join((FOLDER, self.job.id, *parts))

    def chunk(self, number: int) -> list[Item]:
        """Returns the items of a chunk. Raises FormatError if it is damaged."""
        name = f"{FOLDER}/{self.job.id}/manifest/{self.digests[number]}.jsonl"
        data = self.records.read(name)
        if data is None or _digest_of(data) != self.digests[number]:
            raise FormatError("a chunk of the manifest is damaged", path=name, hint="plan again with --replan")
        return [Item.parse(line) for line in data.splitlines()]

    def batches(self, number: int) -> Iterator[ItemBatch]:
        """Yields the batches of a chunk."""
        return batches(self.job, number, self.chunk(number))

    def journaled(self, number: int) -> set[str]:
        """Returns the ids of the finished batches of a chunk."""
        names = self.records.names(self.name("journal", f"{number:05d}"))
        return {name.removesuffix(".jsonl") for name in names}

    def lines(self, batch: ItemBatch) -> list[bytes] | None:
        """Returns the lines of a batch, finished or failed; None for an open batch."""
        data = self.records.read(self.name("journal", batch.record))
        data = data if data is not None else self.records.read(self.name("dead", batch.record))
        return None if data is None else data.splitlines()


def _digest_of(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()


def open_manifest(job: Job, records: Records) -> FleetManifest | None:
    """Returns the manifest of a planned job, else None. Raises FormatError if it has another version."""
    header = records.read(f"{FOLDER}/{job.id}/manifest.json")
    if header is None:
        return None
    try:
        fields = json.loads(header)
        if fields["form"] != FORM:
            raise ValueError
        return FleetManifest(job, records, tuple(map(str, fields["chunks"])), fields["items"], fields["bytes"])
    except (ValueError, KeyError, TypeError):
        raise FormatError("not a manifest of this version", path=f"{FOLDER}/{job.id}/manifest.json") from None


def write_manifest(job: Job, records: Records, items: Iterable[Item]) -> FleetManifest:
    """Writes the manifest of a job, chunk by chunk. If two processes plan a job, the first header counts."""
    rest, count, size = iter(items), 0, 0
    digests: list[str] = []
    while chunk := list(islice(rest, CHUNK)):
        data = b"".join(canonical(item) + b"\n" for item in chunk)
        digests.append(_digest_of(data))
        records.put(f"{FOLDER}/{job.id}/manifest/{digests[-1]}.jsonl", data)
        count, size = count + len(chunk), size + sum(item.size for item in chunk)
    header = {"form": FORM, "op": job.op, "options": dict(job.options), "weighbridge": job.version,
              "chunks": digests, "items": count, "bytes": size}  # fmt: skip
    records.add(f"{FOLDER}/{job.id}/manifest.json", canonical(header))
    manifest = open_manifest(job, records)
    assert manifest is not None
    return manifest
