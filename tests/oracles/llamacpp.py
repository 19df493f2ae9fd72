"""llama.cpp as a judge: load a GGUF, tokenize, give f32 logits at all positions, or sentence embeddings.

The wheel `xllamacpp` is one shared object with the whole of llama.cpp inside, and it exports the C API, so plain ctypes
does (its own Python classes give neither raw logits nor a choice of arithmetic). Whatever makes results differ without
meaning anything is switched off: f32 KV cache, no flash attention, no weight repacking, no mmap, one thread.

llama.cpp aborts the process on some wrong files. The functions `..._in_subprocess` are for input that may do that.
"""

from __future__ import annotations

import atexit
import ctypes as c
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weighbridge.adapters.runtimes.llamacpp_api import (
    FLASH_ATTN_DISABLED,
    GGML_TYPE_F32,
    LOAD_MODE_NONE,
    POOLING_MEAN,
    POOLING_RANK,
    POOLING_UNSPECIFIED,
    Batch,
    LlamaCppError,
    library,
    messages,
    require,
)

__all__ = ["LOAD_MODE_NONE", "LlamaCppError", "Model", "Spoken", "answer", "library", "messages"]
F32 = NDArray[np.float32]
#: Workers of the tests share the processors, and the threads of ggml spin while they wait for each other.
THREADS = 1


def answer(ids: Sequence[int]) -> list[int]:
    """What a decoder is fed with where an encoder was with `ids`: half as many of them, in another order."""
    return list(ids)[::-2]


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
        messages.clear()
        params = self._lib.llama_model_default_params()
        params.n_gpu_layers, params.load_mode, params.vocab_only = 0, LOAD_MODE_NONE, vocab_only
        params.load_mtp = further
        params.check_tensors, params.use_extra_bufts = not vocab_only, False
        self._model = self._lib.llama_model_load_from_file(os.fsencode(path), params)
        require(self._model, f"can't load {path}")
        self._adapters: list[int] = []  # freed with the model
        self._vocab = self._lib.llama_model_get_vocab(self._model)
        self.warnings = list(messages)
        self.n_vocab = int(self._lib.llama_vocab_n_tokens(self._vocab))
        self.n_embd = int(self._lib.llama_model_n_embd(self._model))

    def adapt(self, path: str | os.PathLike[str]) -> None:
        """Have a LoRA adapter in all that is computed from here on."""
        adapter = self._lib.llama_adapter_lora_init(self._model, os.fsencode(path))
        require(adapter, f"can't load the adapter {path}")
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
            require(self._lib.llama_encode(ctx, batches[0]) == 0, "can't encode")
            require(self._lib.llama_decode(ctx, batches[1]) == 0, "can't decode")
            rows = [self._lib.llama_get_logits_ith(ctx, i) for i in range(len(answer(ids)))]
            return np.stack([np.ctypeslib.as_array(row, (self.n_vocab,)).copy() for row in rows])
        finally:
            for batch in batches:
                self._lib.llama_batch_free(batch)
            self._lib.llama_free(ctx)

    def embed(self, ids: Sequence[int], *, pooling: int = POOLING_UNSPECIFIED) -> F32:
        """One vector for the sequence, pooled as the file says unless told otherwise: [n_embd]. Of a classifier, which
        a file with labels is, its numbers: [labels]."""
        width = int(self._lib.llama_model_n_embd_out(self._model))
        if self._encodes and pooling == POOLING_UNSPECIFIED:  # a T5's encoder, of which no key tells how it pools
            pooling = POOLING_MEAN
        if pooling == POOLING_UNSPECIFIED and self._lib.llama_model_cls_label(self._model, 0) is not None:
            pooling, width = POOLING_RANK, int(self._lib.llama_model_n_cls_out(self._model))
        with self._decoded(ids, embeddings=True, pooling=pooling) as ctx:
            row = self._lib.llama_get_embeddings_seq(ctx, 0)
            require(row, "gave no pooled embedding (has the file a pooling_type?)")
            return np.ctypeslib.as_array(row, (width,)).copy()

    @contextmanager
    def _decoded(self, ids: Sequence[int], *, embeddings: bool, pooling: int = POOLING_UNSPECIFIED) -> Iterator[int]:
        ctx = self._context(len(ids), embeddings=embeddings, pooling=pooling)
        batch = self._batch(ids)
        try:
            run = self._lib.llama_encode if self._encodes else self._lib.llama_decode
            status = run(ctx, batch)
            require(status == 0, f"decode returned {status}")
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
        require(ctx, "can't make a context")
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
    server = _server()
    assert server.stdin
    assert server.stdout
    server.stdin.write(json.dumps([str(path), what, request]).encode() + b"\n")
    server.stdin.flush()
    code, length = map(int, server.stdout.readline().split())
    said = server.stdout.read(length)
    return f"exit {code}: {said.decode('utf-8', 'replace')[-600:]}" if code else said


@cache
def _server() -> subprocess.Popen[bytes]:
    """A process with the library in memory, which answers each request from a fork."""
    server = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    atexit.register(server.communicate)
    return server


def _answer(path: str, what: str, request: list[Any]) -> bytes:
    with Model(path, vocab_only=what == "speak") as model:
        if what == "speak":
            return json.dumps([asdict(model.speak(text)) for text in request]).encode()
        return (model.embed(request) if what == "embed" else model.logits(request)).astype("<f4").tobytes()


def _forked(path: str, what: str, request: list[Any]) -> tuple[int, bytes]:
    """The exit code of a fork, and its answer, or its error output if it fails."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        if not (child := os.fork()):
            try:
                signal.alarm(120)
                os.dup2(errors.fileno(), 2)
                output.write(_answer(path, what, request))
                output.flush()
                os._exit(0)  # skip the library's exit handlers: nothing of theirs is under test
            finally:
                traceback.print_exc()
                os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said = errors if code else output
        said.seek(0)
        return code, said.read()


def _main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    library()
    for line in sys.stdin:
        code, said = _forked(*json.loads(line))
        answers.write(b"%d %d\n%s" % (code, len(said), said))
        answers.flush()
    os._exit(0)


if __name__ == "__main__":
    _main()
