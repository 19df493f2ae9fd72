"""The cache that llama.cpp allocates for a context: keys, values and states per layer, exact for llama.cpp b11549.

    model = cache_of(keys)                            from the metadata of a GGUF
    cache_memory(model, RunSettings(context=8192))    bytes by layer

Sources: src/llama-kv-cache.cpp, llama-kv-cache-iswa.cpp, llama-memory-recurrent.cpp, llama-model.cpp (`create_memory`).
Sizes are those of the backend's buffers, without the alignment of each buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from weighbridge.base.dtypes import BY_NAME, F16, DType
from weighbridge.base.errors import FormatError, UsageError
from weighbridge.base.limits import LAYERS
from weighbridge.base.records import dataclass
from weighbridge.fitting.rules import rules

#: Cells are allocated in multiples of this (`llama_kv_cache::get_padding`).
PADDING: Final = 256
_STATE_BYTES: Final = 4  # states are always f32

#: The types of `--cache-type-k` and `--cache-type-v` (common/arg.cpp, kv_cache_types).
CACHE_TYPES: Final = tuple(
    BY_NAME[name] for name in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "IQ4_NL", "Q5_0", "Q5_1")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The settings of llama.cpp that affect memory. `context`: tokens of all sequences together. `unified`: sequences
    share one pool of cells (`--kv-unified`). `outputs`: tokens of a batch whose logits are kept."""

    context: int
    parallel: int = 1
    unified: bool = False
    batch: int = 2048
    ubatch: int = 512
    type_k: DType = F16
    type_v: DType = F16
    swa_full: bool = False
    flash_attention: bool = True
    outputs: int = 1


@dataclass(frozen=True, slots=True)
class CacheRow:
    """A row of elements in each cell. `window`: only in the cells of the sliding window. `every`: the number of tokens
    per cell. `apart`: in a separate cache, in which all rows of values have this width."""

    width: int
    value: bool = False
    window: bool = False
    every: int = 1
    apart: bool = False


@dataclass(frozen=True, slots=True)
class LayerCache:
    """The cache of one layer. `state`: f32 elements per sequence."""

    rows: tuple[CacheRow, ...] = ()
    state: int = 0


@dataclass(frozen=True, slots=True)
class CacheModel:
    """The caches of all layers. `window`: tokens, 0 without sliding layers. `latent`: MLA, one latent vector for keys
    and values. `separate`: sequences never share a pool of cells. `heads`: the widths of a head's keys and values."""

    architecture: str
    layers: tuple[LayerCache, ...]
    window: int = 0
    latent: bool = False
    separate: bool = False
    heads: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CacheMemory:
    """Bytes of keys and values, and of states, by layer. `cells`: of a full layer. `window_cells`: of a sliding one."""

    kv: tuple[int, ...]
    states: tuple[int, ...]
    cells: int
    window_cells: int
    streams: int

    @property
    def total(self) -> int:
        return sum(self.kv) + sum(self.states)


