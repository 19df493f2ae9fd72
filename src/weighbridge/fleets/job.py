"""The work of a fleet as plain data: a job, its items, and the batches of its tasks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from functools import cache, cached_property
from hashlib import blake2b
from typing import Any, Final

import msgspec

from weighbridge import __version__
from weighbridge.base.limits import MIB
from weighbridge.base.records import dataclass

#: The limits of a batch: small files share a task and a record, a large file has separate ones.
BATCH_ITEMS: Final = 256
BATCH_BYTES: Final = 256 * MIB


def canonical(value: Any) -> bytes:
    """Encodes plain data in the canonical form for hashes and records."""
    try:
        return msgspec.json.encode(value, order="sorted")
    except UnicodeEncodeError:  # a file name that isn't valid Unicode
        text = json.dumps(msgspec.to_builtins(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return text.encode("utf-8", "surrogatepass")


def parse(line: bytes) -> Any:
    """Decodes a line. Raises ValueError if it isn't valid."""
    try:
        return msgspec.json.decode(line)
    except msgspec.DecodeError:
        return json.loads(line.decode("utf-8", "surrogatepass"))


def digest(value: Any) -> str:
    """Returns a short digest of plain data."""
    return blake2b(canonical(value), digest_size=16).hexdigest()


class Item(msgspec.Struct, frozen=True, gc=False):
    """One file or model. `name`: of its output, unique in the fleet. `pin`: its version when it was listed. `passed`:
    for an item that isn't opened, the reason, and the rule of a finding if it is one."""

    source: str
    name: str
    size: int
    pin: str
    passed: tuple[str, str | None] | None = None

    @classmethod
    def parse(cls, line: bytes) -> Item:
        """Parses a line of the manifest. Raises ValueError if it isn't an item."""
        try:
            return _decoder().decode(line)
        except msgspec.DecodeError:
            try:
                return msgspec.convert(parse(line), cls)
            except msgspec.ValidationError as error:
                raise ValueError(str(error)) from None


@cache
def _decoder() -> msgspec.json.Decoder[Item]:
    return msgspec.json.Decoder(Item)


@dataclass(frozen=True)
class Job:
    """The operation for each item. `options`: keywords of the single command's function."""

    op: str
    options: Mapping[str, Any] = field(default_factory=dict)
    version: str = __version__

    @property
    def id(self) -> str:
        return f"{self.op}-{digest([self.op, dict(self.options), self.version])[:12]}"


@dataclass(frozen=True)
class ItemBatch:
    """Items of one chunk of the manifest, for one task."""

    job: Job
    chunk: int
    items: tuple[Item, ...]

    @cached_property
    def id(self) -> str:
        return digest([self.job.op, dict(self.job.options), self.job.version, self.items])

    @property
    def record(self) -> str:
        """The name of its record in the journal's folder."""
        return f"{self.chunk:05d}/{self.id}.jsonl"

    @property
    def size(self) -> int:
        return sum(item.size for item in self.items)


def batches(job: Job, chunk: int, items: Iterable[Item]) -> Iterator[ItemBatch]:
    """Yields the items of a chunk in order, as batches that are the same in every process."""
    batch: list[Item] = []
    size = 0
    for item in items:
        if batch and (len(batch) >= BATCH_ITEMS or size + item.size > BATCH_BYTES):
            yield ItemBatch(job, chunk, tuple(batch))
            batch, size = [], 0
        batch.append(item)
        size += item.size
    if batch:
        yield ItemBatch(job, chunk, tuple(batch))
