"""`save`: writes arrays of any framework to a file of any format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weighbridge.adapters.arrays import nodes_of
from weighbridge.api.keywords import SaveKeywords
from weighbridge.api.verbs import planned_and_run
from weighbridge.base.errors import UsageError
from weighbridge.base.options import accepting
from weighbridge.conversion.options import Path
from weighbridge.conversion.plan.model import Plan
from weighbridge.conversion.saving import plan_arrays


@accepting(SaveKeywords)
def plan_save(tensors: Mapping[str, Any], dst: Path, options: SaveKeywords) -> Plan:
    """Plans to write arrays of any shape to `dst`.

    `tensors`: names to arrays of numpy, torch, MLX or JAX, or to tensors of `wb.open`. `dst`: its suffix sets the
    format (.safetensors, .gguf, .npz, .bin); without one, it is a folder of safetensors. `metadata`: texts of a
    safetensors header, or key-values of a GGUF, which must name an architecture (`general.architecture`); it may be
    unknown. `dtype`: of floating point weights; a block type ("q8_0", "q4_k") quantizes matrices and keeps the other
    tensors, as the plan lists. A bound on shards writes a numbered set and its index.
    Errors: UsageError, UnsupportedError, RefusedError, OSError.
    """
    if options.resume:
        raise UsageError("--resume doesn't apply to arrays in memory", hint="another process can't continue the work")
    return plan_arrays(nodes_of(tensors), dst, options.metadata or {}, options.dtype, options, options)


save = planned_and_run(plan_save, "Writes arrays to a file; the arguments are those of `plan_save`.")
