"""HDF5 as its library writes it, in every layout: what is hidden is found, what is honest is quiet, and damage raises
nothing unexpected. What the library reads of damaged files is compared by `tests/fuzz/differential`."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import pytest
from tests.fuzz.differential import hdf5 as files
from tests.reports.scan import file_vectors as make

from weighbridge.io.source import BytesSource
from weighbridge.reports.scan.engine import scan_file, scan_source
from weighbridge.reports.scan.model import FileReport

h5py = pytest.importorskip("h5py")
VERSIONS = sorted(set(files._VERSIONS))
HARM = ("config/lambda", "config/lambda", "hdf5/outside", "hdf5/outside", "hdf5/outside", "config/lambda")


def scanned(data: bytes) -> FileReport:
    return scan_source(BytesSource(data), "m.h5")


def written(version: str, order: bool, fill: Any) -> bytes:
    out = io.BytesIO()
    with h5py.File(out, "w", libver=(version, "latest"), track_order=order) as f:
        fill(f)
    return out.getvalue()


@pytest.mark.parametrize("objects", [0, 12])
@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", range(len(HARM)))
def test_harm_is_found_in_every_layout(kind: int, version: str, order: bool, objects: int) -> None:
    report = scanned(files._file(kind, files._VERSIONS.index(version), order, objects))
    assert (report.verdict, {f.rule for f in report.findings}) == ("dangerous", {HARM[kind]})


def _honest(f: Any) -> None:
    """Groups and attributes that lie in trees of several levels, and all kinds of data."""
    for number in range(300):
        group = f.create_group(f"a_layer_with_a_long_name_{number}")
        group.attrs["weight_names"] = [b"kernel:0", b"bias:0"]
        f.attrs[f"note {number}"] = f"text {number}"
    f["a_layer_with_a_long_name_7"].create_dataset("kernel", data=[[1.0, 2.0]])
    f.create_dataset("bytes", data=list(range(200)), dtype="u1")
    f.create_dataset("packed", data=list(range(1000)), chunks=(10,), compression="lzf", shuffle=True, fletcher32=True)
    f.create_dataset("texts", data=["one", "two"])
    f["soft"] = h5py.SoftLink("/bytes")
    f.attrs["model_config"] = '{"class_name": "Sequential", "config": {"layers": []}}'


@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_an_honest_file_is_data(version: str, order: bool) -> None:
    report = scanned(written(version, order, _honest))
    assert (report.findings, report.verdict, report.complete) == ((), "data-only", True)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_lies_deep_in_trees_and_heaps_is_found(version: str) -> None:
    def fill(f: Any) -> None:
        _honest(f)
        f["a_layer_with_a_long_name_299"].attrs["model_config"] = files._CONFIG
        f["a_layer_with_a_long_name_123"]["far"] = h5py.ExternalLink("/etc/x", "/y")

    rules = {f.rule for f in scanned(written(version, True, fill)).findings}
    assert rules == {"config/lambda", "hdf5/outside"}


def test_a_block_of_the_user_in_front(tmp_path: Path) -> None:
    path = tmp_path / "m.h5"
    with h5py.File(path, "w", userblock_size=512) as f:
        f["x"] = 1
    assert scan_file(str(path)).verdict == "data-only"
    with h5py.File(path, "a") as f:
        f.attrs["model_config"] = files._CONFIG
    assert {f.rule for f in scan_file(str(path)).findings} == {"config/lambda"}


def test_damage_raises_nothing_unexpected() -> None:
    source = files.files(random.Random(7))
    for _ in range(200):
        data, _ = next(source)
        assert "scan/failure" not in {f.rule for f in scanned(data).findings}


@pytest.mark.slow
def test_parts_that_are_used_again_and_again_are_not_followed_for_ever() -> None:
    """A group whose 400 links lead to one header of a megabyte, at 400 places in it."""
    count, size = 400, 1 << 20
    links = [(0x06, bytes((1, 0, 2)) + b"%02x" % (n % 256) + (600_000 + 16 * n).to_bytes(8, "little"))
             for n in range(count)]  # fmt: skip
    data = make.hdf5(*links)
    header = (1).to_bytes(2, "little") + bytes(6) + size.to_bytes(4, "little") + bytes(4)
    report = scanned(data.ljust(600_000, b"\0") + header * count + bytes(size))
    assert report.verdict in ("unproven", "malformed")
