"""What llama.cpp keeps per layer for a context: keys, values, states. Exact, by the rules of llama.cpp b11549.

    model = cache_of(keys)                            from a GGUF's key-values
    cache_memory(model, RunSettings(context=8192))    bytes by layer

Sources: src/llama-kv-cache.cpp, llama-kv-cache-iswa.cpp, llama-memory-recurrent.cpp, llama-model.cpp (`create_memory`).
Bytes are those of the backend's buffers, without the alignment of each buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from weighbridge.base.dtypes import BY_NAME, F16, DType
from weighbridge.base.errors import FormatError, UsageError
from weighbridge.base.limits import LAYERS
from weighbridge.fitting.rules import SlidingWindow, rules

#: Cells are allocated in multiples of this (`llama_kv_cache::get_padding`).
PADDING: Final = 256
_STATE_BYTES: Final = 4  # states are f32 whatever the types of K and V

#: The types of `--cache-type-k` and `--cache-type-v` (common/arg.cpp, kv_cache_types).
CACHE_TYPES: Final = tuple(
    BY_NAME[name] for name in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "IQ4_NL", "Q5_0", "Q5_1")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """llama.cpp's settings that memory depends on. `context`: tokens, of all sequences together. `unified`: sequences
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
    """One row of elements a cell. `window`: cells of the sliding window only. `every`: one cell for so many tokens.
    `apart`: in a cache of its own, where all rows of values have this width."""

    width: int
    value: bool = False
    window: bool = False
    every: int = 1
    apart: bool = False


@dataclass(frozen=True, slots=True)
class LayerCache:
    """What one layer keeps. `state`: f32 elements a sequence."""

    rows: tuple[CacheRow, ...] = ()
    state: int = 0


@dataclass(frozen=True, slots=True)
class CacheModel:
    """All layers of a model. `window`: tokens; 0 without sliding layers. `latent`: MLA, one latent vector for keys and
    values. `separate`: sequences never share a pool of cells. `heads`: the widths of keys and values of one head."""

    architecture: str
    layers: tuple[LayerCache, ...]
    window: int = 0
    latent: bool = False
    separate: bool = False
    heads: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CacheMemory:
    """Bytes of keys and values, and of states, by layer. `cells`: of a full layer; `window_cells`: of a sliding one."""

    kv: tuple[int, ...]
    states: tuple[int, ...]
    cells: int
    window_cells: int
    streams: int

    @property
    def total(self) -> int:
        return sum(self.kv) + sum(self.states)


