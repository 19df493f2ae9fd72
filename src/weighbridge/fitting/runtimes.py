"""The caches and settings of each runtime.

llama.cpp and Ollama (which runs llama.cpp) have exact rules (cache.py, compute.py). vLLM, MLX and transformers allocate
caches by the token and have no rule for their intermediate results, which are listed as not counted.
Sources: llama.cpp b11549; Ollama fb30760; vLLM 0.33.0 (config/cache.py, v1/core); mlx-lm d78bf58 (models/cache.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from weighbridge.base.dtypes import DType
from weighbridge.base.errors import UsageError
from weighbridge.base.records import dataclass
from weighbridge.fitting.cache import CacheMemory, CacheModel, CacheRow, RunSettings, cache_memory, padded

_VLLM_BLOCK, _MLX_STEP = 16, 256
#: vLLM's default of `gpu_memory_utilization`.
VLLM_SHARE: Final = 0.92


@dataclass(frozen=True, slots=True)
class Runtime:
    """`llama_cpp`: whether llama.cpp's rules apply. `parallel`, `unified`: defaults. `kv_types`: bytes per element of
    the types that its cache can have. `default_note`: about the default number of sequences. `source`: of the cache
    rules."""

    name: str
    llama_cpp: bool
    parallel: int = 1
    unified: bool = False
    kv_types: Mapping[str, float] | None = None
    note: str = ""
    default_note: str = ""
    source: str = ""

    def source_of(self, part: str) -> str:
        """Returns the source of the rule for a part of the memory (`MemoryRow.part`)."""
        if self.llama_cpp or part not in ("weights", "KV cache", "recurrent states"):
            return _SOURCES.get(part, "")
        return "headers of the files" if part == "weights" else self.source

    def settings(
        self, context: int, parallel: int | None, kv: DType, flash_attention: bool | None, ubatch: int | None
    ) -> RunSettings:
        """Returns llama.cpp's settings as this runtime starts it; None: the default. Raises UsageError for
        settings that this runtime lacks."""
        for option, value in (("--flash-attention", flash_attention), ("--ubatch", ubatch)):
            if value is not None and not self.llama_cpp:
                raise UsageError(f"{option} applies to llama.cpp only, not to {self.name}")
        count = parallel or self.parallel
        unified = self.unified and parallel is None
        settings = RunSettings(
            context=context, parallel=count, unified=unified, type_k=kv, type_v=kv, outputs=count,
            flash_attention=flash_attention is not False,
        )  # fmt: skip
        if self.name == "ollama":  # the context is per sequence; batches grow with it
            batch = 512 if context <= 4096 else 1024 if context <= 32768 else 2048
            settings = replace(settings, context=context * count, ubatch=batch)
        return replace(settings, ubatch=ubatch) if ubatch else settings


_SOURCES: Final = {
    "weights": "llama.cpp b11549: src/llama-quant.cpp, llama-model.cpp",
    "KV cache": "llama.cpp b11549: src/llama-kv-cache*.cpp",
    "recurrent states": "llama.cpp b11549: src/llama-memory-recurrent.cpp",
    "compute buffers": "llama.cpp b11549: its allocator's figures (llama_get_memory_breakdown)",
    "reserved": "wb help guide-fit",
}
_VLLM = "activations and CUDA graphs not counted"
_LLAMA_SERVER = "llama-server's defaults: 4 sequences share one context"
RUNTIMES: Final = {
    r.name: r
    for r in (
        Runtime("llama.cpp", True, 4, True, default_note=_LLAMA_SERVER),
        Runtime("ollama", True, note="batches grow with the context", default_note="OLLAMA_NUM_PARALLEL is 1"),
        Runtime(
            "vllm", False, kv_types={"f16": 2, "bf16": 2, "q8_0": 1}, note=_VLLM,
            source="vLLM 0.33.0: config/cache.py, v1/core",
        ),
        Runtime(
            "mlx", False, kv_types={"f16": 2, "bf16": 2, "q8_0": 1.0625, "q4_0": 0.5625},
            note="intermediate results not counted", source="mlx-lm d78bf58: models/cache.py",
        ),
        Runtime(
            "transformers", False, kv_types={"f16": 2, "bf16": 2, "f32": 4}, note="intermediate results not counted",
            source="keys and values of every token, by the config",
        ),
    )
}  # fmt: skip


def cache_for(runtime: Runtime, model: CacheModel, settings: RunSettings) -> CacheMemory:
    """Returns the memory of keys, values and states. Raises UsageError for a type that the cache can't have."""
    if runtime.llama_cpp:
        return cache_memory(model, settings)
    types = runtime.kv_types or {}
    kv = settings.type_k.name.lower()
    if kv not in types:
        raise UsageError(f"{runtime.name} has no {kv} cache", hint=f"--cache-type {' or '.join(types)}")
    cells = _CELLS[runtime.name](settings.context)
    window = min(cells, _CELLS[runtime.name](model.window)) if model.window else cells

    def size(row: CacheRow) -> int:
        count = window if row.window else cells // row.every
        return int(row.width * types[kv] * count * settings.parallel)

    return CacheMemory(
        kv=tuple(sum(map(size, layer.rows)) for layer in model.layers),
        states=tuple(4 * layer.state * settings.parallel for layer in model.layers),
        cells=cells, window_cells=window, streams=settings.parallel,
    )  # fmt: skip


_CELLS: Final[Mapping[str, Callable[[int], int]]] = {
    "vllm": lambda tokens: padded(tokens, _VLLM_BLOCK) + _VLLM_BLOCK,  # one block is reserved
    "mlx": lambda tokens: padded(tokens, _MLX_STEP),
    "transformers": lambda tokens: tokens,
}
