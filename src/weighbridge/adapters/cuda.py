"""Tensors on the devices of torch. Unconverted bytes of files reach a CUDA device through a ring of pinned buffers:
some are copied while others are read; several devices are filled concurrently. torch is imported on first use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from weighbridge.adapters.remote.extra import package
from weighbridge.adapters.streaming import CopyDevice, Pending, TensorRead, read_of, stream
from weighbridge.adapters.torch import to_torch, torch_dtype
from weighbridge.base.dtypes import DType
from weighbridge.base.errors import UsageError
from weighbridge.io.page_cache import BLOCK
from weighbridge.tensors.nodes import LogicalTensor, Stored, as_node

if TYPE_CHECKING:
    import torch

#: A device for all, or by beginnings of names: `{"": "cpu", "model.layers": "cuda:0", "model.layers.1": "cuda:1"}`.
Devices = str | Mapping[str, str] | None


class _Event:
    def __init__(self, event: Any) -> None:
        self.event = event

    def wait(self) -> None:
        self.event.synchronize()


class CudaDevice:
    """A CUDA device: targets are torch tensors of bytes on it. Copies run on a stream of their own, from pinned memory
    that is kept for the process, since pinning is slow."""

    _pinned: dict[int, list[Any]] = {}  # noqa: RUF012 - shared by all, on purpose
    _lock = threading.Lock()

    def __init__(self, device: str) -> None:
        import torch

        self.torch = torch
        self.stream = torch.cuda.Stream(device)
        self.stream.wait_stream(torch.cuda.current_stream(device))  # what was allocated there is free by then
        self._taken: list[tuple[int, Any]] = []

    def staging(self, size: int) -> memoryview:
        with self._lock:
            kept = self._pinned.get(size, [])
            if kept:
                whole = kept.pop()
            else:  # pinned even if the caller changed torch's default device
                whole = self.torch.empty(size + BLOCK, dtype=self.torch.uint8, device="cpu", pin_memory=True)
        self._taken.append((size, whole))
        start = -whole.data_ptr() % BLOCK
        found: memoryview = whole.numpy()[start : start + size].data
        return found

    def copy(self, source: memoryview, target: Any, at: int) -> Pending:
        staged = self.torch.frombuffer(source, dtype=self.torch.uint8)
        with self.torch.cuda.stream(self.stream):
            target[at : at + len(source)].copy_(staged, non_blocking=True)
            event = self.torch.cuda.Event(blocking=True)  # who waits for it leaves its core to the readers
            event.record(self.stream)
        return _Event(event)

    def finish(self) -> None:
        self.stream.synchronize()
        with self._lock:
            for size, whole in self._taken:
                self._pinned.setdefault(size, []).append(whole)
        self._taken = []


def to_devices(
    tensors: Mapping[str, LogicalTensor], devices: Devices, dtype: DType | None = None,
    cuda: Callable[[str], CopyDevice] = CudaDevice,
) -> dict[str, torch.Tensor]:  # fmt: skip
    """Yields each tensor on its device, in the given order; uses `to_torch` for other devices and for computed
    bytes. Raises UsageError for a name that no prefix in `devices` matches."""
    out: dict[str, torch.Tensor] = {}
    reads: dict[str, list[TensorRead]] = {}
    for name, device in devices_of(tensors, devices).items():
        node = as_node(tensors[name], dtype) if dtype is not None else tensors[name]
        if device is None or not is_cuda(device) or (made := _target(node, device)) is None:
            out[name] = to_torch(node, device=device)
        else:
            out[name], read = made
            reads.setdefault(device, []).append(read)
    _stream_all({device: (cuda(device), found) for device, found in reads.items()})
    return out


def is_cuda(device: str) -> bool:
    """Whether torch's name of a device is that of a CUDA one."""
    return device.partition(":")[0] == "cuda"


def devices_of(names: Iterable[str], devices: Devices) -> dict[str, str | None]:
    """The device of each name: of the longest beginning that `devices` has, in whole components."""
    if devices is None or isinstance(devices, str):
        return dict.fromkeys(names, devices)
    return {name: _device_of(name, devices) for name in names}


def _device_of(name: str, devices: Mapping[str, str]) -> str:
    parts = name.split(".")
    for count in range(len(parts), -1, -1):
        if (found := devices.get(".".join(parts[:count]))) is not None:
            return found
    raise UsageError(f"no device is given for {name}", hint='"" matches all other names')


def _target(tensor: LogicalTensor, device: str) -> tuple[torch.Tensor, TensorRead] | None:
    """Returns new memory on a device and the read that fills it; None if torch can't use the file's bytes unchanged."""
    package("torch", "a tensor on a GPU", "torch")
    import torch

    if not isinstance(tensor, Stored) or tensor.spec.dtype.torch is None or read_of(tensor, None) is None:
        return None
    kind, shape = tensor.spec.dtype, tensor.spec.shape
    with torch.inference_mode(False):  # no other thread may fill a tensor that is made in that mode
        target = torch.empty(tensor.spec.nbytes, dtype=torch.uint8, device=device)
    read = read_of(tensor, target)
    shape = (*shape[:-1], shape[-1] // kind.block) if shape else ()
    return None if read is None else (target.view(torch_dtype(kind)).reshape(shape), read)


def _stream_all(rings: Mapping[str, tuple[CopyDevice, list[TensorRead]]]) -> None:
    """A ring for each device, all at the same time. The first error is raised once all have ended."""
    if len(rings) < 2:
        for device, reads in rings.values():
            stream(reads, device)
        return
    with ThreadPoolExecutor(len(rings)) as pool:
        running = [pool.submit(stream, reads, device) for device, reads in rings.values()]
    for ring in running:
        ring.result()
