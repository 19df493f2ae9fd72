"""`wb pack` and `wb unpack`: the original bytes come back, commands read packed files, nothing is half-written."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.conformance.samples import samples
from tests.containers.framework_files import GOLDEN
from tests.llama import CONFIG, llama_tensors, make_folder
from tests.remote.servers import FileServer

import weighbridge as wb
from weighbridge.base.errors import ChangedError, FormatError, RefusedError, UnsupportedError, UsageError
from weighbridge.base.native import native
from weighbridge.cli.main import main
from weighbridge.containers.data_files import DataFile
from weighbridge.containers.formats import PACKED, READ
from weighbridge.containers.opening import parse
from weighbridge.containers.wbpack.archive import read_archive
from weighbridge.conversion.archive import pack as packing
from weighbridge.conversion.archive import records
from weighbridge.io.source import BytesSource, FileSource

pytestmark = pytest.mark.skipif(native is None, reason="packing needs the extension")
BF16 = ml_dtypes.bfloat16
OTHERS = tuple(format for format in READ if format.name != PACKED)


def normal(dtype: Any = BF16, seed: int = 1, change: float = 0.0) -> dict[str, np.ndarray]:
    """Weights as in models, of more than a chunk; `change`: the size of a fine-tune's steps."""
    rng = np.random.default_rng(seed)
    steps = np.random.default_rng(9)
    out = {}
    for name, shape in {"embed": (900, 640), "layer.w": (640, 640), "norm": (640,)}.items():
        values = rng.normal(0, 0.02, shape)
        out[name] = (values + change * steps.normal(0, 1, shape)).astype(dtype)
    return out


