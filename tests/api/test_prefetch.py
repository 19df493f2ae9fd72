"""What is announced to the system before it is read: of a rank its own bytes and no others, of a model all."""

from __future__ import annotations

import json
import os
import pickle
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.api.test_provider import CONFIG

import weighbridge as wb
from weighbridge.base.dtypes import F32
from weighbridge.base.errors import UsageError
from weighbridge.io import page_cache
from weighbridge.io.source import FileSource
from weighbridge.tensors import nodes, prefetch

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
    found: dict[str, Ranges] = {"advise": [], "advise_behind": []}
    for name, ranges in found.items():

        def note(source: FileSource, told: Iterable[tuple[int, int]], ranges: Ranges = ranges) -> None:
            ranges.extend(told)

        monkeypatch.setattr(FileSource, name, note)
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
        assert announced == {"advise": eighths, "advise_behind": []}
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


def test_a_ranks_model_is_pickled_as_a_rank(folder: Path) -> None:
    with wb.open(folder) as model:
        part = model.rank(2, of=RANKS)
        again = pickle.loads(pickle.dumps(part))
        assert (again.share, again[CUT[3]].shape) == ((2, RANKS), (1280, 256))
        one = pickle.loads(pickle.dumps(part[CUT[3]]))
        assert np.array_equal(one.numpy(), model[CUT[3]].numpy()[2560:3840])
        with pytest.raises(UsageError, match="this is rank 2 of 8 already"):
            part.rank(0, of=2)


# ---------------------------------------------------------------------- whole models


@pytest.mark.parametrize("call", ["numpy", "torch", "load_file"])
def test_a_whole_model_is_announced_at_once(call: str, folder: Path, announced: dict[str, Ranges]) -> None:
    if call != "numpy":
        pytest.importorskip("torch", reason="NOTHING HERE WAS PROVED: install requirements/oracles.txt")
    file = folder / "model.safetensors"
    with wb.open(folder) as model:
        if call == "load_file":
            from weighbridge.safetensors.torch import load_file

            load_file(file)
        else:
            getattr(model, call)()
        nodes_of = [place(model[name].node) for name in model]
    ((start, size),) = announced["advise_behind"]
    assert (start, start + size) == (min(at for at, _ in nodes_of), file.stat().st_size)
    assert announced["advise"] == []


def test_little_is_not_announced_and_never_more_than_memory_holds(
    announced: dict[str, Ranges], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(bytes(9 * MIB))
    source = FileSource(tmp_path / "a")
    stored = [nodes.Stored(nodes.const(np.zeros(n, np.float32), F32).spec, source, 0) for n in (MIB, 9 * MIB // 4)]
    prefetch.prefetch_behind(stored[:1])
    assert announced["advise_behind"] == []
    for available, size in ((18 * MIB - 1, 0), (None, 0), (18 * MIB, 9 * MIB)):
        monkeypatch.setattr(prefetch, "available_memory", lambda available=available: available)
        prefetch.prefetch_behind(stored)
        assert announced["advise_behind"] == ([(0, size)] if size else [])
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
    from weighbridge.io import source as module

    (tmp_path / "a").write_bytes(b"x" * 100)
    go, seen = threading.Event(), []

    def slow(fd: int, ranges: Ranges) -> None:
        go.wait(60)
        seen.append((fd, os.pread(fd, 3, 0), list(ranges)))

    monkeypatch.setattr(module, "_will_need", slow)
    monkeypatch.setattr(module, "_is_cached", lambda fd, at: False)
    before = threading.enumerate()
    source = FileSource(tmp_path / "a")
    source.advise_behind([(0, 3)])
    (thread,) = (t for t in threading.enumerate() if t not in before)
    source.close()
    go.set()
    thread.join(60)
    ((fd, read, ranges),) = seen
    assert (read, ranges) == (b"xxx", [(0, 3)])
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_what_is_in_memory_is_not_announced_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from weighbridge.io import source as module

    (tmp_path / "a").write_bytes(bytes(100))
    advised: Ranges = []
    monkeypatch.setattr(module, "_ADVISED", 10)
    monkeypatch.setattr(module, "_will_need", lambda fd, ranges: advised.extend(ranges))
    for cached, want in (
        (range(0), [(5, 10), (15, 10), (25, 5)]),
        (range(100), []),
        (range(20), [(15, 10), (25, 5)]),  # a piece of which the end is missing
        (range(15, 100), [(5, 10)]),
    ):
        advised.clear()
        monkeypatch.setattr(module, "_is_cached", lambda fd, at, cached=cached: at in cached)
        module._will_need_then_close(os.open(tmp_path / "a", os.O_RDONLY), [(5, 25)])
        assert advised == want


def test_a_byte_is_in_memory_or_not(tmp_path: Path) -> None:
    from weighbridge.io import source as module

    (tmp_path / "a").write_bytes(bytes(1 << 16))
    cold = dropped(tmp_path / "a")
    fd = os.open(tmp_path / "a", os.O_RDONLY)
    if not cold or not hasattr(os, "RWF_NOWAIT"):
        os.close(fd)
        pytest.skip("NOT TRIED: the file stays in memory")
    assert not module._is_cached(fd, 0)
    os.pread(fd, 1 << 16, 0)
    if not module._is_cached(fd, 0):
        os.close(fd)
        pytest.skip("NOT TRIED: this file system never tells")
    assert not module._is_cached(fd, 1 << 16)  # behind the end
    os.close(fd)
