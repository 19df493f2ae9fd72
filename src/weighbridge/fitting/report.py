"""Reports whether a model fits on a device, the memory it needs, and the file type to choose. Reads headers and configs
only.

    fit("./my-model/", device="rtx4090", context=32768) -> FitReport

The JSON form is documented in docs/schema.md.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import UsageError
from weighbridge.base.options import accepting
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.base.words import plural
from weighbridge.conversion.quantize import ftypes
from weighbridge.fitting import devices
from weighbridge.fitting.cache import CACHE_TYPES, PADDING, CacheMemory, CacheModel, RunSettings, cache_of
from weighbridge.fitting.compute import Stages, compute_memory, stages_of
from weighbridge.fitting.devices import COMFORTABLE, RESERVED, Device
from weighbridge.fitting.media import ProjectorMemory, projector_memory
from weighbridge.fitting.media import notes as media_notes
from weighbridge.fitting.options import FitOptions
from weighbridge.fitting.placement import Placement, WeightBytes, most_layers, place, weight_bytes
from weighbridge.fitting.quality import PublishedLoss, quality
from weighbridge.fitting.runtimes import RUNTIMES, VLLM_SHARE, Runtime, cache_for
from weighbridge.fitting.weights import GgufModel, gguf_model
from weighbridge.models.clients import LLAMA_CPP, MLX_LM, client_of, loads
from weighbridge.models.llamacpp.towers import has_towers, is_mmproj
from weighbridge.models.model import OpenModel
from weighbridge.models.open import SourceOptions, open_headers

SCHEMA: Final = "weighbridge/fit/1"
DEFAULT_CONTEXT: Final = 8192
_MOST_CONTEXT: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """One part of the memory. `basis`: exact (llama.cpp's figures), estimate, or not counted. `why`: the rule."""

    part: str
    nbytes: int
    basis: str
    why: str


@dataclass(frozen=True, slots=True)
class TypeRow:
    """One file type. `nbytes`: of the weights. `needs`: with caches and buffers, all on the device. `free`: the rest
    (negative: missing). `verdict`: fits, tight, partly (with `offloaded` layers) or no. `tokens_per_second`: an upper
    bound. `ppl`, `kld`: published losses, None if there are none. `own_kld`: measured by this project."""

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
    """`type`: the file type that `memory`, `verdict` and `placement` describe: the file's, the requested one, or the
    recommended one. `longest_context`: tokens with everything on the device, 0 if the weights don't fit.
    `explanation`: the arithmetic, line by line."""

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
        """Whether everything fits on the device."""
        return self.verdict in ("fits", "tight")

    def __repr__(self) -> str:
        return f"<FitReport {self.path} {self.type} on {self.device.name}: {self.verdict}>"


@accepting(FitOptions)
def fit(path: str | os.PathLike[str], options: FitOptions) -> FitReport:
    """Returns whether the model at `path` fits. Raises UsageError for an unknown device, runtime, type or cache type,
    UnsupportedError for a model without a family or a config, and FormatError for a file that lacks a number."""
    target, engine = devices.device(options.device or "this"), _lookup(RUNTIMES, options.runtime, "runtime")
    cache_type = _lookup({t.name.lower(): t for t in CACHE_TYPES}, (options.cache_type or "f16").lower(), "cache type")
    with open_headers(path, SourceOptions(arch_file=options.arch_file, config=options.config)).model as opened:
        if is_mmproj(opened):
            reason = f"{path} has a model's towers; its language model is another file"
            raise UsageError(reason, hint="wb fit TEXT.gguf --mmproj MMPROJ.gguf judges both")
        model, adapters = gguf_model(opened), opened.place.adapters
        reads = {LLAMA_CPP: engine.llama_cpp, MLX_LM: engine.name == "mlx"}.get(client_of(opened))
        loading = loads(opened) if reads else None
        towers = _uncounted(opened, path) if engine.llama_cpp and options.mmproj is None else ""
    notes = [*target.notes, *filter(None, (engine.default_note if options.parallel is None else "", engine.note))]
    notes += [f"sizes are those with {path} merged in; a separate adapter adds its size" for path in adapters]
    length = model.keys.get(f"{model.architecture}.context_length")
    trained = length if isinstance(length, int) and length > 0 else None
    tokens = options.context or min(trained or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
    if not 0 < tokens <= _MOST_CONTEXT:
        raise UsageError(f"a context of {tokens} tokens is out of range", hint=f"at most {_MOST_CONTEXT:,}")
    if trained and tokens > trained:
        notes.append(f"the model was trained for {plural(trained, 'token')}")
    if model.quantized and model.is_gguf:
        notes.append("the file is quantized; other types need the original weights")
    elif model.quantized and engine.llama_cpp:
        notes.append("the source is quantized: sizes are those of its decoded weights, quantized again")
    if loading is not None and loading.why:
        notes.append(f"{loading.client} won't load it: {loading.why}")
    notes += [towers] if towers else []
    projector = None
    if options.mmproj is not None:
        if not engine.llama_cpp:
            raise UsageError(f"{engine.name} takes no mmproj file", hint="leave out --mmproj")
        projector = projector_memory(options.mmproj, model.keys, options.flash_attention is not False)
        notes += media_notes(projector)
    settings = engine.settings(tokens, options.parallel, cache_type, options.flash_attention, options.ubatch)
    estimate = _Estimate(str(path), model, target, engine, settings, tokens, trained, tuple(notes), projector)
    return estimate.report(options.type)


def _uncounted(model: OpenModel, path: str | os.PathLike[str]) -> str:
    """Returns a note on the model's towers, whose memory only --mmproj adds; "" if it has none."""
    if model.format != "gguf":
        convert = f"wb convert {shlex.quote(str(path))} mmproj.gguf --mmproj"
        return f"its towers aren't counted: {convert}, then --mmproj mmproj.gguf" if has_towers(model) else ""
    from weighbridge.models.llamacpp.companions import find_towers  # late: few GGUFs have a projector

    file = find_towers(resolve_path(path), model).path
    return f"its projector isn't counted: --mmproj {shlex.quote(str(file))}" if file is not None else ""


def _lookup(table: Mapping[str, Any], name: str, kind: str) -> Any:
    if name not in table:
        raise UsageError(f"unknown {kind} {name!r}", hint=f"choose one of {', '.join(table)}")
    return table[name]


_UNCHANGED: Final = "as it is"
#: Mean divergence above which a type isn't recommended even if it fits: offloading fewer layers to the device costs no
#: quality.
_HEAVY_LOSS: Final = 0.2
# Types without a gain over Q8_0.
_LARGE: Final = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class _Estimate:
    """The memory of one model on one device in one runtime."""

    path: str
    model: GgufModel
    device: Device
    runtime: Runtime
    settings: RunSettings
    context: int
    trained: int | None
    notes: tuple[str, ...]
    projector: ProjectorMemory | None

    @cached_property
    def _projected(self) -> tuple[MemoryRow, ...]:
        """The memory of the projector, which llama.cpp has on the device."""
        if self.projector is None:
            return ()
        rows = [MemoryRow("projector", self.projector.weights, "exact", "")]
        for tower in (tower for tower in self.projector.towers if tower.buffers):
            name = {"vision": "image", "audio": "audio"}.get(tower.modality, tower.modality)
            basis = "exact to 1 %" if tower.certain else "estimate"
            rows.append(MemoryRow(f"{name} buffers", tower.buffers, basis, f"reserved at load ({tower.type})"))
        return tuple(rows)

    @cached_property
    def _cache(self) -> CacheModel:
        return cache_of(self.model.keys)

    @cached_property
    def _stages(self) -> Stages:
        shapes = {name: spec.shape for name, spec in self.model.tensors.items()}
        return stages_of(self.model.keys, shapes, self._cache)

    @cached_property
    def _usable(self) -> int:
        return int(self.device.memory * VLLM_SHARE) if self.runtime.name == "vllm" else self.device.usable

    @cached_property
    def _splits(self) -> bool:
        """Whether layers can be divided between device and host."""
        return self.device.separate and self.runtime.llama_cpp

    def _memory(self, settings: RunSettings) -> tuple[CacheMemory, int]:
        """Returns the caches and the bytes of the compute buffers."""
        memory = cache_for(self.runtime, self._cache, settings)
        llama_cpp = self.runtime.llama_cpp
        projected = sum(row.nbytes for row in self._projected)
        buffers = compute_memory(self._cache, self._stages, memory, settings) if llama_cpp else 0
        return memory, buffers + projected

    def _weights(self, tensors: Mapping[str, Spec]) -> WeightBytes:
        if self.runtime.llama_cpp or self.model.is_gguf:
            return weight_bytes(tensors, len(self._cache.layers), self.model.architecture)
        return WeightBytes(0, (), self.model.stored, 0)  # as stored

    def _whole(self, weights: WeightBytes, memory: CacheMemory, compute: int) -> Placement:
        """Returns the placement with all layers on the device."""
        layers = len(weights.layers) + 1
        if self._splits:
            return place(weights, memory, compute, layers)
        return Placement(layers, layers, weights.total + memory.total + compute, 0)

    def _placement(self, weights: WeightBytes, memory: CacheMemory, compute: int) -> Placement:
        split = self._splits
        return most_layers(weights, memory, compute, self._usable) if split else self._whole(weights, memory, compute)

    def report(self, requested: str | None) -> FitReport:
        memory, compute = self._memory(self.settings)
        rows = tuple(self._row(*pair, memory, compute) for pair in self._types(requested))
        best, reason = self._recommend(rows, requested)
        tensors = dict(self._types(best.type))[best.type]
        weights = self._weights(tensors)
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
            placement=self._placement(weights, memory, compute),
            longest_context=self._longest_context(weights),
            tokens_per_second=best.tokens_per_second,
            types=rows,
            recommended=best.type if len(rows) > 1 else None,
            reason=reason,
            notes=self.notes,
            explanation=tuple(self._explain(parts, tensors, best, memory)),
        )

    def _types(self, requested: str | None) -> Iterator[tuple[str, dict[str, Spec]]]:
        """Yields the types that the model can have here, with its tensors in each."""
        if not self.runtime.llama_cpp or (self.model.quantized and self.model.is_gguf):
            if requested not in (None, _UNCHANGED):
                gguf = self.model.is_gguf
                reason = "the file is quantized already" if gguf else f"{self.runtime.name} loads the stored type"
                raise UsageError(
                    f"{reason}, so --type doesn't apply", hint="other types are made from the original weights"
                )
            yield _UNCHANGED, dict(self.model.tensors)
            return
        choices = [row for row in ftypes.table().ftypes.values() if row.writable]
        if requested is not None:
            if (ftype := ftypes.parse_ftype(requested)) is None:
                raise UsageError("COPY isn't a file type", hint="omit --type")
            choices = [ftype]
        for ftype in choices:
            yield ftype.name, self.model.as_type(ftype)

    def _row(self, name: str, tensors: dict[str, Spec], memory: CacheMemory, compute: int) -> TypeRow:
        weights = self._weights(tensors)
        placement = self._placement(weights, memory, compute)
        needs = self._whole(weights, memory, compute).device
        free = self._usable - needs
        verdict = "partly" if self.device.separate and placement.offloaded else "no"
        if free >= 0:
            verdict = "fits" if free >= COMFORTABLE - RESERVED else "tight"
        active = self._active(tensors)
        speed = self.device.bandwidth / active if self.device.bandwidth is not None and active and free >= 0 else None
        published = PublishedLoss(0, 0) if name == self.model.native else quality().type.get(name)
        return TypeRow(
            type=name,
            nbytes=weights.total,
            bits_per_weight=8 * weights.total / max(self.model.parameters, 1),
            needs=needs,
            free=free,
            verdict=verdict,
            offloaded=placement.offloaded,
            layers=placement.layers,
            tokens_per_second=speed,
            ppl=published.ppl if published else None,
            kld=published.kld if published else None,
            own_kld=quality().measured.get(name),
            imatrix=bool(published and published.imatrix),
        )

    def _active(self, tensors: Mapping[str, Spec]) -> int:
        """Returns the bytes of weights that each token reads: one row of the embedding, and the experts in use."""
        keys, at = self.model.keys, self.model.architecture
        count, used = keys.get(f"{at}.expert_count"), keys.get(f"{at}.expert_used_count")
        share = used / count if isinstance(count, int) and isinstance(used, int) and count else 1.0
        total = 0.0
        for name, spec in tensors.items():
            if name != "token_embd.weight" or "output.weight" not in tensors:
                total += spec.nbytes * (share if "_exps." in name else 1.0)
        return int(total)

    def _recommend(self, rows: tuple[TypeRow, ...], requested: str | None) -> tuple[TypeRow, str]:
        """Returns the best type that fits, else Q4_K_M, and the reason."""
        if len(rows) == 1:
            return rows[0], "" if requested is None else "the type that was chosen"
        candidates = [r for r in rows if r.kld is not None and r.type not in (*quality().dominated, *_LARGE)]
        good = [r for r in candidates if _loss(r) <= _HEAVY_LOSS]
        fitting = [r for r in good if r.verdict == "fits"] or [r for r in good if r.verdict == "tight"]
        if fitting:
            best = min(fitting, key=lambda r: (_loss(r), r.needs))
            native = best.type == self.model.native
            subject = "no loss: the model was published in it, and it" if native else "the least loss that"
            reason = f"{subject} fits on {self.device.name} with a context of {self.context:,}"
            return best, reason + ("; quantize with an importance matrix" if best.imatrix else "")
        middle = next((row for row in candidates if row.type == "Q4_K_M"), candidates[0])  # the most common choice
        small = [r for r in candidates if r.free >= 0]
        layers = f"{middle.offloaded} of {middle.layers} layers" if middle.offloaded else "no layer"
        largest = f"only {min(small, key=_loss).type}, with heavy loss, fits" if small else "no type fits"
        return middle, f"{largest} on {self.device.name} as a whole; {middle.type} has room for {layers} there"

    def _longest_context(self, weights: WeightBytes) -> int:
        """Returns the longest context, in steps of 256, with everything on the device."""
        limit = self.trained or _MOST_CONTEXT
        low, high = 0, -(-limit // PADDING)
        while low < high:
            middle = (low + high + 1) // 2
            settings = replace(self.settings, context=min(middle * PADDING, limit))
            fits = self._whole(weights, *self._memory(settings)).device <= self._usable
            low, high = (middle, high) if fits else (low, middle - 1)
        return min(low * PADDING, limit)

    def _parts(self, weights: WeightBytes, memory: CacheMemory, compute: int) -> Iterator[MemoryRow]:
        llama_cpp, basis = self.runtime.llama_cpp, "exact" if self.runtime.llama_cpp else "estimate"
        host = f"of which {weights.input:,} bytes of input tensors stay on the host" if self._splits else ""
        yield MemoryRow("weights", weights.total, "exact" if llama_cpp else "as stored", host)
        if any(memory.kv):
            layers = [layer.rows for layer in self._cache.layers if layer.rows]
            sliding = sum(1 for rows in layers if all(row.window for row in rows))
            rule = f"{plural(len(layers), 'layer')} of {plural(memory.cells, 'cell')}"
            if sliding:
                window = plural(memory.window_cells, "cell")
                rule = f"{sliding} of {plural(len(layers), 'layer')} keep {window}, the others {memory.cells:,}"
            streams = f", {plural(memory.streams, 'sequence')}" if memory.streams > 1 else ""
            rule = f"{rule}{streams}, {self.settings.type_k.name}"
            yield MemoryRow("KV cache", sum(memory.kv), basis, rule)
        if any(memory.states):
            count = sum(1 for n in memory.states if n)
            rule = f"{plural(count, 'layer')}, {plural(self.settings.parallel, 'sequence')}, f32"
            yield MemoryRow("recurrent states", sum(memory.states), basis, rule)
        if llama_cpp:
            accuracy = "exact to 3 %" if self._stages.certain else "estimate"
            own = compute - sum(row.nbytes for row in self._projected)
            yield MemoryRow("compute buffers", own, accuracy, f"batches of {self.settings.ubatch}")
        else:
            yield MemoryRow("intermediate results", 0, "not counted", self.runtime.note)
        yield from self._projected
        reserve = "driver and runtime: 512 MiB" if self.device.separate else "the system"
        if self.runtime.name == "vllm":
            reserve = f"vLLM uses {VLLM_SHARE:.0%} of the device"
        yield MemoryRow("reserved", self.device.memory - self._usable, "rule", reserve)

    def _explain(
        self, parts: tuple[MemoryRow, ...], tensors: Mapping[str, Spec], row: TypeRow, memory: CacheMemory
    ) -> Iterator[str]:
        for part in parts:
            source = self.runtime.source_of(part.part)
            rule = f"{': ' + part.why if part.why else ''}{f' [{source}]' if source else ''}"
            yield f"{part.part}: {part.nbytes:,} bytes ({part.basis}){rule}"
        cache = self._cache
        for layer, count in Counter(cache.layers).items():
            if layer.rows:
                nbytes = memory.kv[cache.layers.index(layer)]
                widths = " + ".join(f"{r.width:,} ({'value' if r.value else 'key'})" for r in layer.rows)
                cells = memory.window_cells if layer.rows[0].window else memory.cells
                yield (
                    f"  {plural(count, 'layer')}: {widths} elements of {self.settings.type_k} x {plural(cells, 'cell')}"
                    f" x {memory.streams} = {nbytes:,} bytes each"
                )
        yield f"needs {row.needs:,} of {self._usable:,} usable bytes on {self.device.name}: {row.free:,} left"
        if self.device.bandwidth and row.tokens_per_second:
            yield (
                f"speed: {self.device.bandwidth / 1e9:g} GB/s / {self._active(tensors):,} bytes a token"
                f" = {row.tokens_per_second:.0f} tokens/s at most, at an empty context"
                " [bandwidth: its vendor, fitting/devices.toml]"
            )


def _loss(row: TypeRow) -> float:
    return row.kld if row.kld is not None else float("inf")