def saved(path: Path, tensors: Mapping[str, np.ndarray]) -> Path:
    save_file(dict(tensors), path)
    return path


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder, and its packed form in `packed`."""
    root = tmp_path_factory.mktemp("llama")
    folder = make_folder(root / "model", CONFIG, llama_tensors(), words=True)
    wb.pack(folder, root / "packed" / "model", parents=True)
    return root


def tree(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# ---------------------------------------------------------------- round trips


@pytest.mark.parametrize("format", OTHERS, ids=lambda f: f.name)
def test_any_file_comes_back_and_is_read_packed(format: Any, tmp_path: Path) -> None:
    for number, data in enumerate(samples(format)):
        if len(data) < 8:  # an empty map of msgpack: one byte, which is of no format without its suffix
            continue
        path = tmp_path / f"{number}{format.suffix or '.bin'}"
        path.write_bytes(data)
        packed = tmp_path / f"{number}.packed.safetensors"
        report = wb.pack(path, packed)
        assert report.files[0].sha256 == hashlib.sha256(data).hexdigest()
        assert report.packed_bytes == packed.stat().st_size
        wb.unpack(packed, tmp_path / f"{number}.back")
        assert (tmp_path / f"{number}.back").read_bytes() == data
        with FileSource(path) as source, FileSource(packed) as other:
            try:
                one, two = parse(source), parse(other)
            except UnsupportedError:  # an .npz of no arrays is any zip
                with pytest.raises(UnsupportedError):
                    parse(other)
                continue
            if format.name != "npy":  # whose array is named as the file
                assert [e.name for e in one] == [e.name for e in two]
            assert [e.spec for e in one] == [e.spec for e in two]
            assert one.format == two.format
            for a, b in zip(one, two, strict=True):
                if isinstance(one.files[a.file], DataFile):  # another file, which is packed by itself
                    assert isinstance(two.files[b.file], DataFile)
                    continue
                assert one.files[a.file].read(a.offset, a.nbytes) == two.files[b.file].read(b.offset, b.nbytes)


@pytest.mark.parametrize(("dtype", "most"), [(BF16, 0.672), (np.float32, 0.84), (np.float16, 0.85), (np.int8, 0.2)])
def test_how_small_files_become(dtype: Any, most: float, tmp_path: Path) -> None:
    path = saved(tmp_path / "a.safetensors", normal(dtype))
    report = wb.pack(path, tmp_path / "p.safetensors")
    assert report.ratio <= most
    assert report.files[0].tensors == 4  # with the header
    wb.unpack(tmp_path / "p.safetensors", tmp_path / "b.safetensors")
    assert (tmp_path / "b.safetensors").read_bytes() == path.read_bytes()


def test_a_folder_keeps_names_and_other_files(llama: Path, tmp_path: Path) -> None:
    original, packed = tree(llama / "model"), tree(llama / "packed/model")
    assert original.keys() == packed.keys()
    changed = {name for name in original if original[name] != packed[name]}
    assert changed == {name for name in original if name.endswith(".safetensors")}
    result = wb.unpack(llama / "packed/model", tmp_path / "back")
    assert tree(tmp_path / "back") == original
    assert result.notes
    assert "copied" in result.notes[0]


def test_other_weights_get_a_suffix_and_lose_it_again(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    wb.save({"w": np.ones((4, 64), np.float32)}, tmp_path / "m" / "model.gguf",
            metadata={"general.architecture": "mine"})  # fmt: skip
    wb.pack(tmp_path / "m", tmp_path / "p")
    assert [*tree(tmp_path / "p")] == ["model.gguf.safetensors"]
    with wb.open(tmp_path / "p") as model:
        assert model.format == "gguf"
    wb.unpack(tmp_path / "p", tmp_path / "back")
    assert tree(tmp_path / "back") == tree(tmp_path / "m")


def test_the_data_file_that_a_header_names_is_packed(tmp_path: Path) -> None:
    with zipfile.ZipFile(GOLDEN) as archive:
        files = {name: archive.read(name) for name in ("e.onnx", "e.bin")}
    (tmp_path / "m").mkdir()
    for name, data in files.items():
        (tmp_path / "m" / name).write_bytes(data)
    report = wb.pack(tmp_path / "m", tmp_path / "p")
    assert {file.name: bool(file.tensors) for file in report.files} == {"e.bin": True, "e.onnx.safetensors": True}
    assert wb.diff(tmp_path / "m", tmp_path / "p").same
    assert wb.verify(tmp_path / "p", values=True).ok
    wb.unpack(tmp_path / "p", tmp_path / "back")
    assert {name: (tmp_path / "back" / name).read_bytes() for name in files} == files


@pytest.mark.costly
@pytest.mark.parametrize("kind", ["gguf", "torch"])
def test_shards_keep_their_names(kind: str, tmp_path: Path) -> None:
    """The other shards, or an index, refer to them."""
    make_folder(tmp_path / "llama", words=True)
    if kind == "gguf":
        wb.convert(tmp_path / "llama", tmp_path / "whole.gguf")
        wb.split(tmp_path / "whole.gguf", tmp_path / "shards", max_shard_size=100_000)
    else:
        wb.convert(tmp_path / "llama", tmp_path / "shards", to="torch", max_shard_size=100_000)
    wb.pack(tmp_path / "shards", tmp_path / "packed")
    names = sorted(path.name for path in (tmp_path / "shards").iterdir())
    assert sorted(path.name for path in (tmp_path / "packed").iterdir()) == names
    counts = wb.diff(tmp_path / "shards", tmp_path / "packed").counts
    assert {name for name, count in counts.items() if count} == {"equal"}
    assert wb.verify(tmp_path / "packed").ok
    assert not wb.identify(tmp_path / "packed").name_lies
    wb.unpack(tmp_path / "packed", tmp_path / "again")
    assert [(tmp_path / "again" / name).read_bytes() for name in names] == [
        (tmp_path / "shards" / name).read_bytes() for name in names
    ]


def test_a_distributed_checkpoint_isnt_packed(tmp_path: Path) -> None:
    make_folder(tmp_path / "llama", words=True)
    wb.convert(tmp_path / "llama", tmp_path / "dcp", to="dcp")
    with pytest.raises(UnsupportedError, match="distributed checkpoint"):
        wb.pack(tmp_path / "dcp", tmp_path / "packed")
    assert not (tmp_path / "packed").exists()


def test_threads_and_memory_make_no_difference(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.safetensors", normal())
    ways: tuple[dict[str, Any], ...] = ({"jobs": 1}, {"jobs": 3}, {"max_memory": 1})
    for number, how in enumerate(ways):
        wb.pack(path, tmp_path / f"{number}.safetensors", **how)
    assert len({(tmp_path / f"{n}.safetensors").read_bytes() for n in range(3)}) == 1


# ---------------------------------------------------------------- commands


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    code = main([str(word) for word in words])
    return code, capsys.readouterr().out


COMMANDS: dict[str, list[str]] = {
    "inspect": ["inspect", "MODEL", "--json"],
    "inspect a file": ["inspect", "FILE", "--json"],
    "verify": ["verify", "MODEL", "--values"],
    "scan": ["scan", "MODEL"],
    "get": ["get", "FILE", "model.norm.weight"],
    "stats": ["stats", "FILE", "--json"],
    "tensor hashes": ["hash", "FILE", "--tensors"],
}
#: Parts of answers that name the path or the size of the file.
DIFFERS = {"path", "name", "source", "bytes", "size", "nbytes", "files", "modified", "model", "data_start", "folder"}


def plain(text: str, *paths: Path) -> Any:
    for path in paths:
        text = text.replace(str(path), "PATH")
    try:
        value = json.loads(text)
    except ValueError:
        return [line for line in text.splitlines() if "MB" not in line and "kB" not in line and "bytes" not in line]
    return {key: value[key] for key in value if key not in DIFFERS} if isinstance(value, dict) else len(value)


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_answer_as_of_the_original(name: str, llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = []
    for kind in ("model", "packed/model"):
        file = next(p for p in sorted((llama / kind).iterdir()) if p.suffix == ".safetensors")
        words = [{"MODEL": str(llama / kind), "FILE": str(file)}.get(word, word) for word in COMMANDS[name]]
        code, out = run(capsys, *words)
        assert code == 0
        answers.append(plain(out, file, llama / kind))
    assert answers[0] == answers[1]


def test_values_are_those_of_the_original(llama: Path, tmp_path: Path) -> None:
    assert wb.diff(llama / "packed/model", llama / "model").same
    for target in ("out.gguf", "out.safetensors"):
        for kind in ("model", "packed/model"):
            wb.convert(llama / kind, tmp_path / kind / target, parents=True)
        assert (tmp_path / "model" / target).read_bytes() == (tmp_path / "packed/model" / target).read_bytes()
    expected = load_file(next((llama / "model").glob("*.safetensors")))
    with wb.open(llama / "packed/model") as model:
        assert {name: np.array_equal(model[name].numpy(), value) for name, value in expected.items()} == dict.fromkeys(
            expected, True
        )


def test_identify_names_what_is_inside(llama: Path) -> None:
    report = wb.identify(next((llama / "packed/model").glob("*.safetensors")))
    assert (report.format, report.variant) == ("wbpack", "safetensors")
    assert report
    assert "packed: Safetensors" in report.evidence
    assert wb.identify(llama / "packed/model").format == "hf-model"


def test_scan_looks_into_a_packed_pickle(tmp_path: Path) -> None:
    (tmp_path / "evil.pkl").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    wb.pack(tmp_path / "evil.pkl", tmp_path / "p.safetensors")
    assert wb.scan(tmp_path / "p.safetensors").verdict == wb.scan(tmp_path / "evil.pkl").verdict == "dangerous"


def test_a_packed_folder_elsewhere(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    name = next(p.name for p in (llama / "packed/model").glob("*.safetensors"))
    with FileServer({f"/{name}": llama / "packed/model" / name}).running() as server:
        with wb.open(f"{server.url}/{name}") as model:
            assert model["model.norm.weight"].numpy().shape == (CONFIG["hidden_size"],)
        wb.unpack(f"{server.url}/{name}", tmp_path / "back.safetensors")
    assert (tmp_path / "back.safetensors").read_bytes() == (llama / "model" / name).read_bytes()


# ---------------------------------------------------------------- deltas


@pytest.mark.parametrize(("dtype", "most"), [(BF16, 0.2), (np.float32, 0.56), (np.float16, 0.3)])
def test_a_delta_is_smaller_and_comes_back(dtype: Any, most: float, tmp_path: Path) -> None:
    base = saved(tmp_path / "base.safetensors", normal(dtype))
    tuned = saved(tmp_path / "tuned.safetensors", {**normal(dtype, change=2e-5), "new": np.ones(3, dtype)})
    report = wb.pack(tuned, tmp_path / "p.safetensors", base=base)
    assert report.ratio < most
    wb.unpack(tmp_path / "p.safetensors", tmp_path / "b.safetensors", base=base)
    assert (tmp_path / "b.safetensors").read_bytes() == tuned.read_bytes()


def test_equal_tensors_take_nothing(tmp_path: Path) -> None:
    base = saved(tmp_path / "base.safetensors", normal())
    assert wb.pack(base, tmp_path / "p.safetensors", base=base).packed_bytes < 48_000  # the first 64 KiB are no delta


def test_unlike_tensors_are_packed_alone(tmp_path: Path) -> None:
    base = saved(tmp_path / "base.safetensors", normal())
    other = saved(tmp_path / "other.safetensors", {n: v.T.copy() for n, v in normal(seed=2).items()})
    alone = wb.pack(other, tmp_path / "a.safetensors").packed_bytes
    assert wb.pack(other, tmp_path / "p.safetensors", base=base).packed_bytes <= alone + 300
    wb.unpack(tmp_path / "p.safetensors", tmp_path / "b.safetensors", base=base)
    assert (tmp_path / "b.safetensors").read_bytes() == other.read_bytes()


def test_a_delta_without_its_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = saved(tmp_path / "base.safetensors", normal())
    tuned = saved(tmp_path / "tuned.safetensors", normal(change=2e-5))
    packed = tmp_path / "p.safetensors"
    wb.pack(tuned, packed, base=base)
    monkeypatch.delenv("WEIGHBRIDGE_BASE", raising=False)
    assert wb.inspect(packed).parameters == wb.inspect(tuned).parameters  # the header is no delta
    assert wb.identify(packed).detail["bases"] == ["base.safetensors"]
    with pytest.raises(UnsupportedError, match=r"a delta to base\.safetensors"):
        wb.unpack(packed, tmp_path / "b.safetensors")
    monkeypatch.setenv("WEIGHBRIDGE_BASE", str(tmp_path))
    assert wb.diff(packed, tuned).same
    (tmp_path / "sub").mkdir()
    other = saved(tmp_path / "sub" / "base.safetensors", normal(seed=2))
    with pytest.raises(FormatError, match="checksum is wrong"):
        wb.unpack(packed, tmp_path / "b.safetensors", base=other)
    assert not (tmp_path / "b.safetensors").exists()


# ---------------------------------------------------------------- refusals, faults


@pytest.mark.parametrize(("words", "error", "message"), [
    (["pack", "PACKED", "OUT"], UsageError, "is packed already"),
    (["pack", "EMPTY", "OUT"], UsageError, "nothing to pack"),
    (["pack", "FILE", "FILE"], RefusedError, "exists already"),
    (["plan_pack", "FILE", "hf://me/x/y.safetensors"], UsageError, "writes to this machine"),
    (["unpack", "FILE", "OUT"], UsageError, "isn't packed"),
    (["unpack", "PACKED", "FILE"], RefusedError, "exists already"),
    (["pack", "MISSING", "OUT"], FileNotFoundError, "MISSING"),
])  # fmt: skip
def test_what_is_refused(words: list[str], error: type[Exception], message: str, tmp_path: Path) -> None:
    places = {word: tmp_path / word for word in ("FILE", "OUT", "PACKED", "EMPTY", "MISSING")}
    saved(places["FILE"], {"a": np.ones(3, np.float32)})
    places["EMPTY"].write_bytes(b"")
    wb.pack(places["FILE"], places["PACKED"])
    before = tree(tmp_path)
    with pytest.raises(error, match=message):
        getattr(wb, words[0])(*(places.get(word, word) for word in words[1:]))
    assert tree(tmp_path) == before


def test_a_changed_byte_is_found_before_anything_is_written(tmp_path: Path) -> None:
    wb.pack(saved(tmp_path / "a.safetensors", normal()), tmp_path / "p.safetensors")
    good = (tmp_path / "p.safetensors").read_bytes()
    with FileSource(tmp_path / "p.safetensors") as source:
        archive = read_archive(source)
    for at in (archive.places[1] + 200, archive.places[2] + 5):
        bad = bytearray(good)
        bad[at] ^= 4
        (tmp_path / "p.safetensors").write_bytes(bad)
        with pytest.raises(FormatError, match="can't be unpacked"):
            wb.unpack(tmp_path / "p.safetensors", tmp_path / "b.safetensors")
        assert not (tmp_path / "b.safetensors").exists()


def test_another_digest_is_refused(tmp_path: Path) -> None:
    wb.pack(saved(tmp_path / "a.safetensors", {"a": np.ones(3, np.float32)}), tmp_path / "p.safetensors")
    raw = (tmp_path / "p.safetensors").read_bytes()
    digest = read_archive(BytesSource(raw)).sha256.encode()
    (tmp_path / "p.safetensors").write_bytes(raw.replace(digest, digest[::-1]))
    with pytest.raises(FormatError, match="sha256 differs"):
        wb.unpack(tmp_path / "p.safetensors", tmp_path / "b.safetensors")
    assert not (tmp_path / "b.safetensors").exists()


def failing(after: int) -> Callable[..., Any]:
    """`pack_best`, which raises at its call number `after`."""
    calls = iter(range(after))

    def act(*arguments: Any) -> Any:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return records.pack_best(*arguments)

    return act


def test_an_interrupted_run_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path / "a.safetensors", normal())
    monkeypatch.setattr(packing, "pack_best", failing(2))
    with pytest.raises(KeyboardInterrupt):
        wb.pack(path, tmp_path / "p.safetensors", jobs=1)
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]


@pytest.mark.parametrize("after", [0, 1, 2, 3, 4])
def test_an_interrupted_run_is_resumed(after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path / "a.safetensors", normal())
    wb.pack(path, tmp_path / "whole.safetensors")
    monkeypatch.setattr(packing, "pack_best", failing(after))
    with pytest.raises(KeyboardInterrupt):
        wb.pack(path, tmp_path / "p.safetensors", jobs=1, resume=True)
    monkeypatch.undo()
    report = wb.pack(path, tmp_path / "p.safetensors", resume=True)
    assert (report.resumed > 0) == (after > 0)
    assert (tmp_path / "p.safetensors").read_bytes() == (tmp_path / "whole.safetensors").read_bytes()
    assert {p.name for p in tmp_path.iterdir()} == {"a.safetensors", "whole.safetensors", "p.safetensors"}


def test_another_source_is_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path / "a.safetensors", normal())
    monkeypatch.setattr(packing, "pack_best", failing(3))
    with pytest.raises(KeyboardInterrupt):
        wb.pack(path, tmp_path / "p.safetensors", jobs=1, resume=True)
    monkeypatch.undo()
    saved(path, normal(seed=4))
    with pytest.raises(RefusedError):
        wb.pack(path, tmp_path / "p.safetensors", resume=True)


def test_a_source_that_changes_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path / "a.safetensors", normal())

    def act(*arguments: Any) -> Any:
        saved(path, normal(seed=4))
        return records.pack_best(*arguments)

    monkeypatch.setattr(packing, "pack_best", act)
    with pytest.raises(ChangedError, match="changed while it was packed"):
        wb.pack(path, tmp_path / "p.safetensors", jobs=1)
    assert not (tmp_path / "p.safetensors").exists()


# ---------------------------------------------------------------- records


def test_records_cover_a_file_and_take_padding() -> None:
    from weighbridge.base.dtypes import F32

    def place(name: str, start: int, end: int) -> records.StoredTensor:
        return records.StoredTensor(name, F32, ((end - start) // 4,), start, end)

    places = [place("b", 200, 400), place("a", 100, 200), place("c", 404, 8000), place("in c", 500, 600),
              place("d", 20_000, 20_004), place("wbpack.index", 20_004, 20_008), place("beyond", 30_000, 30_004),
              place("d", 20_008, 20_016), place("none", 9000, 9000)]  # fmt: skip
    made = records.planned_records(20_020, places, {}, ())
    assert [(r.name, r.start, r.end) for r in made] == [
        ("wbpack.bytes.0", 0, 100), ("a", 100, 200), ("b", 200, 404), ("c", 404, 8000),
        ("wbpack.bytes.4", 8000, 20_000), ("d", 20_000, 20_004), ("wbpack.bytes.6", 20_004, 20_008),
        ("wbpack.bytes.7", 20_008, 20_020),
    ]  # fmt: skip
    assert [r.dtype for r in made if r.name.startswith("wbpack.bytes")] == [None, None, F32, F32]


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path / "a.safetensors", normal())
    code, out = run(capsys, "pack", path, tmp_path / "p.safetensors", "--dry-run", "--json")
    assert code == 0
    assert json.loads(out)["files"] == [
        {"name": "a.safetensors", "bytes": path.stat().st_size, "packed": True, "records": 4, "deltas": 0}
    ]
    assert not (tmp_path / "p.safetensors").exists()
    code, out = run(capsys, "pack", path, tmp_path / "p.safetensors")
    assert code == 0
    assert "1 file packed" in out
    assert "(0.66" in out
    code, out = run(capsys, "unpack", tmp_path / "p.safetensors", tmp_path / "b.safetensors")
    assert code == 0
    assert (tmp_path / "b.safetensors").read_bytes() == path.read_bytes()
    shutil.rmtree(tmp_path)