def padded(count: int, multiple: int = PADDING) -> int:
    """`count` rounded up to a multiple."""
    return -(-count // multiple) * multiple


def row_bytes(dtype: DType, elements: int) -> int:
    """Bytes of a row. UsageError unless it is whole blocks."""
    if elements % dtype.block:
        raise UsageError(
            f"rows of {elements} elements aren't whole blocks of {dtype}", hint="choose f16 for this cache: --kv f16"
        )
    return elements // dtype.block * dtype.size


def cache_memory(model: CacheModel, settings: RunSettings) -> CacheMemory:
    """The memory of a context. UsageError for settings that llama.cpp refuses for this model."""
    _check(model, settings)
    context = padded(settings.context)
    unified = settings.unified
    cells = context if unified else padded(context // settings.parallel)
    streams = settings.parallel if model.separate or not unified else 1
    window = _window_cells(model, settings, cells)
    rows = (row for layer in model.layers for row in layer.rows)
    widest = max((row.width for row in rows if row.value and not row.apart), default=0)

    def size(row: CacheRow) -> int:
        count = window if row.window else cells if row.every == 1 else padded(cells // row.every)
        # Without flash attention values are transposed and padded to the widest layer.
        pads = row.value and not row.apart and not settings.flash_attention
        width = widest if pads else row.width
        return row_bytes(settings.type_v if row.value else settings.type_k, width) * count * streams

    return CacheMemory(
        kv=tuple(sum(map(size, layer.rows)) for layer in model.layers),
        states=tuple(_STATE_BYTES * layer.state * settings.parallel for layer in model.layers),
        cells=cells, window_cells=window, streams=streams,
    )  # fmt: skip


def _window_cells(model: CacheModel, settings: RunSettings, cells: int) -> int:
    if settings.swa_full or not model.window:
        return cells
    ubatch = min(settings.ubatch, settings.batch, settings.context)
    shared = settings.parallel if settings.unified and not model.separate else 1
    return padded(min(cells, model.window * shared + ubatch))


def _check(model: CacheModel, settings: RunSettings) -> None:
    if settings.context < 1 or settings.parallel < 1:
        raise UsageError("the context and the number of sequences are at least 1")
    if settings.type_v.block > 1 and not settings.flash_attention:
        raise UsageError("llama.cpp quantizes the V cache only with flash attention", hint="omit --no-flash-attention")
    for length, dtype in zip(model.heads, (settings.type_k, settings.type_v), strict=False):
        if length % dtype.block:
            raise UsageError(
                f"a head of {length} elements isn't whole blocks of {dtype}", hint="choose f16 for this cache: --kv f16"
            )
    if (model.latent or model.separate) and settings.type_k is not settings.type_v:
        raise UsageError(f"llama.cpp takes one type for both caches of {model.architecture}", hint="--kv TYPE")


# -- from a GGUF's keys ----------------------------------------------------------------------------------------------


class ArchitectureKeys:
    """The key-values of a GGUF without the architecture's prefix; numbers and flags may be one for all layers."""

    def __init__(self, keys: Mapping[str, Any]) -> None:
        architecture = keys.get("general.architecture")
        if not isinstance(architecture, str) or not architecture:
            raise FormatError("the architecture is missing", field="general.architecture", found=architecture)
        self.architecture, self._keys = architecture, keys
        total = self.number("block_count", required=True)
        #: How often the layers run; each time has a cache of its own.
        self.loops = max(self.number("num_loops", 1), 1)
        if total * self.loops > LAYERS:
            raise FormatError("too many layers", field=f"{architecture}.block_count", expected=LAYERS, found=total)
        #: Layers that predict further tokens have no cache in the main context.
        self.layers = max(total - self.number("nextn_predict_layers"), 0)

    def get(self, key: str) -> Any:
        return self._keys.get(f"{self.architecture}.{key}")

    def number(self, key: str, default: int = 0, *, required: bool = False) -> int:
        """A count; of one that differs by layer, the first."""
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
        """A number for each layer. Lists longer or shorter than the model: FormatError."""
        value = self.get(key)
        if not _is_list(value):
            return [self.number(key, default)] * self.layers
        if len(value) < self.layers or not all(isinstance(n, int) for n in value):
            raise FormatError(
                "one number for each layer", field=f"{self.architecture}.{key}", expected=self.layers, found=len(value)
            )
        return [int(n) for n in value[: self.layers]]

    def has(self, key: str) -> bool:
        return self.get(key) is not None


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def cache_of(keys: Mapping[str, Any]) -> CacheModel:
    """The layers' caches by a GGUF's key-values. FormatError, with the key's name, for one that is missing or no
    number."""
    at = ArchitectureKeys(keys)
    kind = rules().cache_kind(at.architecture)
    window = _window(at)
    layers = _KINDS[kind](at, _slides(at, window))
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


def _window(at: ArchitectureKeys) -> int:
    """The sliding window in tokens, 0 for none."""
    rule = rules().windows.get(at.architecture)
    if rule is None or (rule.layers and at.number("block_count") != rule.layers):
        return 0
    size = at.number("attention.sliding_window", rule.size)
    return rule.always if rule.always and (size or not at.has("attention.sliding_window")) else size


def _slides(at: ArchitectureKeys, window: int) -> list[bool]:
    """Which layers have a sliding window."""
    rule = rules().windows.get(at.architecture)
    if rule is None or not window:
        return [False] * at.layers
    pattern = at.get("attention.sliding_window_pattern")
    if _is_list(pattern) and len(pattern) >= at.layers:
        return [bool(flag) for flag in pattern[: at.layers]]
    period = pattern if isinstance(pattern, int) and not isinstance(pattern, bool) else rule.period
    return [_slides_at(i, period, rule) for i in range(at.layers)]


def _slides_at(layer: int, period: int | None, rule: SlidingWindow) -> bool:
    if not period:  # 0: all layers; the array that such a model needs is missing: none
        return period == 0
    return layer % period != 0 if rule.first else layer % period < period - 1


def _attention(at: ArchitectureKeys, slides: Sequence[bool]) -> list[LayerCache]:
    """Keys and values of all layers, 0 wide where a layer has no KV heads. Such values count: without flash attention
    those of all layers are padded to the widest (llama-kv-cache.cpp, `n_embd_v_gqa_max`)."""
    heads = at.number("attention.head_count")
    kv_heads = at.by_layer("attention.head_count_kv", heads)
    head = at.number("embedding_length") // heads if heads else 0
    wide = heads or at.architecture in rules().own_widths
    width_k, width_v = (at.number(f"attention.{n}_length", head) if wide else 0 for n in ("key", "value"))
    slide_k, slide_v = (
        at.number(f"attention.{n}_length_swa", full) for n, full in (("key", width_k), ("value", width_v))
    )
    latent = _latent(at)

    def layer(count: int, slides: bool) -> LayerCache:
        k, v = (slide_k, slide_v) if slides else (width_k, width_v)
        keys, values = CacheRow(k * count, window=slides), CacheRow(v * count, value=True, window=slides)
        return LayerCache((*((keys,) if keys.width else ()), *(() if latent else (values,))))

    return [layer(count, flag) for count, flag in zip(kv_heads, slides, strict=True)]


def _shared(at: ArchitectureKeys, slides: Sequence[bool]) -> list[LayerCache]:
    """Attention in all layers, of which the last may use the cache of earlier ones."""
    own = rules().own_layers.get(at.architecture, at.layers)
    if key := rules().sharing_key.get(at.architecture):
        own = at.layers - at.number(key)
    return [layer if i < own else LayerCache() for i, layer in enumerate(_attention(at, slides))]


def _with_states(
    at: ArchitectureKeys, slides: Sequence[bool], state: Iterable[bool], attention: Iterable[bool]
) -> list[LayerCache]:
    size = _state(at)
    rows = (layer.rows for layer in _attention(at, slides))
    return [
        LayerCache(found if attends else (), size if has else 0)
        for found, has, attends in zip(rows, state, attention, strict=True)
    ]


def _none(at: ArchitectureKeys, slides: Sequence[bool]) -> list[LayerCache]:
    return [LayerCache()] * at.layers


def _recurrent(at: ArchitectureKeys, slides: Sequence[bool]) -> list[LayerCache]:
    return [LayerCache(state=_state(at))] * at.layers


def _by_kv_heads(at: ArchitectureKeys, slides: Sequence[bool]) -> list[LayerCache]:
    state = [not n for n in at.by_layer("attention.head_count_kv", at.number("attention.head_count"))]
    return _with_states(at, slides, state, [not has for has in state])


def _interval(at: ArchitectureKeys, slides: Sequence[bool]) -> list[LayerCache]:
    listed = at.get("attention.recurrent_layers")
    period = at.number("full_attention_interval", rules().interval[at.architecture]) or 1
    state = [bool((i + 1) % period) for i in range(at.layers)]
    if _is_list(listed) and len(listed) >= at.layers:
        state = [bool(flag) for flag in listed[: at.layers]]
    return _with_states(at, slides, state, [not has for has in state])


def _both(at: ArchitectureKeys, slides: Sequence[bool]) -> list[LayerCache]:
    return _with_states(at, slides, [True] * at.layers, [True] * at.layers)


def _by_feed_forward(at: ArchitectureKeys, slides: Sequence[bool]) -> list[LayerCache]:
    kv_heads, widths = at.by_layer("attention.head_count_kv"), at.by_layer("feed_forward_length")
    state = [not n and not width for n, width in zip(kv_heads, widths, strict=True)]
    return _with_states(at, slides, state, [bool(n) and not w for n, w in zip(kv_heads, widths, strict=True)])


def _indexer(at: ArchitectureKeys, slides: Sequence[bool]) -> list[LayerCache]:
    width, kinds = at.number("attention.indexer.key_length"), at.get("attention.indexer.types")
    whole = [True] * at.layers
    if _is_list(kinds) and len(kinds) >= at.layers:
        whole = [bool(kind) for kind in kinds[: at.layers]]
    rows = (CacheRow(width),) if width else ()
    found = zip(_attention(at, slides), whole, strict=True)
    return [LayerCache((*layer.rows, *(rows if own else ()))) for layer, own in found]


def _indexer_with_values(at: ArchitectureKeys, slides: Sequence[bool]) -> list[LayerCache]:
    """The indexer's cache has one head, whose values, which nothing reads, are as long as the model's."""
    width, dense = at.number("attention.indexer.key_length"), at.number("leading_dense_block_count")
    values = at.number("attention.value_length", width)
    rows = (CacheRow(width, apart=True), CacheRow(values, value=True, apart=True)) if width else ()
    found = enumerate(_attention(at, slides))
    return [LayerCache((*layer.rows, *(rows if i >= dense else ()))) for i, layer in found]


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
        raise FormatError("an unknown compression ratio", field="attention.compress_ratios", found=min(unknown))
    return [kinds[ratio] for ratio in ratios]


_KINDS: Final[Mapping[str, Callable[[ArchitectureKeys, Sequence[bool]], list[LayerCache]]]] = {
    "attention": _shared,
    "none": _none,
    "recurrent": _recurrent,
    "by-kv-heads": _by_kv_heads,
    "interval": _interval,
    "both": _both,
    "by-feed-forward": _by_feed_forward,
    "indexer": _indexer,
    "indexer-with-values": _indexer_with_values,
    "compressed": _compressed,
}


# -- states ----------------------------------------------------------------------------------------------------------


def _state(at: ArchitectureKeys) -> int:
    """The state of a recurrent layer, elements a sequence."""
    return _STATES[rules().state_kind(at.architecture)](at)


def _convolution(at: ArchitectureKeys) -> int:
    inner, groups = at.number("ssm.inner_size"), at.number("ssm.group_count") * at.number("ssm.state_size")
    return max(at.number("ssm.conv_kernel") - 1, 0) * (inner + 2 * groups)


def _ssm(at: ArchitectureKeys) -> int:
    return _convolution(at) + at.number("ssm.state_size") * at.number("ssm.inner_size")


def _wkv(at: ArchitectureKeys) -> int:
    width = at.number("embedding_length")
    return at.number("token_shift_count", 2) * width + width * at.number("wkv.head_size")


def _shortconv(at: ArchitectureKeys) -> int:
    return at.number("embedding_length") * max(at.number("shortconv.l_cache") - 1, 0)


def _kda(at: ArchitectureKeys) -> int:
    head, heads = at.number("kda.head_dim"), at.number("attention.head_count")
    return 3 * max(at.number("ssm.conv_kernel") - 1, 0) * heads * head + head * head * heads


def _linear(at: ArchitectureKeys) -> int:
    head = at.number("attention.key_length")
    return _convolution(at) + head * head * at.number("attention.head_count")


_STATES: Final[Mapping[str, Callable[[ArchitectureKeys], int]]] = {
    "ssm": _ssm, "wkv": _wkv, "shortconv": _shortconv, "kda": _kda, "linear": _linear,
}  # fmt: skip
