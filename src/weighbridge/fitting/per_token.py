"""What each further token of a context costs, layer by layer: the slope of `cache_memory`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from weighbridge.base.dtypes import F16, DType
from weighbridge.fitting.cache import CacheModel, RunSettings, cache_memory, cache_of, row_bytes
from weighbridge.fitting.weights import gguf_model
from weighbridge.models.checkpoint import Checkpoint

SCHEMA: Final = "weighbridge/cache-per-token/1"
_CONTEXT: Final = 8192  # tokens, for a model that states none


@dataclass(frozen=True, slots=True)
class TokenCost:
    """Of one layer: bytes of keys and values that each token adds; `sliding`: those that it adds only as long as the
    sliding window of `window` tokens isn't full. `state`: bytes for a whole sequence, however long."""

    layer: int
    nbytes: float
    sliding: float
    window: int
    state: int


@dataclass(frozen=True, slots=True)
class CachePerToken:
    """`nbytes`: of all layers, once windows are full. `context`: `total` is the cache of one sequence of
    so many tokens, as llama.cpp allocates it."""

    dtype: str
    nbytes: float
    layers: tuple[TokenCost, ...]
    context: int
    total: int
    schema: str = SCHEMA


def cache_per_token(model: Checkpoint, *, context: int = 0, dtype: DType = F16) -> CachePerToken:
    """The cost for an open model in cells of `dtype`. `context`: 0 for the model's own. UnsupportedError for a model
    without a family or a config, FormatError for one without a number that a rule needs, UsageError for a type that
    doesn't fit its rows."""
    keys = gguf_model(model).keys
    cache = cache_of(keys)
    own = keys.get(f"{cache.architecture}.context_length")
    return token_costs(cache, context or (own if isinstance(own, int) and own > 0 else _CONTEXT), dtype)


def token_costs(cache: CacheModel, context: int, dtype: DType) -> CachePerToken:
    """The same by the layers' caches."""
    memory = cache_memory(cache, RunSettings(context=context, type_k=dtype, type_v=dtype))
    layers = tuple(_layer(cache, number, memory.states[number], dtype) for number in range(len(cache.layers)))
    return CachePerToken(dtype.name, sum(c.nbytes for c in layers), layers, context, memory.total)


def _layer(model: CacheModel, number: int, state: int, dtype: DType) -> TokenCost:
    rows = model.layers[number].rows
    full, sliding = (
        sum(row_bytes(dtype, row.width) / row.every for row in rows if row.window == windowed)
        for windowed in (False, True)
    )
    return TokenCost(number, full, sliding, model.window if sliding else 0, state)
