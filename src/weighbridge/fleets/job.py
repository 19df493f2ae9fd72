"""What a fleet's work is, as plain data: a job, its items, and the batches that one task takes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from hashlib import blake2b
from typing import Any, Final

import msgspec

from weighbridge import __version__
from weighbridge.base.limits import MIB

#: A batch ends at so many items or bytes: small files share a task and a record, a large one has its own.
BATCH_ITEMS: Final = 256
BATCH_BYTES: Final = 256 * MIB


def canonical(value: Any) -> bytes:
    """Plain data in the one form that is hashed and written."""
    try:
        return msgspec.json.encode(value, order="sorted")
    except UnicodeEncodeError:  # a file's name that isn't text
        text = json.dumps(msgspec.to_builtins(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return text.encode("utf-8", "surrogatepass")


def parsed(line: bytes) -> Any:
    """The plain data of a line. ValueError where it is none."""
    try:
        return msgspec.json.decode(line)
    except msgspec.DecodeError:
        return json.loads(line.decode("utf-8", "surrogatepass"))


def digest(value: Any) -> str:
    """A short id of plain data."""
    return blake2b(canonical(value), digest_size=16).hexdigest()


class Item(msgspec.Struct, frozen=True, gc=False):
    """One file or model. `name`: what its output is called, unique in the fleet; `pin`: its version when it was listed;
    `passed`: why it isn't opened, and the rule that is a finding."""

    source: str
    name: str
    size: int
    pin: str
    passed: tuple[str, str | None] | None = None

    @classmethod
    def parse(cls, line: bytes) -> Item:
        """The item of a line of the manifest. ValueError where it is none."""
        try:
            return _decoder().decode(line)
        except msgspec.DecodeError:
            try:
                return msgspec.convert(parsed(line), cls)
            except msgspec.ValidationError as error:
                raise ValueError(str(error)) from None


@cache
def _decoder() -> msgspec.json.Decoder[Item]:
    return msgspec.json.Decoder(Item)


@dataclass(frozen=True)
class Job:
    """What is done to each item. `options`: keywords of the single command's function."""

    op: str
    options: Mapping[str, Any] = field(default_factory=dict)
    version: str = __version__

    @property
    def id(self) -> str:
        return f"{self.op}-{digest([self.op, dict(self.options), self.version])[:12]}"


@dataclass(frozen=True)
class ItemBatch:
    """Items of one chunk of the manifest that one task takes."""

    job: Job
    chunk: int
    items: tuple[Item, ...]

    @cached_property
    def id(self) -> str:
        return digest([self.job.op, dict(self.job.options), self.job.version, self.items])

    @property
    def record(self) -> str:
        """The name of its record, below the journal's folder."""
        return f"{self.chunk:05d}/{self.id}.jsonl"

    @property
    def size(self) -> int:
        return sum(item.size for item in self.items)


def batches(job: Job, chunk: int, items: Iterable[Item]) -> Iterator[ItemBatch]:
    """The items of a chunk, in their order, as batches: the same ones in every process."""
    waiting: list[Item] = []
    size = 0
    for item in items:
        if waiting and (len(waiting) >= BATCH_ITEMS or size + item.size > BATCH_BYTES):
            yield ItemBatch(job, chunk, tuple(waiting))
            waiting, size = [], 0
        waiting.append(item)
        size += item.size
    if waiting:
        yield ItemBatch(job, chunk, tuple(waiting))
