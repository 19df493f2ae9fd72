"""Targets in a bucket, against a server that isn't ours: the bytes of a local run, whatever fails on the way, and no
upload left open (the fixture `bucket` looks)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import weighbridge as wb
from weighbridge.adapters.remote import s3
from weighbridge.base.errors import RefusedError, RemoteError, UsageError
from weighbridge.base.limits import MIB
from weighbridge.cli.main import main
from weighbridge.io.sink.upload import UploadSink

boto3 = pytest.importorskip("boto3")
PART = 5 * MIB  # the least that S3 takes

#: name -> target, function, options
CASES: Mapping[str, tuple[str, Callable[..., Any], dict[str, Any]]] = {
    "copied": ("o.safetensors", wb.plan_convert, {}),
    "cast": ("o.safetensors", wb.plan_convert, {"dtype": "f16"}),
    "checksums first": ("o.npz", wb.plan_convert, {}),
    "a folder": ("folder", wb.plan_convert, {"to": "safetensors", "max_shard_size": 9_000_000}),
    "small": ("s/m.safetensors", wb.plan_slice, {"keep": ["small.*"]}),
}


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "PART", PART)
    monkeypatch.setattr(s3, "TRIES", 1)  # moto answers 500 for an upload that is over


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(7)
    path = tmp_path_factory.mktemp("s3") / "model.safetensors"
    tensors = {f"layer.{i}.weight": rng.standard_normal((1024, 1024)).astype(np.float32) for i in range(5)}
    save_file(tensors | {"small.a": np.ones(3, np.float32), "small.b": np.arange(999)}, path)
    return path


def run(name: str, source: Path | str, where: str, progress: Any = None, **more: Any) -> None:
    target, plan, options = CASES[name]
    with plan(source, f"{where}/{target}", **{"jobs": 2, **options, **more}) as made:
        made.run(progress)


def objects(bucket: Any) -> dict[str, bytes]:
    rows = bucket.list_objects_v2(Bucket="models").get("Contents", [])
    return {row["Key"]: bucket.get_object(Bucket="models", Key=row["Key"])["Body"].read() for row in rows}


def files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def expected(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, bytes]]:
    folder = tmp_path_factory.mktemp("expected")

    def expected(name: str) -> dict[str, bytes]:
        if not (folder / name).exists():
            run(name, source, str(folder / name), parents=True)
        return files(folder / name)

    return expected


class Killed(BaseException):
    """The process ends here, without a word to the store."""


def kill(patch: pytest.MonkeyPatch, method: str, nth: int = 1, before: bool = False) -> None:
    """Ends a run as SIGKILL does, `before` or after the nth call of a method of an upload."""
    leave, real, calls = UploadSink.__exit__, getattr(s3.S3Upload, method), list[Any]()

    def call(self: Any, *args: Any, **options: Any) -> Any:
        calls.append(args)
        number = len(calls)
        if before and number == nth:
            raise Killed
        found = real(self, *args, **options)
        if number == nth:
            raise Killed
        return found

    def gone(self: UploadSink, kind: Any, error: Any, trace: Any) -> None:
        if not isinstance(error, Killed):
            leave(self, kind, error, trace)

    patch.setattr(s3.S3Upload, method, call)
    patch.setattr(UploadSink, "__exit__", gone)
    patch.setattr(UploadSink, "_undo", lambda *_: None)


@pytest.mark.parametrize("name", CASES)
def test_a_target_in_a_bucket_has_the_bytes_of_a_local_run(
    name: str, bucket: Any, source: Path, expected: Callable[[str], dict[str, bytes]]
) -> None:
    run(name, source, "s3://models")
    assert objects(bucket) == expected(name)
    with pytest.raises(RefusedError, match=r"--overwrite|--replace-folder"):
        run(name, source, "s3://models")
    run(name, source, "s3://models", overwrite=True)
    assert objects(bucket) == expected(name)


#: where a run is killed: method of the upload, which call, before it takes place
POINTS = {
    "after create": ("begin", 1, False),
    "after one part": ("put", 1, False),
    "after two parts": ("put", 2, False),
    "before completion": ("complete", 1, True),
    "after completion": ("complete", 1, False),
}


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("name", ["cast", "a folder"])
def test_a_run_that_is_killed_goes_on(
    name: str,
    point: str,
    bucket: Any,
    source: Path,
    expected: Callable[[str], dict[str, bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        kill(patch, *POINTS[point])
        with pytest.raises(Killed):
            run(name, source, "s3://models", resume=True, jobs=1)
    before = objects(bucket)
    assert len(before) == (point == "after completion")
    sent = watched(monkeypatch)
    run(name, source, "s3://models", resume=True)
    assert objects(bucket) == expected(name)
    whole = sum(-(-len(data) // PART) for data in expected(name).values() if len(data) > PART)
    least = {"after create": 0, "after one part": 1, "after two parts": 2}.get(point, 3)
    assert len(sent) <= whole - least


def watched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the parts that are sent from now on."""
    sent: list[int] = []
    real = s3.S3Upload.put

    def put(self: Any, number: int, data: Any) -> None:
        sent.append(number)
        real(self, number, data)

    monkeypatch.setattr(s3.S3Upload, "put", put)
    return sent


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="SIGKILL is POSIX'")
def test_sigkill(bucket: Any, source: Path, expected: Callable[[str], dict[str, bytes]]) -> None:
    code = f"""
import os, signal, weighbridge as wb
from weighbridge.adapters.remote import s3
s3.PART, put, seen = {PART}, s3.S3Upload.put, []
def once(self, number, data):
    put(self, number, data)
    os.kill(os.getpid(), signal.SIGKILL)
s3.S3Upload.put = once
wb.convert({str(source)!r}, "s3://models/o.safetensors", dtype="f16", resume=True, jobs=1)
"""
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ}, timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert objects(bucket) == {}
    run("cast", source, "s3://models", resume=True)
    assert objects(bucket) == expected("cast")


