"""Models of other frameworks, as their libraries wrote them (`record_frameworks.py`): the readers give the bytes that
the libraries read; and hostile and broken ones."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.containers.framework_files import GOLDEN, llama2c, onnx_external, openvino, table, varint

import weighbridge as wb
from weighbridge.base.errors import FormatError, RefusedError, UnsupportedError, UsageError, WeighbridgeError
from weighbridge.containers import BUILT_IN
from weighbridge.containers.frameworks import flax
from weighbridge.containers.opening import parse
from weighbridge.io.source import BytesSource
from weighbridge.models.open import open_model


@cache
def golden() -> dict[str, bytes]:
    with zipfile.ZipFile(GOLDEN) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


EXPECTED: dict[str, dict[str, list[Any]]] = json.loads(golden()["expected.json"])
FORMATS = {
    "a.onnx": "onnx", "e.onnx": "onnx", "saved/variables/variables.index": "tf-checkpoint",
    "v2/model.ckpt.index": "tf-checkpoint", "v1/model.ckpt": "tf-checkpoint", "a.tflite": "tflite", "k.keras": "keras",
    "k.weights.h5": "hdf5", "old.h5": "hdf5",
    "chunks.h5": "hdf5", "latest.h5": "hdf5", "big.h5": "hdf5", "hostile.h5": "hdf5", "a.msgpack": "flax",
    "chunked.msgpack": "flax", "ir.xml": "openvino", "m.pt2": "torch-exported", "ct2/model.bin": "ctranslate2",
}  # fmt: skip
#: The findings of each file that has some.
FINDINGS = {
    "a.onnx": {"onnx/packed", "onnx/texts"},
    "v1/model.ckpt": {"tf-checkpoint/sliced"},
    "v2/model.ckpt.index": {"tf-checkpoint/sliced"},
    "chunks.h5": {"hdf5/no-data", "hdf5/texts"},
    "latest.h5": {"hdf5/not-read"},
    "hostile.h5": {"hdf5/not-read", "hdf5/outside"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, data in golden().items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path


def tensors(path: Path) -> dict[str, list[Any]]:
    """The tensors of a model: shape and little-endian bytes."""
    with open_model(path) as model:
        return {
            name: [list(node.spec.shape), node.read(0, node.spec.rows).tobytes().hex()]
            for name, node in sorted(model.stored.items())
        }


# ---- as the libraries read them ----


def test_every_recorded_file_is_expected() -> None:
    assert set(EXPECTED) == set(FORMATS)


@pytest.mark.parametrize("name", FORMATS)
def test_tensors_equal_those_of_the_library(name: str, folder: Path) -> None:
    assert tensors(folder / name) == EXPECTED[name]


@pytest.mark.parametrize("name", FORMATS)
def test_the_format_is_recognised_and_verified(name: str, folder: Path) -> None:
    report = wb.identify(folder / name)
    assert (report.format, report.readable, report.damage, report.name_lies) == (FORMATS[name], True, (), None)
    found = wb.verify(folder / name, values=True).findings
    assert {f.rule for f in found if not f.rule.startswith("values/")} == FINDINGS.get(name, set())


@pytest.mark.parametrize("name", FORMATS)
def test_a_conversion_keeps_every_tensor(name: str, folder: Path, tmp_path: Path) -> None:
    wb.convert(folder / name, out := tmp_path / "out.safetensors")
    assert tensors(out) == EXPECTED[name]


@pytest.mark.parametrize("name", ["k.keras", "a.tflite", "a.msgpack", "v2/model.ckpt.index", "ct2/model.bin"])
def test_any_tensors_become_a_generic_gguf(name: str, folder: Path, tmp_path: Path) -> None:
    if name == "a.msgpack":  # GGUF has no complex numbers
        with pytest.raises(WeighbridgeError, match="C64"):
            wb.convert(folder / name, tmp_path / "out.gguf", arch="toy")
        return
    wb.convert(folder / name, out := tmp_path / "out.gguf", arch="toy")
    with wb.open(out) as model:
        assert set(model) == set(EXPECTED[name])


HONEST = [n for n in FORMATS if n not in ("hostile.h5", "a.onnx", "e.onnx", "a.tflite")]  # graphs aren't scanned


@pytest.mark.parametrize("name", HONEST)
def test_a_scan_is_silent_on_honest_files(name: str, folder: Path) -> None:
    report = wb.scan(folder / name)
    assert (report.verdict, report.complete) == ("data-only", True)


def rules(path: Path) -> set[str]:
    return {finding.rule for file in wb.scan(path).files for finding in file.findings}


def test_a_scan_is_loud_on_hostile_files(folder: Path, tmp_path: Path) -> None:
    assert rules(folder / "hostile.h5") >= {"hdf5/outside", "hdf5/another-file"}
    (tmp_path / "x.onnx").write_bytes(onnx_external("../evil.bin"))
    assert rules(tmp_path / "x.onnx") == {"onnx/outside"}


@pytest.mark.parametrize(
    ("name", "format"),
    [("saved", "tf-checkpoint"), ("v2", "tf-checkpoint"), ("v2/model.ckpt", "tf-checkpoint"), ("ct2", "ctranslate2")],
)
def test_folders_are_located(name: str, format: str, folder: Path) -> None:
    with open_model(folder / name) as model:
        assert model.format == format
    assert not wb.verify(folder / name).errors if (folder / name).is_dir() else True


@pytest.mark.parametrize("names", [["ir.xml", "ir.bin"], ["e.onnx", "e.bin"], ["k.keras"], ["old.h5"], ["a.msgpack"]])
def test_a_folder_with_one_model_is_that_model(names: list[str], folder: Path, tmp_path: Path) -> None:
    (inside := tmp_path / "model").mkdir()
    for name in names:
        (folder / name).rename(inside / name)
    assert tensors(inside) == EXPECTED[names[0]]
    assert wb.identify(inside).readable
    report = wb.verify(inside)
    assert (report.findings, report.unchecked) == ((), ())


def test_the_newest_checkpoint_of_a_folder(folder: Path) -> None:
    for suffix in (".index", ".data-00000-of-00001"):
        (folder / f"v2/model.ckpt{suffix}").rename(folder / f"v2/model.ckpt-2{suffix}")
        (folder / f"v2/model.ckpt-1{suffix}").write_bytes(b"")
    (folder / "v2/checkpoint").write_text('model_checkpoint_path: "model.ckpt-2"\nall_model_checkpoint_paths: "x"\n')
    assert tensors(folder / "v2") == EXPECTED["v2/model.ckpt.index"]
    (folder / "v2/checkpoint").unlink()
    with pytest.raises(UsageError, match="holds 2 checkpoints"):
        open_model(folder / "v2")


# ---- data in other files ----

OUTSIDE = [
    "../evil.bin",
    "sub/../../x",
    "/etc/passwd",
    "C:\\x",
    "C:/x",
    "a\\..\\x",
    "",
    ".",
    "a//b",
    "x\0y",
    "\\\\host\\x",
]


@pytest.mark.parametrize("name", OUTSIDE)
def test_external_data_never_leads_out(name: str, tmp_path: Path) -> None:
    (tmp_path / "x.onnx").write_bytes(onnx_external(name))
    with pytest.raises(FormatError, match="could lead out of the folder"):
        open_model(tmp_path / "x.onnx")


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    (inside := tmp_path / "model").mkdir()
    (tmp_path / "secret").write_bytes(bytes(24))
    (inside / "x.onnx").write_bytes(onnx_external("data.bin"))
    os.symlink(tmp_path / "secret", inside / "data.bin")
    with pytest.raises(RefusedError, match="outside the model's folder"):
        open_model(inside / "x.onnx")
    assert {f.rule for f in wb.verify(inside / "x.onnx").findings} == {"onnx/unread"}
    (inside / "x.onnx").write_bytes(onnx_external("sub/secret"))
    os.symlink(tmp_path, inside / "sub")
    with pytest.raises(RefusedError, match="outside the model's folder"):
        open_model(inside / "x.onnx")


@pytest.mark.parametrize(("size", "reason"), [(None, "is missing"), (23, "is too short")])
def test_missing_data_is_named(size: int | None, reason: str, tmp_path: Path) -> None:
    (tmp_path / "x.onnx").write_bytes(onnx_external("data.bin"))
    if size is not None:
        (tmp_path / "data.bin").write_bytes(bytes(size))
    with pytest.raises(FormatError, match=reason) as caught:
        open_model(tmp_path / "x.onnx")
    assert caught.value.path == str(tmp_path / "data.bin")
    assert {f.rule for f in wb.verify(tmp_path / "x.onnx").findings} == {"onnx/broken"}


def test_a_conversion_never_overwrites_its_data(folder: Path) -> None:
    with pytest.raises(RefusedError, match="contains the source"):
        wb.convert(folder / "e.onnx", folder / "e.bin", to="torch", overwrite=True)


# ---- broken files ----

A = b"\x08\x08"  # ir_version


def nested(depth: int) -> bytes:
    """A graph in an attribute of a node of a graph ..."""
    message = b""
    for _ in range(depth):
        for tag in (b"\x32", b"\x2a", b"\x0a"):
            message = tag + varint(len(message)) + message
    return A + b"\x3a" + varint(len(message)) + message


def of(name: str, *changes: tuple[int, bytes]) -> bytes:
    data = bytearray(golden()[name])
    for at, new in changes:
        data[at : at + len(new)] = new
    return bytes(data)


HEADER = (b"", b"\x08\x01")  # of a checkpoint with one data file

BROKEN: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "onnx deep": ("onnx", lambda: nested(200), "nested more than 100"),
    "onnx length": ("onnx", lambda: A + b"\x3a\x7f\x0a", "longer than its message"),
    "onnx varint": ("onnx", lambda: A + b"\x3a" + b"\xff" * 10, "no end"),
    "onnx size": ("onnx", lambda: onnx_external("x", length="25"), "another size than the shape"),
    "onnx number": ("onnx", lambda: onnx_external("x", length="-24"), "is no number"),
    "onnx shape": ("onnx", lambda: onnx_external("x", shape=(1 << 62, 1 << 62)), "shape is impossible"),
    "table footer": ("tf-checkpoint", lambda: golden()["v2/model.ckpt.index"][:-1], "footer"),
    "table checksum": ("tf-checkpoint", lambda: of("v2/model.ckpt.index", (6, b"x")), "checksum"),
    "table snappy": ("tf-checkpoint", lambda: table([(b"", b"\x08\x01")], compression=1), "compressed"),
    "table shards": ("tf-checkpoint", lambda: table([(b"", b"\x08\x00")]), "number of data files"),
    "table shard": ("tf-checkpoint", lambda: table([HEADER, (b"w", b"\x08\x01\x18\x01")]), "data file 1 of 1"),
    "table slice key": ("tf-checkpoint", lambda: table([HEADER, (b"\0w\0\1", b"\x08\x01")]), "no proper key"),
    "hdf5 signature": ("hdf5", lambda: of("k.weights.h5", (0, b"x")), "not an HDF5 file"),
    "hdf5 cut": ("hdf5", lambda: golden()["k.weights.h5"][:3000], "ends too early"),
    "keras deflated": ("keras", lambda: deflated(golden()["k.keras"]), "is compressed"),
    "keras without weights": ("keras", lambda: zipped({"config.json": b"{}"}), "without model.weights.h5"),
    "tflite cut": ("tflite", lambda: golden()["a.tflite"][:470], "ends too early|longer than the file|vtable"),
    "tflite root": ("tflite", lambda: of("a.tflite", (0, b"\xff\xff\xff\x7f")), "ends too early"),
    "flax text": ("flax", lambda: b"\x81\xa1w\x93\x01\x02", "longer than its file"),
    "flax deep": ("flax", lambda: b"\x81\xa1a" * 100 + b"\x80", "nested more than 64"),
    "flax length": ("flax", lambda: b"\x81\xa1w\xc9\xff\xff\xff\xff\x01", "longer than its file"),
    "flax trailing": ("flax", lambda: golden()["a.msgpack"] + b"\0", "bytes after the map"),
    "flax bin": ("flax", lambda: golden()["a.msgpack"].replace(b"\xc4\x0c", b"\xc4\x0d", 1), "longer than its file"),
    "openvino doctype": ("openvino", lambda: b'<!DOCTYPE net [<!ENTITY a "b">]>' + openvino("24"), "document type"),
    "openvino size": ("openvino", lambda: openvino("25"), "another size than the shape"),
    "openvino negative": ("openvino", lambda: openvino("-1"), "is no number"),
    "openvino cut": ("openvino", lambda: openvino("24")[:-3], "can't be read"),
    "openvino deep": ("openvino", lambda: b'<net version="11">' + b"<a>" * 100, "nested more than 64"),
    "exported size": ("torch-exported", lambda: exported(sizes=[9]), "beyond its storage"),
    "exported strides": ("torch-exported", lambda: exported(strides=[-1]), "strides are impossible"),
    "exported offset": ("torch-exported", lambda: exported(offset=1 << 62), "beyond its storage"),
    "exported bomb": ("torch-exported", lambda: exported(sizes=[1 << 40], strides=[0]), "expanded view"),
    "exported member": ("torch-exported", lambda: exported(member="../x"), "member is missing"),
    "exported list": ("torch-exported", lambda: zipped({f"m/{CONFIG}": b"{"}), "list of weights can't be read"),
    "exported nothing": ("torch-exported", lambda: zipped({"m/archive_format": b"pt2"}), "without a list"),
    "ctranslate2 old": ("ctranslate2", lambda: of("ct2/model.bin", (0, b"\3")), "doesn't state types"),
    "ctranslate2 version": ("ctranslate2", lambda: of("ct2/model.bin", (0, b"\x20")), "no version"),
    "ctranslate2 count": ("ctranslate2", lambda: of("ct2/model.bin", (18, b"\xff\xff\xff\xff")), "ends inside a field"),
    "ctranslate2 trailing": ("ctranslate2", lambda: golden()["ct2/model.bin"] + b"x", "bytes after"),
    "llama2c size": ("llama2c", lambda: llama2c() + b"x", "another size than its weights"),
    "llama2c sizes": ("llama2c", lambda: bytes(100), "impossible"),
    "llama2c int8": ("llama2c", lambda: b"24ka\2\0\0\0" + llama2c(1)[8:], "version 2"),
}  # fmt: skip


CONFIG = "data/weights/model_weights_config.json"


def exported(
    sizes: list[int] | None = None, strides: list[int] | None = None, offset: int = 0, member: str = "weight_0"
) -> bytes:
    """An exported program with a weight of two numbers."""
    numbers = {"sizes": sizes or [2], "strides": strides or [1]}
    meta = {key: [{"as_int": n} for n in values] for key, values in numbers.items()}
    tensor = {"path_name": member, "tensor_meta": {"dtype": 7, "storage_offset": {"as_int": offset}, **meta}}
    config = json.dumps({"config": {"w": tensor}}).encode()
    return zipped({"m/archive_format": b"pt2", f"m/{CONFIG}": config, "m/data/weights/weight_0": bytes(8)})


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    import io

    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


def deflated(data: bytes) -> bytes:
    import io

    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return zipped({name: archive.read(name) for name in archive.namelist()}, zipfile.ZIP_DEFLATED)


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_an_error_that_says_why(case: str) -> None:
    format, make, reason = BROKEN[case]
    with pytest.raises((FormatError, UnsupportedError), match=reason):
        BUILT_IN[format].parse(BytesSource(make(), "x"))


def test_every_new_format_has_broken_files() -> None:
    assert {row[0] for row in BROKEN.values()} == set(FORMATS.values()) | {"llama2c"}


def test_a_chunk_that_unpacks_to_more_is_refused(tmp_path: Path) -> None:
    """The first chunk of `a/w`, 4 x 4 numbers, is replaced by a bomb of the same stored size."""
    data = golden()["latest.h5"]
    start = data.index(zlib.compress(b"")[:1], 600)
    packed = next(at for at in range(start, len(data)) if data[at : at + 2] in (b"\x78\x5e", b"\x78\x9c", b"\x78\x01"))
    bomb = zlib.compress(bytes(100_000), 9)
    (tmp_path / "x.h5").write_bytes(data[:packed] + bomb + data[packed + len(bomb) :])
    with open_model(tmp_path / "x.h5") as model, pytest.raises(FormatError, match="unpacks to more"):
        model.stored["one"].read(0, 6)


# ---- llama2.c: its writer is a script, so the order is checked against the script's list ----


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("shared", [True, False])
def test_llama2c(version: int, shared: bool) -> None:
    index = parse(BytesSource(data := llama2c(version, shared), "stories.bin"))
    assert (index.format, index.version) == ("llama2c", version)
    assert index["layers.1.attention.wk.weight"].shape == (2, 4)
    assert index["layers.0.feed_forward.w2.weight"].shape == (4, 6)
    assert ("output.weight" in index) is not shared
    order = [e.name for e in index]
    assert order[0] == ("tok_embeddings.weight" if version == 0 else "layers.0.attention_norm.weight")
    assert [e.offset for e in index] == sorted(e.offset for e in index)
    assert index.entries[-1].offset + index.entries[-1].nbytes == len(data)
    for before, after in (("layers.1.attention.wq.weight", "layers.0.attention.wk.weight"),
                          ("layers.1.feed_forward.w1.weight", "layers.0.feed_forward.w2.weight")):  # fmt: skip
        assert order.index(before) + 1 == order.index(after)


# ---- Flax is written, too ----


def test_written_flax_equals_what_flax_writes(folder: Path, tmp_path: Path) -> None:
    """`a.msgpack` without the step, and the numpy scalar as an array without dimensions."""
    wb.convert(folder / "a.msgpack", out := tmp_path / "out.msgpack")
    expected = golden()["a.msgpack"].replace(b"\xa4step\x03", b"")
    scalar = expected.index(b"\xa1s\xc7") + 4
    expected = b"\x81" + expected[1:scalar] + b"\1" + expected[scalar + 1 :]
    assert out.read_bytes() == expected


@pytest.mark.parametrize(
    ("names", "reason"), [(["a", "a"], "two tensors"), (["a", "a.b"], "below another"), (["a.b", "a"], "below another")]
)
def test_names_that_no_map_can_hold_are_refused(names: list[str], reason: str) -> None:
    from tests.conformance.samples import spec

    with pytest.raises(UsageError, match=reason):
        flax.layout([(name, spec("F32", 1)) for name in names])


def test_a_tensor_of_a_gigabyte_is_refused() -> None:
    from tests.conformance.samples import spec

    with pytest.raises(UnsupportedError, match="at most 1 GiB"):
        flax.layout([("w", spec("F32", 1 << 28))])
