"""llama.cpp's own GGUF code as a judge: `gguf_init_from_buffer` and the calls that llama-gguf-split is made of, by
ctypes from the shared object inside the `xllamacpp` wheel (which exports the whole C API)."""

from __future__ import annotations

import ctypes as c
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_Log = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)
_silent = _Log(lambda level, text, user: None)


class InitParams(c.Structure):
    """gguf_init_params (gguf.h)."""

    _fields_ = [("no_alloc", c.c_bool), ("ctx", c.POINTER(c.c_void_p))]


_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "ggml_log_set": (None, [_Log, c.c_void_p]),
    "ggml_free": (None, [c.c_void_p]),
    "ggml_get_tensor": (c.c_void_p, [c.c_void_p, c.c_char_p]),
    "gguf_init_empty": (c.c_void_p, []),
    "gguf_init_from_buffer": (c.c_void_p, [c.c_char_p, c.c_size_t, InitParams]),
    "gguf_free": (None, [c.c_void_p]),
    "gguf_get_version": (c.c_uint32, [c.c_void_p]),
    "gguf_get_data_offset": (c.c_size_t, [c.c_void_p]),
    "gguf_get_alignment": (c.c_size_t, [c.c_void_p]),
    "gguf_get_n_kv": (c.c_int64, [c.c_void_p]),
    "gguf_get_key": (c.c_char_p, [c.c_void_p, c.c_int64]),
    "gguf_get_kv_type": (c.c_int, [c.c_void_p, c.c_int64]),
    "gguf_get_val_data": (c.c_void_p, [c.c_void_p, c.c_int64]),
    "gguf_get_val_str": (c.c_char_p, [c.c_void_p, c.c_int64]),
    "gguf_get_arr_type": (c.c_int, [c.c_void_p, c.c_int64]),
    "gguf_get_arr_n": (c.c_size_t, [c.c_void_p, c.c_int64]),
    "gguf_get_arr_data": (c.c_void_p, [c.c_void_p, c.c_int64]),
    "gguf_get_arr_str": (c.c_char_p, [c.c_void_p, c.c_int64, c.c_size_t]),
    "gguf_get_n_tensors": (c.c_int64, [c.c_void_p]),
    "gguf_get_tensor_name": (c.c_char_p, [c.c_void_p, c.c_int64]),
    "gguf_get_tensor_offset": (c.c_size_t, [c.c_void_p, c.c_int64]),
    "gguf_get_tensor_type": (c.c_int, [c.c_void_p, c.c_int64]),
    "gguf_get_tensor_size": (c.c_size_t, [c.c_void_p, c.c_int64]),
    "gguf_get_meta_size": (c.c_size_t, [c.c_void_p]),
    "gguf_get_meta_data": (None, [c.c_void_p, c.c_char_p]),
    "gguf_set_kv": (None, [c.c_void_p, c.c_void_p]),
    "gguf_set_val_u16": (None, [c.c_void_p, c.c_char_p, c.c_uint16]),
    "gguf_set_val_i32": (None, [c.c_void_p, c.c_char_p, c.c_int32]),
    "gguf_add_tensor": (None, [c.c_void_p, c.c_void_p]),
}


@cache
def library() -> c.CDLL | None:
    """The C API, or None where the wheel isn't installed."""
    spec = find_spec("xllamacpp")
    folders = [Path(p) for p in (spec.submodule_search_locations or [])] if spec else []
    found = [file for folder in folders for file in sorted(folder.glob("xllamacpp*.so"))]
    if not found:
        return None
    lib = c.CDLL(str(found[0]))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    lib.ggml_log_set(_silent, None)
    return lib


@contextmanager
def opened(data: bytes, *, with_data: bool = False) -> Iterator[tuple[Any, c.c_void_p]]:
    """A gguf_context (None where llama.cpp refuses the bytes) and, if asked for, its ggml_context with the data."""
    lib = library()
    assert lib is not None
    meta = c.c_void_p()
    params = InitParams(not with_data, c.pointer(meta))
    context = lib.gguf_init_from_buffer(data, len(data), params)
    try:
        yield context, meta
    finally:
        lib.gguf_free(context)
        lib.ggml_free(meta)


