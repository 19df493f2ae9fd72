"""The rows of a mixture's routers, one per expert: random, or the direction in which its prompts point.

How prompts become rows is mergekit's (arcee-ai/mergekit 0.1.5, moe/router.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from weighbridge.adapters.encoding import TextEncoder
from weighbridge.base.dtypes import F32
from weighbridge.base.errors import UsageError
from weighbridge.base.words import plural
from weighbridge.conversion.merging.folder_view import FolderView
from weighbridge.conversion.merging.mixture_recipe import Expert
from weighbridge.models.model import OpenModel
from weighbridge.models.tokenizer.of_model import tokenizer_json, vocab_of
from weighbridge.tensors.nodes import cast

F32Array = NDArray[np.float32]
Ids = NDArray[np.int64]

EMBEDDINGS: Final = "model.embed_tokens.weight"
_SMALL: Final = 1e-8  # a direction of a smaller length isn't normalized (mergekit)
_ALIKE: Final = 5.0  # a condition number from which rows are too similar (mergekit)


class PromptStates(Protocol):
    """The hidden states before each layer, [prompts, layers, dim]; a forward pass is above this room."""

    def __call__(self, model: OpenModel, prompts: Sequence[Ids], *, average: bool) -> F32Array: ...


def router_rows(
    view: FolderView, experts: Sequence[Expert], mode: str, layers: int, width: int, seed: int, states: PromptStates
) -> F32Array:
    """Returns the rows of each layer's router, [layers, experts, width]. `mode`: a key of `GATE_MODES`."""
    if mode in _RANDOM:
        return np.stack([_RANDOM[mode](seed, layer, (len(experts), width)) for layer in range(layers)])
    positive = [prompt_ids(view.model, expert.positive) for expert in experts]
    negative = [prompt_ids(view.model, expert.negative) for expert in experts]
    if mode == "cheap_embed":
        means = [_embedded(view, group) for group in (*positive, *negative)]
        same = [None if mean is None else np.broadcast_to(mean, (layers, width)) for mean in means]
        return _combined(same, len(experts))
    groups = [*positive, *negative]
    vectors = states(view.model, [ids for group in groups for ids in group], average=mode == "hidden_avg")
    ends = np.cumsum([len(group) for group in groups])
    each = [vectors[end - len(group) : end] for end, group in zip(ends, groups, strict=True)]
    return _combined([part.mean(axis=0) if len(part) else None for part in each], len(experts))


def prompt_ids(model: OpenModel, prompts: Sequence[str]) -> list[Ids]:
    """The tokens of prompts, after the token that begins a text. Raises UsageError for a prompt without any."""
    if not prompts:
        return []
    vocab = vocab_of(model)
    encoder, first = TextEncoder(tokenizer_json(model, vocab)), vocab.token("bos") or ""
    ids = [encoder.encode(first + prompt, special=True) for prompt in prompts]
    if not all(map(len, ids)):
        raise UsageError("a prompt is empty", hint="a text that the expert should answer")
    return ids


def alike(rows: F32Array) -> list[int]:
    """The layers whose routers hardly distinguish two experts."""
    return [layer for layer, matrix in enumerate(rows) if not np.linalg.cond(matrix) <= _ALIKE]


def _embedded(view: FolderView, prompts: Sequence[Ids]) -> F32Array | None:
    """The direction of the sum of all tokens' embeddings."""
    if not prompts:
        return None
    table = cast(view.tensors[EMBEDDINGS], F32)
    ids, counts = np.unique(np.concatenate(prompts), return_counts=True)
    if ids[-1] >= table.spec.shape[0]:
        count = plural(table.spec.shape[0], "embedding")
        raise UsageError(f"the tokenizer has token {ids[-1]}, and the model {count}")
    total = sum(count * table.read(int(n), int(n) + 1).view(np.float32) for n, count in zip(ids, counts, strict=True))
    return _direction(np.asarray(total, np.float32))


def _combined(means: Sequence[F32Array | None], experts: int) -> F32Array:
    """The directions of experts, [layers, experts, width], from the means of their positive prompts, then of
    their negative ones."""
    rows = []
    for positive, negative in zip(means[:experts], means[experts:], strict=True):
        assert positive is not None  # a recipe without prompts is refused
        rows.append(_direction(positive if negative is None else positive - negative))
    return np.stack(rows, axis=1)


def _direction(vectors: F32Array) -> F32Array:
    lengths = np.sqrt(np.add.reduce(np.square(vectors), axis=-1, keepdims=True))
    return (vectors / np.maximum(lengths, _SMALL)).astype(np.float32)


# ------------------------------------------------------------------------------------------------ random


def _generator(seed: int, layer: int) -> np.random.Generator:
    key = sha256(f"{seed}/router/{layer}".encode()).digest()[:16]
    return np.random.Generator(np.random.Philox(key=np.frombuffer(key, "<u8")))


def _normal(seed: int, layer: int, shape: tuple[int, int]) -> F32Array:
    return _generator(seed, layer).standard_normal(shape).astype(np.float32)


def _uniform(seed: int, layer: int, shape: tuple[int, int]) -> F32Array:
    """As torch.nn.Linear begins."""
    bound = shape[1] ** -0.5
    return _generator(seed, layer).uniform(-bound, bound, shape).astype(np.float32)


_RANDOM: Final[dict[str, Callable[[int, int, tuple[int, int]], F32Array]]] = {
    "random": _normal, "uniform_random": _uniform,
}  # fmt: skip