@pytest.mark.parametrize("done", [0.2, 0.7])
def test_an_interrupt_is_resumed_and_without_resume_leaves_nothing(
    done: float, bucket: Any, source: Path, expected: Callable[[str], dict[str, bytes]]
) -> None:
    def stop(now: int, total: int, label: str) -> None:
        if now >= done * total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("cast", source, "s3://models", stop)
    assert not bucket.list_multipart_uploads(Bucket="models").get("Uploads")
    with pytest.raises(KeyboardInterrupt):
        run("cast", source, "s3://models", stop, resume=True)
    assert objects(bucket) == {}
    run("cast", source, "s3://models", resume=True)
    assert objects(bucket) == expected("cast")


def test_an_unfinished_upload_of_another_plan_is_refused(
    bucket: Any, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        kill(patch, "put")
        with pytest.raises(Killed):
            run("copied", source, "s3://models", resume=True)
    with pytest.raises(RefusedError, match="other sources or options"):
        run("cast", source, "s3://models", resume=True)
    run("copied", source, "s3://models", resume=True, overwrite=True, dtype="bf16")
    assert len(objects(bucket)) == 1


# ------------------------------------------------------------------------------------------------ faults


def faulty(monkeypatch: pytest.MonkeyPatch, call: str, nth: int, answered: bool, times: int = 1) -> None:
    """A store whose nth `call` fails; with `answered` after it has done it."""
    from botocore.exceptions import ClientError

    real = s3._client

    def client() -> Any:
        made, calls = real(), []
        inner = getattr(made, call)

        def fails(**options: Any) -> Any:
            calls.append(options)
            if nth <= len(calls) < nth + times:
                if answered:
                    inner(**options)
                raise ClientError({"Error": {"Code": "InternalError", "Message": "we are sorry"}}, call)
            return inner(**options)

        setattr(made, call, fails)
        return made

    monkeypatch.setattr(s3, "_client", client)


FAILING = {"create_multipart_upload": 1, "upload_part": 2, "complete_multipart_upload": 1, "put_object": 1}


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("call", FAILING)
def test_a_store_that_fails(
    call: str, resume: bool, bucket: Any, source: Path, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "small" if call == "put_object" else "cast"
    with monkeypatch.context() as patch:
        faulty(patch, call, FAILING[call], answered=False)
        with pytest.raises(RemoteError, match="we are sorry"):
            run(name, source, "s3://models", resume=resume)
    assert objects(bucket) == {}
    if not resume:
        assert not bucket.list_multipart_uploads(Bucket="models").get("Uploads")
    run(name, source, "s3://models", resume=resume)
    assert objects(bucket) == expected(name)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("call", ["complete_multipart_upload", "put_object"])
def test_a_store_that_answers_after_doing_it(
    call: str, overwrite: bool, bucket: Any, source: Path, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "small" if call == "put_object" else "cast"
    faulty(monkeypatch, call, 1, answered=True)
    run(name, source, "s3://models", overwrite=overwrite)
    assert objects(bucket) == expected(name)


@pytest.mark.parametrize("name", ["cast", "small"])
def test_of_two_writers_one_wins(name: str, bucket: Any, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loser is refused, and harms nothing."""
    key = CASES[name][0]

    def meanwhile(now: int, total: int, label: str) -> None:
        bucket.put_object(Bucket="models", Key=key, Body=b"the winner")

    with pytest.raises(RefusedError, match="in the meantime"):
        run(name, source, "s3://models", meanwhile)
    assert objects(bucket) == {key: b"the winner"}


def test_two_runs_of_one_plan_share_an_upload(bucket: Any, source: Path, expected: Any) -> None:
    """A second driver takes up the first one's upload and completes it; the first sees its object, and is content."""
    inner: list[None] = []

    def meanwhile(now: int, total: int, label: str) -> None:
        if not inner and now > total // 2:
            inner.append(None)
            run("cast", source, "s3://models", resume=True)

    run("cast", source, "s3://models", meanwhile, resume=True, jobs=1)
    assert inner
    assert objects(bucket) == expected("cast")


def test_a_folder_that_fails_to_appear_whole_disappears(bucket: Any, source: Path, monkeypatch: Any) -> None:
    with monkeypatch.context() as patch:
        faulty(patch, "put_object", 1, answered=False)
        with pytest.raises(RemoteError):
            run("a folder", source, "s3://models")
    assert objects(bucket) == {}


def test_a_folder_with_other_objects(bucket: Any, source: Path, expected: Any) -> None:
    bucket.put_object(Bucket="models", Key="folder/notes.txt", Body=b"mine")
    with pytest.raises(RefusedError, match=r"notes\.txt"):
        run("a folder", source, "s3://models", overwrite=True)
    run("a folder", source, "s3://models", replace_folder=True)
    assert objects(bucket) == expected("a folder")


def test_bytes_that_only_move_are_copied_by_the_store(
    bucket: Any, source: Path, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.upload_file(str(source), "models", "in/model.safetensors")
    sent, copied = watched(monkeypatch), []
    real = s3.S3Upload.copy

    def copy(self: Any, number: int, *args: Any) -> bool:
        copied.append(number)
        return real(self, number, *args)

    monkeypatch.setattr(s3.S3Upload, "copy", copy)
    run("copied", "s3://models/in/model.safetensors", "s3://models")
    assert objects(bucket)["o.safetensors"] == expected("copied")["o.safetensors"]
    assert len(copied) >= 3
    assert not set(copied) & set(sent)


def test_parts_beyond_the_memory_wait_on_the_disk(bucket: Any, source: Path, expected: Any) -> None:
    run("a folder", source, "s3://models", max_memory=8 * MIB)
    assert objects(bucket) == expected("a folder")


# ------------------------------------------------------------------------------------------------ the command


def test_the_command(bucket: Any, source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    assert main(["convert", str(source), "s3://models/x.npz", "--dry-run"]) == 0
    assert "of this machine's disk are needed" in capsys.readouterr().err.replace("\n", " ")
    assert main(["convert", str(source), "s3://models/a/x.safetensors", "--dtype", "f16"]) == 0
    assert "s3://models/a/x.safetensors" in capsys.readouterr().out
    assert main(["diff", "s3://models/a/x.safetensors", str(source), "--tolerance", "0.01"]) in (0, 1)
    capsys.readouterr()
    assert main(["convert", str(source), "s3://models/a/x.safetensors"]) == 2
    assert "--overwrite" in capsys.readouterr().err
    for words in (
        ["convert", str(source), "s3://models/b.safetensors", "--parents"],
        ["convert", str(source), "gs://models/b.safetensors"],
        ["convert", str(source), "s3://models"],
        ["convert", str(source), "s3://models/a/../b.safetensors"],
        ["convert", str(source), "s3://nobucket/b.safetensors"],
        ["convert", "s3://models/a/x.safetensors", "s3://models/a/x.safetensors", "--overwrite"],
        ["fetch", "s3://models/a", "s3://models/b"],
        ["get", str(source), "small.a", "-o", "s3://models/a.npy"],
    ):
        assert main(words) == 2, words
        assert "hint" in capsys.readouterr().err, words
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # it keeps credentials
    assert main(["convert", str(source), "s3://models/c.safetensors"]) == 2
    assert "AWS_ACCESS_KEY_ID" in capsys.readouterr().err


def test_sizes_of_parts() -> None:
    """As many parts as S3 allows, of whole MiB."""
    size = s3.S3Store.part_size
    for total in (1, PART, 62 * MIB + 12345, 5 * 10**10, 405 * 10**9, 1_340 * 10**9, 48 << 40):
        part = size(None, total)  # type: ignore[arg-type]
        assert part >= PART
        assert part % MIB == 0
        assert -(-total // part) <= s3.PARTS
    assert size(None, 405 * 10**9) == 39 * MIB  # type: ignore[arg-type]


def test_an_address_that_is_only_read_is_no_target(source: Path) -> None:
    with pytest.raises(UsageError, match="written to"):
        wb.convert(source, "https://example.org/m.safetensors")
