"""What `wb fleet` costs beside its work: a task's overhead beside a plain pool, a scan of many small files beside
`wb scan`, the driver's memory as the manifest grows.

    python benchmarks/fleet.py                 a table; --files 10000 --items 100000, --ray for a cluster of two nodes
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

import weighbridge as wb
from weighbridge.fleets import work
from weighbridge.fleets.job import Item, Job
from weighbridge.fleets.manifest import written
from weighbridge.fleets.parts import ModelParts
from weighbridge.fleets.run import Fleet
from weighbridge.fleets.runners import InlineRunner, LocalRunner, RayRunner
from weighbridge.io.sink import records_at

SCAN = Job("scan", {"fail_on": "unknown-code"})


def make_files(folder: Path, count: int) -> None:
    folder.mkdir(parents=True)
    save_file({"w": np.ones(64, np.float32)}, folder / "0.safetensors")
    data = (folder / "0.safetensors").read_bytes()
    for i in range(1, count):
        (folder / f"{i}.safetensors").write_bytes(data)


def seconds(function: Callable[[], Any]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def empty(task: Any) -> None:
    """A task without work."""


def plain_pool(processes: int, tasks: int) -> None:
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for future in [pool.submit(empty, i) for i in range(tasks)]:
            future.result()


def overhead(runner: Any, processes: int, tasks: int) -> tuple[float, float]:
    """Seconds a task beside those of a plain pool; the start of the processes, measured with one task, is taken off."""
    batches = [work.BatchTask(None, str(i), 1) for i in range(tasks)]  # type: ignore[arg-type]  # none is opened
    ours = seconds(lambda: list(runner.map(empty, batches))) - seconds(lambda: list(runner.map(empty, batches[:1])))
    theirs = seconds(lambda: plain_pool(processes, tasks)) - seconds(lambda: plain_pool(processes, 1))
    return ours / tasks, theirs / tasks


def listed(count: int) -> Iterator[Item]:
    for i in range(count):
        yield Item(f"/nowhere/models/shard-{i:08d}.safetensors", f"models/shard-{i:08d}.safetensors", 1 << 20, "pin")


def driver_memory(count: int) -> int:
    """Peak resident bytes of a driver that plans `count` items and walks through their batches; in a fresh process."""
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import fleet; fleet.drive({count})"
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout)


def drive(count: int) -> None:
    """The driver's part of a job of `count` items, whose tasks do nothing."""
    with tempfile.TemporaryDirectory() as folder:
        made = Fleet(SCAN, (), folder)
        manifest = written(SCAN, records_at(Path(folder)), listed(count))
        for _ in InlineRunner().map(lambda task: None, made._tasks(manifest, 1, ModelParts(None))):
            pass
    sys.stdout.write(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--ray", action="store_true")
    given = parser.parse_args()
    found: dict[str, Any] = {}
    cores = os.cpu_count() or 1
    found["overhead of a task, plain pool"] = overhead(LocalRunner(cores), cores, given.tasks)
    if given.ray:
        found["overhead of a task on Ray, plain pool"] = overhead(RayRunner(), cores, given.tasks)
    found["driver memory"] = {n: driver_memory(n) for n in (1000, given.items)}
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder) / "in"
        make_files(sources, given.files)
        single = seconds(lambda: wb.scan(sources))
        ours = Fleet(SCAN, (str(sources),), str(Path(folder) / "out"))
        found["scan of small files"] = {
            "wb scan": single,
            "fleet, one process": seconds(lambda: ours.run(InlineRunner())),
            f"fleet, {cores} processes": seconds(
                lambda: Fleet(SCAN, (str(sources),), str(Path(folder) / "two")).run(LocalRunner(cores))
            ),
        }
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
