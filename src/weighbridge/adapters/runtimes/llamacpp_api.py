"""llama.cpp's C API through ctypes: the wheel `xllamacpp` is one shared object with all of llama.cpp, and exports it.

Structures are those of `include/llama.h` at b11549. `_check_layout` compares them with the library's own defaults,
since a struct passed by value with one field too few doesn't fail.
"""

from __future__ import annotations

import ctypes as c
import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path

GGML_TYPE_F32 = 0
LOAD_MODE_NONE = 0  # enum llama_load_mode: read(), no mmap
FLASH_ATTN_DISABLED = 0
POOLING_UNSPECIFIED, POOLING_NONE, POOLING_MEAN, POOLING_RANK = -1, 0, 1, 4
THREADS = 2

LogFunction = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)
messages: list[str] = []


@LogFunction  # type: ignore[untyped-decorator]
def _collect(level: int, text: bytes, _user: int) -> None:
    """Keeps llama.cpp's messages (ggml levels: 3 warn, 4 error) for our exceptions; prints nothing."""
    if level >= 3 and text:
        messages.append(text.decode("utf-8", "replace"))


class ModelParams(c.Structure):
    _fields_ = [
        ("devices", c.c_void_p),
        ("tensor_buft_overrides", c.c_void_p),
        ("n_gpu_layers", c.c_int32),
        ("split_mode", c.c_int32),
        ("load_mode", c.c_int32),
        ("lazy_mode", c.c_int32),
        ("main_gpu", c.c_int32),
        ("tensor_split", c.c_void_p),
        ("progress_callback", c.c_void_p),
        ("progress_callback_user_data", c.c_void_p),
        ("kv_overrides", c.c_void_p),
        ("vocab_only", c.c_bool),
        ("check_tensors", c.c_bool),
        ("use_extra_bufts", c.c_bool),
        ("no_host", c.c_bool),
        ("no_alloc", c.c_bool),
        ("load_mtp", c.c_bool),
    ]


class ContextParams(c.Structure):
    _fields_ = [
        ("n_ctx", c.c_uint32),
        ("n_batch", c.c_uint32),
        ("n_ubatch", c.c_uint32),
        ("n_seq_max", c.c_uint32),
        ("n_rs_seq", c.c_uint32),
        ("n_outputs_max", c.c_uint32),
        ("n_outputs_max_per_seq", c.c_uint32),
        ("n_threads", c.c_int32),
        ("n_threads_batch", c.c_int32),
        ("ctx_type", c.c_int32),
        ("rope_scaling_type", c.c_int32),
        ("pooling_type", c.c_int32),
        ("attention_type", c.c_int32),
        ("flash_attn_type", c.c_int32),
        ("rope_freq_base", c.c_float),
        ("rope_freq_scale", c.c_float),
        ("yarn_ext_factor", c.c_float),
        ("yarn_attn_factor", c.c_float),
        ("yarn_beta_fast", c.c_float),
        ("yarn_beta_slow", c.c_float),
        ("yarn_orig_ctx", c.c_uint32),
        ("defrag_thold", c.c_float),
        ("cb_eval", c.c_void_p),
        ("cb_eval_user_data", c.c_void_p),
        ("type_k", c.c_int32),
        ("type_v", c.c_int32),
        ("moe_cache_size", c.c_size_t),
        ("abort_callback", c.c_void_p),
        ("abort_callback_data", c.c_void_p),
        ("embeddings", c.c_bool),
        ("offload_kqv", c.c_bool),
        ("no_perf", c.c_bool),
        ("op_offload", c.c_bool),
        ("swa_full", c.c_bool),
        ("kv_unified", c.c_bool),
        ("samplers", c.c_void_p),
        ("n_samplers", c.c_size_t),
        ("ctx_other", c.c_void_p),
    ]


class Batch(c.Structure):
    _fields_ = [
        ("n_tokens", c.c_int32),
        ("token", c.POINTER(c.c_int32)),
        ("embd", c.POINTER(c.c_float)),
        ("pos", c.POINTER(c.c_int32)),
        ("n_seq_id", c.POINTER(c.c_int32)),
        ("seq_id", c.POINTER(c.POINTER(c.c_int32))),
        ("logits", c.POINTER(c.c_int8)),
    ]


