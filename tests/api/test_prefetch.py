"""What is announced to the system before it is read: of a rank its own bytes and no others, of a model all."""

from __future__ import annotations

import json
import mmap
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.llama import CONFIG

import weighbridge as wb
from weighbridge.base.dtypes import BF16, F32
from weighbridge.base.errors import UsageError
from weighbridge.io import page_cache
from weighbridge.io.source import FileSource
from weighbridge.tensors import nodes, prefetch

NOTHING = "NOTHING HERE WAS PROVED: install requirements/oracles.txt"
RANKS, MIB = 8, 1 << 20
LAYER = "model.layers.0."
CUT = [LAYER + f"self_attn.{x}_proj.weight" for x in "qkv"] + [LAYER + f"mlp.{x}_proj.weight" for x in ("gate", "up")]
Ranges = list[tuple[int, int]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of one layer, 33 MB, of which most is cut by rows."""
    path = tmp_path_factory.mktemp("prefetch") / "llama"
    sizes = {"hidden_size": 256, "intermediate_size": 10240, "num_attention_heads": 8, "num_key_value_heads": 8}
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(
        ("model.norm.weight", LAYER + "input_layernorm.weight", LAYER + "post_attention_layernorm.weight"), (256,)
    )
    shapes |= dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), (1024, 256))
    shapes |= dict.fromkeys([LAYER + f"self_attn.{x}_proj.weight" for x in "qkvo"], (256, 256))
    shapes |= dict.fromkeys(CUT[3:], (10240, 256)) | {LAYER + "mlp.down_proj.weight": (256, 10240)}
    rng = np.random.default_rng(0)
    wb.save({k: rng.normal(size=s).astype(np.float32) for k, s in shapes.items()}, path)
    config = CONFIG | sizes | {"num_hidden_layers": 1, "vocab_size": 1024}
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.fixture
def announced(monkeypatch: pytest.MonkeyPatch) -> dict[str, Ranges]:
    """What files are told, by the method that tells it."""
    found: dict[str, Ranges] = {"advise": [], "read_ahead": []}
    for place, (name, ranges) in zip((FileSource, prefetch), found.items(), strict=True):

        def note(source: FileSource, told: Iterable[tuple[int, int]], *_: Any, ranges: Ranges = ranges) -> None:
            ranges.extend(told)

        monkeypatch.setattr(place, name, note)
    return found


def place(node: Any) -> tuple[int, int]:
    return node.offset, node.spec.nbytes


def test_a_rank_announces_its_rows_alone(folder: Path, announced: dict[str, Ranges]) -> None:
    with wb.open(folder) as model:
        part = model.rank(3, of=RANKS)
        for name in CUT:
            part[name].numpy()
        whole = {name: place(model[name].node) for name in CUT}
        eighths = [(at + 3 * size // RANKS, size // RANKS) for at, size in whole.values()]
        assert announced == {"advise": eighths, "read_ahead": []}
        model[CUT[0]].numpy()  # one tensor of a whole model: read as it is touched
        assert len(announced["advise"]) == len(CUT)


def device_bytes() -> int:
    """Bytes that this process had read from a device."""
    return int(dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())["read_bytes"])


def dropped(path: Path) -> bool:
    """Drop a file from the page cache; whether that worked (it doesn't where files lie in memory)."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return page_cache.resident_share(fd, path.stat().st_size) == 0
    finally:
        os.close(fd)


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="COUNTS BYTES IN /proc, which isn't there")
def test_a_rank_of_8_reads_an_eighth_of_the_rows_from_the_device(folder: Path) -> None:
    read_rows(folder)  # what the program itself loads from the disk is loaded now
    if not dropped(folder / "model.safetensors"):
        pytest.skip("NO BYTES WERE COUNTED: the file stays in memory")
    before = device_bytes()
    size = read_rows(folder)
    read = device_bytes() - before
    if not read:
        pytest.skip("NO BYTES WERE COUNTED: this file system has no device")
    assert size / RANKS <= read <= size / RANKS + size * 0.02


def read_rows(folder: Path) -> int:
    """Touches every byte of a rank's rows; the bytes that all ranks have of these tensors."""
    with wb.open(folder) as model:
        part = model.rank(5, of=RANKS)
        for name in CUT:
            assert np.isfinite(part[name].numpy()).all()
        return sum(model[name].nbytes for name in CUT)


def test_columns_are_cut_from_rows_that_are_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of 5 KiB: reading them alone would cost the device as much as reading all."""
    read, name = list[int](), LAYER + "mlp.down_proj.weight"
    readinto = FileSource._readinto

    def counted(source: FileSource, offset: int, out: memoryview) -> int:
        read.append(len(out))
        return readinto(source, offset, out)

    with wb.open(folder) as model:
        part = model.rank(1, of=RANKS)[name]
        want = model[name].numpy()[:, 1280:2560]
        monkeypatch.setattr(FileSource, "_readinto", counted)
        assert np.array_equal(part.numpy(), want)
        assert sum(read) <= model[name].nbytes
        assert min(read) >= 64 * 1024  # blocks of rows


def test_a_ranks_model_is_pickled_as_a_rank(folder: Path) -> None:
    with wb.open(folder) as model:
        part = model.rank(2, of=RANKS)
        again = pickle.loads(pickle.dumps(part))
        assert (again.share, again[CUT[3]].shape) == ((2, RANKS), (1280, 256))
        one = pickle.loads(pickle.dumps(part[CUT[3]]))
        assert np.array_equal(one.numpy(), model[CUT[3]].numpy()[2560:3840])
        with pytest.raises(UsageError, match="this is rank 2 of 8 already"):
            part.rank(0, of=2)


def own_memory() -> int:
    """Bytes of memory of this process that no file lies under."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="COUNTS BYTES IN /proc, which isn't there")
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_views_take_no_memory_and_a_fault_for_each_page(kind: str, folder: Path) -> None:
    import resource

    if kind == "torch":
        pytest.importorskip("torch", reason=NOTHING)
    touched(folder, kind)  # imports, buffers, threads
    size = (folder / "model.safetensors").stat().st_size
    before, faults = own_memory(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    kept = touched(folder, kind)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    assert own_memory() - before < size * 0.05
    assert faults <= size // resource.getpagesize() + 1000
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as other:
        other.write(b"x" * size)
        assert own_memory() - before > size * 0.9  # a copy would be seen
    assert kept


def touched(folder: Path, kind: str) -> list[np.ndarray]:
    """All tensors as arrays, a byte of each page read."""
    with wb.open(folder) as model:
        arrays = [t if kind == "numpy" else t.numpy() for t in getattr(model, kind)().values()]
    assert all(np.isfinite(array.reshape(-1)[::1024]).all() for array in arrays)
    return arrays


# ---------------------------------------------------------------------- whole models


@pytest.mark.parametrize("call", ["numpy", "torch", "load_file"])
def test_a_whole_model_is_announced_at_once(call: str, folder: Path, announced: dict[str, Ranges]) -> None:
    if call != "numpy":
        pytest.importorskip("torch", reason=NOTHING)
    file = folder / "model.safetensors"
    with wb.open(folder) as model:
        if call == "load_file":
            from weighbridge.safetensors.torch import load_file

            load_file(file)
        else:
            getattr(model, call)()
        nodes_of = [place(model[name].node) for name in model]
    ((start, size),) = announced["read_ahead"]
    assert (start, start + size) == (min(at for at, _ in nodes_of), file.stat().st_size)
    assert announced["advise"] == []


def test_little_is_not_announced_and_never_more_than_memory_holds(
    announced: dict[str, Ranges], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(bytes(9 * MIB))
    source = FileSource(tmp_path / "a")
    stored = [nodes.Stored(nodes.const(np.zeros(n, np.float32), F32).spec, source, 0) for n in (MIB, 9 * MIB // 4)]
    prefetch.prefetch_behind(stored[:1])
    assert announced["read_ahead"] == []
    for available, size in ((18 * MIB - 1, 0), (None, 0), (18 * MIB, 9 * MIB)):
        monkeypatch.setattr(prefetch, "available_memory", lambda available=available: available)
        prefetch.prefetch_behind(stored)
        assert announced["read_ahead"] == ([(0, size)] if size else [])
    source.close()


def test_parts_and_windows_are_bytes_of_files(tmp_path: Path, announced: dict[str, Ranges]) -> None:
    """Of packed weights every part; of computed ones what they are made of; of memory nothing."""
    arrays = {"a": np.ones((64, 64), np.float32), "b": np.ones((2, 64), np.float32)}
    wb.save(arrays, tmp_path / "m.npz")
    with wb.open(tmp_path / "m.npz") as model:
        a, b = model["a"].node, model["b"].node
        prefetch.prefetch([nodes.concat([b, a]), nodes.const(arrays["b"], F32)])
    (first, second) = sorted(announced["advise"])
    data = (tmp_path / "m.npz").read_bytes()
    assert {data[at : at + size] for at, size in (first, second)} == {x.tobytes() for x in arrays.values()}
    announced["advise"].clear()
    wb.save(arrays, tmp_path / "m.gguf", dtype="q8_0", metadata={"general.architecture": "mine"})
    with wb.open(tmp_path / "m.gguf") as model:
        prefetch.prefetch([nodes.as_node(model["a"].node, F32)])
    assert [size for _, size in announced["advise"]] == [64 * 2 * 34]


def test_announcing_goes_on_after_close_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread has a descriptor of its own, and closes it."""
    (tmp_path / "a").write_bytes(b"x" * 100)
    go, seen = threading.Event(), []

    def slow(fd: int, ranges: Ranges) -> None:
        go.wait(60)
        seen.append((fd, os.pread(fd, 3, 0), list(ranges)))

    monkeypatch.setattr(page_cache, "will_need", slow)
    monkeypatch.setattr(page_cache, "missing", lambda fd, size, ranges: list(ranges))
    before = threading.enumerate()
    source = FileSource(tmp_path / "a")
    page_cache.read_ahead(source, [(0, 3)])
    (thread,) = (t for t in threading.enumerate() if t not in before)
    source.close()
    go.set()
    thread.join(60)
    ((fd, read, ranges),) = seen
    assert (read, ranges) == (b"xxx", [(0, 3)])
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


@pytest.mark.parametrize(
    ("cached", "want"),
    [
        (range(0), [(5, 10), (15, 10), (25, 5)]),
        (range(100), []),
        (range(20), [(15, 10), (25, 5)]),  # a piece of which the end is missing
        (range(15, 100), [(5, 10)]),
    ],
)
def test_what_is_in_memory_is_not_announced_again(
    cached: range, want: Ranges, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resident_page(mincore: object, address: int, offset: int, length: int) -> bytes:
        assert length == 1
        return bytes([offset in cached])

    (tmp_path / "a").write_bytes(bytes(100))
    advised: Ranges = []
    monkeypatch.setattr(page_cache, "will_need", lambda fd, ranges: advised.extend(ranges))
    monkeypatch.setattr(page_cache, "_PIECE", 10)
    monkeypatch.setattr(page_cache, "_resident", resident_page)
    before = threading.enumerate()
    with FileSource(tmp_path / "a") as source:
        page_cache.read_ahead(source, [(5, 25)])
        begun = [t for t in threading.enumerate() if t not in before]
    for thread in begun:
        thread.join(60)
    assert sorted(advised) == want
    assert want or not begun


def test_the_question_what_is_in_memory_reads_nothing(tmp_path: Path) -> None:
    """One byte of a page starts the system's read-ahead around it."""
    path, pieces = tmp_path / "a", [(at, MIB) for at in range(0, 8 * MIB, MIB)]
    path.write_bytes(bytes(8 * MIB))
    if not dropped(path):
        pytest.skip("NO PAGE WAS MISSING: the file stays in memory")
    with FileSource(path) as source:
        assert page_cache.missing(source.fileno(), source.size, pieces) == pieces
        assert page_cache.resident_share(source.fileno(), source.size) == 0
        os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        source.read(2 * MIB, MIB)
        assert page_cache.missing(source.fileno(), source.size, pieces) == pieces[:2] + pieces[3:]
        path.read_bytes()
        assert page_cache.missing(source.fileno(), source.size, pieces) == []


@pytest.mark.parametrize(("now", "want"), [(False, [(0, 5), (5, 5)]), (True, [])])
def test_a_system_that_calls_everything_resident_is_not_believed(
    now: bool, want: Ranges, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux says so of a file that is another user's and can't be written by this one."""
    (tmp_path / "a").write_bytes(bytes(10))
    monkeypatch.setattr(page_cache, "_resident", lambda *_: b"\1")
    monkeypatch.setattr(page_cache, "_can_read_now", lambda fd, at: now and at == 9)
    with FileSource(tmp_path / "a") as source:
        assert page_cache.missing(source.fileno(), 10, [(0, 5), (5, 5)]) == want
        monkeypatch.setattr(page_cache, "_resident", lambda *_: None)  # a system without an answer
        assert page_cache.missing(source.fileno(), 10, [(0, 5), (5, 5)]) == [(0, 5), (5, 5)]


def test_threads_announce_each_piece_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(bytes(100))
    advised: Ranges = []
    monkeypatch.setattr(page_cache, "_PIECE", 10)
    monkeypatch.setattr(page_cache, "missing", lambda fd, size, ranges: list(ranges))
    monkeypatch.setattr(page_cache, "will_need", lambda fd, ranges: advised.extend(ranges))
    before = threading.enumerate()
    source = FileSource(tmp_path / "a")
    page_cache.read_ahead(source, [(0, 45), (50, 10)])
    source.close()
    for thread in (t for t in threading.enumerate() if t not in before):
        thread.join(60)
    assert sorted(advised) == [(0, 10), (10, 10), (20, 10), (30, 10), (40, 5), (50, 10)]


# ---------------------------------------------------------------------- mapped ahead


def resident(path: Path) -> int:
    """Bytes of the mappings of a file whose pages are in this process's page table."""
    inside, total = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if "-" in head and not head.endswith(":"):
            inside = line.endswith(str(path))
        elif inside and head == "Rss:":
            total += int(line.split()[1]) * 1024
    return total


@pytest.fixture
def mapped_file(tmp_path: Path) -> Path:
    """A file of 1 MiB. Skips where the system can't map pages ahead."""
    path = tmp_path.resolve() / "a"
    path.write_bytes(b"x" * MIB)
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        if not page_cache.populate(np.frombuffer(page, np.uint8).ctypes.data, mmap.PAGESIZE):
            pytest.skip("NOTHING WAS MAPPED AHEAD: Linux does that since 5.14")
    return path


@pytest.mark.parametrize("private", [False, True])
def test_pages_of_a_view_are_mapped_before_they_are_touched(
    private: bool, mapped_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = threading.enumerate()
    with FileSource(mapped_file) as source:
        view = source.map(private)
        assert resident(mapped_file) == 0
        monkeypatch.setattr(page_cache, "missing", lambda fd, size, ranges: list(ranges))
        page_cache.read_ahead(source, [(5, MIB // 2)], prefetch._page_loader(view))
        for thread in (t for t in threading.enumerate() if t not in before):
            thread.join(60)
    assert resident(mapped_file) >= MIB // 2
    assert view[MIB - 1] == ord("x")


def test_mapping_ahead_ends_where_the_file_does(mapped_file: Path) -> None:
    with FileSource(mapped_file) as source:
        fetch = prefetch._page_loader(source.map())
        assert not fetch(MIB, 1)  # beyond the mapping
        os.truncate(mapped_file, mmap.PAGESIZE)
        assert not fetch(0, MIB)  # and no signal
        assert fetch(0, mmap.PAGESIZE)


@pytest.mark.costly
def test_a_program_may_end_while_pages_are_mapped(folder: Path) -> None:
    """Threads that map pages are stopped with the interpreter, wherever they are."""
    code = f"import weighbridge as wb; print(len(wb.open({str(folder)!r}).numpy()))"
    for _ in range(3):
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "12\n", "")


@pytest.mark.parametrize("kind", ["numpy", "torch", "bf16"])
def test_what_is_computed_is_not_mapped(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Views are mapped in the mapping that they are views of; what is decoded is read and never mapped."""
    if kind != "numpy":
        pytest.importorskip("torch", reason=NOTHING)
    seen: list[tuple[bool, bool | None]] = []

    def note(source: FileSource, ranges: Ranges, readonly: bool | None = None) -> None:
        seen.append((bool(ranges), readonly))

    monkeypatch.setattr(prefetch, "read_ahead", note)
    monkeypatch.setattr(prefetch, "_page_loader", lambda view: view.readonly)
    with wb.open(folder) as model:
        if kind == "bf16":
            prefetch.prefetch_behind([nodes.as_node(model[name].node, BF16) for name in model], private=True)
        else:
            getattr(model, kind)()
    assert seen == [(True, {"numpy": True, "torch": False, "bf16": None}[kind])]
