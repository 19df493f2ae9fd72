"""The ring of staging buffers, with a device that is a thread: order, reuse, back-pressure, short files, failing
readers, and reads that overlap copies."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.adapters import memory_device
from tests.adapters.memory_device import MemoryDevice

import weighbridge as wb
from weighbridge.adapters.streaming import TensorRead, read_of, stream
from weighbridge.base.errors import FormatError
from weighbridge.io.page_cache import BLOCK, DirectReader, resident_share

SIZE = 300_007


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{i}.bin" for i in range(3)]
    for i, path in enumerate(paths):
        path.write_bytes(np.random.default_rng(i).integers(0, 256, SIZE + i, np.uint8).tobytes())
    return paths


def reads_of(files: list[Path]) -> list[TensorRead]:
    """Ranges at odd places of every file, each with a target of its own."""
    spans = [(0, 1), (1, 5000), (4096, 8192), (10007, 10004), (SIZE - 70_001, 70_001), (100, 0), (50_000, 150_000)]
    return [TensorRead(str(p), at, size, np.zeros(size, np.uint8)) for p in files for at, size in reversed(spans)]


@pytest.mark.parametrize("direct", [False, True, None])
@pytest.mark.parametrize(
    ("slots", "slot_bytes", "readers"), [(1, 1000, 1), (2, 4096, 4), (4, 65_536, 2), (3, 1 << 20, 3)]
)
def test_every_byte_arrives(direct: bool | None, slots: int, slot_bytes: int, readers: int, files: list[Path]) -> None:
    reads = reads_of(files)
    stream(reads, MemoryDevice(), slots=slots, slot_bytes=slot_bytes, readers=readers, direct=direct)
    for read in reads:
        whole = Path(read.file).read_bytes()
        assert read.target.tobytes() == whole[read.offset : read.offset + read.size]


class Watched(MemoryDevice):
    """Notes which staging memory is in use: a slot that is filled while its copy runs is seen."""

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__()
        self.seconds, self.busy, self.most, self.stagings = seconds, set[int](), 0, 0
        self.clashes: list[int] = []
        self.lock = threading.Lock()
        self.overlapped = threading.Event()

    def staging(self, size: int) -> memoryview:
        self.stagings += 1
        return super().staging(size)

    def copy(self, source: memoryview, target: Any, at: int) -> Any:
        address = np.frombuffer(source, np.uint8).ctypes.data // BLOCK
        with self.lock:
            if address in self.busy:
                self.clashes.append(address)
            self.busy.add(address)
            self.most = max(self.most, len(self.busy))
            if self.clashes or self.most > 1:
                self.overlapped.set()
        before = bytes(source)

        def work() -> None:
            self.overlapped.wait(30)  # the first copy lasts until there is a second, however slow the readers are
            time.sleep(self.seconds)
            if bytes(source) != before:
                self.clashes.append(address)
            self._copied(source, target, at)
            with self.lock:
                self.busy.discard(address)

        return memory_device._Done(self._engine.submit(work))


def test_no_slot_is_filled_while_it_is_copied(files: list[Path]) -> None:
    device = Watched(0.002)
    reads = reads_of(files)
    stream(reads, device, slots=3, slot_bytes=20_000, readers=4, direct=False)
    assert device.clashes == []
    assert device.stagings == 3
    assert 2 <= device.most <= 3  # copies wait while further slots are read: they overlap, and no more than the ring
    assert all(r.target.tobytes() == Path(r.file).read_bytes()[r.offset : r.offset + r.size] for r in reads)


def test_a_broken_ring_is_seen(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A ring that doesn't wait for its copies overwrites them: the test above would fail."""
    monkeypatch.setattr(memory_device._Done, "wait", lambda self: None)
    device = Watched(0.002)
    stream(reads_of(files), device, slots=1, slot_bytes=20_000, readers=4, direct=False)
    assert device.clashes


