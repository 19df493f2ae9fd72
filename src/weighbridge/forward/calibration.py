"""What a text gives to a quantization. The code that runs models is imported only for a text."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import TYPE_CHECKING, Final

from weighbridge.base.errors import UsageError
from weighbridge.base.options import Progress
from weighbridge.conversion.options import MlxOptions, QuantizeOptions, SchemeOptions, TargetOptions, WriteOptions
from weighbridge.forward.options import TextOptions
from weighbridge.models.model import OpenModel

if TYPE_CHECKING:
    from weighbridge.conversion.calibrated import Calibrate, Calibrated, ToCalibrate
    from weighbridge.conversion.quantize.imatrix import ImportanceMatrix
    from weighbridge.conversion.quantize.size_target import Effects

#: The value of `imatrix` for a matrix that is made of the text.
AUTO: Final = "auto"


def calibration(
    model: OpenModel, options: QuantizeOptions, text: TextOptions, progress: Progress | None
) -> tuple[ImportanceMatrix | None, Effects | None]:
    """What a text gives to a quantization: an importance matrix for `--imatrix auto`, and effects for a target size.
    `progress` counts passes over it. Raises UsageError for a text that nothing uses, and for options of a text without
    one."""
    is_auto = options.imatrix is not None and os.fspath(options.imatrix) == AUTO
    is_sized = options.target_bpw is not None or options.target_size is not None
    if not text.text:
        for option in given(text):
            raise UsageError(f"{option} applies to --text")
        if is_auto:
            raise UsageError("--imatrix auto makes the importance matrix of a text", hint="--text FILE")
        return None, None
    if not is_auto and not is_sized:
        raise UsageError("--text applies to --imatrix auto, --target-size and --target-bpw")
    if options.prune_layers and is_sized:
        raise UsageError("--text doesn't apply to --prune-layers", hint="write the model without these layers first")
    from weighbridge.forward.computed import ComputedModel
    from weighbridge.forward.effects import Measurement, matrix_of
    from weighbridge.forward.texts import chunks_of

    computed = ComputedModel(model)
    chunks = chunks_of(model, text)
    # llama-imatrix leaves the output matrix out, but errors that are compared between tensors need its inputs
    made = None if not is_auto else matrix_of(computed, chunks, text, output=is_sized)
    return made, Measurement(computed, chunks, text.chunks, progress).effects if is_sized else None


def scheme_calibration(target: TargetOptions, text: TextOptions, write: WriteOptions) -> Calibrate | None:
    """How a text rounds the layers of a quantized folder; None without one. Raises UsageError for a target that no text
    applies to, and for options of a text without one."""
    if not text.text:
        for option in given(text):
            hint = "the context length of the model: --context-length" if option == "--context" else None
            raise UsageError(f"{option} applies to --text", hint=hint)
        return None
    if not isinstance(target, SchemeOptions | MlxOptions):
        titles = f"{SchemeOptions.title} and {MlxOptions.title}"
        raise UsageError(f"--text doesn't apply to {target.title}", hint=f"it applies to {titles}")
    from weighbridge.forward.rounding.input_ranges import InputRanges
    from weighbridge.forward.rounding.scheme_rounding import SchemeRounding

    def calibrate(request: ToCalibrate) -> Calibrated:
        return (InputRanges if request.use == "ranges" else SchemeRounding)(request, text, write).calibrated

    return calibrate


def given(text: TextOptions) -> list[str]:
    """The options of a text that aren't the defaults."""
    rows = (one for one in fields(TextOptions) if getattr(text, one.name) != one.default)
    return [f"--{one.name.replace('_', '-')}" for one in rows]