# name -> (result, arguments); a pointer that we only pass on is void*
_PROTOTYPES: dict[str, tuple[object, list[object]]] = {
    "llama_backend_init": (None, []),
    "llama_log_set": (None, [LogFunction, c.c_void_p]),
    "llama_model_default_params": (ModelParams, []),
    "llama_context_default_params": (ContextParams, []),
    "llama_model_load_from_file": (c.c_void_p, [c.c_char_p, ModelParams]),
    "llama_model_free": (None, [c.c_void_p]),
    "llama_init_from_model": (c.c_void_p, [c.c_void_p, ContextParams]),
    "llama_free": (None, [c.c_void_p]),
    "llama_model_get_vocab": (c.c_void_p, [c.c_void_p]),
    "llama_model_n_embd": (c.c_int32, [c.c_void_p]),
    "llama_model_n_embd_out": (c.c_int32, [c.c_void_p]),
    "llama_model_n_cls_out": (c.c_uint32, [c.c_void_p]),
    "llama_model_cls_label": (c.c_char_p, [c.c_void_p, c.c_uint32]),
    "llama_vocab_n_tokens": (c.c_int32, [c.c_void_p]),
    "llama_tokenize": (c.c_int32, [c.c_void_p, c.c_char_p, c.c_int32, c.c_void_p, c.c_int32, c.c_bool, c.c_bool]),
    "llama_detokenize": (c.c_int32, [c.c_void_p, c.c_void_p, c.c_int32, c.c_char_p, c.c_int32, c.c_bool, c.c_bool]),
    "llama_batch_init": (Batch, [c.c_int32, c.c_int32, c.c_int32]),
    "llama_batch_free": (None, [Batch]),
    "llama_adapter_lora_init": (c.c_void_p, [c.c_void_p, c.c_char_p]),
    "llama_set_adapters_lora": (c.c_int32, [c.c_void_p, c.POINTER(c.c_void_p), c.c_size_t, c.POINTER(c.c_float)]),
    "llama_model_has_encoder": (c.c_bool, [c.c_void_p]),
    "llama_model_has_decoder": (c.c_bool, [c.c_void_p]),
    "llama_encode": (c.c_int32, [c.c_void_p, Batch]),
    "llama_decode": (c.c_int32, [c.c_void_p, Batch]),
    "llama_get_logits_ith": (c.POINTER(c.c_float), [c.c_void_p, c.c_int32]),
    "llama_get_embeddings_seq": (c.POINTER(c.c_float), [c.c_void_p, c.c_int32]),
}


class LlamaCppError(RuntimeError):
    """llama.cpp refused; the message carries its warnings and errors."""


@cache
def library() -> c.CDLL:
    """The shared object, with prototypes; loaded once a process."""
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # else an abort starts a debugger, which takes seconds
    spec = find_spec("xllamacpp")
    if spec is None or spec.origin is None:
        raise LlamaCppError("xllamacpp isn't installed (weighbridge[prove])")
    lib = c.CDLL(str(next(Path(spec.origin).parent.glob("xllamacpp*.so"))))
    for name, (result, arguments) in _PROTOTYPES.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    lib.llama_log_set(_collect, None)
    lib.llama_backend_init()
    # The defaults of the last fields are where we think they are (llama-context.cpp, llama_context_default_params).
    ctx, model = lib.llama_context_default_params(), lib.llama_model_default_params()
    found = (ctx.n_ctx, ctx.n_batch, ctx.yarn_ext_factor, ctx.type_k, ctx.offload_kqv, ctx.no_perf, ctx.n_samplers)
    if found != (512, 2048, -1.0, 1, True, True, 0) or not model.use_extra_bufts or model.vocab_only:
        raise LlamaCppError(f"llama.cpp's parameter structs aren't those of b11549: {found}")
    return lib


def require(handle: object, what: str) -> None:
    if not handle:
        raise LlamaCppError(f"llama.cpp {what}: {''.join(messages[-6:]).strip()}")
