"""A torch without a GPU that has what `CudaDevice` takes from it: pinned memory, streams, events, copies that don't
block. The slowest device there can be: a copy runs only when an event behind it, or its stream, is waited for. Staging
memory that is filled before that gives wrong bytes, each time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


class Memory:
    """A tensor of bytes. `device`: "" for the CPU."""

    def __init__(self, torch: Torch, array: np.ndarray, device: str = "") -> None:
        self.torch, self.array, self.device = torch, array, device

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)

    def numpy(self) -> np.ndarray:
        assert not self.device
        return self.array

    def __getitem__(self, key: slice) -> Memory:
        return Memory(self.torch, self.array[key], self.device)

    def copy_(self, source: Memory, non_blocking: bool = False) -> None:
        stream = self.torch.cuda.current()
        assert stream is not None
        start, end = source.data_ptr(), source.data_ptr() + source.array.nbytes
        pinned = any(a.ctypes.data <= start and end <= a.ctypes.data + a.nbytes for a in self.torch.pinned)
        self.torch.copies.append((stream.device, self.device, pinned, non_blocking))

        def run() -> None:
            self.array[:] = source.array

        stream.push(run)


class CopyStream:
    def __init__(self, device: str) -> None:
        self.device, self.waited_for = device, list[Any]()
        self.queue: list[Callable[[], None]] = []
        self.done, self.lock = 0, threading.RLock()

    def push(self, job: Callable[[], None]) -> None:
        with self.lock:
            self.queue.append(job)

    def run_to(self, position: int) -> None:
        with self.lock:
            while self.done < position:
                self.queue[self.done]()
                self.done += 1

    def wait_stream(self, other: Any) -> None:
        self.waited_for.append(other)

    def synchronize(self) -> None:
        self.run_to(len(self.queue))


class Event:
    early = False  # a fault: it is behind nothing

    def __init__(self, *, blocking: bool = False) -> None:
        assert blocking, "a thread that waits would keep a core busy"

    def record(self, stream: CopyStream) -> None:
        with stream.lock:
            self.stream, self.position = stream, 0 if self.early else len(stream.queue)

    def synchronize(self) -> None:
        self.stream.run_to(self.position)


class Cuda:
    Event = Event

    def __init__(self) -> None:
        self.streams: list[CopyStream] = []
        self._current = threading.local()

    def Stream(self, device: str) -> CopyStream:
        self.streams.append(made := CopyStream(device))
        return made

    def current_stream(self, device: str) -> str:
        return f"the current stream of {device}"

    def current(self) -> CopyStream | None:
        found: CopyStream | None = getattr(self._current, "stream", None)
        return found

    @contextmanager
    def stream(self, stream: CopyStream) -> Iterator[None]:
        self._current.stream = stream
        try:
            yield
        finally:
            self._current.stream = None


class Torch:
    """`copies`: stream, target's device, whether the source is pinned, whether it doesn't block."""

    uint8 = "uint8"

    def __init__(self) -> None:
        self.cuda = Cuda()
        self.pinned: list[np.ndarray] = []
        self.copies: list[tuple[str, str, bool, bool]] = []

    def empty(self, size: int, *, dtype: str, pin_memory: bool = False, device: str = "") -> Memory:
        array = np.zeros(size, np.uint8)
        if pin_memory:
            assert device == "cpu", "a caller may have made another device the usual one"
            self.pinned.append(array)
            device = ""
        return Memory(self, array, device)

    def frombuffer(self, data: memoryview, *, dtype: str) -> Memory:
        return Memory(self, np.frombuffer(data, np.uint8))
