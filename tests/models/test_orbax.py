"""Checkpoints of Orbax (record_orbax.py): every array equals what Orbax restores; damaged ones are refused."""

from __future__ import annotations

import gzip
import json
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.containers.framework_files import GOLDEN
from tests.golden_files import extracted

import weighbridge as wb
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError, WeighbridgeError
from weighbridge.containers.frameworks.sstable import crc32c
from weighbridge.containers.zarr import chunks
from weighbridge.containers.zarr.arrays import read_array
from weighbridge.containers.zarr.ocdbt import read_database
from weighbridge.io.source import BytesSource
from weighbridge.models.open import open_model
from weighbridge.reports.identify import identify
from weighbridge.reports.scan.engine import scan
from weighbridge.reports.verify.report import verify

pytest.importorskip("backports.zstd" if not hasattr(zipfile, "ZIP_ZSTANDARD") else "compression.zstd")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return extracted(GOLDEN.with_name("orbax.zip"), tmp_path_factory.mktemp("orbax"))


@pytest.fixture(scope="module")
def restored(root: Path) -> dict[str, dict[str, bytes]]:
    items: dict[str, dict[str, bytes]] = {}
    with np.load(root / "restored.npz") as arrays:
        for key in arrays.files:
            item, _, name = key.partition("|")
            items.setdefault(item, {})[name] = arrays[key].tobytes()
    return items


def nodes(path: Path) -> dict[str, bytes]:
    with open_model(path) as model:
        return {name: node.read_all().tobytes() for name, node in model.stored.items()}


@pytest.mark.parametrize(
    "item", ["plain", "sharded", "many", "zarr3", "files", "files3", "run/1/default", "run/5/default"]
)
def test_arrays_equal_those_that_orbax_restores(item: str, root: Path, restored: dict[str, dict[str, bytes]]) -> None:
    assert nodes(root / item) == restored[item]


def test_rows_of_shards_are_read_in_pieces(root: Path, restored: dict[str, dict[str, bytes]]) -> None:
    with open_model(root / "zarr3") as model:
        node, whole = model.stored["w"], restored["zarr3"]["w"]
        step = node.spec.row_bytes
        for low in range(0, 60, 7):
            assert node.read(low, low + 3).tobytes() == whole[low * step : (low + 3) * step]


