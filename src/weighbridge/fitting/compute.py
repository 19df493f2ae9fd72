"""The compute buffers that llama.cpp reserves for the intermediate results of one batch.

ggml's allocator reuses memory, so the size is that of the widest stage of a layer. The stages are those of llama.cpp
b11549's graphs, in f32 elements per token. They were derived from its allocator's figures, and match them within a few
elements per token for most architectures (llamacpp.toml lists the exceptions).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from weighbridge.base.records import dataclass
from weighbridge.base.spec import Shape
from weighbridge.fitting.cache import ArchitectureKeys, CacheMemory, CacheModel, RunSettings
from weighbridge.fitting.rules import rules

_FLOAT, _HALF = 4, 2  # bytes: activations are f32, attention masks f16
_RESIDUALS: Final = 5  # vectors of the embedding's width alive during a stage: residual, norm, input, output, sum
_SMALL: Final = 9  # elements per token for positions, indices and similar
# MLA, at the widest stage: elements per head in addition to key and value, and vectors of the embedding's width.
_LATENT: Final = 32
_LATENT_RESIDUALS: Final = 9


@dataclass(frozen=True, slots=True)
class Stages:
    """Elements per token. `layer`: of its widest stage. `attention`: without its scores. `output`: of the output stage.
    `heads`: the number of query heads. `mixer`: of the state-space part of a layer that also has attention. Its `state`
    has this number of elements per sequence, and is copied unless it fits in the `groups` elements per token that are
    free then. `certain`: whether the result is within 3 % of llama.cpp's figures."""

    layer: int
    attention: int
    output: int
    heads: int
    certain: bool
    mixer: int = 0
    state: int = 0
    groups: int = 0


def stages_of(keys: Mapping[str, Any], tensors: Mapping[str, Shape], model: CacheModel) -> Stages:
    """Returns the stages of a model from its metadata and the shapes of its tensors in a GGUF."""
    at, compute = ArchitectureKeys(keys), rules().compute
    embedding, heads = at.number("embedding_length"), at.number("attention.head_count")
    base = _RESIDUALS * embedding + _SMALL
    inner, groups = at.number("ssm.inner_size"), 2 * at.number("ssm.group_count") * at.number("ssm.state_size")
    # A state-space layer: its projections, the input and output of the convolution, the output of the scan.
    mixer = base + 5 * inner + 3 * groups + at.number("ssm.time_step_rank")
    kind = rules().cache_kind(at.architecture)
    widest = [base + _dense(tensors), *_experts(at, tensors, base), mixer if kind == "recurrent" else 0]
    key, value = (at.number(f"attention.{n}_length", embedding // heads if heads else 0) for n in ("key", "value"))
    if model.latent:
        widest.append(heads * (key + value + _LATENT) + _LATENT_RESIDUALS * embedding)
    table = tensors.get("token_embd.weight", (0, 0))
    extra = int(compute.vectors.get(at.architecture, 0) * embedding)
    # As measured, ggml's allocator can't always reuse the mixer's memory for the feed forward of the same layer.
    fragmented = kind == "both" and (at.number("ssm.group_count") > 1 or inner < embedding)
    return Stages(
        layer=max(widest) + extra,
        attention=4 * embedding + 2 * key * (heads + max(at.by_layer("attention.head_count_kv", heads), default=0)),
        output=table[0] + base if any(layer.rows or layer.state for layer in model.layers) else 0,
        heads=heads,
        certain=at.architecture not in compute.uncertain and not fragmented,
        mixer=mixer if kind == "both" else 0,
        state=inner * at.number("ssm.state_size"),
        groups=groups,
    )


def _rows(tensors: Mapping[str, Shape], ending: str) -> int:
    """Returns the largest number of rows among the layers' tensors with this ending."""
    return max(
        (s[-2] for n, s in tensors.items() if len(s) > 1 and n.startswith("blk.") and n.endswith(ending)), default=0
    )


def _dense(tensors: Mapping[str, Shape]) -> int:
    """Returns the elements of a feed forward: gate, up and their product. A fused matrix holds gate and up."""
    up, gate = _rows(tensors, ".ffn_up.weight"), _rows(tensors, ".ffn_gate.weight")
    inner = max((s[-1] for n, s in tensors.items() if len(s) > 1 and n.endswith(".ffn_down.weight")), default=0)
    if gate:
        return 3 * max(up, gate)
    return up + inner if up > inner else up


def _experts(at: ArchitectureKeys, tensors: Mapping[str, Shape], base: int) -> list[int]:
    """Returns the stages of a mixture of experts: the chosen experts, and the shared expert next to their sum."""
    down = max((s[-1] for n, s in tensors.items() if n.endswith(".ffn_down_exps.weight")), default=0)
    if not down:
        return []
    used, embedding = at.number("expert_used_count"), at.number("embedding_length")
    # The output of the experts replaces gate and up if it fits there.
    stage = used * 3 * down + (0 if 2 * down >= embedding else used * embedding)
    shared = _rows(tensors, ".ffn_up_shexp.weight")
    return [base + stage, base + embedding + 3 * shared if shared else 0]


def compute_memory(model: CacheModel, stages: Stages, memory: CacheMemory, settings: RunSettings) -> int:
    """Returns the bytes of the compute buffers for a context."""
    batch = min(settings.ubatch, settings.batch, settings.context)
    kinds = {row.window for layer in model.layers for row in layer.rows}
    cells = [memory.window_cells if window else memory.cells for window in kinds]
    encodes = not cells and not any(layer.state for layer in model.layers)
    if encodes or model.architecture in rules().compute.batched:
        cells = [batch]
    copied = stages.state // batch if stages.state > stages.groups * batch else 0
    mixer = stages.mixer + copied if stages.mixer else 0
    layer = max(stages.layer, mixer, stages.output if settings.outputs >= batch else 0)
    if settings.flash_attention or not cells:
        return batch * (_FLOAT * layer + _HALF * sum(cells))
    scores = stages.heads * max(cells) + stages.attention
    return batch * _FLOAT * (max(layer, scores) + sum(cells))
