"""A fleet whose records and outputs lie in a bucket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.fleets.inline import InlineRunner

from weighbridge.adapters.remote.schemes import resolve_target
from weighbridge.base.errors import RemoteError
from weighbridge.fleets.job import Job
from weighbridge.fleets.run import Fleet
from weighbridge.fleets.sources import items
from weighbridge.io.sink import records_at

CONVERT = Job("convert", {"to": "npz", "suffix": ".npz"})


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    for i in range(3):
        save_file({"w": np.full((4, 4), i, np.float32)}, folder / f"m{i}.safetensors")
    return folder


def outputs(bucket: Any) -> dict[str, bytes]:
    rows = bucket.list_objects_v2(Bucket="models").get("Contents", [])
    return {r["Key"]: bucket.get_object(Bucket="models", Key=r["Key"])["Body"].read() for r in rows}


@pytest.mark.costly
def test_from_a_bucket_to_a_bucket(bucket: Any, sources: Path, tmp_path: Path) -> None:
    for path in sources.iterdir():
        bucket.upload_file(str(path), "models", f"in/{path.name}")
    here = Fleet(CONVERT, (str(sources),), str(tmp_path / "out"))
    here.run(InlineRunner())
    report = Fleet(CONVERT, ("s3://models/in/*.safetensors",), "s3://models/out").run(InlineRunner())
    assert (report.failed, report.exit, report.items) == (0, 0, 3)
    found = outputs(bucket)
    for i in range(3):
        assert found[f"out/m{i}.npz"] == (tmp_path / "out" / "models" / f"m{i}.npz").read_bytes()


def test_an_object_that_changes_is_refused(bucket: Any, sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.upload_file(str(sources / "m0.safetensors"), "models", "in/m0.safetensors")
    here = Fleet(Job("hash"), ("s3://models/in/",), "s3://models/out")
    here.manifest()
    bucket.upload_file(str(sources / "m1.safetensors"), "models", "in/m0.safetensors")
    monkeypatch.setattr("weighbridge.adapters.remote.extra._kept", {})
    assert here.run(InlineRunner()).failed == 1


@pytest.mark.costly
def test_an_output_that_is_there_from_a_run_that_died_is_recognised(
    bucket: Any, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output is there, its record isn't: nothing is written again. One of another writer stays, and is an error."""
    here = Fleet(CONVERT, (str(sources),), "s3://models/out")
    here.run(InlineRunner())
    whole = outputs(bucket)
    for key in [key for key in whole if "/journal/" in key]:
        bucket.delete_object(Bucket="models", Key=key)
    when = bucket.head_object(Bucket="models", Key="out/models/m0.npz")["LastModified"]
    assert here.run(InlineRunner()).failed == 0
    assert outputs(bucket) == whole
    assert bucket.head_object(Bucket="models", Key="out/models/m0.npz")["LastModified"] == when
    for key in [key for key in whole if "/journal/" in key]:
        bucket.delete_object(Bucket="models", Key=key)
    bucket.put_object(Bucket="models", Key="out/models/m0.npz", Body=b"mine")
    assert here.run(InlineRunner()).failed == 1
    assert outputs(bucket)["out/models/m0.npz"] == b"mine"


@pytest.mark.parametrize("place", ["s3://models/r", "folder"])
def test_a_record_is_added_once(place: str, bucket: Any, tmp_path: Path) -> None:
    records = records_at(resolve_target(place if "://" in place else tmp_path / place))
    assert records.read("a/b") is None
    assert list(records.names("a")) == []
    assert records.add("a/b", b"1")
    assert not records.add("a/b", b"2")
    assert records.read("a/b") == b"1"
    records.put("a/b", b"3")
    records.put("a/c/d", b"4")
    assert (records.read("a/b"), sorted(records.names("a"))) == (b"3", ["b", "c/d"])
    records.remove("a/b")
    assert sorted(records.names("a")) == ["c/d"]


def test_an_organisation_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each model at its commit, by name."""
    hub = pytest.importorskip("huggingface_hub")

    class Api:
        def __init__(self, **_: Any) -> None: ...

        def list_models(self, author: str, full: bool) -> Any:
            return [hub.ModelInfo(id=f"{author}/{n}", sha=c * 40, tags=[], private=False, downloads=0, likes=0)
                    for n, c in (("b", "2"), ("a", "1"))]  # fmt: skip

    monkeypatch.setattr(hub, "HfApi", Api)
    monkeypatch.setattr("weighbridge.fleets.sources.state_of", lambda source: (7, "pin"))
    monkeypatch.setattr("weighbridge.fleets.sources._models", lambda path: [path])
    monkeypatch.setattr("weighbridge.fleets.sources.resolve_path", lambda text: text)
    found = list(items(["hf://org"], kind="model"))
    assert [item.name for item in found] == ["org/a", "org/b"]
    assert [item.source for item in found] == [f"hf://org/a@{'1' * 40}", f"hf://org/b@{'2' * 40}"]

    def fails(self: Any, **_: Any) -> Any:
        raise OSError("no network")

    monkeypatch.setattr(Api, "list_models", fails)
    with pytest.raises(RemoteError, match="no network"):
        list(items(["hf://org"], kind="model"))
