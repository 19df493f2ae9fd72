"""A GGUF as llama.cpp runs it. What makes results differ without meaning anything is switched off: F32 KV cache, no
flash attention, no repacked weights, all of a context computed at once."""

from __future__ import annotations

import ctypes as c
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weighbridge.adapters.runtimes import llamacpp_api as api
from weighbridge.io.options import cores

_SMALLEST = 32  # tokens of a context


class LlamaCppRuntime:
    """One loaded GGUF. LlamaCppError where llama.cpp refuses it."""

    def __init__(self, path: str) -> None:
        self._lib = api.library()
        params = self._lib.llama_model_default_params()
        params.n_gpu_layers, params.use_extra_bufts, params.check_tensors = 0, False, True
        self._model = self._lib.llama_model_load_from_file(os.fsencode(path), params)
        api.require(self._model, f"can't load {path}")
        self._vocab = self._lib.llama_model_get_vocab(self._model)
        self._tokens = int(self._lib.llama_vocab_n_tokens(self._vocab))
        self._encoder = bool(self._lib.llama_model_has_encoder(self._model))
        self._decoder = bool(self._lib.llama_model_has_decoder(self._model))
        self._labels = self._lib.llama_model_cls_label(self._model, 0) is not None

    def tokenize(self, text: str) -> list[int]:
        """The ids of a text, with special tokens around and inside it."""
        raw = text.encode()
        out = (c.c_int32 * (len(raw) + 16))()
        count = self._lib.llama_tokenize(self._vocab, raw, len(raw), out, len(out), True, True)
        if count < 0:
            raise api.LlamaCppError("the GGUF has no tokenizer")
        return list(out[:count])

    def logits(self, ids: Sequence[int], answer: Sequence[int]) -> NDArray[np.float32]:
        """After every position: [ids, vocabulary]; of an encoder with a decoder, after those of `answer`."""
        run = self._lib.llama_decode
        with self._context(max(len(ids), len(answer)), False, api.POOLING_UNSPECIFIED) as context:
            if self._encoder:
                self._run(self._lib.llama_encode, context, ids)
                ids = answer
            self._run(run, context, ids)
            rows = [self._lib.llama_get_logits_ith(context, i) for i in range(len(ids))]
            return np.stack([np.ctypeslib.as_array(row, (self._tokens,)).copy() for row in rows])

    def embedding(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Returns the pooled embedding, [hidden], or a classifier's scores, [labels]."""
        width, pooling = int(self._lib.llama_model_n_embd_out(self._model)), api.POOLING_UNSPECIFIED
        if self._labels:
            width, pooling = int(self._lib.llama_model_n_cls_out(self._model)), api.POOLING_RANK
        elif self._encoder:
            pooling = api.POOLING_MEAN
        with self._context(len(ids), True, pooling) as context:
            self._run(self._lib.llama_encode if self._encoder else self._lib.llama_decode, context, ids)
            row = self._lib.llama_get_embeddings_seq(context, 0)
            api.require(row, "gave no pooled embedding")
            return np.ctypeslib.as_array(row, (width,)).copy()

    @contextmanager
    def _context(self, tokens: int, embeddings: bool, pooling: int) -> Iterator[int]:
        params = self._lib.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = max(tokens, _SMALLEST)
        params.n_threads = params.n_threads_batch = cores()
        params.flash_attn_type, params.swa_full = api.FLASH_ATTN_DISABLED, True
        params.type_k = params.type_v = api.GGML_TYPE_F32
        params.embeddings, params.pooling_type = embeddings, pooling
        context = self._lib.llama_init_from_model(self._model, params)
        api.require(context, "can't make a context")
        try:
            yield context
        finally:
            self._lib.llama_free(context)

    def _run(self, run: Callable[..., int], context: Any, ids: Sequence[int]) -> None:
        batch = self._lib.llama_batch_init(len(ids), 0, 1)
        try:
            batch.n_tokens = len(ids)
            for i, token in enumerate(ids):
                batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
                batch.seq_id[i][0] = 0
            api.require(run(context, batch) == 0, "can't compute this text")
        finally:
            self._lib.llama_batch_free(batch)
