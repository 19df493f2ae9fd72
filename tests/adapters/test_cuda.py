"""Copies to CUDA devices, without a GPU: `CudaDevice` over a torch that notes what it is asked for, and several devices
of memory. On a GPU, where there is one, the values alone."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.adapters.memory_device import MemoryDevice
from tests.adapters.torch_double import Torch

import weighbridge as wb
from weighbridge.adapters import cuda
from weighbridge.adapters.cuda import CudaDevice, devices_of, to_devices
from weighbridge.adapters.streaming import TensorRead, stream
from weighbridge.base.errors import FormatError, UsageError
from weighbridge.io.page_cache import BLOCK

NOTHING = "NOTHING HERE WAS PROVED: install requirements/oracles.txt"
SIZE, SLOTS, SLOT = 300_007, 3, 20_000


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Torch:
    monkeypatch.setattr(CudaDevice, "_pinned", {})
    monkeypatch.setitem(sys.modules, "torch", found := Torch())
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "x.bin"
    path.write_bytes(np.random.default_rng(1).integers(0, 256, SIZE, np.uint8).tobytes())
    return path


def reads_of(double: Torch, file: Path, device: str) -> list[TensorRead]:
    spans = [(0, SIZE // 2), (SIZE // 2, 1), (SIZE // 2 + 1, SIZE - SIZE // 2 - 1)]
    return [TensorRead(str(file), at, n, double.empty(n, dtype="uint8", device=device)) for at, n in spans]


def arrived(reads: list[TensorRead]) -> bool:
    return b"".join(r.target.array.tobytes() for r in reads) == Path(reads[0].file).read_bytes()


def load(double: Torch, file: Path, device: str = "cuda:1") -> list[TensorRead]:
    reads = reads_of(double, file, device)
    stream(reads, CudaDevice(device), slots=SLOTS, slot_bytes=SLOT, readers=4)
    return reads


def test_copies_are_asynchronous_from_pinned_memory_on_a_stream_of_their_own(double: Torch, file: Path) -> None:
    assert arrived(load(double, file))
    assert set(double.copies) == {("cuda:1", "cuda:1", True, True)}
    assert len(double.copies) > SLOTS  # slots were used again
    (own,) = double.cuda.streams
    assert own.waited_for == ["the current stream of cuda:1"]  # where the targets were allocated
    assert own.done == len(own.queue)


def test_pinned_memory_is_kept_for_the_process(double: Torch, file: Path) -> None:
    for device in ("cuda:0", "cuda:1", "cuda:0"):
        assert arrived(load(double, file, device))
    assert [a.nbytes for a in double.pinned] == [SLOT + 3 * BLOCK] * SLOTS


def test_staging_memory_is_aligned(double: Torch) -> None:
    device = CudaDevice("cuda")
    for size in (1, BLOCK, SLOT):
        view = device.staging(size)
        assert np.frombuffer(view, np.uint8).ctypes.data % BLOCK == 0
        assert len(view) == size
    device.finish()


@pytest.mark.parametrize("broken", ["the event isn't waited for", "it is recorded too early"])
@pytest.mark.mutation
def test_a_ring_that_does_not_wait_is_seen(
    broken: str, double: Torch, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if broken == "the event isn't waited for":
        monkeypatch.setattr(cuda._Event, "wait", lambda self: None)
    else:
        monkeypatch.setattr(double.cuda.Event, "early", True)
    assert not arrived(load(double, file))


def test_after_a_failure_nothing_is_in_flight_and_memory_comes_back(double: Torch, file: Path) -> None:
    reads = [*reads_of(double, file, "cuda"), TensorRead(str(file), SIZE - 1, 9, double.empty(9, dtype="uint8"))]
    with pytest.raises(FormatError, match="shorter"):
        stream(reads, CudaDevice("cuda"), slots=SLOTS, slot_bytes=SLOT, readers=2)
    (own,) = double.cuda.streams
    assert own.done == len(own.queue)
    assert arrived(load(double, file))
    assert len(double.pinned) == SLOTS


# ---------------------------------------------------------------------- tensors


class Placed(MemoryDevice):
    """A device whose targets are torch tensors of the CPU."""

    made: list[str] = []  # noqa: RUF012

    def __init__(self, device: str) -> None:
        super().__init__()
        self.made.append(device)
        self.name = device

    @staticmethod
    def _copied(source: memoryview, target: Any, at: int) -> None:
        target.numpy()[at : at + len(source)] = np.frombuffer(source, np.uint8)


@pytest.fixture
def model(tmp_path: Path) -> Mapping[str, np.ndarray]:
    arrays: dict[str, Any] = {
        "embed.weight": np.arange(70_001, dtype=np.float32), "layers.0.weight": np.arange(12, dtype=np.float16),
        "layers.1.weight": np.arange(60, dtype=np.int16).reshape(3, 20), "layers.10.weight": np.float32(3).reshape(()),
        "none": np.zeros((0, 4), np.float32),
    }  # fmt: skip
    wb.save(arrays, tmp_path / "x.safetensors")
    return arrays


def test_several_devices_are_filled(
    model: Mapping[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch: Any = pytest.importorskip("torch", reason=NOTHING)
    empty, asked = torch.empty, list[str]()

    def empty_on(size: Any, *, dtype: Any, device: str = "cpu", **options: Any) -> Any:
        asked.append(device)
        return empty(size, dtype=dtype, **options)

    monkeypatch.setattr(torch, "empty", empty_on)
    devices = {"": "cpu", "layers": "cuda:0", "layers.1": "cuda:1", "embed.weight": "cuda:0"}
    with wb.open(tmp_path / "x.safetensors") as source:
        Placed.made.clear()
        found = to_devices({name: source[name].node for name in source}, devices, cuda=Placed)
        assert sorted(Placed.made) == ["cuda:0", "cuda:1"]
        assert asked.count("cuda:0") == 3
        assert list(found) == list(source)
        for name, array in model.items():
            assert np.array_equal(found[name].numpy(), array)
            assert tuple(found[name].shape) == array.shape
        one = to_devices({"layers.0.weight": source["layers.0.weight"].node}, "cuda", cuda=Placed)
        assert one["layers.0.weight"].tolist() == list(range(12))


def test_what_is_computed_comes_by_way_of_the_cpu(
    model: Mapping[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch: Any = pytest.importorskip("torch", reason=NOTHING)
    from weighbridge.base.dtypes import dtype

    moved: list[str] = []

    def to(tensor: Any, device: str) -> Any:
        moved.append(device)
        return tensor

    monkeypatch.setattr(torch.Tensor, "to", to)
    with wb.open(tmp_path / "x.safetensors") as source:
        Placed.made.clear()
        found = to_devices({"a": source["embed.weight"].node}, "cuda:3", dtype("f16"), cuda=Placed)
    assert (Placed.made, moved, found["a"].dtype) == ([], ["cuda:3"], torch.float16)


def test_the_longest_beginning_of_a_name_counts() -> None:
    names = ["layers.1.weight", "layers.10.weight", "layers.1", "embed"]
    assert devices_of(names, {"layers.1": "a", "layers": "b", "": "c"}) == dict(zip(names, "abac", strict=True))
    assert devices_of(["x"], None) == {"x": None}
    assert devices_of(["x", "y"], "cuda:1") == {"x": "cuda:1", "y": "cuda:1"}
    with pytest.raises(UsageError, match="no device is given for embed"):
        devices_of(names, {"layers": "cuda"})


def test_models_take_a_device_map(model: Mapping[str, np.ndarray], tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch", reason=NOTHING)
    with wb.open(tmp_path / "x.safetensors") as source:
        found = source.torch({"": "cpu", "layers": "meta"})
        assert {name: t.device.type for name, t in found.items() if t.device.type == "meta"}.keys() == {
            name for name in model if name.startswith("layers")
        }
        assert torch.equal(found["embed.weight"], source["embed.weight"].torch())
        assert found["embed.weight"].data_ptr() == source["embed.weight"].torch().data_ptr()  # still the file's pages


class Copied(Placed):
    """As torch copies: a tensor that is made in inference mode takes no values in a thread that isn't."""

    @staticmethod
    def _copied(source: memoryview, target: Any, at: int) -> None:
        import torch

        target[at : at + len(source)].copy_(torch.frombuffer(source, dtype=torch.uint8))


