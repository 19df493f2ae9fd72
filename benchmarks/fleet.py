"""What `wb fleet` costs beside its work: a task's overhead beside a plain pool, a scan of many small files beside
`wb scan`, the driver's memory as the manifest grows.

    python benchmarks/fleet.py [--ray]         with a simulated cluster of two nodes; --files 10000 --items 100000
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
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.fleets.inline import InlineRunner

import weighbridge as wb
from weighbridge.fleets import work
from weighbridge.fleets.job import Item, Job
from weighbridge.fleets.manifest import write_manifest
from weighbridge.fleets.parts import ModelParts
from weighbridge.fleets.run import Fleet
from weighbridge.fleets.runners import LocalRunner, RayRunner
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
        manifest = write_manifest(SCAN, records_at(Path(folder)), listed(count))
        for _ in InlineRunner().map(lambda task: None, made._tasks(manifest, 1, ModelParts(None))):
            pass
    sys.stdout.write(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))


def scans(files: int) -> dict[str, float]:
    """CPU seconds of a scan of many small files, as one command and as a fleet in one process; best of three rounds."""
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder) / "in"
        make_files(sources, files)

        def fleet(number: int) -> None:
            Fleet(SCAN, (str(sources),), f"{folder}/{number}").run(InlineRunner())

        rounds = [(cpu_seconds(partial(wb.scan, sources)), cpu_seconds(partial(fleet, i))) for i in range(3)]
    single, many = (min(column) for column in zip(*rounds, strict=True))
    return {"wb scan": single, "fleet": many, "share of its rate": single / many}


def cpu_seconds(function: Callable[[], Any]) -> float:
    began = time.process_time()
    function()
    return time.process_time() - began


def on_a_cluster(tasks: int) -> dict[str, Any]:
    """Two nodes of one CPU, records in a bucket of moto's: a task beside one of a plain pool, and a job beside the same
    one in two processes of this machine, both warm, best of three rounds."""
    import boto3
    import ray
    from moto.server import ThreadedMotoServer
    from ray.cluster_utils import Cluster

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.environ |= {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_DEFAULT_REGION": "us-east-1",
                   "AWS_ENDPOINT_URL": f"http://{host}:{port}", "PYTHONPATH": str(Path(__file__).parent)}  # fmt: skip
    boto3.client("s3").create_bucket(Bucket="models")
    store = 100 << 20
    cluster = Cluster(True, head_node_args={"num_cpus": 0, "object_store_memory": store, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(num_cpus=1, object_store_memory=store)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        list(RayRunner().map(empty, range(8)))
        return {"seconds of a task": overhead(RayRunner(), 2, tasks), "seconds of a job": totals()}
    finally:
        ray.shutdown()
        cluster.shutdown()
        server.stop()


def totals(files: int = 48, size: int = 256 << 20, rounds: int = 3) -> dict[str, float]:
    """SHA-256 of sparse files: on the cluster, and in processes of this machine but for their start."""
    with tempfile.TemporaryDirectory() as folder:
        for i in range(files):
            with (Path(folder) / f"{i}.bin").open("wb") as file:
                file.truncate(size)

        def job(name: str, runner: Any) -> float:
            return seconds(lambda: Fleet(Job("hash"), (folder,), f"s3://models/{name}").run(runner))

        job("warm", RayRunner())
        start = seconds(lambda: list(LocalRunner(2).map(work.run_batch, ())))
        found = [(job(f"ray{i}", RayRunner()), job(f"local{i}", LocalRunner(2)) - start) for i in range(rounds)]
    on_ray, here = (min(column) for column in zip(*found, strict=True))
    return {"ray": on_ray, "local": here, "ratio": on_ray / here}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--ray", action="store_true")
    given = parser.parse_args()
    cores = os.cpu_count() or 1
    found: dict[str, Any] = {
        "seconds of a task, of a plain pool": overhead(LocalRunner(cores), cores, given.tasks),
        "driver memory": {n: driver_memory(n) for n in (1000, given.items)},
        "CPU seconds of a scan of small files": scans(given.files),
    }
    if given.ray:
        found["cluster"] = on_a_cluster(given.tasks)
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
