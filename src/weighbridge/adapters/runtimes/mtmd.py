"""Runs the towers of an mmproj file on an image or a sound, in llama.cpp's mtmd, without flash attention and GPU."""

from __future__ import annotations

import ctypes as c
import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weighbridge.adapters.runtimes import llamacpp_api as api
from weighbridge.adapters.runtimes.llamacpp import LlamaCppRuntime
from weighbridge.io.options import cores

_TEXT: Final = 0  # MTMD_INPUT_CHUNK_TYPE_TEXT


class MtmdParameters(c.Structure):
    """mtmd_context_params (tools/mtmd/mtmd.h, llama.cpp b11549)."""

    _fields_ = (
        ("use_gpu", c.c_bool), ("device", c.c_void_p), ("print_timings", c.c_bool), ("n_threads", c.c_int),
        ("image_marker", c.c_char_p), ("media_marker", c.c_char_p), ("flash_attn_type", c.c_int), ("warmup", c.c_bool),
        ("image_min_tokens", c.c_int), ("image_max_tokens", c.c_int), ("cb_eval", c.c_void_p),
        ("cb_eval_user_data", c.c_void_p), ("batch_max_tokens", c.c_int32), ("progress_callback", c.c_void_p),
        ("progress_callback_user_data", c.c_void_p),
    )  # fmt: skip


class _Text(c.Structure):
    """mtmd_input_text."""

    _fields_ = (("text", c.c_char_p), ("length", c.c_size_t), ("add_special", c.c_bool), ("parse_special", c.c_bool))


_PROTOTYPES: Final[Mapping[str, tuple[object, list[object]]]] = {
    "mtmd_context_params_default": (MtmdParameters, []),
    "mtmd_init_from_file": (c.c_void_p, [c.c_char_p, c.c_void_p, MtmdParameters]),
    "mtmd_default_marker": (c.c_char_p, []),
    "mtmd_bitmap_init": (c.c_void_p, [c.c_uint32, c.c_uint32, c.c_void_p]),
    "mtmd_bitmap_init_from_audio": (c.c_void_p, [c.c_size_t, c.c_void_p]),
    "mtmd_bitmap_free": (None, [c.c_void_p]),
    "mtmd_input_chunks_init": (c.c_void_p, []),
    "mtmd_input_chunks_size": (c.c_size_t, [c.c_void_p]),
    "mtmd_input_chunks_get": (c.c_void_p, [c.c_void_p, c.c_size_t]),
    "mtmd_input_chunks_free": (None, [c.c_void_p]),
    "mtmd_input_chunk_get_type": (c.c_int, [c.c_void_p]),
    "mtmd_input_chunk_get_n_tokens": (c.c_size_t, [c.c_void_p]),
    "mtmd_tokenize": (c.c_int32, [c.c_void_p, c.c_void_p, c.c_void_p, c.c_void_p, c.c_size_t]),
    "mtmd_encode_chunk": (c.c_int32, [c.c_void_p, c.c_void_p]),
    "mtmd_get_output_embd": (c.POINTER(c.c_float), [c.c_void_p]),
    "llama_model_n_embd_inp": (c.c_int32, [c.c_void_p]),
}


class MtmdRuntime(LlamaCppRuntime):
    """One loaded mmproj file. `settings`: as `text`, the GGUF of a language model whose embeddings have the width that
    the projector computes."""

    def __init__(self, path: str, settings: Mapping[str, Any]) -> None:
        super().__init__(settings["text"])
        for name, (result, arguments) in _PROTOTYPES.items():
            function = getattr(self._lib, name)
            function.restype, function.argtypes = result, arguments
        parameters = self._lib.mtmd_context_params_default()
        parameters.use_gpu, parameters.print_timings, parameters.warmup = False, False, False
        parameters.n_threads, parameters.flash_attn_type = cores(), api.FLASH_ATTN_DISABLED
        self._context_of_towers = self._lib.mtmd_init_from_file(os.fsencode(path), self._model, parameters)
        api.require(self._context_of_towers, f"can't load {path}")

    def media(self, path: str) -> NDArray[np.float32]:
        """The embeddings of an image ([height, width, 3], uint8) or a sound ([samples], float32) in an .npy file: those
        of each part into which llama.cpp cuts it, [tokens, width]."""
        return np.concatenate(list(self._parts(path)))

    def _parts(self, path: str) -> Iterator[NDArray[np.float32]]:
        data = np.ascontiguousarray(np.load(path))
        address = data.ctypes.data_as(c.c_void_p)
        if data.ndim == 1:
            bitmap = c.c_void_p(self._lib.mtmd_bitmap_init_from_audio(len(data), address))
        else:
            bitmap = c.c_void_p(self._lib.mtmd_bitmap_init(data.shape[1], data.shape[0], address))
        marker, chunks = self._lib.mtmd_default_marker(), self._lib.mtmd_input_chunks_init()
        text = _Text(marker, len(marker), False, True)
        try:
            done = self._lib.mtmd_tokenize(self._context_of_towers, chunks, c.byref(text), c.byref(bitmap), 1)
            api.require(done == 0, "can't prepare it")
            for number in range(self._lib.mtmd_input_chunks_size(chunks)):
                chunk = self._lib.mtmd_input_chunks_get(chunks, number)
                if self._lib.mtmd_input_chunk_get_type(chunk) != _TEXT:
                    yield self._encoded(chunk)
        finally:
            self._lib.mtmd_input_chunks_free(chunks)
            self._lib.mtmd_bitmap_free(bitmap)

    def _encoded(self, chunk: int) -> NDArray[np.float32]:
        api.require(self._lib.mtmd_encode_chunk(self._context_of_towers, chunk) == 0, "can't compute this part")
        shape = self._lib.mtmd_input_chunk_get_n_tokens(chunk), self._lib.llama_model_n_embd_inp(self._model)
        found = self._lib.mtmd_get_output_embd(self._context_of_towers)
        return np.ctypeslib.as_array(found, shape).copy()
