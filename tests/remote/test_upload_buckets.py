"""Targets in buckets of S3, Google Cloud Storage and Azure: the bytes of a local run, whatever ends it early. Against
emulators that aren't ours (moto, gcp-storage-emulator, Azurite), and a small service of Azure's documented requests."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from tests import system
from tests.fleets.inline import InlineRunner
from tests.remote.azure_service import ACCOUNT, KEY, BlobService
from tests.remote.uploads import CASES, PART, POINTS, Killed, kill, run, watched

from weighbridge.adapters.remote.buckets import azure, gcs, s3, targets
from weighbridge.adapters.remote.buckets.reading import azure_endpoint, azure_setting
from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import RefusedError, RemoteError
from weighbridge.cli.main import main
from weighbridge.fleets.job import Job
from weighbridge.fleets.run import Fleet
from weighbridge.io.location import open_source

Expected = Callable[[str], dict[str, bytes]]


class Place(NamedTuple):
    """A bucket: its address, its objects and those parts that are left."""

    url: str
    objects: Callable[[], dict[str, bytes]]
    parts: Callable[[], list[str]]
    put: Callable[[str, bytes], Any]


@pytest.fixture(scope="session")
def gcs_emulator() -> Iterator[str]:
    server = pytest.importorskip("gcp_storage_emulator.server", reason="NOT CHECKED against an emulator of GCS")
    running = server.create_server("127.0.0.1", 0, in_memory=True, default_bucket="models")
    running.start()
    yield f"http://127.0.0.1:{running._api._httpd.server_address[1]}"
    running.stop()


@pytest.fixture(scope="session")
def azurite() -> Iterator[str]:
    program = system.require("azurite-blob")
    words = [program, "--blobPort", "0", "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    found = next(match for line in process.stdout if (match := re.search(r"listens on (http://\S+)", line)))
    yield f"{found[1]}/{ACCOUNT}"
    process.terminate()
    process.wait(30)
    process.stdout.close()


def google(url: str, monkeypatch: pytest.MonkeyPatch) -> Place:
    storage = pytest.importorskip("google.cloud.storage")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
    bucket = storage.Client(project=None).bucket("models")

    def objects() -> dict[str, bytes]:
        return {b.name: b.download_as_bytes() for b in bucket.list_blobs() if ".weighbridge/" not in b.name}

    for blob in bucket.list_blobs():
        blob.delete()
    return Place("gs://models", objects,
                 lambda: [b.name for b in bucket.list_blobs() if ".weighbridge/" in b.name],
                 lambda name, data: bucket.blob(name).upload_from_string(data))  # fmt: skip


def heed_preconditions(monkeypatch: pytest.MonkeyPatch) -> None:
    """gcp-storage-emulator ignores ifGenerationMatch=0. Here such a request is refused where there is the object."""
    session = pytest.importorskip("google.auth.transport.requests").AuthorizedSession
    real = session.request

    def request(self: Any, method: str, url: str, data: Any = None, *args: Any, **more: Any) -> Any:
        parts = urlsplit(url)
        if parse_qs(parts.query).get("ifGenerationMatch") == ["0"]:
            composed = re.search("/o/(.+)/compose$", parts.path)
            name = composed[1] if composed else quote(re.search(rb'"name": "([^"]+)"', data)[1].decode(), safe="")  # type: ignore[index]
            found = real(self, "GET", f"{parts.scheme}://{parts.netloc}/storage/v1/b/models/o/{name}")
            if found.status_code == 200:
                found.status_code = 412
                return found
        return real(self, method, url, data, *args, **more)

    monkeypatch.setattr(session, "request", request)


def microsoft(endpoint: str, key: str, monkeypatch: pytest.MonkeyPatch) -> Place:
    blobs = pytest.importorskip("azure.storage.blob")
    for name, value in (("ACCOUNT_NAME", ACCOUNT), ("ACCOUNT_KEY", key), ("ENDPOINT", endpoint)):
        monkeypatch.setenv(f"AZURE_STORAGE_{name}", value)
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING", raising=False)
    container = blobs.ContainerClient(endpoint, "models", credential=key)
    if not container.exists():
        container.create_container()
    for name in list(container.list_blob_names()):
        container.delete_blob(name)

    def objects() -> dict[str, bytes]:
        return {name: container.download_blob(name).readall() for name in container.list_blob_names()}

    def put(name: str, data: bytes) -> None:
        container.upload_blob(name, data, overwrite=True)

    return Place("az://models", objects, list, put)


AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # published


#: Where Google's storage-testbench listens (github.com/googleapis/storage-testbench), with a bucket `models`.
TESTBENCH = "WEIGHBRIDGE_STORAGE_TESTBENCH"


def amazon(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(s3, "TRIES", 1)  # moto answers 500 for an upload that is over

    def objects() -> dict[str, bytes]:
        rows = bucket.list_objects_v2(Bucket="models").get("Contents", [])
        return {row["Key"]: bucket.get_object(Bucket="models", Key=row["Key"])["Body"].read() for row in rows}

    return Place("s3://models", objects,
                 lambda: [row["Key"] for row in bucket.list_multipart_uploads(Bucket="models").get("Uploads", [])],
                 lambda name, data: bucket.put_object(Bucket="models", Key=name, Body=data))  # fmt: skip


COMPOSING = ["gcp-storage-emulator", "testbench", "azure", "azurite"]


@pytest.fixture(params=COMPOSING)
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(targets, "PART", PART)
    if request.param == "moto":
        yield amazon(request.getfixturevalue("bucket"), monkeypatch)
    elif request.param == "azure":
        with BlobService().running() as endpoint:
            yield microsoft(endpoint, KEY, monkeypatch)
    elif request.param == "azurite":
        yield microsoft(request.getfixturevalue("azurite"), AZURITE_KEY, monkeypatch)
    elif request.param == "testbench":
        if TESTBENCH not in os.environ:
            pytest.skip(f"NOT CHECKED against Google's storage-testbench: {TESTBENCH} names none")
        yield google(os.environ[TESTBENCH], monkeypatch)
    else:
        heed_preconditions(monkeypatch)
        yield google(request.getfixturevalue("gcs_emulator"), monkeypatch)


@pytest.mark.parametrize("place", ["moto", *COMPOSING], indirect=True)
@pytest.mark.parametrize("name", CASES)
def test_a_target_in_a_bucket_has_the_bytes_of_a_local_run(
    name: str, place: Place, source: Path, expected: Expected
) -> None:
    run(name, source, place.url)
    assert place.objects() == expected(name)
    assert place.parts() == []
    with pytest.raises(RefusedError, match=r"overwrite=True|replace_folder=True"):
        run(name, source, place.url)
    run(name, source, place.url, overwrite=True)
    assert place.objects() == expected(name)


@pytest.mark.parametrize("place", ["moto", *COMPOSING], indirect=True)
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("name", ["cast", "a folder"])
def test_a_run_that_is_killed_goes_on(
    name: str, point: str, place: Place, source: Path, expected: Expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        kill(patch, targets.BucketUpload, *POINTS[point])
        with pytest.raises(Killed):
            run(name, source, place.url, resume=True, jobs=1)
    assert len(place.objects()) == (point == "after completion")
    sent = watched(monkeypatch, targets.BucketUpload)
    run(name, source, place.url, resume=True)
    assert place.objects() == expected(name)
    assert place.parts() == []
    whole = sum(-(-len(data) // PART) for data in expected(name).values() if len(data) > PART)
    assert len(sent) <= whole - {"after one part": 1, "after two parts": 2}.get(point, 3)


@pytest.mark.parametrize("place", ["moto", *COMPOSING], indirect=True)
def test_an_unfinished_upload_of_another_plan_is_refused(
    place: Place, source: Path, expected: Expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        kill(patch, targets.BucketUpload, "put")
        with pytest.raises(Killed):
            run("copied", source, place.url, resume=True)
    with pytest.raises(RefusedError, match="other sources or options"):
        run("cast", source, place.url, resume=True)
    run("cast", source, place.url, resume=True, overwrite=True)
    assert place.objects() == expected("cast")
    assert place.parts() == []


@pytest.mark.parametrize("place", ["moto", *COMPOSING], indirect=True)
@pytest.mark.parametrize("done", [0.2, 0.7])
def test_an_interrupt_is_resumed_and_without_resume_leaves_nothing(
    done: float, place: Place, source: Path, expected: Expected
) -> None:
    def stop(now: int, total: int, label: str) -> None:
        if now >= done * total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("cast", source, place.url, stop)
    assert place.objects() == {}
    assert place.parts() == []
    with pytest.raises(KeyboardInterrupt):
        run("cast", source, place.url, stop, resume=True)
    assert place.objects() == {}
    run("cast", source, place.url, resume=True)
    assert place.objects() == expected("cast")


@pytest.mark.parametrize("place", ["moto", *COMPOSING], indirect=True)
@pytest.mark.parametrize("name", ["cast", "small"])
def test_of_two_writers_one_wins(name: str, place: Place, source: Path) -> None:
    """The loser is refused, and harms nothing."""
    key = CASES[name][0]

    def meanwhile(now: int, total: int, label: str) -> None:
        place.put(key, b"the winner")

    with pytest.raises(RefusedError, match="in the meantime"):
        run(name, source, place.url, meanwhile)
    assert place.objects() == {key: b"the winner"}


def test_a_loser_whose_parts_the_store_removed_is_refused(place: Place, source: Path, monkeypatch: Any) -> None:
    """Azure drops a blob's uncommitted blocks when another process writes it, and then says that a block is unknown."""
    calls = gcs.GcsCalls if place.url.startswith("gs") else azure.AzureCalls

    def complete(self: Any, name: str, *_: Any, **__: Any) -> None:
        place.put(name, b"the winner")
        raise self.failures[0]("the block list is invalid")

    monkeypatch.setattr(targets, "PART", PART)
    monkeypatch.setattr(calls, "complete", complete)
    with pytest.raises(RefusedError, match="in the meantime"):
        run("cast", source, place.url)
    assert place.objects() == {"o.safetensors": b"the winner"}