def accepts(data: bytes, *, with_data: bool = False) -> bool:
    with opened(data, with_data=with_data) as (context, _):
        return context is not None


def described(data: bytes) -> dict[str, Any]:
    """What llama.cpp sees: version, alignment, start of the data, keys with types, tensors with type, place, size."""
    lib = library()
    assert lib is not None
    with opened(data) as (g, _):
        assert g is not None
        return {
            "version": lib.gguf_get_version(g),
            "alignment": lib.gguf_get_alignment(g),
            "data_start": lib.gguf_get_data_offset(g),
            "keys": [(lib.gguf_get_key(g, i), lib.gguf_get_kv_type(g, i)) for i in range(lib.gguf_get_n_kv(g))],
            "tensors": [
                (
                    lib.gguf_get_tensor_name(g, i),
                    lib.gguf_get_tensor_type(g, i),
                    lib.gguf_get_tensor_offset(g, i),
                    lib.gguf_get_tensor_size(g, i),
                )
                for i in range(lib.gguf_get_n_tensors(g))
            ],
        }


# gguf_type (gguf.h): the C types of scalars; 8 is a string, 9 an array.
_C_TYPES = {0: c.c_uint8, 1: c.c_int8, 2: c.c_uint16, 3: c.c_int16, 4: c.c_uint32, 5: c.c_int32, 6: c.c_float,
            7: c.c_bool, 10: c.c_uint64, 11: c.c_int64, 12: c.c_double}  # fmt: skip


def values(data: bytes) -> dict[str, tuple[int, Any]]:
    """What llama.cpp reads of every key: its type (an array's: that of the elements) and its value."""
    lib = library()
    assert lib is not None

    def value(g: Any, i: int) -> tuple[int, Any]:
        kind = lib.gguf_get_kv_type(g, i)
        if kind == 8:
            return kind, lib.gguf_get_val_str(g, i).decode()
        if kind != 9:
            return kind, _C_TYPES[kind].from_address(lib.gguf_get_val_data(g, i)).value  # type: ignore[attr-defined]
        inner, count = lib.gguf_get_arr_type(g, i), lib.gguf_get_arr_n(g, i)
        if inner == 8:
            return inner, [lib.gguf_get_arr_str(g, i, n).decode() for n in range(count)]
        at = lib.gguf_get_arr_data(g, i)
        return inner, list((_C_TYPES[inner] * count).from_address(at)) if count else []

    with opened(data) as (g, _):
        assert g is not None
        return {lib.gguf_get_key(g, i).decode(): value(g, i) for i in range(lib.gguf_get_n_kv(g))}


def split_headers(data: bytes, groups: list[list[str]]) -> list[bytes]:
    """The headers of shards with these tensors, by the calls of llama-gguf-split in their order."""
    lib = library()
    assert lib is not None
    headers = []
    with opened(data) as (source, meta):
        assert source is not None
        total = sum(len(g) for g in groups)
        for number, group in enumerate(groups):
            out = lib.gguf_init_empty()
            if number == 0:
                lib.gguf_set_kv(out, source)
            lib.gguf_set_val_u16(out, b"split.no", number)
            lib.gguf_set_val_u16(out, b"split.count", 0)
            lib.gguf_set_val_i32(out, b"split.tensors.count", total)
            for name in group:
                lib.gguf_add_tensor(out, lib.ggml_get_tensor(meta, name.encode()))
            lib.gguf_set_val_u16(out, b"split.count", len(groups))
            header = c.create_string_buffer(lib.gguf_get_meta_size(out))
            lib.gguf_get_meta_data(out, header)
            headers.append(header.raw)
            lib.gguf_free(out)
    return headers
