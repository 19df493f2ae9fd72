"""Plans `wb.save`: arrays in memory become a file or a sharded folder of any writable format."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from weighbridge.adapters.remote.schemes import resolve_target
from weighbridge.base.dtypes import DType, DTypeLike, Kind, requested_dtype
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.containers import model_suffixes, target_of
from weighbridge.conversion.options import ShardOptions, WriteOptions
from weighbridge.conversion.plan import writers
from weighbridge.conversion.plan.builder import PlanBuilder, cast_to
from weighbridge.conversion.plan.model import Plan
from weighbridge.conversion.result import Loss
from weighbridge.tensors.nodes import LogicalTensor, Node, QuantizedTensor, needs_decoding, storage_name

#: Default alignment of a GGUF's tensors. With llama.cpp's 32, JAX can't share memory.
GGUF_ALIGNMENT: Final = 64


def plan_arrays(
    tensors: Mapping[str, LogicalTensor], dst: str | os.PathLike[str], metadata: Mapping[str, Any],
    dtype: DTypeLike | None, shards: ShardOptions, write: WriteOptions,
) -> Plan:  # fmt: skip
    """Plans to write `tensors` to `dst`.

    `dtype`: of the weights. A block type quantizes matrices whose rows are whole blocks, and keeps the others with a
    loss. Raises UsageError for an unknown suffix, or a GGUF without an architecture, which every reader requires.
    """
    path = resolve_target(dst)
    kind = "safetensors"
    if path.suffix and not os.fspath(dst).endswith(("/", os.sep)):
        kind = target_of(path.suffix) or ""
        if not kind:
            raise UsageError(f"{path.suffix!r} isn't a format to write", hint=", ".join(model_suffixes()))
    draft = PlanBuilder({}, metadata, path.stem if path.suffix else "model")
    requested = requested_dtype(dtype)
    for name, tensor in tensors.items():
        draft.tensors[name] = cast_for_saving(name, tensor, requested, draft)
    if kind == "gguf":
        if not metadata.get("general.architecture"):
            raise UsageError("a GGUF needs its architecture", hint='metadata={"general.architecture": "my-model"}')
        draft.metadata = {"general.alignment": GGUF_ALIGNMENT, **metadata}
    written = writers.writer(kind)(draft.stem, draft.tensors, draft.metadata, shards)
    folder = not path.suffix or shards.sharded
    files = written.files if folder else (replace(written.files[0], name=path.name),)
    return Plan(
        "arrays", path, kind, folder, files, written.texts, tuple(draft.losses), (), (*draft.notes, *written.notes),
        write, draft.reports,
    )  # fmt: skip


def cast_for_saving(name: str, tensor: LogicalTensor, dtype: DType | None, draft: PlanBuilder) -> Node:
    """Casts a tensor to the requested dtype. Raises UnsupportedError for a packed tensor without one."""
    if dtype is None:
        if isinstance(tensor, QuantizedTensor):
            content = f"{name} is {storage_name(tensor)}, several tensors in one"
            raise UnsupportedError(content, hint="save its parts(), or pass a dtype")
        return tensor
    if not tensor.spec.dtype.is_float and not needs_decoding(tensor):
        return cast_to(name, tensor, tensor.spec.dtype, draft)  # indices and masks are kept
    if dtype.kind is Kind.BLOCK and (len(tensor.spec.shape) < 2 or tensor.spec.shape[-1] % dtype.block):
        draft.losses.append(Loss(f"kept as {tensor.spec.dtype}: its rows aren't whole blocks of {dtype}", name))
        return cast_to(name, tensor, tensor.spec.dtype, draft)
    return cast_to(name, tensor, dtype, draft)