def test_several_machines_write_one_object(place: Place, source: Path, expected: Expected, tmp_path: Path) -> None:
    """Each knows its own share alone; the parts meet under the run's mark."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "o.safetensors").symlink_to(source)
    job = Job("convert", {"to": "safetensors", "suffix": ".safetensors", "dtype": "f16"})
    for number in (3, 1, 2):
        fleet = Fleet(job, (str(tmp_path / "in"),), f"{place.url}/out", shard=(number, 3), task_size=PART)
        left = fleet.run(InlineRunner()).missing
        made = {name for name in place.objects() if not name.startswith("out/_fleet/")}
        assert bool(left) == (number != 2) == (not made)
    assert made == {"out/in/o.safetensors"}
    assert place.objects()[made.pop()] == expected("cast")["o.safetensors"]
    assert place.parts() == []


def test_many_parts_are_composed_in_steps(place: Place, source: Path, expected: Expected, monkeypatch: Any) -> None:
    monkeypatch.setattr(targets, "PART", 100_000)
    monkeypatch.setattr(gcs, "COMPOSED", 5)
    run("cast", source, place.url)
    assert place.objects() == expected("cast")
    assert place.parts() == []


@pytest.mark.costly
def test_parts_that_cannot_be_deleted_are_named(
    gcs_emulator: str, source: Path, expected: Expected, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The object is whole, so the run succeeds; what remains costs storage, so it says so."""
    place = google(gcs_emulator, monkeypatch)
    delete = gcs.GcsCalls.delete

    def refuse(self: gcs.GcsCalls, name: str) -> None:
        if name.endswith("00001"):
            raise self.errors.Forbidden("no")
        delete(self, name)

    monkeypatch.setattr(gcs.GcsCalls, "delete", refuse)
    monkeypatch.setattr(targets, "PART", PART)
    assert main(["convert", str(source), f"{place.url}/o.safetensors", "--dtype", "f16"]) == 0
    words = capsys.readouterr().err
    (left,) = place.parts()
    folder = f"{place.url}/{left.rpartition('/')[0]}/"
    assert f"gcloud storage rm --recursive '{folder}'" in words.replace("\n", " ")
    assert "1 of 3" in words
    assert place.objects() == expected("cast")


