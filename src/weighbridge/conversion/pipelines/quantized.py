"""Plans the quantization of a diffusers pipeline into a folder: GGUFs of its denoisers and of text encoders that
llama.cpp knows. Other models keep their form."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from weighbridge.adapters.remote.schemes import resolve_target
from weighbridge.base.errors import UsageError
from weighbridge.base.options import flag
from weighbridge.conversion.options import QuantizeOptions, WriteOptions
from weighbridge.conversion.pipelines.folder import (
    PartPlanner,
    check_some,
    files_of_parts,
    gguf_or_unchanged,
    joined,
    options_of,
)
from weighbridge.conversion.plan.model import Plan
from weighbridge.conversion.plan.target import check_target
from weighbridge.conversion.quantize import plan as quantizing
from weighbridge.conversion.quantize.plan import QuantizePlan
from weighbridge.models.diffusion.pipeline import Pipeline
from weighbridge.models.model import OpenModel

#: Options that hold for several models.
_GENERAL: Final = frozenset({"allow_requantize", "pure", "search", "align", "tokenizer"})


def plan_quantized(
    pipeline: Pipeline, target: str | os.PathLike[str], ftype: str, options: QuantizeOptions, write: WriteOptions,
    plan: PartPlanner,
) -> QuantizePlan:  # fmt: skip
    """Plans all parts. `plan`: of a part that isn't quantized. Raises UsageError for a target that is a file, and for
    options about the tensors of one model."""
    path, base = resolve_target(target), pipeline.whole.place.path
    default = QuantizeOptions()
    for one in fields(options):
        if one.name not in _GENERAL and getattr(options, one.name) != getattr(default, one.name):
            raise UsageError(
                f"{flag(one.name)} is about one model, and {base} is a pipeline of {len(pipeline.models)}",
                hint=f"quantize a part by itself: wb quantize {base / pipeline.models[0][0].name} ...",
            )
    if path.suffix == ".gguf":
        raise files_of_parts(pipeline, path)
    check_target(path, pipeline.whole.place.files, True)
    plans: list[tuple[str, Plan]] = []
    for part, each in pipeline.models:
        quantize = partial(
            _quantize, path / part.name / f"{part.name}.gguf", ftype, options_of(part, options), write
        )  # fmt: skip
        plans.append((part.name, gguf_or_unchanged(pipeline, part, each, quantize, plan)))
    check_some(pipeline, plans)
    whole = joined(pipeline, path, "gguf", plans)
    made = [(part, one) for part, one in plans if isinstance(one, QuantizePlan)]
    shared: dict[str, Any] = {one.name: getattr(whole, one.name) for one in fields(Plan)}
    return QuantizePlan(
        **{**shared, "model": pipeline.whole},
        ftype=made[0][1].ftype,
        rows=tuple(replace(row, name=f"{part}.{row.name}") for part, one in made for row in one.rows),
        refusals=tuple(r._replace(tensor=f"{part}.{r.tensor}") for part, one in made for r in one.refusals),
    )


def _quantize(path: Path, ftype: str, options: QuantizeOptions, write: WriteOptions, model: OpenModel) -> QuantizePlan:
    return quantizing.build(model, path, ftype, options, write)
