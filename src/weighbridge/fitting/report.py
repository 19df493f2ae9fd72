"""Whether a model fits on a device, what it needs there, and which type to choose. Reads headers and configs only.

    fit("./my-model/", device="rtx4090", context=32768) -> FitReport

The JSON form is documented in docs/schema.md.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from weighbridge.base.errors import UsageError
from weighbridge.base.ftypes import FileType
from weighbridge.base.spec import Spec
from weighbridge.conversion.quantize import ftypes
from weighbridge.fitting import devices
from weighbridge.fitting.cache import CACHE_TYPES, PADDING, CacheMemory, CacheModel, RunSettings, cache_of
from weighbridge.fitting.compute import Stages, compute_memory, stages_of
from weighbridge.fitting.devices import COMFORTABLE, RESERVED, Device
from weighbridge.fitting.placement import Placement, WeightBytes, most_layers, place, weight_bytes
from weighbridge.fitting.quality import PublishedLoss, quality
from weighbridge.fitting.runtimes import RUNTIMES, VLLM_SHARE, Runtime, cache_for
from weighbridge.fitting.weights import GgufModel, gguf_model
from weighbridge.models.open import SourceOptions, open_headers

SCHEMA: Final = "weighbridge/fit/1"
DEFAULT_CONTEXT: Final = 8192
_MOST_CONTEXT: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """One part of the memory. `basis`: exact (llama.cpp's own figures), estimate, or not counted. `why`: the rule."""

    part: str
    nbytes: int
    basis: str
    why: str


@dataclass(frozen=True, slots=True)
class TypeRow:
    """One file type. `nbytes`: of the weights; `needs`: with caches and buffers, all on the device; `free`: what is
    left there (negative: missing). `verdict`: fits, tight, partly (with `offloaded` layers) or no.
    `tokens_per_second`: an upper bound. `ppl`, `kld`: published losses, None where none is; `own_kld`: our own
    measurement."""

    type: str
    nbytes: int
    bits_per_weight: float
    needs: int
    free: int
    verdict: str
    offloaded: int
    layers: int
    tokens_per_second: float | None
    ppl: float | None
    kld: float | None
    own_kld: float | None
    imatrix: bool


@dataclass(frozen=True, slots=True)
class FitReport:
    """`type`: the one that `memory`, `verdict` and the placement are for: of the file, chosen, or recommended.
    `longest_context`: tokens with everything on the device, 0 where the weights don't fit. `explanation`: the
    arithmetic, line by line."""

    path: str
    architecture: str
    parameters: int
    runtime: str
    device: Device
    context: int
    trained_context: int | None
    sequences: int
    kv_type: str
    type: str
    memory: tuple[MemoryRow, ...]
    needs: int
    free: int
    verdict: str
    placement: Placement
    longest_context: int
    tokens_per_second: float | None
    types: tuple[TypeRow, ...]
    recommended: str | None
    reason: str
    notes: tuple[str, ...]
    explanation: tuple[str, ...]
    schema: str = SCHEMA

    def __bool__(self) -> bool:
        """Whether it fits on the device as a whole."""
        return self.verdict in ("fits", "tight")

    def __repr__(self) -> str:
        return f"<FitReport {self.path} {self.type} on {self.device.name}: {self.verdict}>"


def fit(
    path: str | os.PathLike[str],
    *,
    device: str = "this",
    context: int | None = None,
    parallel: int | None = None,
    kv: str = "f16",
    runtime: str = "llama.cpp",
    type: str | None = None,
    flash_attention: bool | None = None,
    ubatch: int | None = None,
    arch_file: str | os.PathLike[str] | None = None,
) -> FitReport:
    """Whether the model at `path` fits. UsageError for an unknown device, runtime, type or cache type; UnsupportedError
    for a model without a family or a config; FormatError for a file without a number that a rule needs."""
    where, chosen = devices.device(device), _named(RUNTIMES, runtime, "runtime")
    cache_type = _named({t.name.lower(): t for t in CACHE_TYPES}, kv.lower(), "cache type")
    headers = open_headers(path, SourceOptions(arch_file=arch_file))
    with headers.model as opened:
        model, adapters = gguf_model(opened), opened.place.adapters
    trained = _trained_context(model)
    tokens = context or min(trained or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
    if not 0 < tokens <= _MOST_CONTEXT:
        raise UsageError(f"a context of {tokens} tokens is out of range", hint=f"at most {_MOST_CONTEXT:,}")
    settings = chosen.settings(tokens, parallel, cache_type, flash_attention, ubatch)
    return _Question(str(path), model, where, chosen, settings, tokens, trained, adapters).answer(type)


def _named(known: Mapping[str, Any], name: str, what: str) -> Any:
    if name not in known:
        raise UsageError(f"no {what} is called {name!r}", hint=f"known: {', '.join(known)}")
    return known[name]


def _trained_context(model: GgufModel) -> int | None:
    found = model.keys.get(f"{model.architecture}.context_length")
    return found if isinstance(found, int) and found > 0 else None


@dataclass(frozen=True)
class _Question:
    """One model on one device in one runtime."""

    path: str
    model: GgufModel
    device: Device
    runtime: Runtime
    settings: RunSettings
    context: int
    trained: int | None
    adapters: tuple[os.PathLike[str], ...] = ()

    # -- sizes -------------------------------------------------------------------------------------------------------

    @cached_property
    def _cache(self) -> CacheModel:
        return cache_of(self.model.keys)

    def _memory(self, settings: RunSettings) -> CacheMemory:
        return cache_for(self.runtime, self._cache, settings)

    @cached_property
    def _stages(self) -> Stages:
        shapes = {name: spec.shape for name, spec in self.model.tensors.items()}
        return stages_of(self.model.keys, shapes, self._cache)

    def _compute(self, settings: RunSettings, memory: CacheMemory) -> int:
        if not self.runtime.llama_cpp:
            return 0
        return compute_memory(self._cache, self._stages, memory, settings)

    def _usable(self) -> int:
        if self.runtime.name == "vllm":
            return int(self.device.memory * VLLM_SHARE)
        return self.device.usable

    # -- the answer --------------------------------------------------------------------------------------------------

    def answer(self, wanted: str | None) -> FitReport:
        memory = self._memory(self.settings)
        compute = self._compute(self.settings, memory)
        rows = tuple(self._row(*pair, memory, compute) for pair in self._types(wanted))
        best, reason = self._recommend(rows, wanted)
        tensors = dict(self._types(best.type))[best.type]
        weights = self._weights(tensors)
        placement = self._placement(weights, memory, compute)
        parts = tuple(self._parts(weights, memory, compute))
        return FitReport(
            path=self.path,
            architecture=self.model.architecture,
            parameters=self.model.parameters,
            runtime=self.runtime.name,
            device=self.device,
            context=self.context,
            trained_context=self.trained,
            sequences=self.settings.parallel,
            kv_type=self.settings.type_k.name,
            type=best.type,
            memory=parts,
            needs=best.needs,
            free=best.free,
            verdict=best.verdict,
            placement=placement,
            longest_context=self._longest(weights),
            tokens_per_second=best.tokens_per_second,
            types=rows,
            recommended=best.type if len(rows) > 1 else None,
            reason=reason,
            notes=tuple(self._notes()),
            explanation=tuple(self._explain(parts, tensors, best)),
        )

    def _types(self, wanted: str | None) -> Iterator[tuple[str, dict[str, Spec]]]:
        """The types that the model can have here, with its tensors in each."""
        if not self.runtime.llama_cpp or (self.model.quantized and self.model.is_gguf):
            if wanted not in (None, _AS_IT_IS):
                why = (
                    "the file is quantized already" if self.model.is_gguf else f"{self.runtime.name} loads it as it is"
                )
                raise UsageError(f"{why}, so --type doesn't apply", hint="other types are made of the original weights")
            yield _AS_IT_IS, dict(self.model.tensors)
            return
        for ftype in _FTYPES if wanted is None else (_ftype(wanted),):
            yield ftype.name, self.model.as_type(ftype)

    def _weights(self, tensors: Mapping[str, Spec]) -> WeightBytes:
        found = weight_bytes(tensors, len(self._cache.layers), self.model.architecture)
        if self.runtime.llama_cpp or self.model.is_gguf:
            return found
        return WeightBytes(0, (), self.model.stored, 0)  # as the files have them

    def _placement(self, weights: WeightBytes, memory: CacheMemory, compute: int) -> Placement:
        if self.device.separate and self.runtime.llama_cpp:
            return most_layers(weights, memory, compute, self._usable())
        layers = len(weights.layers) + 1
        return Placement(layers, layers, weights.total + memory.total + compute, 0)

    def _row(self, name: str, tensors: dict[str, Spec], memory: CacheMemory, compute: int) -> TypeRow:
        weights = self._weights(tensors)
        placement = self._placement(weights, memory, compute)
        whole = placement.device
        if self.device.separate and self.runtime.llama_cpp:
            whole = place(weights, memory, compute, placement.layers).device
        free = self._usable() - whole
        published = PublishedLoss(0, 0) if name == self.model.native else quality().type.get(name)
        size = weights.total
        return TypeRow(
            type=name,
            nbytes=size,
            bits_per_weight=8 * size / max(self.model.parameters, 1),
            needs=whole,
            free=free,
            verdict=self._verdict(free, placement),
            offloaded=placement.offloaded,
            layers=placement.layers,
            tokens_per_second=self._speed(tensors) if free >= 0 else None,
            ppl=published.ppl if published else None,
            kld=published.kld if published else None,
            own_kld=quality().own.get(name),
            imatrix=bool(published and published.imatrix),
        )

    def _verdict(self, free: int, placement: Placement) -> str:
        if free >= 0:
            return "fits" if free >= COMFORTABLE - RESERVED else "tight"
        return "partly" if self.device.separate and placement.offloaded else "no"

    def _recommend(self, rows: tuple[TypeRow, ...], wanted: str | None) -> tuple[TypeRow, str]:
        """The best type that fits, else the smallest, and the reason."""
        if len(rows) == 1:
            return rows[0], "" if wanted is None else "the type that was chosen"
        candidates = [r for r in rows if r.kld is not None and r.type not in (*quality().dominated, *_LARGE)]
        good = [r for r in candidates if r.kld is not None and r.kld <= _HEAVY_LOSS]
        fitting = [r for r in good if r.verdict == "fits"] or [r for r in good if r.verdict == "tight"]
        if fitting:
            best = min(fitting, key=lambda r: (_loss(r), r.needs))
            least = (
                "no loss: the model was published in it, and it"
                if best.type == self.model.native
                else "the least loss that"
            )
            why = f"{least} fits on {self.device.name} with a context of {self.context:,}"
            return best, why + ("; quantize with an importance matrix" if best.imatrix else "")
        middle, small = _middle(candidates), [r for r in candidates if r.free >= 0]
        most = f"{middle.offloaded} of {middle.layers} layers" if middle.offloaded else "no layer"
        only = f"only {min(small, key=_loss).type}, with heavy loss, fits" if small else "no type fits"
        return middle, f"{only} on {self.device.name} as a whole; {middle.type} has room for {most} there"

    # -- context and speed -------------------------------------------------------------------------------------------

    def _longest(self, weights: WeightBytes) -> int:
        """The longest context, in steps of 256, with everything on the device."""
        limit = self.trained or _MOST_CONTEXT

        def fits(tokens: int) -> bool:
            settings = replace(self.settings, context=tokens)
            memory = self._memory(settings)
            compute = self._compute(settings, memory)
            whole = self._placement(weights, memory, compute)
            if self.device.separate and self.runtime.llama_cpp:
                whole = place(weights, memory, compute, whole.layers)
            return whole.device <= self._usable()

        steps = _largest(lambda count: fits(min(count * PADDING, limit)), -(-limit // PADDING))
        return min(steps * PADDING, limit)

    def _speed(self, tensors: Mapping[str, Spec]) -> float | None:
        """Tokens a second at most: the bandwidth over the bytes that each token reads, at an empty context."""
        if self.device.bandwidth is None:
            return None
        active = self._active(tensors)
        return self.device.bandwidth / active if active else None

    def _active(self, tensors: Mapping[str, Spec]) -> int:
        """Bytes of the weights that a token reads: of the embedding a row, of the experts those that are used."""
        at = self.model.architecture
        count, used = (self.model.keys.get(f"{at}.expert_{n}") for n in ("count", "used_count"))
        share = used / count if isinstance(count, int) and isinstance(used, int) and count else 1.0
        total = 0.0
        for name, spec in tensors.items():
            if name == "token_embd.weight" and "output.weight" in tensors:
                continue
            total += spec.nbytes * (share if "_exps." in name else 1.0)
        return int(total)

    # -- words -------------------------------------------------------------------------------------------------------

    def _parts(self, weights: WeightBytes, memory: CacheMemory, compute: int) -> Iterator[MemoryRow]:
        exact = "exact" if self.runtime.llama_cpp else "estimate"
        yield MemoryRow(
            "weights", weights.total, "exact" if self.runtime.llama_cpp else "as stored", self._places(weights)
        )
        if any(memory.kv):
            yield MemoryRow("KV cache", sum(memory.kv), exact, self._cache_words(memory))
        if any(memory.states):
            count = sum(1 for n in memory.states if n)
            words = f"{count} layers, {self.settings.parallel} sequences, f32"
            yield MemoryRow("recurrent states", sum(memory.states), exact, words)
        if self.runtime.llama_cpp:
            basis = "exact to 3 %" if self._stages.certain else "estimate"
            yield MemoryRow("compute buffers", compute, basis, f"batches of {self.settings.ubatch}")
        else:
            yield MemoryRow("intermediate results", 0, "not counted", self.runtime.note)
        yield MemoryRow("reserved", self.device.memory - self._usable(), "rule", self._reserve())

    def _places(self, weights: WeightBytes) -> str:
        if self.device.separate and self.runtime.llama_cpp:
            return f"of which {weights.input:,} bytes of input tensors stay on the host"
        return ""

    def _cache_words(self, memory: CacheMemory) -> str:
        rows = [layer.rows for layer in self._cache.layers if layer.rows]
        sliding = sum(1 for found in rows if all(row.window for row in found))
        words = f"{len(rows)} layers of {memory.cells:,} cells"
        if sliding:
            words = f"{sliding} of {len(rows)} layers keep {memory.window_cells:,} cells, the others {memory.cells:,}"
        return (
            words + (f", {memory.streams} sequences" if memory.streams > 1 else "") + f", {self.settings.type_k.name}"
        )

    def _reserve(self) -> str:
        if self.runtime.name == "vllm":
            return f"vLLM uses {VLLM_SHARE:.0%} of the device"
        return "driver and runtime: 512 MiB" if self.device.separate else "the system"

    def _notes(self) -> Iterator[str]:
        yield from self.device.notes
        if self.runtime.note:
            yield self.runtime.note
        for adapter in self.adapters:
            yield f"weights are those with {adapter} merged in; beside them it takes its own size"
        if self.trained and self.context > self.trained:
            yield f"the model was trained for {self.trained:,} tokens"
        if self.model.quantized and self.model.is_gguf:
            yield "the file is quantized; other types need the original weights"
        elif self.model.quantized and self.runtime.llama_cpp:
            yield "the source is quantized: sizes are of its decoded weights, quantized again"

    def _explain(self, parts: tuple[MemoryRow, ...], tensors: Mapping[str, Spec], row: TypeRow) -> Iterator[str]:
        for part in parts:
            source = self.runtime.source_of(part.part)
            words = f"{': ' + part.why if part.why else ''}{f' [{source}]' if source else ''}"
            yield f"{part.part}: {part.nbytes:,} bytes ({part.basis}){words}"
        cache, memory = self._cache, self._memory(self.settings)
        for layer, count in Counter(cache.layers).items():
            if layer.rows:
                nbytes = memory.kv[cache.layers.index(layer)]
                widths = " + ".join(f"{r.width:,} ({'value' if r.value else 'key'})" for r in layer.rows)
                cells = memory.window_cells if layer.rows[0].window else memory.cells
                yield (
                    f"  {count} layers: {widths} elements of {self.settings.type_k} x {cells:,} cells"
                    f" x {memory.streams} = {nbytes:,} bytes each"
                )
        yield f"needs {row.needs:,} of {self._usable():,} usable bytes on {self.device.name}: {row.free:,} left"
        if self.device.bandwidth and row.tokens_per_second:
            yield (
                f"speed: {self.device.bandwidth / 1e9:g} GB/s / {self._active(tensors):,} bytes a token"
                f" = {row.tokens_per_second:.0f} tokens/s at most, at an empty context"
                " [bandwidth: its vendor, fitting/devices.toml]"
            )


_AS_IT_IS: Final = "as it is"
#: Mean divergence beyond which a type isn't recommended though it fits: llama.cpp's layers on the host lose nothing.
_HEAVY_LOSS: Final = 0.2
# Types that gain nothing over Q8_0.
_LARGE: Final = ("F32", "F16", "BF16")
_FTYPES: Final = tuple(row for row in ftypes.table().ftypes.values() if row.writable)


def _ftype(name: str) -> FileType:
    if (found := ftypes.parse_ftype(name)) is None:
        raise UsageError("COPY is no type", hint="omit --type")
    return found


def _loss(row: TypeRow) -> float:
    return row.kld if row.kld is not None else float("inf")


def _middle(rows: list[TypeRow]) -> TypeRow:
    """Q4_K_M where there is one: what most people run."""
    return next((row for row in rows if row.type == "Q4_K_M"), rows[0])


def _largest(fits: Callable[[int], bool], limit: int) -> int:
    """The largest number of steps that fits, by bisection; 0 for none."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
