"""A large model as the work of several tasks: the bytes of one, whoever dies, and nothing left beside them."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.fleets.inline import InlineRunner

import weighbridge as wb
from weighbridge.adapters.remote import extra
from weighbridge.adapters.remote.buckets import targets
from weighbridge.base.errors import RemoteError, UsageError
from weighbridge.base.limits import MIB
from weighbridge.cli.main import main
from weighbridge.fleets import parts
from weighbridge.fleets.job import Job
from weighbridge.fleets.parts import PartTask, check_task_size
from weighbridge.fleets.run import Fleet
from weighbridge.fleets.runners import LocalRunner
from weighbridge.io.sink import ParallelUploads, parallel
from weighbridge.io.sink.files import OutFile
from weighbridge.io.sink.journal import FileRange

pytestmark = pytest.mark.costly

HALVES = Job("convert", {"to": "safetensors", "suffix": ".safetensors", "dtype": "f16"})
#: Parts of a bucket can't be smaller, so the model of these tests has 13 MiB of output: three parts.
SIZE = 5 * MIB
COUNT = 3


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts") / "in"
    folder.mkdir()
    values = np.random.default_rng(0).standard_normal((13, 512, 1024)).astype(np.float32)
    save_file({"a": values[0], "b": values[1:12].reshape(-1, 1024), "c": values[12]}, folder / "big.safetensors")
    return folder


@pytest.fixture(scope="module")
def expected(source: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    out = tmp_path_factory.mktemp("single") / "single.safetensors"
    wb.convert(source / "big.safetensors", out, dtype="f16")
    return out.read_bytes()


class Target:
    """Where a job writes, and what can be seen there."""

    def __init__(self, text: str, bucket: Any) -> None:
        self.text, self.bucket = text, bucket

    def fleet(self, source: Path, job: Job = HALVES, **more: Any) -> Fleet:
        extra._kept.clear()
        return Fleet(job, (str(source),), self.text, **{"task_size": SIZE, **more})

    def files(self) -> dict[str, bytes]:
        """All files but the manifest and the report; asserts that no open upload and no stage is left."""
        if self.bucket is None:
            root = Path(self.text)
            found = {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}
        else:
            assert not self.bucket.list_multipart_uploads(Bucket="models").get("Uploads")
            rows = self.bucket.list_objects_v2(Bucket="models").get("Contents", [])
            found = {r["Key"].removeprefix("out/"): self.bucket.get_object(Bucket="models", Key=r["Key"])["Body"].read()
                     for r in rows}  # fmt: skip
        return {name: data for name, data in found.items() if "/manifest" not in name and "report" not in name}

    def outputs(self) -> dict[str, bytes]:
        """What is there but for the journal."""
        found = self.files()
        assert not [name for name in found if "/parts/" in name]
        return {name: data for name, data in found.items() if not name.startswith("_fleet/")}


@pytest.fixture(params=["folder", "bucket"])
def target(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
    monkeypatch.setattr(parallel, "ALIGNMENT", MIB)
    monkeypatch.setattr(targets, "PART", SIZE)
    if request.param == "folder":
        return Target(str(tmp_path / "out"), None)
    return Target("s3://models/out", request.getfixturevalue("bucket"))


class Counting(InlineRunner):
    """Runs tasks here, and counts those that make a part."""

    def __init__(self) -> None:
        self.parts: list[Any] = []

    def map(self, function: Callable[[Any], Any], tasks: Any) -> Iterator[Any]:
        for task in tasks:
            if isinstance(task, PartTask):
                self.parts.append(task.part)
            yield task, function(task)


NAME = "in/big.safetensors"

# ------------------------------------------------------------------------------------------------ equal results


def test_one_model_by_several_tasks(target: Target, source: Path, expected: bytes) -> None:
    runner = Counting()
    report = target.fleet(source).run(runner)
    assert (report.failed, report.missing, report.written) == (0, 0, len(expected))
    assert len(runner.parts) == COUNT
    assert target.outputs() == {NAME: expected}


def test_its_record_is_that_of_a_model_made_whole(target: Target, source: Path, tmp_path: Path) -> None:
    target.fleet(source).run(InlineRunner())
    whole = Target(str(tmp_path / "whole"), None)
    whole.fleet(source, task_size=None).run(InlineRunner())
    rows = [json.loads(data) for name, data in target.files().items() if "/journal/" in name]
    others = [json.loads(data) for name, data in whole.files().items() if "/journal/" in name]
    assert [{**row, "output": None} for row in rows] == [{**row, "output": None} for row in others]


def test_shares_without_an_engine(target: Target, source: Path, expected: bytes) -> None:
    runner = Counting()
    for number in (2, 3, 1):
        report = target.fleet(source, shard=(number, 3)).run(runner)
        assert (report.missing == 0) == (number == 1)
    assert len(runner.parts) == COUNT
    assert target.outputs() == {NAME: expected}


def test_processes_of_this_machine(source: Path, expected: bytes, tmp_path: Path) -> None:
    target = Target(str(tmp_path / "out"), None)
    assert target.fleet(source, task_size=8 * MIB).run(LocalRunner(2)).failed == 0
    assert target.outputs() == {NAME: expected}


def test_a_folder_of_several_files(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.reports.makers import llama_folder

    monkeypatch.setattr(parallel, "ALIGNMENT", 4096)
    model = llama_folder(tmp_path / "llama")
    job = Job("convert", {"to": "hf", "suffix": "", "max_shard_size": 40_000, "dtype": "f16"})
    target, runner = Target(str(tmp_path / "out"), None), Counting()
    assert target.fleet(model, job, task_size=8192).run(runner).failed == 0
    assert len({part.file for part in runner.parts}) > 1
    wb.convert(model, tmp_path / "single", to="hf", max_shard_size=40_000, dtype="f16")
    single = {f"llama/{p.name}": p.read_bytes() for p in (tmp_path / "single").iterdir()}
    assert target.outputs() == single


def test_quantized_blocks(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.oracles import quantize_cases

    monkeypatch.setattr(parallel, "ALIGNMENT", 4096)
    (tmp_path / "in").mkdir()
    made = quantize_cases.make("dense", tmp_path / "in")
    job = Job("quantize", {"ftype": "Q4_K_M", "suffix": ".gguf"})
    target, runner = Target(str(tmp_path / "out"), None), Counting()
    assert target.fleet(tmp_path / "in", job, task_size=8192).run(runner).failed == 0
    assert len(runner.parts) > 3
    wb.quantize(made, tmp_path / "single.gguf", "Q4_K_M")
    assert list(target.outputs().values()) == [(tmp_path / "single.gguf").read_bytes()]


# ------------------------------------------------------------------------------------------------ deaths


class Killed(BaseException):
    pass


def _dies_after(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    real = getattr(owner, name)

    def dies(*args: Any, **how: Any) -> Any:
        real(*args, **how)
        raise Killed

    monkeypatch.setattr(owner, name, dies)


def _dies_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    def dies(*args: Any, **how: Any) -> Any:
        raise Killed

    monkeypatch.setattr(owner, name, dies)


class DiesAfter(Counting):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def map(self, function: Callable[[Any], Any], tasks: Any) -> Iterator[Any]:
        for task, found in super().map(function, tasks):
            if len(self.parts) > self.count:
                raise Killed
            yield task, found


#: What happens to the first driver -> the parts that are left to the second one.
DEATHS: dict[str, int] = {
    "after the uploads are begun": COUNT,
    "after two parts": 1,
    "before it is published": 0,
    "after it is published, before the record": 0,
    "after the record": 0,
}


@pytest.mark.parametrize("death", DEATHS)
def test_a_driver_that_dies_is_followed_by_another(
    death: str, target: Target, source: Path, expected: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner: Counting = DiesAfter(1 if death == "after two parts" else 100)
    kind = ParallelUploads if target.bucket else parallel.ParallelFiles
    with monkeypatch.context() as patch:
        if death == "after the uploads are begun":
            _dies_after(patch, kind, "begin")
        elif death == "before it is published":
            _dies_at(patch, parts, "run")
        elif death == "after it is published, before the record":
            _dies_at(patch, parts, "settle")
        elif death == "after the record":
            _dies_after(patch, parts, "settle")
        with pytest.raises(Killed):
            target.fleet(source).run(runner)
    second = Counting()
    report = target.fleet(source).run(second)
    assert (report.failed, report.missing) == (0, 0)
    assert len(second.parts) == DEATHS[death]
    assert target.outputs() == {NAME: expected}


def test_a_task_that_dies_is_made_by_the_next_run(target: Target, source: Path, expected: bytes) -> None:
    class Loses(Counting):
        def map(self, function: Callable[[Any], Any], tasks: Any) -> Iterator[Any]:
            for number, task in enumerate(tasks):
                yield task, None if number == 1 else function(task)

    report = target.fleet(source).run(Loses())
    assert (report.failed, report.exit) == (1, 2)
    second = Counting()
    assert target.fleet(source).run(second).failed == 0
    assert len(second.parts) == 1
    assert target.outputs() == {NAME: expected}


def test_tasks_out_of_order_and_twice(target: Target, source: Path, expected: bytes) -> None:
    class Wild(InlineRunner):
        def map(self, function: Callable[[Any], Any], tasks: Any) -> Iterator[Any]:
            for task in reversed(list(tasks)):
                function(task)
                yield task, function(task)

    assert target.fleet(source).run(Wild()).failed == 0
    assert target.outputs() == {NAME: expected}


def test_two_drivers_at_once(target: Target, source: Path, expected: bytes) -> None:
    """One runs from start to end while the other one is between two parts."""

    class Both(Counting):
        def map(self, function: Callable[[Any], Any], tasks: Any) -> Iterator[Any]:
            for task, found in super().map(function, tasks):
                if len(self.parts) == 1:
                    assert target.fleet(source).run(other).failed == 0
                yield task, found

    other = Counting()
    report = target.fleet(source).run(Both())
    assert (report.failed, report.missing) == (0, 0)
    assert len(other.parts) == COUNT - 1
    assert target.outputs() == {NAME: expected}


def _drive(source: str, target: str) -> tuple[int, int]:
    """A driver of its own process."""
    report = Fleet(HALVES, (source,), target, task_size=MIB).run(InlineRunner())
    return report.failed, report.missing


def test_two_drivers_of_two_processes(source: Path, expected: bytes, tmp_path: Path) -> None:
    """Whatever the order in which they begin, make, publish and remove."""
    target = Target(str(tmp_path / "out"), None)
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        drivers = [pool.submit(_drive, str(source), target.text) for _ in range(2)]
        assert [driver.result() for driver in drivers] == [(0, 0)] * 2
    assert target.outputs() == {NAME: expected}


def test_what_is_only_moved_is_copied_by_the_store(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes don't come to this machine, but for the parts that have something else, too."""
    monkeypatch.setattr(targets, "PART", SIZE)
    path = tmp_path / "big.safetensors"
    save_file({f"w{i}": np.full((512, 1024), i, np.float32) for i in range(8)}, path)
    bucket.upload_file(str(path), "models", "in/big.safetensors")
    sent: list[tuple[str, int]] = []
    for name in ("put", "copy"):
        real = getattr(targets.BucketUpload, name)

        def counted(upload: Any, number: int, *args: Any, real: Any = real, name: str = name) -> Any:
            found = real(upload, number, *args)
            sent.append((name, number))
            return found

        monkeypatch.setattr(targets.BucketUpload, name, counted)
    target = Target("s3://models/out", bucket)
    job = Job("convert", {"to": "safetensors", "suffix": ".safetensors"})
    report = Fleet(job, ("s3://models/in/",), target.text, task_size=SIZE).run(InlineRunner())
    assert (report.failed, report.missing) == (0, 0)
    assert sorted(sent) == [("copy", 1), ("copy", 2), ("put", 0), ("put", 3)]
    wb.convert(path, tmp_path / "single.safetensors")
    assert target.outputs()["models/in/big.safetensors"] == (tmp_path / "single.safetensors").read_bytes()


