"""llama.cpp as a judge: load a GGUF, tokenize, give f32 logits at all positions, or sentence embeddings.

The wheel `xllamacpp` is one shared object with the whole of llama.cpp inside, and it exports the C API, so plain ctypes
does (its own Python classes give neither raw logits nor a choice of arithmetic). Whatever makes results differ without
meaning anything is switched off: f32 KV cache, no flash attention, no weight repacking, no mmap, two threads.

Structures are those of `include/llama.h` at b11549; `_check_layout` proves them against the library's own defaults,
since a struct passed by value with one field too few doesn't fail, it lies.

llama.cpp aborts the process on some wrong files. The functions `..._in_subprocess` are for input that may do that.
"""

from __future__ import annotations

import ctypes as c
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]

GGML_TYPE_F32 = 0
LOAD_MODE_NONE = 0  # enum llama_load_mode: read(), no mmap
FLASH_ATTN_DISABLED = 0
POOLING_UNSPECIFIED, POOLING_NONE, POOLING_MEAN, POOLING_RANK = -1, 0, 1, 4
THREADS = 2

os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # else an abort starts a debugger, which takes seconds

_Log = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)
_messages: list[str] = []


@_Log
def _collect(level: int, text: bytes, _user: int) -> None:
    """Keep what llama.cpp says (ggml levels: 3 warn, 4 error) for the message of our own exception; print nothing."""
    if level >= 3 and text:
        _messages.append(text.decode("utf-8", "replace"))


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
    "llama_log_set": (None, [_Log, c.c_void_p]),
    "llama_model_default_params": (ModelParams, []),
    "llama_context_default_params": (ContextParams, []),
    "llama_model_load_from_file": (c.c_void_p, [c.c_char_p, ModelParams]),
    "llama_model_free": (None, [c.c_void_p]),
    "llama_init_from_model": (c.c_void_p, [c.c_void_p, ContextParams]),
    "llama_free": (None, [c.c_void_p]),
    "llama_model_get_vocab": (c.c_void_p, [c.c_void_p]),
    "llama_model_n_embd": (c.c_int32, [c.c_void_p]),
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


def _check_layout(lib: c.CDLL) -> None:
    """The defaults of the last fields are where we think they are (llama-context.cpp, llama_context_default_params)."""
    ctx, model = lib.llama_context_default_params(), lib.llama_model_default_params()
    found = (ctx.n_ctx, ctx.n_batch, ctx.yarn_ext_factor, ctx.type_k, ctx.offload_kqv, ctx.no_perf, ctx.n_samplers)
    if found != (512, 2048, -1.0, 1, True, True, 0) or not model.use_extra_bufts or model.vocab_only:
        raise LlamaCppError(f"llama.cpp's parameter structs aren't those of b11549: {found}")


@cache
def library() -> c.CDLL:
    """The shared object, with prototypes; loaded once a process."""
    spec = find_spec("xllamacpp")
    if spec is None or spec.origin is None:
        raise LlamaCppError("xllamacpp isn't installed (requirements/oracles.txt)")
    lib = c.CDLL(str(next(Path(spec.origin).parent.glob("xllamacpp*.so"))))
    for name, (result, arguments) in _PROTOTYPES.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    lib.llama_log_set(_collect, None)
    lib.llama_backend_init()
    _check_layout(lib)
    return lib


def answer(ids: Sequence[int]) -> list[int]:
    """What a decoder is fed with where an encoder was with `ids`: half as many of them, in another order."""
    return list(ids)[::-2]


def _require(handle: object, what: str) -> None:
    if not handle:
        raise LlamaCppError(f"llama.cpp {what}: {''.join(_messages[-6:]).strip()}")


@dataclass(frozen=True)
class Spoken:
    """What a vocabulary makes of one text."""

    ids: list[int]
    parsed: list[int]  # with special tokens recognised
    text: str  # `parsed` as text again, special tokens not shown


