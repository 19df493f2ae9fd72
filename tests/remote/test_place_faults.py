"""The faults of test_http_faults where the bytes come from the Hub (its files, and the host that it redirects to) and
from a bucket: the right bytes or an error with the next step, never a mix."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.remote.servers import COMMIT, Faults, FileServer, Hub
from tests.remote.test_http_faults import FAULTS, Fault

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import RemoteError
from weighbridge.io.location import open_source
from weighbridge.io.ranges import RangeSource
from weighbridge.io.source import Source

DATA = random.Random(2).randbytes(300_000)
Connect = Callable[..., None]

#: What differs from a plain web server. A redirect leads from the Hub to another host: that one has the fault.
HUB = FAULTS | {
    "changes": Fault(lambda: Faults(changes_after=1), None),  # at a commit: the store answers by content
    "changes, no ranges": Fault(lambda: Faults(changes_after=1, no_ranges=True), None),
}
#: obstore's own words, and what it does itself.
BUCKET = {name: FAULTS[name] for name in FAULTS if "redirect" not in name} | {
    "429 for hours": Fault(lambda: Faults(status=(429, 1), retry_after="7200"), None),
    "503 for ever": Fault(lambda: Faults(status=(503, -1)), "503"),
    "500 for ever": Fault(lambda: Faults(status=(500, -1)), "500"),
    "403": Fault(lambda: Faults(status=(403, -1)), "access is denied"),
    "dropped at once": Fault(lambda: Faults(drop_after=0), "broke off"),
    "no ranges": Fault(lambda: Faults(no_ranges=True), "non-partial response"),
    "no ranges, dropped": Fault(lambda: Faults(no_ranges=True, drop_after=250_000), "non-partial response"),
    "another range": Fault(lambda: Faults(shift=5), "Requested 0..70000, got 5..70000"),
    "nonsense as range": Fault(lambda: Faults(content_range="bytes 0-9"), "CONTENT_RANGE"),
    "unknown size": Fault(lambda: Faults(content_range="bytes 0-32767/*"), "CONTENT_RANGE"),
    "a range that is too long": Fault(lambda: Faults(content_range="bytes 0-299999/300000"), "Requested 0..70000"),
    "compressed": Fault(lambda: Faults(encoding="gzip"), None),  # of an object that is stored so: its own bytes
    "changes, no ranges": Fault(lambda: Faults(changes_after=1, no_ranges=True), "non-partial response"),
}  # fmt: skip


@contextmanager
def from_hub(folder: Path, connect: Connect, faults: Faults) -> Iterator[tuple[Source, FileServer]]:
    folder.mkdir()
    (folder / "m.bin").write_bytes(DATA)
    with Hub(folder).running() as hub:
        connect(hub)
        path = resolve_path("hf://org/model/m.bin")
        hub.cdn.faults = faults
        with open_source(path) as source:
            yield source, hub.cdn


@contextmanager
def from_bucket(monkeypatch: pytest.MonkeyPatch, faults: Faults) -> Iterator[tuple[Source, FileServer]]:
    from weighbridge.adapters.remote.buckets import objects, reading

    pytest.importorskip("obstore")
    monkeypatch.setattr(reading, "RETRIES", 2)
    with FileServer({"/models/a b.bin": DATA}, faults).running() as server:
        for name, value in (("ACCESS_KEY_ID", "k"), ("SECRET_ACCESS_KEY", "s"), ("DEFAULT_REGION", "us-east-1"),
                            ("ENDPOINT_URL", server.url)):  # fmt: skip
            monkeypatch.setenv(f"AWS_{name}", value)
        etag = hashlib.md5(DATA).hexdigest()
        store = reading.open_store("s3", "models")
        with RangeSource(objects.BucketFile(store, "a b.bin", "s3://models/a b.bin", len(DATA), etag)) as source:
            yield source, server


def check(source: Source, server: FileServer, fault: Fault) -> None:
    def read() -> bytes:
        return b"".join(source.read(at, min(70_000, source.size - at)) for at in range(0, source.size, 70_000))

    if fault.error is None:
        assert read() == DATA
        return
    with pytest.raises((RemoteError, OSError), match=fault.error) as caught:
        read()
    assert isinstance(caught.value, RemoteError)
    assert caught.value.hint
    assert len(server.log) < 60


@pytest.mark.parametrize("name", HUB)
def test_a_fault_behind_the_hub(name: str, tmp_path: Path, connect: Connect) -> None:
    fault = HUB[name]
    with from_hub(tmp_path / "model", connect, fault.faults()) as (source, server):
        if name.startswith("changes"):  # the Hub lists the digest that its redirect repeats
            server.faults = Faults()
        check(source, server, fault)


def test_a_file_of_the_hub_that_changes_at_its_commit(tmp_path: Path, connect: Connect) -> None:
    """The redirect names the file that it leads to; another one than the Hub listed is an error."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "m.bin").write_bytes(DATA)
    with Hub(folder).running() as hub:
        connect(hub)
        path = resolve_path("hf://org/model/m.bin")
        assert f"/resolve/{COMMIT}/" in path._found()[0].url("m.bin")  # type: ignore[attr-defined]
        hub.siblings[0]["lfs"]["sha256"] = "0" * 64
        hub.cdn.files[f"/{'0' * 64}"] = DATA
        with open_source(path) as source, pytest.raises(RemoteError, match="has changed"):
            source.read(0, 100)


@pytest.mark.parametrize("name", BUCKET)
def test_a_fault_of_a_bucket(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with from_bucket(monkeypatch, BUCKET[name].faults()) as (source, server):
        check(source, server, BUCKET[name])


@pytest.mark.parametrize("every", [8_000, 65_536])
def test_a_bucket_that_drops_the_connection_is_taken_up_where_it_broke(
    every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with from_bucket(monkeypatch, Faults(drop_after=every)) as (source, server):
        assert source.read(0, 100_000) == DATA[:100_000]
        starts = {int(r.headers["range"][6:].partition("-")[0]) for r in server.log}
        assert len(starts) >= 100_000 // every


def test_a_buckets_signature_does_not_go_to_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        FileServer({"/models/a b.bin": DATA}).running() as other,
        from_bucket(monkeypatch, Faults(redirect=lambda path: f"{other.url}{path}")) as (source, server),
    ):
        with suppress(RemoteError):  # not followed is as good
            source.read(0, 100)
        assert server.log
        assert "authorization" in server.log[0].headers
        assert not any("authorization" in r.headers for r in other.log)
