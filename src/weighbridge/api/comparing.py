"""Compares a model with its quantized version."""

from __future__ import annotations

from weighbridge.api.keywords import CompareKeywords
from weighbridge.base.errors import UsageError
from weighbridge.base.options import accepting
from weighbridge.conversion.options import Path, QuantizeOptions, WriteOptions, resolve
from weighbridge.conversion.quantize.inputs import prepare
from weighbridge.forward.calibration import calibration
from weighbridge.models.lora.merge import merge_for_writing
from weighbridge.models.open import open_model
from weighbridge.reports.diff.quality import QualityReport, measure


@accepting(CompareKeywords)
def compare_quantized(src: Path, dst: Path, options: CompareKeywords) -> QualityReport:
    """Measures how much the GGUF `dst` differs from `src`, if `quantize` wrote it with the same options: errors of each
    tensor, with `imatrix` also weighted by it. Reads all values. Raises UsageError for different models."""
    with open_model(src, options) as model, open_model(dst) as quantized:
        kind = "gguf" if model.format == "gguf" else "model"
        merged = merge_for_writing(model, adapters) if (adapters := options.adapters) else model
        chosen = resolve(QuantizeOptions, kind, options.target_options)
        prepared = prepare(merged, None, chosen, calibration(merged, chosen, options, None)[0])
        if strange := prepared.tensors.keys() ^ quantized.stored.keys():
            raise UsageError(f"{src} and {dst} are not the same model: only one of them has {min(strange)}")
        weights = {name: w for name in prepared.tensors if (w := prepared.weights(name)) is not None}
        jobs = WriteOptions(jobs=options.jobs).workers
        return measure(prepared.tensors, quantized.stored, weights, jobs=jobs, progress=options.progress)