class Model:
    """One loaded GGUF. `vocab_only` loads no tensors, for tokenizer tests; `further` those too that predict
    further tokens."""

    def __init__(self, path: str | os.PathLike[str], *, vocab_only: bool = False, further: bool = False) -> None:
        self._lib = library()
        _messages.clear()
        params = self._lib.llama_model_default_params()
        params.n_gpu_layers, params.load_mode, params.vocab_only = 0, LOAD_MODE_NONE, vocab_only
        params.load_mtp = further
        params.check_tensors, params.use_extra_bufts = not vocab_only, False
        self._model = self._lib.llama_model_load_from_file(os.fsencode(path), params)
        _require(self._model, f"can't load {path}")
        self._adapters: list[int] = []  # freed with the model
        self._vocab = self._lib.llama_model_get_vocab(self._model)
        self.warnings = list(_messages)
        self.n_vocab = int(self._lib.llama_vocab_n_tokens(self._vocab))
        self.n_embd = int(self._lib.llama_model_n_embd(self._model))

    def adapt(self, path: str | os.PathLike[str]) -> None:
        """Have a LoRA adapter in all that is computed from here on."""
        adapter = self._lib.llama_adapter_lora_init(self._model, os.fsencode(path))
        _require(adapter, f"can't load the adapter {path}")
        self._adapters.append(adapter)

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._model:
            self._lib.llama_model_free(self._model)
            self._model = None

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        raw = text.encode()
        room = len(raw) + 16
        out = (c.c_int32 * room)()
        n = self._lib.llama_tokenize(self._vocab, raw, len(raw), out, room, add_special, parse_special)
        if n < 0:
            raise LlamaCppError(f"tokenize wants room for {-n} tokens")
        return list(out[:n])

    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str:
        tokens = (c.c_int32 * len(ids))(*ids)
        room = 64 * len(ids) + 64
        out = c.create_string_buffer(room)
        n = self._lib.llama_detokenize(self._vocab, tokens, len(ids), out, room, False, special)
        return out.raw[: max(n, 0)].decode("utf-8", "replace")

    def speak(self, text: str) -> Spoken:
        parsed = self.tokenize(text, parse_special=True)
        return Spoken(self.tokenize(text), parsed, self.detokenize(parsed))

    def logits(self, ids: Sequence[int]) -> F32:
        """f32 logits after every position: [len(ids), n_vocab]; of an encoder with a decoder those of `answer(ids)`."""
        if self._encodes:
            return self._answered(ids)
        with self._decoded(ids, embeddings=False) as ctx:
            rows = [self._lib.llama_get_logits_ith(ctx, i) for i in range(len(ids))]
            return np.stack([np.ctypeslib.as_array(row, (self.n_vocab,)).copy() for row in rows])

    @property
    def _encodes(self) -> bool:
        return bool(self._lib.llama_model_has_encoder(self._model))

    def _answered(self, ids: Sequence[int]) -> F32:
        ctx = self._context(len(ids), embeddings=False, pooling=POOLING_UNSPECIFIED)
        batches = [self._batch(ids), self._batch(answer(ids))]
        try:
            _require(self._lib.llama_encode(ctx, batches[0]) == 0, "can't encode")
            _require(self._lib.llama_decode(ctx, batches[1]) == 0, "can't decode")
            rows = [self._lib.llama_get_logits_ith(ctx, i) for i in range(len(answer(ids)))]
            return np.stack([np.ctypeslib.as_array(row, (self.n_vocab,)).copy() for row in rows])
        finally:
            for batch in batches:
                self._lib.llama_batch_free(batch)
            self._lib.llama_free(ctx)

    def embed(self, ids: Sequence[int], *, pooling: int = POOLING_UNSPECIFIED) -> F32:
        """One vector for the sequence, pooled as the file says unless told otherwise: [n_embd]. Of a classifier, which
        a file with labels is, its numbers: [labels]."""
        width = self.n_embd
        if self._encodes and pooling == POOLING_UNSPECIFIED:  # a T5's encoder, of which no key tells how it pools
            pooling = POOLING_MEAN
        if pooling == POOLING_UNSPECIFIED and self._lib.llama_model_cls_label(self._model, 0) is not None:
            pooling, width = POOLING_RANK, int(self._lib.llama_model_n_cls_out(self._model))
        with self._decoded(ids, embeddings=True, pooling=pooling) as ctx:
            row = self._lib.llama_get_embeddings_seq(ctx, 0)
            _require(row, "gave no pooled embedding (has the file a pooling_type?)")
            return np.ctypeslib.as_array(row, (width,)).copy()

    @contextmanager
    def _decoded(self, ids: Sequence[int], *, embeddings: bool, pooling: int = POOLING_UNSPECIFIED) -> Iterator[int]:
        ctx = self._context(len(ids), embeddings=embeddings, pooling=pooling)
        batch = self._batch(ids)
        try:
            run = self._lib.llama_encode if self._encodes else self._lib.llama_decode
            status = run(ctx, batch)
            _require(status == 0, f"decode returned {status}")
            yield ctx
        finally:
            self._lib.llama_batch_free(batch)
            self._lib.llama_free(ctx)

    def _context(self, n: int, *, embeddings: bool, pooling: int) -> int:
        params = self._lib.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = max(n, 32)
        params.n_threads = params.n_threads_batch = THREADS
        params.flash_attn_type = FLASH_ATTN_DISABLED
        params.type_k = params.type_v = GGML_TYPE_F32
        params.embeddings, params.pooling_type, params.swa_full = embeddings, pooling, True
        ctx = self._lib.llama_init_from_model(self._model, params)
        _require(ctx, "can't make a context")
        if n_adapters := len(self._adapters):
            ones = (c.c_float * n_adapters)(*[1.0] * n_adapters)
            self._lib.llama_set_adapters_lora(ctx, (c.c_void_p * n_adapters)(*self._adapters), n_adapters, ones)
        return int(ctx)

    def _batch(self, ids: Sequence[int]) -> Batch:
        batch: Batch = self._lib.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
            batch.seq_id[i][0] = 0
        return batch