def test_what_was_written_is_read(place: Place, source: Path, expected: Expected) -> None:
    run("a folder", source, place.url)
    for name, data in expected("a folder").items():
        with open_source(resolve_path(f"{place.url}/{name}")) as opened:
            assert opened.read(0, opened.size) == data
    assert main(["verify", "-q", f"{place.url}/folder"]) == 0


def test_records_are_written_once(place: Place) -> None:
    calls = gcs.GcsCalls("models") if place.url.startswith("gs") else azure.AzureCalls("models")
    records = targets.BucketRecords(targets.BucketStore(calls), "job")
    assert records.read("a/1.json") is None
    assert records.add("a/1.json", b"one")
    assert not records.add("a/1.json", b"two")
    records.put("b.json", b"two")
    assert (records.read("a/1.json"), records.read("b.json")) == (b"one", b"two")
    assert set(records.names("")) == {"a/1.json", "b.json"}
    records.remove("b.json")
    records.remove("b.json")
    assert set(records.names("")) == {"a/1.json"}


def test_a_run_beside_another_s_parts_is_refused(place: Place) -> None:
    """Even one that has parts of its own."""
    calls = gcs.GcsCalls("models") if place.url.startswith("gs") else azure.AzureCalls("models")
    store, ours, theirs = targets.BucketStore(calls), "a" * 32, "b" * 32
    for mark in (ours, theirs):
        calls.put_part("o.bin", calls.start("o.bin", mark, resume=True), 0, b"part")
    for mark in (ours, theirs):
        with pytest.raises(RefusedError, match="other sources or options"):
            store.upload("o.bin", mark, resume=True, replace=False)
    assert store.upload("o.bin", theirs, resume=True, replace=True).done == {0}


