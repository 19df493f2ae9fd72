"""ZipNN's files and tensors, and models in DFloat11's code: read bit for bit as their libraries wrote them
(record_coded.py), and damaged ones refused."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.containers.framework_files import GOLDEN

from weighbridge.api.copying import unpack
from weighbridge.api.writing import convert
from weighbridge.base import native as extension
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.containers.base import Severity
from weighbridge.containers.formats import ZIPNN_KEY as KEY
from weighbridge.containers.opening import parse
from weighbridge.containers.safetensors.container import examine
from weighbridge.containers.sniff.detect import sniff
from weighbridge.containers.zipnn.container import original
from weighbridge.containers.zipnn.stream import DecodedStreams, read_streams
from weighbridge.io.source import BytesSource, FileSource
from weighbridge.models.dfloat11 import matches
from weighbridge.models.open import ALONE, open_headers, open_model
from weighbridge.packings.read import dfloat11
from weighbridge.packings.read.dfloat11 import Dfloat11Source
from weighbridge.reports.diff.report import diff
from weighbridge.reports.identify import identify
from weighbridge.reports.inspect.report import inspect
from weighbridge.reports.scan.engine import scan
from weighbridge.reports.verify.report import verify

FILES = {"": b""}
with zipfile.ZipFile(GOLDEN.with_name("coded.zip")) as archive:
    FILES |= {name: archive.read(name) for name in archive.namelist()}
PLAIN = FILES["plain.safetensors"]
ZNN = sorted(name for name in FILES if name.endswith(".znn"))
STREAM = ZNN[0]
pytest.importorskip("backports.zstd" if not hasattr(zipfile, "ZIP_ZSTANDARD") else "compression.zstd")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("coded")
    for name, data in FILES.items():
        if name:
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_bytes(data)
    return root


def tensors(data: bytes) -> dict[str, tuple[Any, bytes]]:
    index = parse(BytesSource(data))
    return {e.name: (e.spec, index.files[e.file].read(e.offset, e.nbytes)) for e in index}


# ---- ZipNN ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ZNN)
def test_files_of_zipnn_are_read_bit_for_bit(name: str) -> None:
    source = original(BytesSource(FILES[name], name))
    assert source.read(0, source.size) == PLAIN
    for at in range(0, len(PLAIN) - 5000, 4093):
        assert source.read(at, 1 + at % 5000) == PLAIN[at : at + 1 + at % 5000]
    assert tensors(FILES[name]) == tensors(PLAIN)
    identity = sniff(BytesSource(FILES[name]))
    assert (identity.format, identity.variant, identity.damage) == ("zipnn", "safetensors", ())


def test_tensors_of_zipnn_are_read_bit_for_bit(folder: Path) -> None:
    coded = FILES["plain.znn.safetensors"]
    assert len(coded) < len(PLAIN)
    assert tensors(coded) == tensors(PLAIN)
    assert KEY not in parse(BytesSource(coded)).metadata
    assert diff(folder / "plain.safetensors", folder / "plain.znn.safetensors").same
    report = inspect(folder / "plain.znn.safetensors")
    assert (report.nbytes, len(report.files)) == (len(coded), 1)
    assert [note.message for note in report.notes if note.rule == "file/coded"]
    assert identify(folder / "plain.znn.safetensors").detail["packings"] == ["zipnn"]
    assert verify(folder / "plain.znn.safetensors", values=True).ok


def test_a_converted_file_has_no_list_of_zipnn(folder: Path, tmp_path: Path) -> None:
    for name in ("plain.znn.safetensors", STREAM):
        convert(folder / name, tmp_path / "out.safetensors", overwrite=True)
        assert tensors((tmp_path / "out.safetensors").read_bytes()) == tensors(PLAIN)
        assert b"znn" not in (tmp_path / "out.safetensors").read_bytes()[:2000]


def test_the_original_is_scanned(tmp_path: Path) -> None:
    """A stored pickle, which no header shows."""
    evil = b"cos\nsystem\n(S'x'\ntR." + bytes(3000)
    head = bytearray(FILES[STREAM][:32])
    head[14], body = 12, evil[0::2] + evil[1::2]
    head[6], count = 0, -(-len(evil) // 2)
    tables = bytes(2) + struct.pack("<2Q", count, len(evil) - count)
    head[16:32] = struct.pack("<2Q", len(evil), 32 + len(tables) + len(evil))
    (tmp_path / "a.pkl.znn").write_bytes(bytes(head) + tables + body)
    source = original(FileSource(tmp_path / "a.pkl.znn"))
    assert source.read(0, source.size) == evil
    assert not scan(tmp_path / "a.pkl.znn")


@pytest.mark.parametrize("name", ZNN)
def test_unpack_writes_the_original(name: str, folder: Path, tmp_path: Path) -> None:
    result = unpack(folder / name, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == original(FileSource(folder / name)).read(0, result.bytes) != b""
    assert "1 ZipNN file decoded, without a digest to compare with" in result.notes


def test_unpack_decodes_the_files_of_a_folder(tmp_path: Path) -> None:
    (source := tmp_path / "in").mkdir()
    for name in ZNN:
        (source / name).write_bytes(FILES[name])
    (source / "config.json").write_text("{}")
    unpack(source, tmp_path / "out")
    names = {p.name for p in (tmp_path / "out").iterdir()}
    assert names == {*(name.removesuffix(".znn") for name in ZNN), "config.json"}
    (source / ZNN[0].removesuffix(".znn")).write_bytes(PLAIN)
    with pytest.raises(UsageError, match="would be called"):
        unpack(source, tmp_path / "again")


def test_unpack_names_the_damage_and_writes_nothing(tmp_path: Path) -> None:
    data = FILES[STREAM]
    for number, broken in enumerate((data[:40], data[:-1], data[:24] + bytes(8) + data[32:])):
        (path := tmp_path / f"{number}.znn").write_bytes(broken)
        with pytest.raises((FormatError, UnsupportedError)):
            unpack(path, tmp_path / "out")
        assert not (tmp_path / "out").exists()


def whole(source: BytesSource) -> bytes:
    decoded = original(source)
    return decoded.read(0, decoded.size)


def patched(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


def _first_table(data: bytes) -> int:
    return read_streams(BytesSource(data))[0].tables


BAD_STREAMS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut in the header": (lambda d: d[:20], "the file ends in its header"),
    "cut in the planes": (lambda d: d[:-1], "its header is wrong"),
    "more bytes": (lambda d: d + b"x", "the file ends in its header"),
    "length of a header": (lambda d: patched(d, 24, struct.pack("<Q", 31)), "its header is wrong"),
    "huge original": (lambda d: patched(d, 16, struct.pack("<Q", 1 << 62)), "its tables don't fit"),
    "unknown type": (lambda d: patched(d, 15, b"\x0d"), "its type or order is unknown"),
    "other byte order": (lambda d: patched(d, 5, b"\x09"), "its type or order is unknown"),
    "huge chunk": (lambda d: patched(d, 14, b"\x3f"), "its type or order is unknown"),
    "tiny chunk": (lambda d: patched(d, 14, b"\x01"), "its type or order is unknown"),
    "old version": (lambda d: patched(d, 3, b"\x02"), "a stream of ZipNN 0.2"),
    "delta": (lambda d: patched(d, 9, b"\x01"), "a delta"),
    "lossy": (lambda d: patched(d, 10, b"\x01"), "lossy"),
    "unknown method": (lambda d: patched(d, _first_table(d), b"\x02"), "its tables are wrong"),
    "stored plane of another size": (lambda d: patched(d, _first_table(d), bytes(99)), "its tables are wrong"),
    "falling ends": (lambda d: patched(d, read_streams(BytesSource(d))[0].data - 16, bytes(8)), "its tables are wrong"),
    "damaged code": (lambda d: patched(d, len(d) - 64, bytes(64)), "can't be decoded"),
}


@pytest.mark.parametrize("name", BAD_STREAMS)
def test_a_damaged_stream_is_refused(name: str) -> None:
    breaks, message = BAD_STREAMS[name]
    data = breaks(FILES[STREAM])
    with pytest.raises((FormatError, UnsupportedError), match=message):
        whole(BytesSource(data, "m.znn"))


def relisted(change: Callable[[dict[str, Any]], object]) -> bytes:
    data = FILES["plain.znn.safetensors"]
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    listed = json.loads(header["__metadata__"][KEY])
    changed = change(listed)
    header["__metadata__"][KEY] = changed if isinstance(changed, str) else json.dumps(listed)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


@pytest.mark.parametrize("change", [
    lambda listed: "{", lambda listed: "[]", lambda listed: listed["bf16"].update(dtype="int7"),
    lambda listed: listed["bf16"].update(dtype="int32"), lambda listed: listed["bf16"].update(shape="[2, x]"),
    lambda listed: listed["bf16"].update(shape="[-1]"), lambda listed: listed["bf16"].update(shape=f"[{1 << 62}]"),
    lambda listed: listed.update(numbers={"dtype": "bfloat16", "shape": "[40]"}),
])  # fmt: skip
def test_a_wrong_list_of_tensors_is_refused(change: Callable[[dict[str, Any]], object]) -> None:
    with pytest.raises(FormatError, match="the list of ZipNN's tensors is wrong"):
        parse(BytesSource(relisted(change)))


def test_a_stream_of_another_tensor_is_refused() -> None:
    source = BytesSource(relisted(lambda listed: listed["bf16"].update(shape="[151, 31]")))
    index = parse(source)
    with pytest.raises(FormatError, match="isn't that of its tensor"):
        index.files[index["bf16"].file].read(0, 2)
    assert tensors_of(examine(source)) == {*tensors(PLAIN)} - {"bf16"}


def tensors_of(examined: Any) -> set[str]:
    index, findings = examined
    assert [(f.rule, f.severity) for f in findings] == [("safetensors/zipnn", Severity.ERROR)]
    return {entry.name for entry in index}


def test_chunks_are_decoded_where_they_are_read() -> None:
    reads: list[int] = []

    class Counted(BytesSource):
        def _readinto(self, offset: int, out: memoryview) -> int:
            reads.append(len(out))
            return super()._readinto(offset, out)

    source = Counted(FILES[STREAM])
    decoded = DecodedStreams(source, read_streams(source))
    reads.clear()
    decoded.read(70_000 % decoded.size, 10)
    assert sum(reads) < len(FILES[STREAM]) / 2


def test_planes_are_joined_alike_without_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.random.default_rng(0).bytes(4099)
    for count, sign, size in [(1, 0, 99), (2, 0, 7), (2, 16, 4099), (2, 16, 3), (4, 32, 4098), (4, 32, 5), (2, 16, 0)]:
        ways = []
        for module in (extension.native, None):
            monkeypatch.setattr(extension, "native", module)
            extension.join_planes(count, sign, data[:size], memoryview(out := bytearray(size)))
            ways.append(out)
        assert ways[0] == ways[1], (count, sign, size)


# ---- DFloat11 ---------------------------------------------------------------------------------------------------

BLOCK = "model.layers.1"


@pytest.mark.parametrize("name", ["df11", "df11-blocks"])
def test_models_in_dfloat11_are_read_bit_for_bit(folder: Path, name: str, tmp_path: Path) -> None:
    assert diff(folder / "llama", folder / name).same
    assert {f.rule for f in verify(folder / name, values=True).findings} <= {"tokenizer/none"}
    convert(folder / name, tmp_path / "m.gguf", tokenizer=False)
    convert(folder / name, tmp_path / "out/")
    for target in ("m.gguf", "out/"):
        assert diff(folder / "llama", tmp_path / target).same
    assert "dfloat11" not in (tmp_path / "out/config.json").read_text()
    assert identify(folder / name / "model.safetensors").detail["packings"] == ["dfloat11"]


def test_any_place_of_a_block_is_read(folder: Path) -> None:
    with open_model(folder / "df11-blocks") as model, open_model(folder / "llama") as plain:
        name = f"{BLOCK}.mlp.down_proj.weight"
        entry, other = model.index[name], plain.index[name]
        whole = plain.index.files[0].read(other.offset, other.nbytes)
        source = model.index.files[entry.file]
        assert isinstance(source, Dfloat11Source)
        for at in range(0, entry.nbytes - 300, 197):
            assert source.read(entry.offset + at, 1 + at % 300) == whole[at : at + 1 + at % 300]


def test_threads_are_decoded_alike_without_the_extension(folder: Path) -> None:
    with open_model(folder / "df11") as model:
        for source in model.index.files[1:]:
            assert isinstance(source, Dfloat11Source)
            codes = source.parts["encoded_exponent"]
            count = -(-codes.size // 8)
            starts = 64 * np.arange(count) + source.gaps_of(0, count)
            data = codes.read(0, codes.size)
            ways = [f(data, starts, source._lookup) for f in (dfloat11.decode_threads, dfloat11.step_threads)]
            assert all(np.array_equal(a, b) for a, b in zip(*ways, strict=True))


def test_without_its_config_a_file_keeps_its_codes(folder: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare.safetensors"
    bare.write_bytes(FILES["df11/model.safetensors"])
    with pytest.raises(UnsupportedError, match="whose names are in config"):
        open_model(bare)
    with open_headers(bare, ALONE).model as model:
        assert [f.rule for f in model.index.findings] == ["dfloat11/stored"]
        assert f"{BLOCK}.luts" in model.index
    assert [f.rule for f in verify(bare).findings] == ["config/packing-unread"]
    convert(bare, tmp_path / "out.safetensors", config=json.loads(FILES["df11/config.json"]))
    assert tensors((tmp_path / "out.safetensors").read_bytes()) == tensors(FILES["llama/model.safetensors"])


def test_shapes_of_an_unknown_family_come_from_biases(folder: Path, tmp_path: Path) -> None:
    """Without a bias a weight is a list of its values, with a finding."""
    config = json.loads(FILES["df11/config.json"]) | {"architectures": ["Unknown"], "model_type": "unknown"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    added = {"lm_head.bias": np.zeros(96, np.float32)}
    (tmp_path / "model.safetensors").write_bytes(with_arrays(FILES["df11/model.safetensors"], added))
    with open_model(tmp_path) as model:
        assert model.index["lm_head.weight"].shape == (96, 32)
        assert model.index["model.embed_tokens.weight"].shape == (96 * 32,)
        assert "dfloat11/shape" in {f.rule for f in model.index.findings}


def with_arrays(data: bytes, arrays: dict[str, Any]) -> bytes:
    """A Safetensors file with some tensors replaced or added."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    names = {"uint8": "U8", "float32": "F32", "int64": "I64"}
    out, body = {"__metadata__": header.pop("__metadata__")}, b""
    for name in {**header, **arrays}:
        if name in arrays:
            row, part = {"dtype": names[str(arrays[name].dtype)], "shape": arrays[name].shape}, arrays[name].tobytes()
        else:
            row = header[name]
            begin, end = row["data_offsets"]
            part = data[8 + size + begin : 8 + size + end]
        out[name] = {**row, "data_offsets": [len(body), len(body) + len(part)]}
        body += part
    text = json.dumps(out).encode()
    return len(text).to_bytes(8, "little") + text + body


