"""Arrays in memory as a file or a sharded folder of any format that is written: the plan of `wb.save`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from weighbridge.adapters.remote.schemes import resolve_target
from weighbridge.base.dtypes import DType, Kind
from weighbridge.base.dtypes import dtype as dtype_of
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.containers import model_suffixes, target_of
from weighbridge.conversion.options import ShardOptions, WriteOptions
from weighbridge.conversion.plan import writers
from weighbridge.conversion.plan.builder import PlanBuilder, cast_to
from weighbridge.conversion.plan.model import Loss, Plan
from weighbridge.tensors.nodes import LogicalTensor, Node, QuantizedTensor, needs_decoding, storage_name

#: Where tensors of a GGUF start unless its metadata says otherwise: llama.cpp's 32 keeps JAX from sharing memory.
GGUF_ALIGNMENT: Final = 64
_ARCHITECTURE: Final = "general.architecture"
_ALIGNMENT: Final = "general.alignment"
_FOLDER: Final = "safetensors"


def plan_arrays(
    tensors: Mapping[str, LogicalTensor], dst: str | os.PathLike[str], metadata: Mapping[str, Any],
    dtype: str | None, shards: ShardOptions, write: WriteOptions,
) -> Plan:  # fmt: skip
    """The plan of writing `tensors` to `dst`. `dtype`: of the weights; a block type quantizes matrices whose rows are
    whole blocks, and keeps the rest, with a note."""
    path = resolve_target(dst)
    kind = _format(os.fspath(dst), path)
    draft = PlanBuilder({}, metadata, path.stem if path.suffix else "model")
    wanted = None if dtype is None else dtype_of(dtype)
    for name, tensor in tensors.items():
        draft.tensors[name] = _stored(name, tensor, wanted, kind, draft)
    if kind == "gguf":
        draft.metadata = _gguf_metadata(metadata)
    written = writers.writer(kind)(draft.stem, draft.tensors, draft.metadata, shards)
    folder = not path.suffix or shards.sharded
    files = written.files
    if not folder:
        files = (replace(files[0], name=path.name),)
    return Plan(
        "arrays", path, kind, folder, files, written.texts, tuple(draft.losses), (), (*draft.notes, *written.notes),
        write, draft.reports,
    )  # fmt: skip


def _format(dst: str, path: Path) -> str:
    if dst.endswith(("/", os.sep)) or not path.suffix:
        return _FOLDER
    found = target_of(path.suffix)
    if found is None:
        raise UsageError(f"{path.suffix!r} isn't a format to write", hint=", ".join(model_suffixes()))
    return found


def _stored(name: str, tensor: LogicalTensor, wanted: DType | None, kind: str, draft: PlanBuilder) -> Node:
    """A tensor as it is written. UnsupportedError for a packed one, which has no single type to be written as."""
    if isinstance(tensor, QuantizedTensor) and wanted is None:
        scheme = storage_name(tensor)
        raise UnsupportedError(f"{name} is {scheme}, several tensors in one", hint="save its parts(), or pass a dtype")
    if wanted is None:
        assert isinstance(tensor, Node)
        return tensor
    if not tensor.spec.dtype.is_float and not needs_decoding(tensor):
        return cast_to(name, tensor, tensor.spec.dtype, draft)  # indices and masks stay
    if wanted.kind is Kind.BLOCK and (len(tensor.spec.shape) < 2 or tensor.spec.shape[-1] % wanted.block):
        draft.losses.append(Loss(f"kept as {tensor.spec.dtype}: its rows are no whole blocks of {wanted}", name))
        return cast_to(name, tensor, tensor.spec.dtype, draft)
    return cast_to(name, tensor, wanted, draft)


def _gguf_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The key-values of a GGUF. UsageError without an architecture, which every reader asks for."""
    if not metadata.get(_ARCHITECTURE):
        raise UsageError("a GGUF needs its architecture", hint='metadata={"general.architecture": "my-model"}')
    return {_ALIGNMENT: GGUF_ALIGNMENT, **metadata}
