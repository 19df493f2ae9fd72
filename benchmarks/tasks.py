"""What is measured inside a process: `tasks.py NAME PATH WARM` does it and prints its seconds and the peak memory.

Everything from the path to the result is inside the clock; imports are outside (a program pays them once, and both
sides import lazily), so the task is done on WARM, a tiny file of the same kind, before. What takes milliseconds is done
several times, for the median. Each task is a process of its own: no contender profits from what another left behind,
but for the pages of the file.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

_ENOUGH = 0.1  # seconds of repetition

Task = Callable[[str], Callable[[], Any]]  # path -> what is clocked


def wb_open(path: str) -> Callable[[], Any]:
    from weighbridge.api import open as wb_open

    def work() -> int:
        with wb_open(path) as model:
            return len(list(model)) + len(list(model.metadata))

    return work


def gguf_open(path: str) -> Callable[[], Any]:
    from gguf import GGUFReader

    return lambda: len(list(GGUFReader(path).fields))


def safe_open(path: str) -> Callable[[], Any]:
    from safetensors import safe_open as reference

    def work() -> int:
        with reference(path, "np") as file:
            return len(list(file.keys())) + len(file.metadata() or {})

    return work


def touched(arrays: Iterable[Any]) -> int:
    """Every byte read, at the speed of memory."""
    import numpy as np

    total = 0
    for array in arrays:
        total ^= int(np.bitwise_xor.reduce(array.reshape(-1).view(np.uint64)))
    return total


def wb_numpy(path: str) -> Callable[[], Any]:
    from weighbridge.api import open as wb_open

    def work() -> int:
        with wb_open(path) as model:
            return touched(model.numpy().values())

    return work


def load_file(path: str) -> Callable[[], Any]:
    from safetensors.numpy import load_file as reference

    return lambda: touched(reference(path).values())


def torch_load(path: str) -> Callable[[], Any]:
    from torch import load

    return lambda: len(load(path, map_location="cpu", weights_only=True, mmap=True))


def wb_plan(path: str) -> Callable[[], Any]:
    from weighbridge.api import plan

    return lambda: plan(path, path + ".gguf", dtype="bf16", tokenizer=False).files


def wb_scan(path: str) -> Callable[[], Any]:
    from weighbridge.api import scan

    return lambda: scan(path).verdict


def picklescan(path: str) -> Callable[[], Any]:
    from picklescan.scanner import scan_directory_path, scan_file_path

    peer = scan_directory_path if os.path.isdir(path) else scan_file_path
    return lambda: peer(path).scanned_files


TASKS: dict[str, Task] = {
    "wb-open": wb_open,
    "gguf-open": gguf_open,
    "safe-open": safe_open,
    "wb-numpy": wb_numpy,
    "wb-plan": wb_plan,
    "load-file": load_file,
    "torch-load": torch_load,
    "wb-scan": wb_scan,
    "picklescan": picklescan,
}


def peak_memory() -> int:
    """Bytes. VmHWM belongs to this program; ru_maxrss would also know the process that started it."""
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS: bytes


def clocked(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    make, path, warm = TASKS[sys.argv[1]], sys.argv[2], sys.argv[3]
    make(warm)()
    work = make(path)
    times = [clocked(work)]
    while sum(times) < _ENOUGH:
        times.append(clocked(work))
    print(json.dumps({"seconds": statistics.median(times), "memory": peak_memory()}))


if __name__ == "__main__":
    main()