def test_devices_are_filled_whatever_mode_the_caller_is_in(
    model: Mapping[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch: Any = pytest.importorskip("torch", reason=NOTHING)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, device, **how: empty(*size, device="cpu", **how))
    with wb.open(tmp_path / "x.safetensors") as source, torch.inference_mode():
        found = to_devices({name: source[name].node for name in source}, {"": "cuda", "none": "cpu"}, cuda=Copied)
    for name, array in model.items():
        assert np.array_equal(found[name].numpy(), array)


def test_the_usual_device_of_a_caller_changes_nothing(model: Mapping[str, np.ndarray], tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch", reason=NOTHING)
    with wb.open(tmp_path / "x.safetensors") as source, torch.device("meta"):
        found = source.torch()
        cast = source["layers.0.weight"].torch(dtype="f32")
    assert {t.device.type for t in (*found.values(), cast)} == {"cpu"}
    assert found["none"].shape == (0, 4)


def test_cuda_has_the_same_values(model: Mapping[str, np.ndarray], tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch", reason=NOTHING)
    if not torch.cuda.is_available():
        pytest.skip("NO GPU: the copies of CudaDevice were not tried on one")
    with wb.open(tmp_path / "x.safetensors") as source:
        for _ in range(2):  # the second time from pinned memory that is kept
            found = source.torch("cuda")
            assert all(np.array_equal(found[name].cpu().numpy(), a) for name, a in model.items())
