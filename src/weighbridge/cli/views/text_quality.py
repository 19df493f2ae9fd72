"""How a model's predictions on a text differ from a reference's."""

from __future__ import annotations

import math

from weighbridge.base.words import plural
from weighbridge.cli.render import clean, echo, note, pairs
from weighbridge.forward.quality import TextQualityReport
from weighbridge.forward.scores import SampleMean


def show(report: TextQualityReport) -> None:
    echo(clean(report.model or report.reference), "head")
    chunks = f"{plural(report.chunks, 'chunk')} of {plural(report.context, 'token')}"
    pairs([("text", f"{chunks}, {plural(report.positions, 'position')} scored"), *_rows(report)])
    if report.dropped:
        note(f"{plural(report.dropped, 'token')} at the end of the text fill no chunk")
    if report.model is not None and report.same_tokens is None:
        note("not checked: whether the model's tokenizer gives the same tokens")


def _rows(report: TextQualityReport) -> list[tuple[str, str]]:
    before = ("perplexity", _number(report.reference_perplexity))
    if report.perplexity is None or report.log_ratio is None or report.kl is None or report.kl_quantiles is None:
        return [before]
    if report.same_top is None or report.lost is None or report.gained is None or report.rms_delta_p is None:
        return [before]
    quantiles = {"0.5": "median", "0.99": "99 %", "0.999": "99.9 %", "1": "most"}
    shown = ", ".join(f"{word} {report.kl_quantiles[q]:.3g}" for q, word in quantiles.items())
    return [
        ("reference", clean(report.reference)),
        ("perplexity", f"{_number(report.perplexity)}; reference {_number(report.reference_perplexity)}"),
        ("ln(ratio)", _number(report.log_ratio)),
        ("KL divergence", f"{_number(report.kl)}; {shown}"),
        ("same top token", _percent(report.same_top)),
        ("next token", f"found only by the reference {_percent(report.lost)}, by the model {_percent(report.gained)}"),
        ("RMS Δp", _percent(report.rms_delta_p)),
    ]


def _number(estimate: SampleMean, factor: float = 1) -> str:
    """The value with as many digits as its error has with two."""
    value, error = estimate.value * factor, (estimate.error or 0) * factor
    if not error:
        return f"{value:.5g}"
    digits = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def _percent(estimate: SampleMean) -> str:
    return f"{_number(estimate, 100)} %"