def padded(count: int, multiple: int = PADDING) -> int:
    """Rounds `count` up to a multiple."""
    return -(-count // multiple) * multiple


def row_bytes(dtype: DType, elements: int) -> int:
    """Returns the bytes of a row. Raises UsageError unless it consists of whole blocks."""
    if elements % dtype.block:
        raise UsageError(
            f"rows of {elements} elements aren't whole blocks of {dtype}",
            hint="choose f16 for this cache: --cache-type f16",
        )
    return elements // dtype.block * dtype.size


def cache_memory(model: CacheModel, settings: RunSettings) -> CacheMemory:
    """Returns the memory of a context. Raises UsageError for settings that llama.cpp rejects for this model."""
    if settings.context < 1 or settings.parallel < 1:
        raise UsageError("the context and the number of sequences must be at least 1")
    if settings.type_v.block > 1 and not settings.flash_attention:
        raise UsageError("llama.cpp quantizes the V cache only with flash attention", hint="omit --no-flash-attention")
    for length, dtype in zip(model.heads, (settings.type_k, settings.type_v), strict=False):
        if length % dtype.block:
            raise UsageError(
                f"a head of {length} elements isn't whole blocks of {dtype}",
                hint="choose f16 for this cache: --cache-type f16",
            )
    if (model.latent or model.separate) and settings.type_k is not settings.type_v:
        raise UsageError(f"llama.cpp uses one type for both caches of {model.architecture}", hint="--cache-type TYPE")
    unified = settings.unified
    cells = padded(settings.context) if unified else padded(padded(settings.context) // settings.parallel)
    streams = settings.parallel if model.separate or not unified else 1
    window = cells
    if model.window and not settings.swa_full:
        ubatch = min(settings.ubatch, settings.batch, settings.context)
        window = padded(min(cells, model.window * (settings.parallel // streams) + ubatch))
    rows = (row for layer in model.layers for row in layer.rows)
    widest = max((row.width for row in rows if row.value and not row.apart), default=0)

    def size(row: CacheRow) -> int:
        count = window if row.window else cells if row.every == 1 else padded(cells // row.every)
        # Without flash attention, values are transposed and padded to the widest layer.
        pads = row.value and not row.apart and not settings.flash_attention
        width = widest if pads else row.width
        return row_bytes(settings.type_v if row.value else settings.type_k, width) * count * streams

    return CacheMemory(
        kv=tuple(sum(map(size, layer.rows)) for layer in model.layers),
        states=tuple(_STATE_BYTES * layer.state * settings.parallel for layer in model.layers),
        cells=cells, window_cells=window, streams=streams,
    )  # fmt: skip


# -- from the metadata of a GGUF -------------------------------------------------------------------------------------


class ArchitectureKeys:
    """The metadata of a GGUF by key without the architecture's prefix. Numbers and flags may be lists by layer."""

    def __init__(self, keys: Mapping[str, Any]) -> None:
        architecture = keys.get("general.architecture")
        if not isinstance(architecture, str) or not architecture:
            raise FormatError("the architecture is missing", field="general.architecture", found=architecture)
        self.architecture, self._keys = architecture, keys
        total = self.number("block_count", required=True)
        #: How often the layers run, each time with a separate cache.
        self.loops = max(self.number("num_loops", 1), 1)
        if total * self.loops > LAYERS:
            raise FormatError("too many layers", field=f"{architecture}.block_count", expected=LAYERS, found=total)
        #: Without next-token prediction layers, unless they have a cache in the main context.
        further = 0 if architecture in rules().cache.predicting else self.number("nextn_predict_layers")
        self.layers = max(total - further, 0)

    def get(self, key: str) -> Any:
        return self._keys.get(f"{self.architecture}.{key}")

    def number(self, key: str, default: int = 0, *, required: bool = False) -> int:
        """Returns a count, or the first of a list. Raises FormatError for any other value."""
        value = self.get(key)
        if _is_list(value):
            value = value[0] if len(value) else None
        if value is None and not required:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 32:
            raise FormatError(
                "the memory depends on this number", field=f"{self.architecture}.{key}", expected="a count", found=value
            )
        return value

    def by_layer(self, key: str, default: int = 0) -> list[int]:
        """Returns a number for each layer. Raises FormatError for a list that is too short or has other values."""
        value = self.get(key)
        if not _is_list(value):
            return [self.number(key, default)] * self.layers
        if len(value) < self.layers or not all(isinstance(n, int) for n in value):
            raise FormatError(
                "one number for each layer", field=f"{self.architecture}.{key}", expected=self.layers, found=len(value)
            )
        return [int(n) for n in value[: self.layers]]

    def flags(self, key: str) -> list[bool] | None:
        """Returns a flag for each layer, or None unless the value is a list with at least that many."""
        value = self.get(key)
        return [bool(flag) for flag in value[: self.layers]] if _is_list(value) and len(value) >= self.layers else None


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def cache_of(keys: Mapping[str, Any]) -> CacheModel:
    """Returns the layers' caches. Raises FormatError, with the key's name, for a missing or invalid number."""
    at = ArchitectureKeys(keys)
    kind = (
        "none" if at.get("decision.type") in rules().cache.uncached_decisions else rules().cache_kind(at.architecture)
    )
    window, slides = _sliding(at)
    layers = _KINDS[kind](at, slides)
    return CacheModel(
        at.architecture,
        tuple(layers) * at.loops,
        window=window if any(r.window for layer in layers for r in layer.rows) else 0,
        latent=_latent(at),
        separate=kind == "compressed",
        heads=tuple(at.number(f"attention.{n}_length") for n in ("key", "value")),
    )


def _latent(at: ArchitectureKeys) -> bool:
    return at.number("attention.key_length_mla") > 0 and at.number("attention.value_length_mla") > 0


def _sliding(at: ArchitectureKeys) -> tuple[int, list[bool]]:
    """Returns the sliding window in tokens, 0 for none, and whether each layer slides."""
    rule = rules().window.get(at.architecture)
    if rule is None or (rule.layers and at.number("block_count") != rule.layers):
        return 0, [False] * at.layers
    window = at.number("attention.sliding_window", rule.size)
    if rule.always and (window or at.get("attention.sliding_window") is None):
        window = rule.always
    if not window:
        return 0, [False] * at.layers
    if (flags := at.flags("attention.sliding_window_pattern")) is not None:
        return window, flags
    pattern = at.get("attention.sliding_window_pattern")
    period = pattern if isinstance(pattern, int) and not isinstance(pattern, bool) else rule.period
    if not period:  # 0: all layers slide. None: the model needs the list, but lacks it.
        return window, [period == 0] * at.layers
    return window, [n % period != 0 if rule.first else n % period < period - 1 for n in range(at.layers)]


def _attention(at: ArchitectureKeys, slides: Sequence[bool]) -> list[LayerCache]:
    """Returns keys and values of all layers, with width 0 in a layer without KV heads: such values count, since without
    flash attention those of all layers are padded to the widest (llama-kv-cache.cpp, `n_embd_v_gqa_max`)."""
    heads = at.number("attention.head_count")
    kv_heads = at.by_layer("attention.head_count_kv", heads)
    head = at.number("embedding_length") // heads if heads else 0
    counted = heads or at.architecture in rules().cache.own_widths
    full = [at.number(f"attention.{n}_length", head) if counted else 0 for n in ("key", "value")]
    sliding = [at.number(f"attention.{n}_length_swa", width) for n, width in zip(("key", "value"), full, strict=True)]
    latent = _latent(at)
    layers = []
    for count, slide in zip(kv_heads, slides, strict=True):
        key, value = (width * count for width in (sliding if slide else full))
        keys = (CacheRow(key, window=slide),) if key else ()
        layers.append(LayerCache((*keys, *(() if latent else (CacheRow(value, value=True, window=slide),)))))
    return layers


def _shared(at: ArchitectureKeys, slides: Sequence[bool]) -> list[LayerCache]:
    """Returns attention in all layers; the last layers may use the cache of earlier ones."""
    unshared = rules().cache.own_layers.get(at.architecture, at.layers)
    if key := rules().cache.sharing_key.get(at.architecture):
        unshared = at.layers - at.number(key)
    return [layer if i < unshared else LayerCache() for i, layer in enumerate(_attention(at, slides))]


def _with_states(
    at: ArchitectureKeys, slides: Sequence[bool], states: Iterable[bool], attention: Iterable[bool] | None = None
) -> list[LayerCache]:
    """Returns states in the layers of `states`, and attention in the layers of `attention`, by default the rest."""
    size, states = _state(at), list(states)
    attention = [not flag for flag in states] if attention is None else attention
    return [
        LayerCache(layer.rows if attends else (), size if state else 0)
        for layer, state, attends in zip(_attention(at, slides), states, attention, strict=True)
    ]


def _by_kv_heads(at: ArchitectureKeys, slides: Sequence[bool]) -> list[LayerCache]:
    kv_heads = at.by_layer("attention.head_count_kv", at.number("attention.head_count"))
    return _with_states(at, slides, [not n for n in kv_heads])


def _interval(at: ArchitectureKeys, slides: Sequence[bool]) -> list[LayerCache]:
    period = at.number("full_attention_interval", rules().cache.interval[at.architecture]) or 1
    by_period = [bool((i + 1) % period) for i in range(at.layers)]
    flags = at.flags("attention.recurrent_layers")
    return _with_states(at, slides, by_period if flags is None else flags)


def _by_feed_forward(at: ArchitectureKeys, slides: Sequence[bool]) -> list[LayerCache]:
    kv_heads, widths = at.by_layer("attention.head_count_kv"), at.by_layer("feed_forward_length")
    state = [not n and not width for n, width in zip(kv_heads, widths, strict=True)]
    return _with_states(at, slides, state, [bool(n) and not w for n, w in zip(kv_heads, widths, strict=True)])


def _indexer(at: ArchitectureKeys, slides: Sequence[bool]) -> list[LayerCache]:
    return _with_indexer(at, _attention(at, slides), 1)


def _by_kv_heads_with_indexer(at: ArchitectureKeys, slides: Sequence[bool]) -> list[LayerCache]:
    """The indexer pools keys, and caches three rows of their width (measured with b11549)."""
    return _with_indexer(at, _by_kv_heads(at, slides), 3)


def _interval_with_indexer(at: ArchitectureKeys, slides: Sequence[bool]) -> list[LayerCache]:
    """The indexer caches its keys, and the pooled ones too if any layer compresses, be it one that predicts further
    tokens; a layer with n-grams has the inputs of its dilated convolution as a further state (measured with b11549)."""
    ratios = at.get("attention.compress_ratios")
    pools = any(ratios) if _is_list(ratios) else at.number("attention.compress_ratios") > 0
    history = max(at.number("ple.conv_kernel") - 1, 0) * at.number("ple.ngram_size")
    history *= at.number("hyper_connection.count") * at.number("embedding_length")
    ngrams = at.get("ple.layers")
    ngrams = ngrams if _is_list(ngrams) else ()
    layers = enumerate(_with_indexer(at, _interval(at, slides), 2 if pools else 1))
    return [replace(layer, state=layer.state + history) if i in ngrams else layer for i, layer in layers]


def _with_indexer(at: ArchitectureKeys, layers: Iterable[LayerCache], times: int) -> list[LayerCache]:
    width, flags = times * at.number("attention.indexer.key_length"), at.flags("attention.indexer.types")
    rows = (CacheRow(width),) if width else ()
    return [
        replace(layer, rows=(*layer.rows, *rows)) if layer.rows and (flags is None or flags[i]) else layer
        for i, layer in enumerate(layers)
    ]


def _routed(at: ArchitectureKeys, slides: Sequence[bool]) -> list[LayerCache]:
    """The router's keys and values are counted in the last layer, after which llama.cpp has them."""
    *layers, last = _attention(at, slides)
    heads = at.number("attention.head_count")
    head = at.number("embedding_length") // heads if heads else 0
    key, value = (at.number(f"attention.{n}_length", head) for n in ("key", "value"))
    return [*layers, replace(last, rows=(*last.rows, CacheRow(key), CacheRow(value, value=True)))]


def _indexer_with_values(at: ArchitectureKeys, slides: Sequence[bool]) -> list[LayerCache]:
    """The indexer's cache has one head, with values as long as the model's, which nothing reads."""
    width, dense = at.number("attention.indexer.key_length"), at.number("leading_dense_block_count")
    values = at.number("attention.value_length", width)
    rows = (CacheRow(width, apart=True), CacheRow(values, value=True, apart=True)) if width else ()
    layers = enumerate(_attention(at, slides))
    return [LayerCache((*layer.rows, *(rows if i >= dense else ()))) for i, layer in layers]


def _compressed(at: ArchitectureKeys, slides: Sequence[bool]) -> list[LayerCache]:
    key, index = at.number("attention.key_length"), at.number("attention.indexer.key_length")
    plain = CacheRow(key, window=True)
    kinds = {
        0: LayerCache((plain,)),
        # compressors with an overlap: two rows of 2 x width for 8 positions; without: one for 128
        4: LayerCache((plain, CacheRow(key, every=4), CacheRow(index, every=4)), 2 * 8 * 2 * (key + index)),
        128: LayerCache((plain, CacheRow(key, every=128)), 2 * 128 * key),
    }
    ratios = at.by_layer("attention.compress_ratios")
    if unknown := set(ratios) - kinds.keys():
        raise FormatError("unknown compression ratio", field="attention.compress_ratios", found=min(unknown))
    return [kinds[ratio] for ratio in ratios]


_KINDS: Final[Mapping[str, Callable[[ArchitectureKeys, Sequence[bool]], list[LayerCache]]]] = {
    "attention": _shared,
    "none": lambda at, _: [LayerCache()] * at.layers,
    "recurrent": lambda at, _: [LayerCache(state=_state(at))] * at.layers,
    "by-kv-heads": _by_kv_heads,
    "interval": _interval,
    "both": lambda at, slides: _with_states(at, slides, [True] * at.layers, [True] * at.layers),
    "by-feed-forward": _by_feed_forward,
    "indexer": _indexer,
    "routed": _routed,
    "by-kv-heads-with-indexer": _by_kv_heads_with_indexer,
    "interval-with-indexer": _interval_with_indexer,
    "indexer-with-values": _indexer_with_values,
    "compressed": _compressed,
}


# -- states ----------------------------------------------------------------------------------------------------------


def _state(at: ArchitectureKeys) -> int:
    """Returns the elements of a recurrent layer's state per sequence."""
    kind = rules().state_kind(at.architecture)
    if kind == "wkv":
        return at.number("embedding_length") * (at.number("token_shift_count", 2) + at.number("wkv.head_size"))
    if kind == "shortconv":
        return at.number("embedding_length") * max(at.number("shortconv.l_cache") - 1, 0)
    kernel = max(at.number("ssm.conv_kernel") - 1, 0)
    if kind == "kda":
        head = at.number("kda.head_dim")
        return (3 * kernel + head) * head * at.number("attention.head_count")
    inner, size = at.number("ssm.inner_size"), at.number("ssm.state_size")
    convolution = kernel * (inner + 2 * at.number("ssm.group_count") * size)
    if kind == "linear":
        return convolution + at.number("attention.key_length") ** 2 * at.number("attention.head_count")
    return convolution + size * inner
