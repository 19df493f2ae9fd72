"""llama.cpp's own quantizers, out of the shared object of the `xllamacpp` wheel (ggml-quants.c, x86-64, no FMA)."""

from __future__ import annotations

import ctypes as c
import faulthandler
import mmap
import os
import platform
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from weighbridge.base.dtypes import DType


@cache
def library() -> c.CDLL:
    spec = find_spec("xllamacpp")
    if spec is None or not spec.submodule_search_locations or platform.machine().lower() not in ("x86_64", "amd64"):
        pytest.skip("the oracle xllamacpp isn't here, or not its x86-64 build")
    found = next(p for p in Path(spec.submodule_search_locations[0]).iterdir() if ".so" in p.suffixes)
    lib = c.CDLL(str(found))
    lib.ggml_quantize_chunk.argtypes = [c.c_int, c.c_void_p, c.c_void_p, c.c_int64, c.c_int64, c.c_int64, c.c_void_p]
    lib.ggml_quantize_chunk.restype = c.c_size_t
    return lib


def quantize(dtype: DType, x: NDArray[np.float32], weights: NDArray[np.float32] | None = None) -> NDArray[np.uint8]:
    """`weights` of the columns: x is then rows as long as they are."""
    out = np.zeros(x.size // dtype.block * dtype.size, np.uint8)
    columns, at = (dtype.block, None) if weights is None else (weights.size, weights.ctypes.data)
    rows = x.size // columns
    done = library().ggml_quantize_chunk(dtype.ggml, x.ctypes.data, out.ctypes.data, 0, rows, columns, at)
    assert done == out.size
    return out


# Types whose quantizers stop the process where sums are no finite numbers.
STOPPING = ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M")


def verdicts(
    dtype: DType, rows: NDArray[np.float32], weights: NDArray[np.float32] | None = None
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Each row [rows, columns] on its own, in a process that may die of it: (bytes [rows, row bytes], who was
    stopped)."""
    if not hasattr(os, "fork"):
        pytest.skip("an oracle that may abort needs a process of its own")
    lib, size = library(), rows.shape[1] // dtype.block * dtype.size
    lib.ggml_quantize_init(dtype.ggml)  # here, so that children needn't
    done, out = mmap.mmap(-1, 8), mmap.mmap(-1, max(1, len(rows) * size))
    progress, data = np.frombuffer(done, np.int64), np.frombuffer(out, np.uint8)[: len(rows) * size].reshape(-1, size)
    stopped = np.zeros(len(rows), bool)
    at = 0
    while at < len(rows):
        child = os.fork()
        if not child:
            _quietly()
            for row in range(at, len(rows)):
                progress[0] = row
                data[row] = quantize(dtype, rows[row], weights)
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:
            break
        stopped[progress[0]], at = True, int(progress[0]) + 1
    return data.copy(), stopped


def _quietly() -> None:
    """No words, no core file, no debugger at the end of this process."""
    os.environ["GGML_NO_BACKTRACE"] = "1"
    faulthandler.disable()
    import resource  # not on Windows

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)


def dequantize(dtype: DType, data: NDArray[np.uint8]) -> NDArray[np.float32]:
    out = np.zeros(data.size // dtype.size * dtype.block, np.float32)
    name = dtype.name.lower().replace("_k", "_K")
    _row(f"dequantize_row_{name}", data.ctypes.data, out)
    return out


def from_f32(name: str, x: NDArray[np.float32]) -> NDArray[np.uint16]:
    """`name` is fp16 or bf16."""
    out = np.zeros(x.size, np.uint16)
    _row(f"ggml_fp32_to_{name}_row", x.ctypes.data, out)
    return out


def _row(function: str, source: int, out: NDArray[np.generic]) -> None:
    call = getattr(library(), function)
    call.argtypes, call.restype = [c.c_void_p, c.c_void_p, c.c_int64], None
    call(source, out.ctypes.data, out.size)


def requires_importance(dtype: DType) -> bool:
    call = library().ggml_quantize_requires_imatrix
    call.argtypes, call.restype = [c.c_int], c.c_bool
    return bool(call(dtype.ggml))


def accepts(dtype: DType, data: NDArray[np.generic]) -> bool:
    """Whether llama.cpp takes these stored bytes for numbers: what llama-quantize asks of its input and its output."""
    call = library().ggml_validate_row_data
    call.argtypes, call.restype = [c.c_int, c.c_void_p, c.c_size_t], c.c_bool
    return bool(call(dtype.ggml, data.ctypes.data, data.nbytes))