def test_large_chunks_are_decoded_into_a_file(
    root: Path, restored: dict[str, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "_SPOOLED", 100)
    monkeypatch.setattr(chunks, "_OPEN", 2)
    assert nodes(root / "sharded") == restored["sharded"]


def test_a_run_has_steps(root: Path, restored: dict[str, dict[str, bytes]], tmp_path: Path) -> None:
    assert nodes(root / "run") == restored["run/5/default"]
    wb.convert(root / "run", tmp_path / "a.safetensors", step=1)
    with wb.open(tmp_path / "a.safetensors") as model:
        assert int(model["step"].numpy()) == 1
    with pytest.raises(UsageError, match="no step 3"):
        wb.convert(root / "run", tmp_path / "b.safetensors", step=3)
    assert identify(root / "run").format == "training-run"
    shutil.copytree(root / "run", tmp_path / "run")
    (tmp_path / "run/5").rename(tmp_path / "run/5.orbax-checkpoint-tmp-17")
    assert nodes(tmp_path / "run") == restored["run/1/default"]
    assert "run/unfinished" in {f.rule for f in verify(tmp_path / "run").findings}


def test_of_several_items_the_parameters_are_read(root: Path, restored: dict[str, dict[str, bytes]]) -> None:
    with open_model(root / "items") as model:
        assert any("the item params is read, not opt" in note for note in model.place.notes)
        assert {n: node.read_all().tobytes() for n, node in model.stored.items()} == restored["items/step_7/params"]


def test_reports_know_it(root: Path) -> None:
    assert identify(root / "plain").format == "orbax"
    assert identify(root / "run/5").format == "orbax"
    assert identify(root / "plain/manifest.ocdbt").format == "orbax"
    report = verify(root / "plain", values=True)
    assert (report.verdict, report.tensors) == ("ok", 7)
    assert scan(root / "plain")
    assert {t.name for t in wb.inspect(root / "plain").tensors} > {"params.dense.kernel", "list.1"}


@pytest.mark.parametrize("item", ["files", "files3", "plain"])
def test_chunks_are_scanned_as_data(item: str, root: Path) -> None:
    report = scan(root / item)
    assert (report.verdict, report.complete) == ("data-only", True)


@pytest.mark.parametrize(("item", "chunk"), [("files", "w/0.0"), ("files3", "v/c/0"), ("files3", "w/c/0/1")])
@pytest.mark.parametrize("compressed", [True, False])
def test_a_pickle_among_chunks_is_scanned(item: str, chunk: str, compressed: bool, root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / item, tmp_path / "in")
    evil = b"cos\nsystem\n(S'x'\ntR."
    (tmp_path / "in" / chunk).write_bytes(gzip.compress(evil) if compressed else evil)
    report = scan(tmp_path / "in")
    assert [f.name for file in report.files for f in file.findings if f.rule == "pickle/dangerous-call"] == [
        "os.system"
    ]


def test_numbers_without_an_array_are_not_chunks(root: Path, tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    shutil.copy(root / "files/w/0.0", tmp_path / "w")
    assert not scan(tmp_path).complete
    (tmp_path / "w/.zarray").write_text("{}")  # the metadata of no array
    assert not scan(tmp_path).complete


def test_folders_with_numbers_are_not_steps(tmp_path: Path) -> None:
    (tmp_path / "2024").mkdir()
    with pytest.raises(UsageError, match="holds no weights"):
        open_model(tmp_path)


# ---- damage -----------------------------------------------------------------------------------------------------


def first(folder: Path, pattern: str) -> Path:
    return max(folder.glob(pattern), key=lambda path: path.stat().st_size)


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def listed(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    tree = json.loads((folder / "_METADATA").read_text())
    change(tree)
    (folder / "_METADATA").write_text(json.dumps(tree))


def moved_out(folder: Path, key: str) -> Path:
    """Moves an array out of the folder, and renames it to `key` in the tree. Returns its place."""
    (folder / "w").rename(folder.parent / "outside")
    listed(folder, lambda tree: tree["tree_metadata"]["('w',)"].update(key_metadata=[{"key": key, "key_type": 2}]))
    return folder.parent / "outside"


BAD: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "no data file": ("plain", lambda p: first(p, "ocdbt.process_0/d/*").unlink(), "a file of the checkpoint"),
    "no node": ("plain", lambda p: first(p, "d/*").unlink(), "a file of the checkpoint is missing"),
    "cut node": ("plain", lambda p: rewrite(first(p, "d/*"), lambda d: d[:-9]), "outside its file"),
    "changed node": ("plain", lambda p: rewrite(first(p, "d/*"), lambda d: d[:-9] + bytes(9)), "have its checksum"),
    "changed manifest": ("plain", lambda p: rewrite(p / "manifest.ocdbt", lambda d: d[:30] + b"??" + d[32:]),
                         "doesn't have its checksum"),
    "other manifest": ("plain", lambda p: rewrite(p / "manifest.ocdbt", lambda d: b"x" + d[1:]), "header is wrong"),
    "short manifest": ("plain", lambda p: rewrite(p / "manifest.ocdbt", lambda d: d[:8]), "outside its file"),
    "no tree": ("plain", lambda p: listed(p, lambda t: t.pop("tree_metadata")), "the tree of the checkpoint"),
    "another array": ("plain", lambda p: listed(p, lambda t: t["tree_metadata"].update(
        x={"key_metadata": [{"key": "gone"}], "value_metadata": {"value_type": "jax.Array"}})), "an array of the tree"),
    "a key above": ("files", lambda p: moved_out(p, "../outside"), "an array of the tree is missing"),
    "an absolute key": ("files", lambda p: moved_out(p, f"{p.parent}/outside"), "an array of the tree is missing"),
    "a link out": ("files", lambda p: (p / "w").symlink_to(moved_out(p, "w")), "an array of the tree is missing"),
    "a node of another step": ("plain", lambda p: first(p, "d/*").write_bytes(
        first(p.parents[0] / "other", "d/*").read_bytes()), "or of another step: its header is wrong"),
    "no chunk": ("files", lambda p: (p / "w/1.0").unlink(), "a chunk of an array is missing"),
    "changed chunk": ("files", lambda p: rewrite(p / "w/1.0", lambda d: d[:20]), "a chunk can't be unpacked"),
    "another size": ("files", lambda p: rewrite(p / "w/.zarray", lambda d: d.replace(b"[32,24]", b"[32,48]")),
                     "another size than its array's"),
    "no shape": ("files", lambda p: rewrite(p / "w/.zarray", lambda d: d.replace(b"[64,48]", b"[64,-8]")),
                 "metadata of an array is wrong"),
    "many chunks": ("files", lambda p: rewrite(p / "w/.zarray", lambda d: d.replace(b"[64,48]", b"[99999999,9999]")),
                    "more chunks than the checkpoint"),
    "a shard's index": ("files3", lambda p: rewrite(p / "w/c/1/0", lambda d: d[:-6] + bytes(6)), "index of a shard"),
    "a short shard": ("files3", lambda p: rewrite(p / "w/c/1/0", lambda d: d[:7]), "shorter than its index"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_damage_is_named(name: str, root: Path, tmp_path: Path) -> None:
    item, breaks, message = BAD[name]
    shutil.copytree(root / item, tmp_path / "bad")
    shutil.copytree(root / "run/1/default", tmp_path / "other")
    breaks(tmp_path / "bad")
    with pytest.raises(FormatError, match=message):
        nodes(tmp_path / "bad")
    report = verify(tmp_path / "bad", values=True)
    assert {f.rule for f in report.findings} & {"orbax/arrays", "values/code"}


def record(magic: int, body: bytes) -> bytes:
    data = struct.pack(">I", magic) + struct.pack("<Q", len(body) + 18) + b"\0\0" + body
    return data + struct.pack("<I", crc32c(data))


def manifest(file: bytes, length: int, height: int = 0) -> bytes:
    config = bytes(16) + b"\0\1\1\4\0"
    table = bytes([1, len(file), 0]) + file
    return record(0x0CDB3A2A, config + table + bytes([1, 1, height, 0, 0, length, 0, 0, 0]) + bytes(8) + b"\0")


HOSTILE: dict[str, tuple[bytes, str]] = {
    "a path outside": (manifest(b"../../etc/passwd", 40), "could lead out of the folder"),
    "an absolute path": (manifest(b"/etc/passwd", 40), "could lead out of the folder"),
    "a huge count": (
        record(0x0CDB3A2A, bytes(16) + b"\0\1\1\4\0" + b"\xff\xff\xff\xff\x0f"),
        "more entries than bytes",
    ),
    "no end": (record(0x0CDB3A2A, bytes(16) + b"\0\1\1\4\0" + b"\xff" * 20), "a number is too long"),
    "too high": (manifest(b"d", 40, 99), "impossible"),
    "a loop": (manifest(b"d", 29, 2), "in two places, or of another height"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_database_is_refused(name: str) -> None:
    data, message = HOSTILE[name]
    below = bytes([2, 1, 1, 0]) + b"d" + bytes([1, 0, 0, 0, 0, 29])
    with pytest.raises(FormatError, match=message):
        read_database(BytesSource(data), lambda _: BytesSource(record(0x0CDB20DE, below)))


@pytest.mark.parametrize("change", [
    {"order": "F"}, {"filters": [{"id": "delta"}]}, {"compressor": {"id": "blosc"}}, {"dtype": "<U8"}, {"dtype": "<f1"},
])  # fmt: skip
def test_unread_arrays_are_refused(change: dict[str, Any]) -> None:
    array = {"zarr_format": 2, "shape": [4], "chunks": [4], "order": "C", "compressor": None, "dtype": "<f4", **change}
    with pytest.raises(UnsupportedError):
        read_array("x", json.dumps(array).encode(), "x")


def test_any_metadata_is_read_or_refused(root: Path) -> None:
    rng = np.random.default_rng(0)
    good = [(root / "files/w/.zarray").read_bytes(), (root / "files3/w/zarr.json").read_bytes()]
    for data in good * 150:
        damaged = bytearray(data)
        for at in rng.integers(0, len(data), 2):
            damaged[at] = rng.integers(32, 127)
        try:
            read_array("w", bytes(damaged), "w")
        except WeighbridgeError:
            continue


def test_arrays_of_numbers_in_big_endian_and_without_a_code(tmp_path: Path) -> None:
    """Plain zarr, as other writers make it."""
    values = np.arange(12, dtype=">i4").reshape(3, 4)
    (tmp_path / "w").mkdir()
    array = {"zarr_format": 2, "shape": [3, 4], "chunks": [2, 4], "order": "C", "compressor": None, "dtype": ">i4"}
    (tmp_path / "w/.zarray").write_text(json.dumps(array))
    (tmp_path / "w/0.0").write_bytes(values[:2].tobytes())
    (tmp_path / "_METADATA").write_text(json.dumps({"tree_metadata": {}}))
    assert np.frombuffer(nodes(tmp_path)["w"], "<i4").tolist() == [*range(8), 0, 0, 0, 0]  # a missing chunk is zero
