"""What llama.cpp's tower computes of an image or a sound: the embeddings that mtmd hands to the language model.

Run as a script, this file is a process of its own, since the library aborts on some files.
"""

from __future__ import annotations

import ctypes as c
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.oracles.mtmd_loads import Parameters

_TEXT = 0  # MTMD_INPUT_CHUNK_TYPE_TEXT
_FLASH_ATTN_DISABLED = 0


class _Text(c.Structure):
    """mtmd_input_text (tools/mtmd/mtmd.h, llama.cpp b11549)."""

    _fields_ = (("text", c.c_char_p), ("text_len", c.c_size_t), ("add_special", c.c_bool), ("parse_special", c.c_bool))


def embeddings(mmproj: Path, text: Path, media: NDArray[Any]) -> list[NDArray[np.float32]]:
    """The embeddings of each part of an image ([height, width, 3], uint8) or sound ([samples], float32), each [tokens,
    width]. `text`: a GGUF of a language model of that width."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("media.npy", "embeddings.npz")]
        np.save(paths[0], media)
        command = [sys.executable, "-m", "tests.oracles.mtmd_embeddings", *map(str, (mmproj, text, *paths))]
        done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=300)
        if done.returncode:
            raise RuntimeError(f"mtmd: exit {done.returncode}: {done.stderr[-2000:]}")
        with np.load(paths[1]) as parts:
            return list(parts.values())


def _parts(mmproj: str, text: str, media: NDArray[Any]) -> Iterator[NDArray[np.float32]]:
    from tests.oracles import llamacpp

    from weighbridge.adapters.runtimes.llamacpp_api import require

    lib, model = llamacpp.library(), llamacpp.Model(text)
    lib.mtmd_context_params_default.restype = Parameters
    for name in ("mtmd_init_from_file", "mtmd_bitmap_init", "mtmd_bitmap_init_from_audio", "mtmd_input_chunks_init",
                 "mtmd_input_chunks_get", "mtmd_get_output_embd"):  # fmt: skip
        getattr(lib, name).restype = c.c_void_p
    lib.mtmd_default_marker.restype = c.c_char_p
    for name in ("mtmd_input_chunks_size", "mtmd_input_chunk_get_n_tokens"):
        getattr(lib, name).restype, getattr(lib, name).argtypes = c.c_size_t, [c.c_void_p]
    lib.mtmd_init_from_file.argtypes = [c.c_char_p, c.c_void_p, Parameters]
    parameters = lib.mtmd_context_params_default()
    parameters.use_gpu, parameters.print_timings, parameters.n_threads, parameters.warmup = False, False, 1, False
    parameters.flash_attn_type = _FLASH_ATTN_DISABLED
    context = c.c_void_p(lib.mtmd_init_from_file(os.fsencode(mmproj), model._model, parameters))
    require(context, f"can't load {mmproj}")
    if media.ndim == 1:
        bitmap = lib.mtmd_bitmap_init_from_audio(c.c_size_t(len(media)), media.ctypes.data_as(c.c_void_p))
    else:
        height, width, _ = media.shape
        bitmap = lib.mtmd_bitmap_init(c.c_uint32(width), c.c_uint32(height), media.ctypes.data_as(c.c_void_p))
    marker, chunks = lib.mtmd_default_marker(), c.c_void_p(lib.mtmd_input_chunks_init())
    said = _Text(marker, len(marker), False, True)
    if lib.mtmd_tokenize(context, chunks, c.byref(said), c.byref(c.c_void_p(bitmap)), c.c_size_t(1)):
        raise RuntimeError("mtmd_tokenize failed")
    width = lib.llama_model_n_embd_inp(c.c_void_p(model._model))
    for n in range(lib.mtmd_input_chunks_size(chunks)):
        chunk = c.c_void_p(lib.mtmd_input_chunks_get(chunks, c.c_size_t(n)))
        if lib.mtmd_input_chunk_get_type(chunk) == _TEXT:
            continue
        if lib.mtmd_encode_chunk(context, chunk):
            raise RuntimeError("mtmd_encode_chunk failed")
        tokens = lib.mtmd_input_chunk_get_n_tokens(chunk)
        data = c.cast(lib.mtmd_get_output_embd(context), c.POINTER(c.c_float))
        yield np.ctypeslib.as_array(data, (tokens, width)).copy()


if __name__ == "__main__":
    mmproj, text, media, target = sys.argv[1:]
    np.savez(target, *_parts(mmproj, text, np.ascontiguousarray(np.load(media))))
    sys.stderr.flush()
    os._exit(0)
