"""Targets in a bucket of S3, against a server that isn't ours: what fails on the way, and the command. No upload is
left open (the fixture `bucket` looks). What all buckets have in common is in test_upload_buckets.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.remote.uploads import PART, Killed, kill, run, watched

import weighbridge as wb
from weighbridge.adapters.remote.buckets import s3, targets
from weighbridge.base.errors import RefusedError, RemoteError, UsageError
from weighbridge.base.limits import MIB
from weighbridge.cli.main import main

boto3 = pytest.importorskip("boto3")


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "PART", PART)
    monkeypatch.setattr(s3, "TRIES", 1)  # moto answers 500 for an upload that is over


def objects(bucket: Any) -> dict[str, bytes]:
    rows = bucket.list_objects_v2(Bucket="models").get("Contents", [])
    return {row["Key"]: bucket.get_object(Bucket="models", Key=row["Key"])["Body"].read() for row in rows}


@pytest.mark.costly
@pytest.mark.parametrize("name", ["cast", "a folder"])
def test_a_run_that_is_killed_before_its_first_part_goes_on(
    name: str, bucket: Any, source: Path, expected: Callable[[str], dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        kill(patch, s3.S3Calls, "start")
        with pytest.raises(Killed):
            run(name, source, "s3://models", resume=True, jobs=1)
    assert objects(bucket) == {}
    run(name, source, "s3://models", resume=True)
    assert objects(bucket) == expected(name)


@pytest.mark.costly
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="SIGKILL is POSIX'")
def test_sigkill(bucket: Any, source: Path, expected: Callable[[str], dict[str, bytes]]) -> None:
    code = f"""
import os, signal, weighbridge as wb
from weighbridge.adapters.remote.buckets import targets
targets.PART, put = {PART}, targets.BucketUpload.put
def once(self, number, data):
    put(self, number, data)
    os.kill(os.getpid(), signal.SIGKILL)
targets.BucketUpload.put = once
wb.convert({str(source)!r}, "s3://models/o.safetensors", dtype="f16", resume=True, jobs=1)
"""
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ}, timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert objects(bucket) == {}
    run("cast", source, "s3://models", resume=True)
    assert objects(bucket) == expected("cast")


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


@pytest.mark.costly
def test_bytes_that_only_move_are_copied_by_the_store(
    bucket: Any, source: Path, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.upload_file(str(source), "models", "in/model.safetensors")
    sent, copied = watched(monkeypatch, targets.BucketUpload), []
    real = targets.BucketUpload.copy

    def copy(self: Any, number: int, *args: Any) -> bool:
        copied.append(number)
        return real(self, number, *args)

    monkeypatch.setattr(targets.BucketUpload, "copy", copy)
    run("copied", "s3://models/in/model.safetensors", "s3://models")
    assert objects(bucket)["o.safetensors"] == expected("copied")["o.safetensors"]
    assert len(copied) >= 3
    assert not set(copied) & set(sent)


def test_parts_beyond_the_memory_wait_on_the_disk(bucket: Any, source: Path, expected: Any) -> None:
    run("a folder", source, "s3://models", max_memory=8 * MIB)
    assert objects(bucket) == expected("a folder")


# ------------------------------------------------------------------------------------------------ the command


@pytest.mark.costly
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
    size = targets.part_size
    for total in (1, PART, 62 * MIB + 12345, 5 * 10**10, 405 * 10**9, 1_340 * 10**9, 48 << 40):
        part = size(total)
        assert part >= PART
        assert part % MIB == 0
        assert -(-total // part) <= targets.PARTS
    assert size(405 * 10**9) == 39 * MIB


def test_an_address_that_is_only_read_is_no_target(source: Path) -> None:
    with pytest.raises(UsageError, match="written to"):
        wb.convert(source, "https://example.org/m.safetensors")
