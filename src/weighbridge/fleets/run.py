"""A fleet's job: planned, run, reported. What is done stands in the target's place alone, so any driver goes on where
another one ended, and several may work at once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from weighbridge.adapters.remote.schemes import resolve_target
from weighbridge.base.errors import RefusedError
from weighbridge.fleets.costs import DEFAULT_TERMS, Estimate, Load, Terms, estimate
from weighbridge.fleets.job import Item, ItemBatch, Job
from weighbridge.fleets.manifest import FleetManifest, opened, written
from weighbridge.fleets.operations import OPERATIONS, bytes_read, output_of
from weighbridge.fleets.parts import ModelParts, PartTask
from weighbridge.fleets.report import FleetReport, write_report
from weighbridge.fleets.runners import Runner, run_all
from weighbridge.fleets.sources import items
from weighbridge.fleets.work import BatchTask, item_line
from weighbridge.io.location import is_remote
from weighbridge.io.sink import records_at

#: (items done, items in all, items that failed)
Progress = Callable[[int, int, int], None]


@dataclass(frozen=True)
class FleetPlan:
    """What a job would read and write. `calibrated`: bytes/s of a core as measured here; None: the table's rate."""

    job: str
    op: str
    sources: tuple[str, ...]
    target: str
    terms: Terms
    estimate: Estimate
    calibrated: float | None = None
    planned_before: bool = False
    notes: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class Fleet:
    """A job over sources, with its target. `replan`: list the sources again, though a manifest is there. `shard`:
    (number from 1, of so many) of the work; None: all. `overwrite`: replace outputs that were there before the job.
    `task_size`: models with more bytes of output are made by several tasks of about so many; None: one task a model.
    `terms`: what the plan and the report count costs by."""

    job: Job
    sources: tuple[str, ...]
    target: str
    replan: bool = False
    shard: tuple[int, int] | None = None
    overwrite: bool = False
    task_size: int | None = None
    terms: Terms = DEFAULT_TERMS

    def _records(self) -> Any:
        return records_at(resolve_target(self.target))

    def _items(self) -> Iterator[Item]:
        return items(self.sources, by_file=OPERATIONS[self.job.op].by_file)

    def plan(self, calibrate: float = 0.0) -> FleetPlan:
        """What would be read and written, and what it takes. Lists the sources, or the manifest that is there."""
        known = None if self.replan else opened(self.job, self._records())
        listed = self._items() if known is None else _all(known)
        sample: list[Item] = []
        count = size = 0
        prefixes: set[str] = set()
        for item in listed:
            count, size = count + 1, size + item.size
            sample += [item] if len(sample) < 64 else []
            prefixes |= {_prefix(item.source)} if len(prefixes) < 10_000 else set()
        op = OPERATIONS[self.job.op]
        measured = self._measured(sample, calibrate) if calibrate else None
        read = bytes_read(self.job, count, size)
        load = Load(count, read, int(size * op.writes), measured or op.rate, len(prefixes))
        return FleetPlan(
            self.job.id, self.job.op, self.sources, self.target, self.terms, estimate(load, self.terms), measured,
            known is not None,
        )  # fmt: skip

    def _measured(self, sample: Sequence[Item], seconds: float) -> float | None:
        """Bytes of sources a second of one core, over some items, the smallest first, within `seconds`; None where none
        could be done. Outputs go to a temporary folder, one at a time."""
        began, done, spent = time.monotonic(), 0, 0.0
        for item in sorted(sample, key=lambda item: item.size):
            with TemporaryDirectory(prefix="weighbridge-") as folder:
                line = item_line(BatchTask(ItemBatch(self.job, 0, (item,)), folder, 1), item)
            spent = time.monotonic() - began
            done += 0 if line.failed else item.size
            if done and spent > seconds:
                break
        return done / spent if done else None

    def manifest(self) -> FleetManifest:
        """The job's manifest, made if it isn't there. RefusedError where an output of the job is there already."""
        records = self._records()
        known = opened(self.job, records)
        if known is not None and not self.replan:
            return known
        if known is not None:
            records.remove(known.name("manifest.json"))
        try:
            return written(self.job, records, self._checked(known is not None))
        except RefusedError:  # by an output of a share that has planned the job meanwhile
            if (known := opened(self.job, records)) is None:
                raise
            return known

    def _checked(self, before: bool) -> Iterator[Item]:
        """The items; those that write are refused where their output is there, unless a run of this job made it."""
        writes = OPERATIONS[self.job.op].writes and not self.overwrite and not before and not is_remote(self.target)
        for item in self._items():
            if writes and os.path.exists(out := output_of(item, self.job.options, self.target)):
                raise RefusedError(f"{out} exists already", option="--overwrite")
            yield item

    def run(self, runner: Runner, jobs: int = 1, progress: Progress | None = None) -> FleetReport:
        """Do what isn't done yet, and write the report once all batches of all shards have a record. `jobs`: threads of
        a task."""
        manifest = self.manifest()
        done = failed = 0
        parts = ModelParts(self.task_size)
        for summary in run_all(runner, self._tasks(manifest, jobs, parts), parts):
            done, failed = done + summary.items, failed + summary.failed
            if progress is not None:
                progress(done, manifest.items, failed)
        return write_report(manifest, self.terms)

    def _tasks(self, manifest: FleetManifest, jobs: int, parts: ModelParts) -> Iterator[BatchTask | PartTask]:
        """The batches of this shard without a record, in the manifest's order. The parts of a model go to one share
        after the other."""
        number, of = self.shard or (1, 1)
        at = 0
        for chunk in range(manifest.chunks):
            finished = manifest.journaled(chunk)
            for batch in manifest.batches(chunk):
                first, at = at, at + 1
                task = BatchTask(batch, self.target, jobs, self.overwrite)
                if batch.id in finished:
                    parts.tidy(task)
                else:
                    yield from parts.tasks(task, lambda part, first=first: (first + part) % of == number - 1)  # type: ignore[misc]


def _all(manifest: FleetManifest) -> Iterator[Item]:
    for chunk in range(manifest.chunks):
        yield from manifest.chunk(chunk)


def _prefix(source: str) -> str:
    """What S3 counts requests by, roughly: the folder of an object."""
    parts = urlsplit(source)
    return f"{parts.netloc}{parts.path.rpartition('/')[0]}"