def part(name: str) -> Any:
    spec, data = tensors(FILES["df11-blocks/model.safetensors"])[f"{BLOCK}.{name}"]
    return np.frombuffer(data, np.int64 if spec.dtype.name == "I64" else np.uint8).copy()


def changed(name: str, at: Any, value: int) -> dict[str, Any]:
    array = part(name)
    array[at] = value
    return {f"{BLOCK}.{name}": array}


BAD_BLOCKS: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "overwritten codes": (lambda: changed("encoded_exponent", slice(64, 96), 0), "are damaged"),
    "a gap": (lambda: changed("gaps", 9, part("gaps")[9] ^ 4), "are damaged"),
    "few gaps": (lambda: {f"{BLOCK}.gaps": part("gaps")[:-20]}, "too few for"),
    "a falling position": (lambda: changed("output_positions", 6, 255), "don't rise"),
    "few positions": (lambda: {f"{BLOCK}.output_positions": part("output_positions")[4:]}, "are needed"),
    "another end": (lambda: {f"{BLOCK}.sign_mantissa": part("sign_mantissa")[:-1]}, "has another size than"),
    "a missing table": (lambda: {f"{BLOCK}.luts": np.tile(np.uint8(241), (2, 256))}, "are damaged"),
    "codes without bits": (lambda: {f"{BLOCK}.luts": part("luts").reshape(-1, 256) * np.uint8(0)}, "are damaged"),
    "half a table": (lambda: {f"{BLOCK}.luts": part("luts")[:300]}, "wrong type or shape"),
    "texts for tables": (lambda: {f"{BLOCK}.luts": np.zeros((3, 256), np.float32)}, "wrong type or shape"),
    "splits out of order": (lambda: changed("split_positions", 1, 10), "don't fit it"),
    "a split too few": (lambda: {f"{BLOCK}.split_positions": part("split_positions")[:-1]}, "don't fit it"),
    "a negative split": (lambda: changed("split_positions", 0, -8), "don't fit it"),
}


