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
_COLD = "cold:"  # before a task's name: the file is dropped from the page cache first, and the task done once

Task = Callable[[str], Callable[[], Any]]  # path -> what is clocked


def wb_open(path: str) -> Callable[[], Any]:
    from weighbridge import open as wb_open

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
    from weighbridge import open as wb_open

    def work() -> int:
        with wb_open(path) as model:
            return touched(model.numpy().values())

    return work


def load_file(path: str) -> Callable[[], Any]:
    from safetensors.numpy import load_file as reference

    return lambda: touched(reference(path).values())


def torch_touched(tensors: Iterable[Any]) -> int:
    """As `touched`, of torch tensors."""
    import torch

    return touched(t.reshape(-1).view(torch.uint8).numpy() for t in tensors)


def wb_torch(path: str) -> Callable[[], Any]:
    from weighbridge import open as wb_open

    def work() -> int:
        with wb_open(path) as model:
            return torch_touched(model.torch().values())

    return work


def drop_in(path: str) -> Callable[[], Any]:
    from weighbridge.safetensors.torch import load_file as ours

    return lambda: torch_touched(ours(path).values())


def drop_in_open(path: str) -> Callable[[], Any]:
    from weighbridge.safetensors import safe_open as ours

    def work() -> int:
        with ours(path, "np") as file:
            return len(list(file.keys())) + len(file.metadata() or {})

    return work


def st_mmap(path: str) -> Callable[[], Any]:
    from safetensors.torch import load_file as reference

    return lambda: torch_touched(reference(path).values())


def st_pread(path: str) -> Callable[[], Any]:
    from safetensors.torch import load_file as reference

    return lambda: torch_touched(reference(path, backend="pread").values())


def fastsafetensors(path: str) -> Callable[[], Any]:
    from fastsafetensors import fastsafe_open

    def work() -> int:
        with fastsafe_open(path, device="cpu", nogds=True) as file:
            return torch_touched([file.get_tensor(name) for name in file.keys()])  # noqa: SIM118

    return work


def runai(path: str) -> Callable[[], Any]:
    from runai_model_streamer import SafetensorsStreamer

    def work() -> int:
        with SafetensorsStreamer() as streamer:
            streamer.stream_file(path)
            return torch_touched(tensor for _, tensor in streamer.get_tensors())

    return work


def mx_load(path: str) -> Callable[[], Any]:
    import mlx.core as mx
    import numpy as np

    return lambda: touched(np.array(array, copy=False) for array in mx.load(path).values())


def wb_mlx(path: str) -> Callable[[], Any]:
    import numpy as np

    from weighbridge import provider

    def work() -> int:
        with provider(path, device="mlx", names="stored") as weights:
            arrays = [weights.get(name) for name in weights]
        return touched(np.array(array, copy=False) for array in arrays)

    return work


def wb_bf16(path: str) -> Callable[[], Any]:
    from weighbridge import open as wb_open

    def work() -> int:
        with wb_open(path, names="stored") as model:
            return len([tensor.torch(dtype="bf16") for tensor in model.values()])

    return work


def gguf_bf16(path: str) -> Callable[[], Any]:
    import torch
    from gguf import GGUFReader, dequantize

    def work() -> int:
        tensors = GGUFReader(path).tensors
        return len([torch.from_numpy(dequantize(t.data, t.tensor_type).copy()).to(torch.bfloat16) for t in tensors])

    return work


def transformers_bf16(path: str) -> Callable[[], Any]:
    import torch
    from transformers import AutoModelForCausalLM

    folder, name = os.path.split(path)
    return lambda: AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.bfloat16)


def torch_load_touched(path: str) -> Callable[[], Any]:
    from torch import load

    return lambda: torch_touched(load(path, map_location="cpu", weights_only=True, mmap=True).values())


def evicted(path: str) -> None:
    """Drops a file from the page cache, and checks with mincore that no page of it is left."""
    import ctypes
    import mmap

    import numpy as np

    fd = os.open(path, os.O_RDONLY)
    size = os.fstat(fd).st_size
    os.fsync(fd)
    block = bytearray(1 << 24)
    while os.readv(fd, [block]):  # what lies below (the host of a virtual disk) is then alike for all contenders
        pass
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    with mmap.mmap(fd, size, access=mmap.ACCESS_READ) as view:
        pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
        start = np.frombuffer(view, np.uint8).ctypes.data
        if ctypes.CDLL(None).mincore(ctypes.c_void_p(start), ctypes.c_size_t(size), ctypes.c_void_p(pages.ctypes.data)):
            raise OSError("mincore failed")
        if (pages & 1).mean() > 0.001:
            raise SystemExit(f"{path}: {(pages & 1).sum()} of {len(pages)} pages are still in memory")
    os.close(fd)


def torch_load(path: str) -> Callable[[], Any]:
    from torch import load

    return lambda: len(load(path, map_location="cpu", weights_only=True, mmap=True))


def wb_plan(path: str) -> Callable[[], Any]:
    from weighbridge import plan_convert as plan

    return lambda: plan(path, path + ".gguf", dtype="bf16", tokenizer=False).files


def wb_scan(path: str) -> Callable[[], Any]:
    from weighbridge import scan

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
    "wb-torch": wb_torch,
    "drop-in": drop_in,
    "drop-in-open": drop_in_open,
    "st-mmap": st_mmap,
    "st-pread": st_pread,
    "fastsafetensors": fastsafetensors,
    "runai": runai,
    "mx-load": mx_load,
    "wb-mlx": wb_mlx,
    "torch-load-touched": torch_load_touched,
    "wb-bf16": wb_bf16,
    "gguf-bf16": gguf_bf16,
    "transformers-bf16": transformers_bf16,
    "wb-scan": wb_scan,
    "picklescan": picklescan,
}


def status(key: str) -> int:
    """Bytes, of Linux's account of this process."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def restarted_peak() -> int | None:
    """Forget the peak of memory so far: the bytes in memory now, pages of files too; None where there is no /proc."""
    try:
        with open("/proc/self/clear_refs", "w") as refs:
            refs.write("5")
        return status("VmRSS")
    except OSError:
        return None


def peak_memory() -> int:
    """Bytes. VmHWM belongs to this program; ru_maxrss would also know the process that started it."""
    try:
        return status("VmHWM")
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS: bytes


def clocked(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    name, path, warm = sys.argv[1:4]
    cold = name.startswith(_COLD)
    make = TASKS[name.removeprefix(_COLD)]
    make(warm)()
    work = make(path)
    if cold:
        evicted(path)
    peak, start = peak_memory(), restarted_peak()
    times = [clocked(work)]
    while sum(times) < _ENOUGH and not cold:
        times.append(clocked(work))
    grown = None if start is None else peak_memory() - start
    print(json.dumps({"seconds": statistics.median(times), "memory": max(peak, peak_memory()), "grown": grown}))


if __name__ == "__main__":
    main()
