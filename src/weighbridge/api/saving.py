"""`save`: arrays of any framework to a file of any format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from weighbridge.adapters.arrays import nodes_of
from weighbridge.api.keywords import Path, SaveKeywords
from weighbridge.api.verbs import planned_and_run
from weighbridge.conversion.options import ShardOptions, WriteOptions
from weighbridge.conversion.plan.model import Plan
from weighbridge.conversion.saving import plan_arrays


def plan_save(
    tensors: Mapping[str, Any], dst: Path, *, metadata: Mapping[str, Any] | None = None, dtype: str | None = None,
    max_shard_size: int | None = None, max_shard_tensors: int | None = None, **options: Unpack[SaveKeywords],
) -> Plan:  # fmt: skip
    """What `save` would write.

    `tensors`: names to arrays of numpy, torch, MLX or JAX, or to tensors of `wb.open`. `dst`: its suffix is the format
    (.safetensors, .gguf, .npz, .bin); without one, a folder of safetensors. `metadata`: texts of a safetensors header,
    or key-values of a GGUF, which must name an architecture (`general.architecture`), a known one or not. `dtype`: of
    floating point weights; a block type ("q8_0", "q4_k") quantizes matrices and keeps the rest, as the plan lists.
    With a bound on shards, a numbered set and its index. `options`: fields of `WriteOptions`.
    Errors: UsageError, UnsupportedError, RefusedError, OSError.
    """
    shards = ShardOptions(max_shard_size=max_shard_size, max_shard_tensors=max_shard_tensors)
    return plan_arrays(nodes_of(tensors), dst, metadata or {}, dtype, shards, WriteOptions(**options))


save = planned_and_run(plan_save, "Write arrays to a file; see `plan_save`.")