def test_a_bucket_that_is_not_there(place: Place, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = place.url.replace("models", "nobucket") + "/x.safetensors"
    assert main(["convert", str(source), target, "--dtype", "f16"]) == 2
    assert re.search("make the (bucket|container) first", capsys.readouterr().err.replace("\n", " "))


# ------------------------------------------------------------------------------------------------ settings


SETTINGS = ("CONNECTION_STRING", "ACCOUNT_NAME", "ACCOUNT_KEY", "ACCESS_KEY", "SAS_TOKEN", "SAS_KEY", "ENDPOINT")


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in SETTINGS:
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)
    for name in ("AZURE_ENDPOINT", "STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_settings_of_azure(bare: pytest.MonkeyPatch) -> None:
    assert azure_endpoint() is None
    bare.setenv("AZURE_STORAGE_ACCOUNT_NAME", "acc")
    assert azure_endpoint() == "https://acc.blob.core.windows.net"
    bare.setenv(
        "AZURE_STORAGE_CONNECTION_STRING",
        "DefaultEndpointsProtocol=https;AccountName=own;AccountKey=a2V5Cg==;EndpointSuffix=core.chinacloudapi.cn",
    )
    assert azure_endpoint() == "https://own.blob.core.chinacloudapi.cn"
    assert azure_setting("key") == "a2V5Cg=="
    assert azure_setting("sas") is None


@pytest.mark.parametrize(("scheme", "words"), [("az", "AZURE_STORAGE_ACCOUNT_NAME"), ("gs", "gcloud auth")])
def test_without_credentials_the_next_step_is_named(
    scheme: str, words: str, bare: pytest.MonkeyPatch, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("google.cloud.storage")
    bare.setenv("NO_GCE_CHECK", "true")  # no test reaches the network
    bare.setenv("CLOUDSDK_CONFIG", os.devnull)
    assert main(["convert", str(source), f"{scheme}://models/x.safetensors"]) == 2
    assert words in capsys.readouterr().err.replace("\n", " ")


def test_a_connection_string_that_is_none(bare: pytest.MonkeyPatch) -> None:
    pytest.importorskip("azure.storage.blob")
    bare.setenv("AZURE_STORAGE_CONNECTION_STRING", "nonsense")
    with pytest.raises(RemoteError, match="CONNECTION_STRING"):
        azure.AzureCalls("models")


@pytest.mark.parametrize(("scheme", "extra"), [("gs", "gs"), ("gcs", "gs"), ("az", "az"), ("abfs", "az")])
def test_a_missing_package_is_named(
    scheme: str, extra: str, bare: pytest.MonkeyPatch, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare.setenv("AZURE_STORAGE_ACCOUNT_NAME", "acc")
    for name in ("google.cloud.storage", "azure.storage.blob"):
        bare.setitem(__import__("sys").modules, name, None)
    assert main(["convert", str(source), f"{scheme}://models/x.safetensors"]) == 2
    assert f'"weighbridge[{extra}]"' in capsys.readouterr().err.replace("\n", " ")
