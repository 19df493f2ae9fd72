"""Compares a model with its quantized version."""

from __future__ import annotations

from typing import Unpack

from weighbridge.api.keywords import Path, QuantizeTypes, sort_keywords
from weighbridge.base.errors import UsageError
from weighbridge.conversion.options import WriteOptions, resolve
from weighbridge.conversion.quantize.inputs import QuantizeOptions, prepare
from weighbridge.conversion.result import Progress
from weighbridge.models.open import open_model
from weighbridge.reports.diff.quality import QualityReport, measure


def compare_quantized(
    src: Path, dst: Path, *, jobs: int | None = None, progress: Progress | None = None, **options: Unpack[QuantizeTypes]
) -> QualityReport:
    """How much the GGUF `dst` differs from `src`, of which `quantize` made it with these options: errors tensor by
    tensor, with `imatrix` also weighted by it. Reads all values. UsageError for different models."""
    source, _, given = sort_keywords(options)
    with open_model(src, source) as model, open_model(dst) as made:
        kind = "gguf" if model.format == "gguf" else "model"
        prepared = prepare(model, None, resolve(QuantizeOptions, kind, given))
        if strange := prepared.tensors.keys() ^ made.stored.keys():
            raise UsageError(f"{src} and {dst} are not the same model: {min(strange)} is in one of them only")
        known = {name: w for name in prepared.tensors if (w := prepared.weights(name)) is not None}
        workers = WriteOptions(jobs=jobs).workers
        return measure(prepared.tensors, made.stored, known, jobs=workers, progress=progress)
