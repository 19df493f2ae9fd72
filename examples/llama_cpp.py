"""An experiment: a Hugging Face folder runs in llama.cpp without a GGUF on the disk.

    python examples/llama_cpp.py MODEL [TOKEN ...]      the most likely next token, computed by llama.cpp

`wb.plan_convert` knows the GGUF's header and how each tensor is made before anything is written. The header goes to
llama.cpp as a file in memory, and `llama_model_init_from_user` asks for each tensor, which is converted at that moment.
It calls the C functions that the `xllamacpp` package exports, with its structs passed as opaque blocks: that holds on
x86-64 and aarch64 Linux for the version in requirements/oracles.txt, and nowhere is it promised.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import weighbridge as wb

Pointer = ctypes.c_void_p
FillTensor = ctypes.CFUNCTYPE(None, Pointer, Pointer)


# In this mode llama.cpp also makes the tensors that a model may lack: F32, to be filled with what changes nothing.
_NEUTRAL = {".bias": 0.0, ".scale": 1.0, ".input_scale": 1.0, "rope_freqs.weight": 1.0}


class Opaque(ctypes.Structure):
    """Room for any parameter struct of llama.cpp that travels in memory; only the callee knows its fields."""

    _fields_ = (("bytes", ctypes.c_uint8 * 512),)


class GgufParams(ctypes.Structure):
    """`gguf_init_params` (ggml/include/gguf.h)."""

    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", Pointer))


def library() -> Any:
    """llama.cpp as xllamacpp has it, with the types of the functions that are called here."""
    found = importlib.util.find_spec("xllamacpp")
    if found is None or found.origin is None:
        raise SystemExit("install xllamacpp")
    lib = ctypes.CDLL(str(next(Path(found.origin).parent.glob("xllamacpp*.so"))))
    types: dict[str, tuple[Any, Sequence[Any]]] = {
        "gguf_init_from_file": (Pointer, [ctypes.c_char_p, GgufParams]),
        "gguf_free": (None, [Pointer]),
        "ggml_get_name": (ctypes.c_char_p, [Pointer]),
        "ggml_nbytes": (ctypes.c_size_t, [Pointer]),
        "ggml_backend_tensor_set": (None, [Pointer, Pointer, ctypes.c_size_t, ctypes.c_size_t]),
        "llama_backend_init": (None, []),
        "llama_model_default_params": (Opaque, []),
        "llama_model_init_from_user": (Pointer, [Pointer, FillTensor, Pointer, Opaque]),
        "llama_model_free": (None, [Pointer]),
        "llama_context_default_params": (Opaque, []),
        "llama_init_from_model": (Pointer, [Pointer, Opaque]),
        "llama_free": (None, [Pointer]),
        "llama_batch_get_one": (Opaque, [Pointer, ctypes.c_int32]),
        "llama_decode": (ctypes.c_int32, [Pointer, Opaque]),
        "llama_get_logits_ith": (ctypes.POINTER(ctypes.c_float), [Pointer, ctypes.c_int32]),
    }
    for name, (result, arguments) in types.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


def header_context(lib: Any, pieces: Sequence[tuple[int, bytes]], size: int) -> Any:
    """A GGUF's header, with a hole for its data, as llama.cpp's own object."""
    fd = os.memfd_create("header")
    os.ftruncate(fd, size)
    for offset, piece in pieces:
        os.pwrite(fd, piece, offset)
    try:
        return lib.gguf_init_from_file(f"/proc/self/fd/{fd}".encode(), GgufParams(True, None))
    finally:
        os.close(fd)


def filler(lib: Any, nodes: Mapping[str, Any], failed: list[str]) -> Any:
    """The callback that gives llama.cpp a tensor: read, converted and handed over, one at a time."""

    def fill(tensor: Any, _: Any) -> None:
        name, size = lib.ggml_get_name(tensor).decode(), lib.ggml_nbytes(tensor)
        node = nodes.get(name)
        neutral = next((value for ending, value in _NEUTRAL.items() if name.endswith(ending)), None)
        if node is not None and node.spec.nbytes == size:
            data = node.read_all()
        elif node is None and neutral is not None:
            data = np.full(size // 4, neutral, np.float32)
        else:
            failed.append(name)
            return
        lib.ggml_backend_tensor_set(tensor, data.ctypes.data, 0, data.nbytes)

    return FillTensor(fill)


def logits(model: str | os.PathLike[str], tokens: Sequence[int], dtype: str = "f16") -> NDArray[np.float32]:
    """llama.cpp's logits [vocab] behind `tokens`. SystemExit where llama.cpp takes no part of it."""
    lib = library()
    lib.llama_backend_init()
    with (
        tempfile.TemporaryDirectory() as folder,
        wb.plan_convert(model, Path(folder) / "m.gguf", dtype=dtype, tokenizer=False) as plan,
    ):
        file, failed = plan.files[0], list[str]()
        fill = filler(lib, {slot.name: node for slot, node in file.slots}, failed)
        header = header_context(lib, file.layout.pieces, file.layout.size)
        made = header and lib.llama_model_init_from_user(header, fill, None, lib.llama_model_default_params())
        if not made or failed:
            raise SystemExit(f"llama.cpp takes no such model: {', '.join(failed) or 'see its messages'}")
        vocabulary = next(n.spec.shape[0] for s, n in file.slots if s.name == "token_embd.weight")
        found = _decoded(lib, made, tokens, vocabulary)
        lib.llama_model_free(made)
        lib.gguf_free(header)
    return found


def _decoded(lib: Any, model: Any, tokens: Sequence[int], vocabulary: int) -> NDArray[np.float32]:
    context = lib.llama_init_from_model(model, lib.llama_context_default_params())
    ids = (ctypes.c_int32 * len(tokens))(*tokens)
    if not context or lib.llama_decode(context, lib.llama_batch_get_one(ids, len(tokens))):
        raise SystemExit("llama.cpp doesn't run it")
    found = np.ctypeslib.as_array(lib.llama_get_logits_ith(context, -1), (vocabulary,)).copy()
    lib.llama_free(context)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="run a model folder in llama.cpp without a GGUF on the disk")
    parser.add_argument("model")
    parser.add_argument("tokens", nargs="*", type=int, default=[1])
    given = parser.parse_args()
    print(int(logits(given.model, given.tokens).argmax()))


if __name__ == "__main__":
    main()
