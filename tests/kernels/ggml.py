"""llama.cpp's own quantizers, out of the shared object of the `xllamacpp` wheel (ggml-quants.c, x86-64, no FMA)."""

from __future__ import annotations

import ctypes as c
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
