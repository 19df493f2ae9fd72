"""The adapters of a model that has one in each matrix for each of its tasks (Jina embeddings v3), each as a GGUF.

Follows conversion/bert.py `XLMRobertaModel` (llama.cpp b11549), which writes all of them next to the model's GGUF.
"""

from __future__ import annotations

from typing import Any, Final

from weighbridge.base.dtypes import F32, requested_dtype
from weighbridge.base.errors import FormatError, UsageError
from weighbridge.containers.gguf.values import KV
from weighbridge.conversion.gguf import metadata
from weighbridge.conversion.options import TaskAdapterOptions
from weighbridge.conversion.plan.builder import PlanBuilder, cast_to
from weighbridge.conversion.result import Loss
from weighbridge.models.arch.tables.values import number
from weighbridge.models.lora.gguf import ALPHA, EMBEDDING, KIND, TYPE
from weighbridge.models.model import OpenModel
from weighbridge.tensors.nodes import as_node, slice_rows, transpose

_TASK, _PREFIX = "adapter.lora.task_name", "adapter.lora.prompt_prefix"
_ORIGINAL, _TYPES = ".original", "token_types.weight"
_HALVES: Final = (".0.lora_A", ".0.lora_B")
#: llama.cpp computes without the pooler.
_UNUSED: Final = "pooler."


def to_gguf(model: OpenModel, options: TaskAdapterOptions) -> PlanBuilder:
    """Plans the adapter of a task. Raises UsageError for a model without tasks, another task, or a type but F32."""
    task = options.task_adapter
    if options.dtype not in (None, "auto") and requested_dtype(options.dtype) is not F32:
        raise UsageError(f"an adapter of a task is written in F32, not {options.dtype}", hint="leave out --dtype")
    config = model.family.effective(model.config)
    tasks = [str(name) for name in config.get("lora_adaptations") or ()]
    if task not in tasks:
        hint = f"one of {', '.join(tasks)}" if tasks else "leave out --task-adapter"
        raise UsageError(f"{model.place.path} has no adapter of a task {task!r}", hint=hint)
    family, sizes, draft = model.family, model.sizes, PlanBuilder({})
    stored = family.expansion(model.resolved.dialect, sizes, model.resolved.prefix).places
    targets = {(place.roles, place.named): name for name, place in family.expansion("gguf", sizes).places.items()}
    for name in model.index.by_name:
        half = next((end for end in _HALVES if name.endswith(end)), None)
        if half is None:
            continue
        place = stored.get(name.removesuffix(half) + _ORIGINAL)
        target = targets.get((place.roles, place.named)) if place is not None else None
        if target is None or target.startswith(_UNUSED):
            draft.losses.append(Loss("left out: llama.cpp doesn't compute with it", name))
            continue
        node = as_node(model.logical[name])
        if len(node.spec.shape) != 3 or node.spec.shape[0] != len(tasks):
            found = list(node.spec.shape)
            raise FormatError("not a matrix for each task", field=name, expected=f"[{len(tasks)}, ...]", found=found)
        shape = node.spec.shape[1:]
        matrix = slice_rows(node, tasks.index(task) * shape[0], shape)
        letter = half[-1].lower()
        if target == EMBEDDING and letter == "b":  # looked up by token: A has a row for each
            matrix = transpose(matrix)
        elif target == _TYPES:
            letter = "b" if letter == "a" else "a"
            draft.losses.append(Loss(f"llama.cpp adds the model's {_TYPES} without this change", name, "results"))
        end = f"{target}.lora_{letter}"
        draft.tensors[end] = cast_to(end, matrix, F32, draft)
    draft.losses.append(Loss(f"left out: the model and its other adapters (--task-adapter TASK: {', '.join(tasks)})"))
    keys = metadata.named(_keys(config, family.gguf, task), options.name)
    draft.metadata = metadata.with_alignment(keys, options.align)
    return draft


def _keys(config: dict[str, Any], architecture: str, task: str) -> dict[str, KV]:
    alpha = config.get("lora_alpha")
    keys = {
        "general.architecture": KV("str", architecture), TYPE: KV("str", "adapter"), KIND: KV("str", "lora"),
        ALPHA: KV("f32", 1.0 if alpha is None else number(alpha, "lora_alpha")), _TASK: KV("str", task),
    }  # fmt: skip
    prefixes = config.get("task_instructions")
    if isinstance(prefixes, dict) and isinstance(prefix := prefixes.get(task), str):
        keys[_PREFIX] = KV("str", prefix)
    return keys
