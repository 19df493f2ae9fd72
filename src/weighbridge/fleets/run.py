"""Plans and runs a fleet's job, and reports on it. Progress is stored only at the target, so that any driver can
continue, and several can work at once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import field
from functools import partial
from itertools import chain
from tempfile import TemporaryDirectory
from typing import Any

from weighbridge.adapters.remote.schemes import resolve_target
from weighbridge.base.errors import RefusedError
from weighbridge.base.records import dataclass
from weighbridge.fleets.costs import DEFAULT_TERMS, Estimate, Load, Terms, estimate
from weighbridge.fleets.job import Item, ItemBatch, Job
from weighbridge.fleets.manifest import FleetManifest, open_manifest, write_manifest
from weighbridge.fleets.operations import OPERATIONS, bytes_read, item_kind, output_of
from weighbridge.fleets.parts import ModelParts, PartTask
from weighbridge.fleets.report import FleetReport, write_report
from weighbridge.fleets.runners import Runner, run_all
from weighbridge.fleets.sources import items
from weighbridge.fleets.work import BatchTask, item_line
from weighbridge.io.location import is_remote, parse_address
from weighbridge.io.sink import records_at

#: (items done, items in all, items that failed)
Progress = Callable[[int, int, int], None]


@dataclass(frozen=True)
class FleetPlan:
    """The planned work of a job. `calibrated`: measured bytes/s of a core, None for the table's rate."""

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
    """A job over sources, with its target. `replan`: lists the sources again if there is a manifest. `shard`: (number
    from 1, count) of the work, None for all. `overwrite`: replaces outputs that existed before the job. `task_size`:
    models with more bytes of output are divided into tasks of about this size, None for one task per model. `terms`:
    for costs in the plan and the report."""

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
        return items(self.sources, kind=item_kind(self.job), pairs="with_mmproj" in self.job.options)

    def plan(self, calibrate: float = 0.0) -> FleetPlan:
        """Plans the work, from the manifest if there is one, else by listing the sources. `calibrate`: seconds of
        measuring."""
        manifest = None if self.replan else open_manifest(self.job, self._records())
        chunks = () if manifest is None else map(manifest.chunk, range(manifest.chunks))
        sample: list[Item] = []
        count = size = 0
        prefixes: set[str] = set()
        for item in self._items() if manifest is None else chain.from_iterable(chunks):
            count, size = count + 1, size + item.size
            sample += [item] if len(sample) < 64 else []
            if len(prefixes) < 10_000:  # approximately those by which S3 counts requests: the folders of objects
                address = parse_address(item.source)
                prefixes.add(f"{address.netloc}{address.path.rpartition('/')[0]}")
        op = OPERATIONS[self.job.op]
        rate = self._measure(sample, calibrate) if calibrate else None
        load = Load(count, bytes_read(self.job, count, size), int(size * op.writes), rate or op.rate, len(prefixes))
        return FleetPlan(
            self.job.id, self.job.op, self.sources, self.target, self.terms, estimate(load, self.terms), rate,
            manifest is not None,
        )  # fmt: skip

    def _measure(self, sample: Sequence[Item], seconds: float) -> float | None:
        """Measures the bytes of sources per second of one core, over the smallest items, for `seconds`. Returns None if
        all fail. Outputs are written to a temporary folder, one at a time."""
        start, done, elapsed = time.monotonic(), 0, 0.0
        for item in sorted(sample, key=lambda item: item.size):
            with TemporaryDirectory(prefix="weighbridge-") as folder:
                line = item_line(BatchTask(ItemBatch(self.job, 0, (item,)), folder, 1), item)
            elapsed = time.monotonic() - start
            done += 0 if line.failed else item.size
            if done and elapsed > seconds:
                break
        return done / elapsed if done else None

    def manifest(self) -> FleetManifest:
        """Returns the job's manifest, which is written if it doesn't exist. Raises RefusedError if an output of the job
        exists."""
        records = self._records()
        manifest = open_manifest(self.job, records)
        if manifest is not None and not self.replan:
            return manifest
        if manifest is not None:
            records.remove(manifest.name("manifest.json"))
        try:
            return write_manifest(self.job, records, self._new_items(manifest is not None))
        except RefusedError:  # by an output of a share that planned the job in the meantime
            if (manifest := open_manifest(self.job, records)) is None:
                raise
            return manifest

    def _new_items(self, planned_before: bool) -> Iterator[Item]:
        """Yields the items. Raises RefusedError if a local output exists, unless a run of this job wrote it."""
        writes = OPERATIONS[self.job.op].writes and not self.overwrite and not planned_before
        for item in self._items():
            if writes and not is_remote(self.target):
                out = output_of(item, self.job.options, self.target)
                if os.path.exists(out):
                    raise RefusedError(f"{out} exists already", option="--overwrite")
            yield item

    def run(self, runner: Runner, jobs: int = 1, progress: Progress | None = None) -> FleetReport:
        """Runs the open tasks, and writes the report. `jobs`: threads per task."""
        manifest = self.manifest()
        done = failed = 0
        parts = ModelParts(self.task_size)
        with closing(run_all(runner, self._tasks(manifest, jobs, parts), parts)) as summaries:
            for summary in summaries:
                done, failed = done + summary.items, failed + summary.failed
                if progress is not None:
                    progress(done, manifest.items, failed)
        return write_report(manifest, self.terms)

    def _tasks(self, manifest: FleetManifest, jobs: int, parts: ModelParts) -> Iterator[BatchTask | PartTask]:
        """Yields the tasks of this shard without a record, in the manifest's order. The parts of a model are
        distributed over the shards."""
        number, shards = self.shard or (1, 1)
        at = 0
        for chunk in range(manifest.chunks):
            finished = manifest.journaled(chunk)
            for batch in manifest.batches(chunk):
                first, at = at, at + 1
                task = BatchTask(batch, self.target, jobs, self.overwrite)
                if batch.id in finished:
                    parts.tidy(task)
                else:
                    yield from parts.tasks(task, partial(_is_mine, first, number, shards))


def _is_mine(first: int, number: int, shards: int, part: int) -> bool:
    """Returns whether a part of the batch with index `first` belongs to shard `number`."""
    return (first + part) % shards == number - 1