def numbers_in_subprocess(path: Path, ids: Sequence[int], *, embeddings: bool = False) -> F32 | str:
    """Logits (or the pooled embedding) from a process of its own, or why there are none: it may abort."""
    answer = _ask(path, "embed" if embeddings else "logits", list(ids))
    if isinstance(answer, str):
        return answer
    flat = np.frombuffer(answer, np.float32)
    return flat if embeddings else flat.reshape(len(ids), -1)


def spoken_in_subprocess(path: Path, texts: Sequence[str]) -> list[Spoken] | str:
    """Tokens and their text, for each text, from a process of its own, or why there are none."""
    answer = _ask(path, "speak", list(texts))
    return answer if isinstance(answer, str) else [Spoken(**row) for row in json.loads(answer)]


def _ask(path: Path, what: str, request: object) -> bytes | str:
    command = [sys.executable, __file__, str(path), what]
    done = subprocess.run(command, input=json.dumps(request).encode(), capture_output=True, timeout=120)
    return (
        f"exit {done.returncode}: {done.stderr.decode('utf-8', 'replace')[-600:]}" if done.returncode else done.stdout
    )


def _answer(path: str, what: str, request: list[Any]) -> bytes:
    with Model(path, vocab_only=what == "speak") as model:
        if what == "speak":
            return json.dumps([asdict(model.speak(text)) for text in request]).encode()
        return (model.embed(request) if what == "embed" else model.logits(request)).astype("<f4").tobytes()


def _main() -> None:
    sys.stdout.buffer.write(_answer(sys.argv[1], sys.argv[2], json.load(sys.stdin)))
    sys.stdout.flush()
    os._exit(0)  # skip the library's exit handlers: nothing of theirs is under test


if __name__ == "__main__":
    _main()
