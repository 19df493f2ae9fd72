"""Tasks on a Ray cluster of two nodes, records and outputs in a bucket: the results of one process, whatever dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.fleets.inline import InlineRunner

import weighbridge as wb
from weighbridge.adapters import ray as rays
from weighbridge.adapters.remote import extra
from weighbridge.fleets.job import Job
from weighbridge.fleets.run import Fleet
from weighbridge.fleets.runners import RayRunner

ray = pytest.importorskip("ray", reason="NOT CHECKED on a cluster: ray isn't installed")
pytestmark = pytest.mark.slow
HALVES = Job("convert", {"to": "safetensors", "suffix": ".safetensors", "dtype": "f16"})
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
        for zone in "ab":
            made.add_node(num_cpus=1, object_store_memory=store, labels={"zone": zone})
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


# ------------------------------------------------------------------------------------------------ one large model


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of which one object of three parts is made; parts of a bucket aren't small."""
    folder = tmp_path_factory.mktemp("large") / "in"
    folder.mkdir()
    values = np.random.default_rng(0).standard_normal((18, 1024, 1024)).astype(np.float32)
    save_file({f"w{i}": value for i, value in enumerate(values)}, folder / "big.safetensors")
    return folder


class Dying(RayRunner):
    """Runs on a cluster; `at` is called with the number of each part that has come back."""

    def __init__(self, at: Callable[[int], None]) -> None:
        super().__init__()
        self.at, self.parts = at, 0

    def map(self, function: Any, tasks: Any) -> Iterator[Any]:
        for task, found in super().map(function, tasks):
            self.parts += 1
            self.at(self.parts)
            yield task, found


def test_one_model_over_several_nodes(
    cluster: Any, bucket: Any, large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node dies with a part, then the driver; the next one makes what is missing, and the bytes are those of here."""
    node = cluster.add_node(num_cpus=1, object_store_memory=100 * 1024 * 1024)

    def at(parts: int) -> None:
        if parts == 1:
            cluster.remove_node(node, allow_graceful=False)
        else:
            raise KeyboardInterrupt

    def fleet() -> Fleet:
        extra._kept.clear()
        return Fleet(HALVES, (str(large),), "s3://models/out", task_size=1)

    monkeypatch.setattr(rays, "WINDOW", 1)  # at most a part for each node is under way when the driver dies
    with pytest.raises(KeyboardInterrupt):
        fleet().run(Dying(at))
    (upload,) = bucket.list_multipart_uploads(Bucket="models")["Uploads"]
    there = bucket.list_parts(Bucket="models", Key=upload["Key"], UploadId=upload["UploadId"])["Parts"]
    second = Dying(lambda parts: None)
    report = fleet().run(second)
    assert (report.failed, report.missing) == (0, 0)
    assert second.parts <= 3 - (len(there) - 1)  # one part marks the upload; others may still have come meanwhile
    wb.convert(large / "big.safetensors", tmp_path / "single.safetensors", dtype="f16")
    assert objects(bucket)["out/in/big.safetensors"] == (tmp_path / "single.safetensors").read_bytes()
    assert not bucket.list_multipart_uploads(Bucket="models").get("Uploads")


def test_a_full_object_store_is_no_obstacle(cluster: Any, bucket: Any, sources: Path, small: None) -> None:
    """Models and outputs never pass through it."""
    held = [ray.put(np.zeros(40_000_000, np.uint8)) for _ in range(3)]
    assert run(sources, CONVERT, RayRunner()).failed == 1  # the broken one
    found = objects(bucket)
    del held
    for row in bucket.list_objects_v2(Bucket="models")["Contents"]:
        bucket.delete_object(Bucket="models", Key=row["Key"])
    run(sources, CONVERT, InlineRunner())
    assert objects(bucket) == found


# ------------------------------------------------------------------------------------------------ the runner


def _zone(task: int) -> str:
    return str(ray.get_runtime_context().get_node_labels()["zone"])


def test_tasks_go_to_nodes_with_a_label(cluster: Any) -> None:
    found = dict(rays.mapped(_zone, range(6), labels={"zone": "b"}))
    assert found == dict.fromkeys(range(6), "b")


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
