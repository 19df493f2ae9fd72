"""The compute buffers that llama.cpp reserves beside weights and caches: the intermediate results of one batch.

ggml's allocator reuses memory, so the size is that of the widest stage of a layer. The stages below are those of
llama.cpp b11549's graphs, f32 elements a token; they were found by comparing with its own allocator, which they equal
within some elements a token for most architectures (llamacpp.toml lists those that it doesn't).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from weighbridge.base.spec import Shape
from weighbridge.fitting.cache import ArchitectureKeys, CacheMemory, CacheModel, RunSettings
from weighbridge.fitting.rules import rules

_FLOAT, _HALF = 4, 2  # bytes: activations are f32, attention masks f16
_RESIDUALS: Final = 5  # vectors of the embedding's width that live through a stage: residual, norm, input, output, sum
_SMALL: Final = 9  # positions, indices and the like, elements a token
# MLA: what a head holds beside its key and value, and vectors of the embedding's width, at the widest stage.
_LATENT: Final = 32
_LATENT_RESIDUALS: Final = 9


@dataclass(frozen=True, slots=True)
class Stages:
    """Elements a token: of a layer at its widest, of attention beside its scores, of the output. `heads`: of queries.
    `certain`: whether llama.cpp's own figures are within 3 %."""

    layer: int
    attention: int
    output: int
    heads: int
    certain: bool


def stages_of(keys: Mapping[str, Any], tensors: Mapping[str, Shape], model: CacheModel) -> Stages:
    """The stages of a model by its keys and the shapes of its GGUF's tensors."""
    at, compute = ArchitectureKeys(keys), rules().compute
    embedding, heads = at.number("embedding_length"), at.number("attention.head_count")
    base = _RESIDUALS * embedding + _SMALL
    widest = [base + _dense(tensors), *_experts(at, tensors, base)]
    if rules().cache_kind(at.architecture) == "recurrent":
        widest.append(base + _mixer(at))
    keyed, valued = (at.number(f"attention.{n}_length", embedding // heads if heads else 0) for n in ("key", "value"))
    if model.latent:
        widest.append(heads * (keyed + valued + _LATENT) + _LATENT_RESIDUALS * embedding)
    table = tensors.get("token_embd.weight", (0, 0))
    extra = int(compute.vectors.get(at.architecture, 0) * embedding)
    return Stages(
        layer=max(widest) + extra,
        attention=4 * embedding + 2 * keyed * (heads + max(at.by_layer("attention.head_count_kv", heads), default=0)),
        output=table[0] + base if any(layer.rows or layer.state for layer in model.layers) else 0,
        heads=heads,
        certain=at.architecture not in compute.uncertain,
    )


def _rows(tensors: Mapping[str, Shape], ending: str) -> int:
    """The most rows of a layer's tensor of this name."""
    return max(
        (s[-2] for n, s in tensors.items() if len(s) > 1 and n.startswith("blk.") and n.endswith(ending)), default=0
    )


def _dense(tensors: Mapping[str, Shape]) -> int:
    """Gate, up and their product of a feed forward; a fused matrix holds gate and up."""
    up, gate = _rows(tensors, ".ffn_up.weight"), _rows(tensors, ".ffn_gate.weight")
    inner = max((s[-1] for n, s in tensors.items() if len(s) > 1 and n.endswith(".ffn_down.weight")), default=0)
    if gate:
        return 3 * max(up, gate)
    return up + inner if up > inner else up


def _experts(at: ArchitectureKeys, tensors: Mapping[str, Shape], base: int) -> list[int]:
    """The stages of a mixture of experts: the chosen ones, and the shared one beside their sum."""
    down = max((s[-1] for n, s in tensors.items() if n.endswith(".ffn_down_exps.weight")), default=0)
    if not down:
        return []
    used, embedding = at.number("expert_used_count"), at.number("embedding_length")
    # The output of the experts takes the place of gate and up where it fits there.
    stage = used * 3 * down + (0 if 2 * down >= embedding else used * embedding)
    shared = _rows(tensors, ".ffn_up_shexp.weight")
    return [base + stage, base + embedding + 3 * shared if shared else 0]


def _mixer(at: ArchitectureKeys) -> int:
    """A state-space layer: its projections, the convolution's input and output, the scan's output."""
    groups = 2 * at.number("ssm.group_count") * at.number("ssm.state_size")
    return 5 * at.number("ssm.inner_size") + 3 * groups + at.number("ssm.time_step_rank")


def compute_memory(model: CacheModel, stages: Stages, memory: CacheMemory, settings: RunSettings) -> int:
    """Bytes of the compute buffers for a context."""
    batch = min(settings.ubatch, settings.batch, settings.context)
    kinds = {row.window for layer in model.layers for row in layer.rows}
    cells = [memory.window_cells if window else memory.cells for window in kinds]
    if not cells and not any(layer.state for layer in model.layers):
        cells = [batch]  # an encoder's mask
    layer = max(stages.layer, stages.output if settings.outputs >= batch else 0)
    if settings.flash_attention or not cells:
        return batch * (_FLOAT * layer + _HALF * sum(cells))
    scores = stages.heads * max(cells) + stages.attention
    return batch * _FLOAT * (max(layer, scores) + sum(cells))
