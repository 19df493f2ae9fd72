"""Models in archives and compressed files: every wrapper gives the model inside, and hostile ones are named errors."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conformance.samples import samples

import weighbridge as wb
from weighbridge.base.errors import FormatError, RefusedError, UnsupportedError, UsageError, WeighbridgeError
from weighbridge.containers import BUILT_IN
from weighbridge.containers.archive import seekable as decoder
from weighbridge.containers.archive import spool, wrapped
from weighbridge.io.decompress import decompressed
from weighbridge.io.location import WrappedPath, open_source
from weighbridge.io.source import BytesSource, Window
from weighbridge.models import archives
from weighbridge.models.archives import resolve

CONFIG = json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}).encode()
#: A model as one file, and as a folder: the files of an archive by name.
FILE = {"model.safetensors": b""}
FOLDER = {"hf/config.json": CONFIG, "hf/model.safetensors": b""}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import numpy as np

    path = tmp_path_factory.mktemp("plain") / "model.safetensors"
    wb.save({"a.weight": np.arange(6, dtype="f4").reshape(2, 3), "b.weight": np.ones((4, 600), "f4")}, path)
    return path


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No tree of another test is kept."""
    archives._roots.clear()
    archives._others.clear()
    yield
    archives._roots.clear()
    archives._others.clear()