@pytest.fixture(scope="module")
def bad_folder(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("bad")
    (root / "config.json").write_bytes(FILES["df11-blocks/config.json"])
    return root


@pytest.mark.parametrize("name", BAD_BLOCKS)
def test_a_damaged_block_is_refused(name: str, bad_folder: Path) -> None:
    arrays, message = BAD_BLOCKS[name]
    file = bad_folder / "model.safetensors"
    file.write_bytes(with_arrays(FILES["df11-blocks/model.safetensors"], arrays()))
    with pytest.raises(FormatError, match=message):
        convert(bad_folder, bad_folder / "out.safetensors")
    assert not (bad_folder / "out.safetensors").exists()
    found = {f.rule for f in verify(bad_folder, values=True).findings} - {"tokenizer/none"}
    assert found & {"values/code", "config/packing"}


CONFIGS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "other threads": (lambda c: c.update(bytes_per_thread=4), "512 threads of 4 bytes|8 threads of 4 bytes"),
    "no threads": (lambda c: c.update(threads_per_block=[0]), "with 0 threads"),
    "no pattern": (lambda c: c.update(pattern_dict={}), "no pattern of dfloat11_config"),
    "no settings": (lambda c: c.clear(), "whose names are in config.json"),
    "few parts": (lambda c: c["pattern_dict"].update({r"model\.layers\.\d+": ["a"]}), "don't fit it"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_contradictory_config_is_refused(name: str, bad_folder: Path, tmp_path: Path) -> None:
    change, message = CONFIGS[name]
    config = json.loads(FILES["df11-blocks/config.json"])
    change(config["dfloat11_config"])
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(FILES["df11-blocks/model.safetensors"])
    with pytest.raises((FormatError, UnsupportedError), match=message):
        open_model(tmp_path)


def test_half_a_block_is_named(bad_folder: Path) -> None:
    data = FILES["df11-blocks/model.safetensors"]
    (bad_folder / "model.safetensors").write_bytes(data.replace(b'"lm_head.gaps"', b'"lm_head.nope"'))
    with pytest.raises(FormatError, match="is incomplete"):
        open_model(bad_folder)


def test_patterns_are_literal_text_and_numbers() -> None:
    """Others aren't tried: one from a file could take forever."""

    def cases() -> Iterator[tuple[str, str, bool]]:
        yield r"model\.layers\.\d+", "model.layers.10", True
        yield r"model\.layers\.\d+", "model.layers.10.mlp", False
        yield r"model\.layers\.\d+", "modelxlayers.10", False
        yield r"blocks.[0-9]+.ff", "blocks.3.ff", True
        yield "lm_head", "lm_head", True
        yield "(a+)+b", "a" * 40, False
        yield r"\d+" * 20, "1" * 40, False
        yield ".*", "lm_head", False

    assert [matches(pattern, name) for pattern, name, _ in cases()] == [right for _, _, right in cases()]