def test_a_short_file_stops_all_readers(files: list[Path]) -> None:
    reads = reads_of(files)
    reads.insert(5, TensorRead(str(files[0]), SIZE - 10, 100_000, np.zeros(100_000, np.uint8)))
    before = threading.active_count()
    with pytest.raises(FormatError, match="shorter"):
        stream(reads, MemoryDevice(), slots=2, slot_bytes=4096, readers=3)
    assert threading.active_count() == before
    with pytest.raises(FileNotFoundError):
        stream([TensorRead(str(files[0]) + "x", 0, 1, None)], MemoryDevice())


def test_a_failing_copy_is_raised(files: list[Path]) -> None:
    class Failing(MemoryDevice):
        @staticmethod
        def _copied(source: memoryview, target: Any, at: int) -> None:
            raise MemoryError("the device is full")

    descriptors = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    with pytest.raises(MemoryError, match="full"):
        stream(reads_of(files), Failing(), slots=2, slot_bytes=4096, readers=2)
    if descriptors:
        assert len(os.listdir("/proc/self/fd")) == descriptors


def test_direct_reads_are_aligned_and_fall_back(files: list[Path]) -> None:
    out = MemoryDevice().staging(10_000 + 2 * BLOCK)
    whole = files[0].read_bytes()
    for direct in (False, True):
        reader = DirectReader(str(files[0]), direct)
        for offset, size in ((0, 10_000), (10_007, 10_000), (SIZE - 7, 7), (4096, 4096)):
            at = reader.read(offset, size, out)
            assert bytes(out[at : at + size]) == whole[offset : offset + size]
        with pytest.raises(EOFError):
            reader.read(SIZE - 7, 8, out)
        reader.close()
        reader.close()
    assert 0 <= resident_share(os.open(files[0], os.O_RDONLY), SIZE) <= 1
    assert resident_share(-1, 0) == 1.0


def test_tensors_of_files_are_streamed(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {"a": np.arange(7, dtype=np.float32), "b": np.arange(60, dtype=np.int16).reshape(3, 20)}
    wb.save(arrays, tmp_path / "x.safetensors")
    with wb.open(tmp_path / "x.safetensors") as model:
        targets = {name: np.zeros(a.nbytes, np.uint8) for name, a in arrays.items()}
        reads = [read for name in model if (read := read_of(model[name].node, targets[name]))]
        assert len(reads) == 2
        stream(reads, MemoryDevice())
        assert all(targets[name].tobytes() == a.tobytes() for name, a in arrays.items())
        assert read_of(model["a"].rows(1, 2).node, None) is not None  # a slice lies in the file too
        from weighbridge.base.dtypes import dtype
        from weighbridge.tensors.nodes import as_node

        assert read_of(as_node(model["a"].node, dtype("f16")), None) is None


@pytest.mark.parametrize(("resident", "direct"), [(0.0, True), (0.49, True), (0.5, False), (1.0, False)])
def test_the_page_cache_is_read_where_most_of_a_file_is_in_it(
    resident: float, direct: bool, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from weighbridge.io import page_cache

    monkeypatch.setattr(page_cache, "resident_share", lambda fd, size: resident)
    reader = DirectReader(str(files[0]))
    if direct and not reader.direct:
        pytest.skip("NO DIRECT READS: this file system or platform has none")
    assert reader.direct == direct
    reader.close()
    monkeypatch.setattr(os, "open", _refusing_direct)
    fallen_back = DirectReader(str(files[0]), True)
    assert not fallen_back.direct
    fallen_back.close()


def _refusing_direct(path: str, flags: int, opened: Any = os.open) -> int:
    if flags & getattr(os, "O_DIRECT", 0):
        raise OSError(22, "Invalid argument")
    return int(opened(path, flags))


def test_nothing_stays_open_where_no_memory_can_be_staged(files: list[Path]) -> None:
    class Poor(MemoryDevice):
        def staging(self, size: int) -> memoryview:
            raise MemoryError("nothing can be pinned")

    descriptors = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    for reads in (reads_of(files), [*reads_of(files), TensorRead(str(files[0]) + "x", 0, 1, None)]):
        with pytest.raises((MemoryError, FileNotFoundError)):
            stream(reads, Poor())
    if descriptors:
        assert len(os.listdir("/proc/self/fd")) == descriptors
