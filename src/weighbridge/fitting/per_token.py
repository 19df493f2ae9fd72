"""The cost of each further token of a context by layer: the slope of `cache_memory`."""

from __future__ import annotations

from typing import Final

from weighbridge.base.dtypes import F16, DType
from weighbridge.base.records import dataclass
from weighbridge.fitting.cache import CacheModel, RunSettings, cache_memory, cache_of, row_bytes
from weighbridge.fitting.weights import gguf_model
from weighbridge.models.model import OpenModel

SCHEMA: Final = "weighbridge/cache-per-token/1"
_CONTEXT: Final = 8192  # tokens, for a model that declares none


@dataclass(frozen=True, slots=True)
class TokenCost:
    """The cost of one layer. `nbytes`: of the keys and values that each token adds. `sliding`: bytes that each token
    adds until the sliding window of `window` tokens is full. `state`: bytes per sequence of any length."""

    layer: int
    nbytes: float
    sliding: float
    window: int
    state: int


@dataclass(frozen=True, slots=True)
class CachePerToken:
    """`nbytes`: per token over all layers, after windows are full. `total`: the bytes that llama.cpp allocates for one
    sequence of `context` tokens."""

    dtype: str
    nbytes: float
    layers: tuple[TokenCost, ...]
    context: int
    total: int
    schema: str = SCHEMA


def cache_per_token(model: OpenModel, *, context: int = 0, dtype: DType = F16) -> CachePerToken:
    """Returns the cost for an open model with a cache of type `dtype`. `context`: 0 for the model's trained context.
    Raises UnsupportedError for a model without a family or a config, FormatError if it lacks a number, and UsageError
    for a type that doesn't fit its rows."""
    keys = gguf_model(model).keys
    cache = cache_of(keys)
    trained = keys.get(f"{cache.architecture}.context_length")
    return token_costs(cache, context or (trained if isinstance(trained, int) and trained > 0 else _CONTEXT), dtype)


def token_costs(cache: CacheModel, context: int, dtype: DType) -> CachePerToken:
    """Returns the cost for the layers' caches."""
    memory = cache_memory(cache, RunSettings(context=context, type_k=dtype, type_v=dtype))
    layers = []
    for number, (layer, state) in enumerate(zip(cache.layers, memory.states, strict=True)):
        full, sliding = (
            sum(row_bytes(dtype, row.width) / row.every for row in layer.rows if row.window == windowed)
            for windowed in (False, True)
        )
        layers.append(TokenCost(number, full, sliding, cache.window if sliding else 0, state))
    return CachePerToken(dtype.name, sum(cost.nbytes for cost in layers), tuple(layers), context, memory.total)
