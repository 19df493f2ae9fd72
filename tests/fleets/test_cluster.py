"""Tasks on a Ray cluster of two nodes, records and outputs in a bucket: the results of one process, whatever dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from weighbridge.adapters import ray as rays
from weighbridge.adapters.remote import extra
from weighbridge.fleets.job import Job
from weighbridge.fleets.run import Fleet
from weighbridge.fleets.runners import InlineRunner, RayRunner

ray = pytest.importorskip("ray", reason="NOT CHECKED on a cluster: ray isn't installed")
pytestmark = pytest.mark.slow
CONVERT = Job("convert", {"to": "npz", "suffix": ".npz"})


@pytest.fixture(scope="module")
def cluster(s3: str) -> Iterator[Any]:
    """A head without CPUs, and two nodes with one; they inherit the way to the bucket."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("AWS_ACCESS_KEY_ID", "k"), ("AWS_SECRET_ACCESS_KEY", "s"), ("AWS_ENDPOINT_URL", s3),
                            ("AWS_DEFAULT_REGION", "us-east-1"), ("RAY_memory_monitor_refresh_ms", "0"),
                            ("PYTHONPATH", os.pathsep.join(("src", ".")))):  # fmt: skip
            patch.setenv(name, value)
        patch.delenv("HF_HUB_OFFLINE", raising=False)
        store = 100 * 1024 * 1024
        made = Cluster(True, head_node_args={"num_cpus": 0, "object_store_memory": store, "include_dashboard": False})
        for _ in range(2):
            made.add_node(num_cpus=1, object_store_memory=store)
        ray.init(address=made.address, log_to_driver=False)
        yield made
        ray.shutdown()
        made.shutdown()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cluster") / "models"
    folder.mkdir()
    for i in range(8):
        save_file({"w": np.full((64, 64), i, np.float32)}, folder / f"m{i}.safetensors")
    (folder / "broken.safetensors").write_bytes(bytes(40))
    return folder


def objects(bucket: Any) -> dict[str, bytes]:
    """What a job leaves but for tracebacks, which name machines' files."""
    rows = bucket.list_objects_v2(Bucket="models").get("Contents", [])
    found = {row["Key"]: bucket.get_object(Bucket="models", Key=row["Key"])["Body"].read() for row in rows}
    return {key: data for key, data in found.items() if "/dead" not in key}


def run(sources: Path, job: Job, runner: Any) -> Any:
    extra._kept.clear()
    return Fleet(job, (str(sources),), "s3://models/out").run(runner)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weighbridge.fleets.job.BATCH_ITEMS", 1)


@pytest.mark.parametrize("job", [Job("hash", {"tensors": True}), CONVERT], ids=["hash", "convert"])
def test_a_cluster_gives_what_one_process_gives(
    job: Job, cluster: Any, bucket: Any, sources: Path, small: None
) -> None:
    report = run(sources, job, RayRunner())
    assert (report.failed, report.missing) == (1, 0)
    found = objects(bucket)
    for row in bucket.list_objects_v2(Bucket="models")["Contents"]:
        bucket.delete_object(Bucket="models", Key=row["Key"])
    run(sources, job, InlineRunner())
    assert objects(bucket) == found


def test_a_node_that_dies_in_mid_run(cluster: Any, bucket: Any, sources: Path, small: None) -> None:
    expected = run(sources, CONVERT, InlineRunner())
    whole = objects(bucket)
    for row in bucket.list_objects_v2(Bucket="models")["Contents"]:
        bucket.delete_object(Bucket="models", Key=row["Key"])
    node = cluster.add_node(num_cpus=1, object_store_memory=100 * 1024 * 1024)

    class Dies(RayRunner):
        def map(self, function: Any, tasks: Any) -> Iterator[Any]:
            for number, found in enumerate(super().map(function, tasks)):
                if number == 1:
                    cluster.remove_node(node, allow_graceful=False)
                yield found

    report = run(sources, CONVERT, Dies())
    assert report == expected
    assert objects(bucket) == whole


def _once(task: tuple[int, str]) -> int:
    """A task whose worker is killed after it has left its mark, the first time."""
    number, folder = task
    mark = Path(folder) / f"{number}"
    tries = len(mark.read_text()) if mark.exists() else 0
    mark.write_text("x" * (tries + 1))
    if number == 3 and tries == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def _never(task: int) -> int:
    if task == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def test_a_worker_that_dies_after_its_side_effect_does_it_again(cluster: Any, tmp_path: Path) -> None:
    found = {task[0]: result for task, result in rays.mapped(_once, [(i, str(tmp_path)) for i in range(12)])}
    assert found == {i: i * i for i in range(12)}
    assert (tmp_path / "3").read_text() == "xx"


def test_a_task_that_always_kills_its_worker_is_given_back(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rays, "RETRIES", 1)
    assert dict(rays.mapped(_never, range(3))) == {0: 0, 1: None, 2: 2}


def _same(task: int) -> int:
    return task


def test_the_window_bounds_what_is_pending(cluster: Any) -> None:
    """The tasks come from an iterator, and no more are taken than the cluster may need."""
    taken: list[int] = []

    def tasks() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    ahead = 0
    for done, _ in enumerate(rays.mapped(_same, tasks())):
        ahead = max(ahead, len(taken) - done)
    assert len(taken) == 100
    assert ahead <= 3 * rays.WINDOW + 1
