"""Plans what whisper.cpp's quantize writes, from a Whisper in any format."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from weighbridge.base.errors import UsageError
from weighbridge.base.options import flag
from weighbridge.containers.ggml import whisper
from weighbridge.conversion.options import IN_PLACE_OF_TYPE, QuantizeOptions, WriteOptions
from weighbridge.conversion.plan.build import build
from weighbridge.conversion.plan.model import Plan
from weighbridge.conversion.plan.target import choose_target
from weighbridge.conversion.quantize.plan import QuantizePlan, QuantizeRow
from weighbridge.models.model import OpenModel
from weighbridge.models.whisper import source
from weighbridge.models.whisper.forms import form_of


def plan_quantize(
    model: OpenModel, dst: str | os.PathLike[str], ftype: str, given: Mapping[str, Any], write: WriteOptions
) -> QuantizePlan:
    """Plans a quantized whisper.cpp file. Raises UsageError for a type or an option that it doesn't have."""
    if ftype.upper() not in whisper.FTYPES:
        names = ", ".join(whisper.FTYPES)
        asked = ftype or next((flag(name) for name in IN_PLACE_OF_TYPE if given.get(name) is not None), "no type")
        raise UsageError(f"{asked} doesn't determine a whisper.cpp file", hint=f"its types: {names}")
    if (suffix := Path(dst).suffix) == ".gguf":
        name = f"ggml-NAME-{ftype.lower()}.bin"
        raise UsageError(f"whisper.cpp doesn't read {suffix}", hint=f"name the target: wb quantize SRC {name} {ftype}")
    changed = {name: value for name, value in given.items() if value != getattr(QuantizeOptions(), name)}
    target = choose_target(model, dst, "ggml", {**changed, "dtype": ftype.lower()})
    plan = build(model, target, write)
    form = form_of(model)
    assert form is not None  # the plan was built
    stored = source.read(model, form).tensors
    file = plan.files[0]
    rows = tuple(
        QuantizeRow(
            name=slot.name, shape=slot.spec.shape, source=stored[slot.name].spec.dtype.name,
            target=slot.spec.dtype.name, source_bytes=stored[slot.name].spec.nbytes, target_bytes=slot.spec.nbytes,
        )
        for slot, _ in file.slots
    )  # fmt: skip
    return QuantizePlan(**{one.name: getattr(plan, one.name) for one in fields(Plan)}, ftype=ftype.upper(), rows=rows)