def zipped(files: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


def tarred(files: dict[str, bytes], mode: str = "w", links: dict[str, tuple[bytes, str]] | None = None) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        for name, (kind, target) in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            archive.addfile(member)
    return out.getvalue()


def deflated(files: dict[str, bytes]) -> bytes:
    return zipped(files, zipfile.ZIP_DEFLATED)


def seekable(data: bytes, size: int = 999, flags: int = 0, magic: int = 0x8F92EAB1) -> bytes:
    """Frames of `size` bytes with a table of them."""
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    frames = [zstd(part) for part in parts]
    extra = bytes(4) if flags & 128 else b""
    rows = b"".join(struct.pack("<II", len(f), len(p)) + extra for f, p in zip(frames, parts, strict=True))
    table = rows + struct.pack("<IBI", len(frames), flags, magic)
    return b"".join(frames) + struct.pack("<II", 0x184D2A5E, len(table)) + table


def zstd(data: bytes) -> bytes:
    packed: bytes = pytest.importorskip("backports.zstd").compress(data)
    return packed


def lz4(data: bytes) -> bytes:
    packed: bytes = pytest.importorskip("lz4.frame").compress(data)
    return packed


def seven_zipped(files: dict[str, bytes], **options: str) -> bytes:
    out = io.BytesIO()
    with pytest.importorskip("py7zr").SevenZipFile(out, "w", **options) as archive:
        for name, data in files.items():
            archive.writef(io.BytesIO(data), name)
    return out.getvalue()


def only(files: dict[str, bytes]) -> bytes:
    (data,) = files.values()
    return data


#: Name -> its bytes, made of the files of FILE or FOLDER.
WRAPPED: dict[str, tuple[dict[str, bytes], Callable[[dict[str, bytes]], bytes]]] = {
    "model.safetensors.gz": (FILE, lambda f: gzip.compress(only(f))),
    "model.safetensors.bz2": (FILE, lambda f: bz2.compress(only(f))),
    "model.safetensors.xz": (FILE, lambda f: lzma.compress(only(f))),
    "model.safetensors.zst": (FILE, lambda f: zstd(only(f))),
    "model.safetensors.lz4": (FILE, lambda f: lz4(only(f))),
    "weights.zip": (FILE, zipped),
    "deflated.zip": (FILE, deflated),
    "weights.tar": (FILE, tarred),
    "weights.7z": (FILE, seven_zipped),
    "twice.gz.gz": (FILE, lambda f: gzip.compress(gzip.compress(only(f)))),
    "two-members.gz": (FILE, lambda f: gzip.compress(only(f)[:100]) + gzip.compress(only(f)[100:])),
    "folder.zip": (FOLDER, zipped),
    "deflated-folder.zip": (FOLDER, deflated),
    "folder.tar": (FOLDER, tarred),
    "folder.tar.gz": (FOLDER, lambda f: tarred(f, "w:gz")),
    "folder.tgz": (FOLDER, lambda f: tarred(f, "w:gz")),
    "folder.tar.xz": (FOLDER, lambda f: tarred(f, "w:xz")),
    "seekable.safetensors.zst": (FILE, lambda f: seekable(only(f))),
    "seekable.tar.zst": (FOLDER, lambda f: seekable(tarred(f), flags=128)),
    "folder.tar.zst": (FOLDER, lambda f: zstd(tarred(f))),
    "folder.7z": (FOLDER, seven_zipped),
    "nested.zip": (FOLDER, lambda f: zipped({"README.md": b"hi", "model.tar.gz": tarred(f, "w:gz")})),
    "mac.zip": (FOLDER, lambda f: zipped({**f, "__MACOSX/hf/._model.safetensors": b"\0", "hf/.DS_Store": b"\0"})),
}


def same(path: Path, model: Path) -> bool:
    """Whether two models have the same tensors, whatever is next to them."""
    with wb.open(path) as one, wb.open(model) as two:
        return list(one) == list(two) and all((one[n].numpy() == two[n].numpy()).all() for n in one)


def wrapped_file(name: str, model: Path, folder: Path) -> Path:
    files, make = WRAPPED[name]
    path = folder / name
    path.write_bytes(make({n: data or model.read_bytes() for n, data in files.items()}))
    return path


@pytest.mark.parametrize("name", WRAPPED)
def test_every_command_reads_the_model_inside(name: str, model: Path, tmp_path: Path) -> None:
    path = wrapped_file(name, model, tmp_path)
    assert same(path, model)
    report = wb.inspect(path)
    assert report.tensor_count == 2
    assert report.path.startswith(f"{path}/")
    assert any(str(path) in note.message for note in report.notes if note.rule == "file/wrapped")
    assert wb.verify(path).ok
    assert wb.get(f"{path}::a.weight").tolist() == [[0, 1, 2], [3, 4, 5]]
    wb.convert(path, tmp_path / "out.safetensors")
    assert same(tmp_path / "out.safetensors", model)
    found = wb.identify(path)
    assert found.readable
    assert found.detail["inside"] in ("safetensors", "hf-model", "tar", "gzip")
    assert wb.scan(path).verdict == "data-only"
    if WRAPPED[name][0] is FOLDER:
        assert report.model.architecture == "LlamaForCausalLM"


@pytest.mark.parametrize("format", ["gguf", "torch-zip", "torch-legacy", "npz", "npy", "onnx", "hdf5"])
@pytest.mark.parametrize("wrap", [lambda d: gzip.compress(d), lambda d: deflated({"m": d})], ids=["gzip", "zip"])
def test_any_format_is_read_inside(format: str, wrap: Callable[[bytes], bytes], tmp_path: Path) -> None:
    data = max(samples(BUILT_IN[format]), key=len)
    (tmp_path / "plain.bin").write_bytes(data)
    (tmp_path / "wrapped").write_bytes(wrap(data))
    plain, inside = wb.inspect(tmp_path / "plain.bin"), wb.inspect(tmp_path / "wrapped")
    assert inside.format == plain.format
    assert [(t.name, t.dtype, t.shape) for t in inside.tensors] == [(t.name, t.dtype, t.shape) for t in plain.tensors]


def test_a_path_continues_into_an_archive(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "two.zip"
    data = model.read_bytes()
    path.write_bytes(zipped({"x/a.safetensors": data, "x/b.safetensors": data, "x/c.tar": tarred({"d": data})}))
    with pytest.raises(UsageError, match="2 models"):
        wb.open(path)
    assert same(path / "x" / "a.safetensors", model)
    assert same(path / "x" / "c.tar" / "d", model)
    with pytest.raises(FileNotFoundError):
        wb.open(path / "x" / "e.safetensors")


def test_stored_members_are_read_in_place(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.TemporaryFile", None)
    for name in ("weights.zip", "weights.tar", "folder.zip", "folder.tar"):
        source = resolve(wrapped_file(name, model, tmp_path))
        assert same(source, model)


def test_links_in_a_tar_lead_to_its_files(model: Path, tmp_path: Path) -> None:
    links = {
        "snapshots/1/model.safetensors": (tarfile.SYMTYPE, "../../blobs/abc"),
        "snapshots/1/hard": (tarfile.LNKTYPE, "blobs/abc"),
        "snapshots/1/out": (tarfile.SYMTYPE, "../../../../etc/passwd"),
        "snapshots/1/self": (tarfile.SYMTYPE, "self"),
        "snapshots/1/pipe": (tarfile.FIFOTYPE, ""),
    }
    path = tmp_path / "cache.tar"
    path.write_bytes(tarred({"blobs/abc": model.read_bytes()}, links=links))
    inside = path / "snapshots" / "1"
    assert same(inside / "model.safetensors", model)
    assert same(inside / "hard", model)
    (note,) = [n.message for n in wb.inspect(inside / "model.safetensors").notes if "left out" in n.message]
    assert "out (link to ../../etc/passwd, which isn't a file in the archive)" in note
    assert "self" in note
    assert "pipe (pipe)" in note


def encrypted() -> bytes:
    data = bytearray(zipped(FILE))
    for at in (6, data.index(b"PK\1\2") + 8):
        data[at] |= 1
    return bytes(data)


def _damaged(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _deep(levels: int) -> bytes:
    data = b"x" * 100
    for _ in range(levels):
        data = gzip.compress(data)
    return data


#: A bad archive, the error and the words in it.
BAD: dict[str, tuple[Callable[[], bytes], type[WeighbridgeError], str]] = {
    "traversal.zip": (lambda: zipped({"../../evil.safetensors": b"x"}), FormatError, "leads out"),
    "absolute.zip": (lambda: zipped({"/etc/evil": b"x"}), FormatError, "leads out"),
    "drive.zip": (lambda: zipped({"C:evil": b"x"}), FormatError, "leads out"),
    "backslash.zip": (lambda: zipped({"..\\evil": b"x"}), FormatError, "leads out"),
    "traversal.tar": (lambda: tarred({"../evil": b"x"}), FormatError, "leads out"),
    "duplicate.tar": (lambda: tarred({"a": b"x"}) [:1024] + tarred({"a": b"y"}), FormatError, "one name"),
    "both.zip": (lambda: zipped({"a": b"x", "a/b": b"y"}), FormatError, "both a file and a folder"),
    "root.zip": (lambda: zipped({".": b"x"}), FormatError, "the name of the folder"),
    "root.tar": (lambda: tarred({".": b"x"}), FormatError, "the name of the folder"),
    "encrypted.zip": (encrypted, UnsupportedError, "encrypted"),
    "encrypted.7z": (lambda: seven_zipped({"a": b"x"}, password="p"), UnsupportedError, "encrypted"),
    "cut.7z": (lambda: _damaged(seven_zipped({"a": bytes(5000)})), FormatError, "damaged"),
    "method.zip": (lambda: zipped(FILE | {"a": b"xx" * 99}, zipfile.ZIP_BZIP2), UnsupportedError, "method 12"),
    "cut.zip": (lambda: _damaged(zipped({"a": bytes(5000)})), FormatError, "no end"),
    "cut.gz": (lambda: _damaged(gzip.compress(bytes(500_000))), FormatError, "damaged: it ends too early"),
    "crc.gz": (lambda: gzip.compress(b"abc" * 99)[:-8] + bytes(8), FormatError, "damaged"),
    "tail.gz": (lambda: gzip.compress(b"abc" * 99) + b"tail", FormatError, "bytes follow the gzip stream"),
    "cut.xz": (lambda: _damaged(lzma.compress(bytes(500_000))), FormatError, "damaged"),
    "cut.zst": (lambda: _damaged(zstd(bytes(range(256)) * 99)), FormatError, "damaged"),
    "deep.gz": (lambda: _deep(6), UnsupportedError, "more than 4 archives"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_archives_are_named_errors(name: str, tmp_path: Path) -> None:
    make, error, words = BAD[name]
    path = tmp_path / name
    path.write_bytes(make())
    with pytest.raises(error, match=words):
        wb.open(path)
    assert wb.identify(path).format in wrapped.WRAPPERS
    (found,) = [f for f in wb.verify(path).findings if f.rule == "archive/broken"]
    assert words.rpartition(": ")[2] in found.message
    assert wb.scan(path).files  # no crash


def test_many_members_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrapped, "WRAPPED_MEMBERS", 3)
    path = tmp_path / "many.tar"
    path.write_bytes(tarred({str(n): b"x" for n in range(5)}))
    with pytest.raises(UnsupportedError, match="more than 3 members"):
        wb.open(path)


@pytest.mark.costly
@pytest.mark.parametrize("name", ["bomb.gz", "bomb.zip"])
def test_a_bomb_meets_the_limit(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "GIB", 1 << 20)  # so that the variable counts MiB
    path = tmp_path / name
    bomb = bytes(200 << 20)
    path.write_bytes(gzip.compress(bomb, 1) if name.endswith("gz") else deflated({"model.safetensors": bomb}))
    monkeypatch.setenv(spool.ENVIRONMENT, "100")
    with pytest.raises(RefusedError, match="WEIGHBRIDGE_SPOOL allows 100 GiB") as caught:
        wb.open(path)
    assert "unpack it first" in str(caught.value.hint)
    monkeypatch.setenv(spool.ENVIRONMENT, "many")
    archives._roots.clear()
    archives._others.clear()
    with pytest.raises(UsageError, match="isn't a number of GiB"):
        wb.open(path)


def test_only_the_requested_part_of_a_member_is_decoded(tmp_path: Path) -> None:
    path = tmp_path / "big.zip"
    path.write_bytes(deflated({"model.bin": bytes(32 << 20)}))
    with open_source(resolve(path)) as source:
        assert isinstance(source, Window)
        assert isinstance(source.parent, spool.SpooledSource)
        source.read(0, 4096)
        assert source.parent._end < 1 << 20


def test_the_archive_may_change(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.tar"
    path.write_bytes(tarred({"a.safetensors": model.read_bytes()}))
    assert resolve(path).name == "a.safetensors"
    path.write_bytes(tarred({"longer-name.safetensors": model.read_bytes()}))
    os.utime(path, (1, 1))
    assert resolve(path).name == "longer-name.safetensors"


def test_a_file_that_is_no_archive_is_recognised_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch checkpoint is a zip whose directory may list 100,000 members."""
    files = [tmp_path / f"{number}.npz" for number in range(archives._KEPT + 2)]
    for path in files:
        np.savez(path, a=np.zeros(3))
    looked: list[str] = []
    tree = archives._tree

    def looking(path: Path, title: str, version: str) -> Any:
        looked.append(title)
        return tree(path, title, version)

    monkeypatch.setattr(archives, "_tree", looking)
    for path in (*files, files[-1], files[-1]):
        assert resolve(path) == path
    assert looked == [str(path) for path in files]
    assert len(archives._others) == archives._KEPT
    np.savez(files[-1], longer=np.zeros(4))
    resolve(files[-1])
    assert looked[-2:] == [str(files[-1])] * 2


def test_few_trees_are_kept(model: Path, tmp_path: Path) -> None:
    first = None
    for number in range(archives._KEPT + 2):
        path = tmp_path / f"{number}.tar"
        path.write_bytes(tarred({"a.safetensors": model.read_bytes()}))
        first = first or open_source(resolve(path))
        assert isinstance(resolve(path), WrappedPath)
    assert len(archives._roots) == archives._KEPT
    assert first is not None
    assert first.read(0, first.size) == model.read_bytes()


@pytest.mark.parametrize("wrap", [gzip.compress, lambda d: deflated({"m/data.bin": d}), lambda d: zstd(d),
                                  lambda d: lz4(d), lambda d: seven_zipped({"m.bin": d}),
                                  lambda d: zipped({"a.tar.gz": tarred({"m.bin": d}, "w:gz")})],
                         ids=["gzip", "zip", "zstd", "lz4", "7z", "nested"])  # fmt: skip
def test_the_scan_sees_a_pickle_in_every_wrapper(wrap: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(wrap(b"cos\nsystem\n(S'id'\ntR."))
    assert wb.scan(path).verdict == "dangerous"


# ---- seekable zstd ----


def test_only_the_frames_that_are_read_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(i % 251 for i in range(50_000))
    packed = BytesSource(seekable(data, 1000), "a.zst")
    source = wrapped.WRAPPERS["zstd"](packed).files["a"].open()
    calls: list[int] = []

    def counted(codec: str, data: bytes, most: int) -> bytes:
        calls.append(1)
        return decompressed(codec, data, most)

    monkeypatch.setattr(decoder, "decompressed", counted)
    assert source.read(20_500, 700) == data[20_500:21_200]
    assert len(calls) == 2
    assert source.read(0, source.size) == data


def test_a_table_that_does_not_fit_is_ignored() -> None:
    """The stream is decoded as a whole then, and its damage found."""
    data = bytes(5000)
    for packed in (seekable(data, magic=1), seekable(data, flags=4), b"x" + seekable(data), seekable(data)[:5], b""):
        assert decoder.frames_of(BytesSource(packed)) == []
    good = seekable(data)
    table = struct.pack("<II", 0x184D2A5E, len(good))
    assert decoder.frames_of(BytesSource(good.replace(good[-17:-9], table))) == []
    frames = decoder.frames_of(BytesSource(good))
    assert [frame.size for frame in frames] == [999] * 5 + [5]


def test_a_damaged_frame_is_named() -> None:
    good = seekable(bytes(range(256)) * 20)
    source = wrapped.WRAPPERS["zstd"](BytesSource(good[:4] + b"????" + good[8:], "a.zst")).files["a"].open()
    with pytest.raises(FormatError, match="a frame can't be decoded"):
        source.read(0, source.size)