def test_a_source_that_changes_on_the_way(target: Target, source: Path, tmp_path: Path) -> None:
    """Nothing of it is published, nothing is left, and the next plan makes the new one."""
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "big.safetensors"
    path.write_bytes((source / "big.safetensors").read_bytes())

    class Changes(Counting):
        def map(self, function: Callable[[Any], Any], tasks: Any) -> Iterator[Any]:
            for task, found in super().map(function, tasks):
                if len(self.parts) == 1:
                    data = bytearray(path.read_bytes())
                    data[-1] ^= 1
                    path.write_bytes(data)
                yield task, found

    assert target.fleet(tmp_path / "in").run(Changes()).failed == 1
    assert target.outputs() == {}
    assert target.fleet(tmp_path / "in", replan=True).run(Counting()).failed == 0
    wb.convert(path, tmp_path / "single.safetensors", dtype="f16")
    assert target.outputs() == {NAME: (tmp_path / "single.safetensors").read_bytes()}


@pytest.mark.parametrize("after", [False, True], ids=["fails", "answers after doing it"])
@pytest.mark.parametrize("call", ["put", "complete"])
def test_a_store_that_fails_now_and_then(
    call: str, after: bool, bucket: Any, source: Path, expected: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every third request fails, before or after the store has done it."""
    monkeypatch.setattr(targets, "PART", SIZE)
    real, calls = getattr(targets.BucketUpload, call), list[int]()

    def flaky(upload: Any, *args: Any, **how: Any) -> None:
        calls.append(1)
        bad = len(calls) % 3 == 1
        if not bad or after:
            real(upload, *args, **how)
        if bad:
            raise RemoteError("the connection was reset")

    monkeypatch.setattr(targets.BucketUpload, call, flaky)
    target = Target("s3://models/out", bucket)
    assert target.fleet(source).run(InlineRunner()).failed == 0
    assert target.outputs() == {NAME: expected}


def test_a_target_that_cannot_be_begun_is_a_dead_letter(
    target: Target, source: Path, expected: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It isn't made whole by one task instead, and the next run makes it."""

    def denied(self: object) -> None:
        raise PermissionError("no uploads of parts here")

    with monkeypatch.context() as patch:
        patch.setattr(ParallelUploads if target.bucket else parallel.ParallelFiles, "begin", denied)
        runner = Counting()
        report = target.fleet(source).run(runner)
    assert (report.failed, report.exit, runner.parts) == (1, 2, [])
    assert b"no uploads of parts here" in b"".join(d for name, d in target.files().items() if "/dead/" in name)
    assert target.fleet(source).run(Counting()).failed == 0
    assert target.outputs() == {NAME: expected}


def test_a_range_is_on_the_disk_before_its_record_is(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "ALIGNMENT", MIB)
    sync, note, events = OutFile.sync_data, parallel.ParallelFiles.note, list[str]()

    def synced(out: OutFile) -> None:
        sync(out)
        events.append("sync")

    def noted(target: parallel.ParallelFiles, part: FileRange) -> None:
        events.append("note")
        note(target, part)

    monkeypatch.setattr(OutFile, "sync_data", synced)
    monkeypatch.setattr(parallel.ParallelFiles, "note", noted)
    assert Target(str(tmp_path / "out"), None).fleet(source).run(InlineRunner()).failed == 0
    assert events == ["sync", "note"] * COUNT


# ------------------------------------------------------------------------------------------------ what it doesn't take


def test_models_below_the_size_are_made_whole(source: Path, expected: bytes, tmp_path: Path) -> None:
    target, runner = Target(str(tmp_path / "out"), None), Counting()
    assert target.fleet(source, task_size=100 * MIB).run(runner).failed == 0
    assert runner.parts == []
    assert target.outputs() == {NAME: expected}


def test_a_format_of_checksums_is_made_whole_or_refused(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runner = Counting()
    job = Job("convert", {"to": "npz", "suffix": ".npz"})
    assert Target(str(tmp_path / "out"), None).fleet(source, job).run(runner).failed == 0
    assert runner.parts == []
    for to, size, words in (("npz", "1GiB", "doesn't apply to npz"), ("gguf", "1000kB", "is less than")):
        command = ["fleet", "convert", str(source), "-o", str(tmp_path / "x"), "--to", to, "--task-size", size]
        assert main(command) == 2
        assert words in capsys.readouterr().err
    with pytest.raises(UsageError):
        check_task_size(1 << 40, "torch")
    check_task_size(1 << 40, "safetensors")
