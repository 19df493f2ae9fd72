"""`wb imatrix`: makes an importance matrix."""

from __future__ import annotations

import click

from weighbridge.base.words import plural
from weighbridge.cli.options import DryRunOptions, command, examples
from weighbridge.cli.render import Progress, clean, echo, emit_json, note, pairs, warn
from weighbridge.cli.values import FILE, SOURCE
from weighbridge.forward.options import ImatrixOptions

_LISTED = 5


@command(
    ImatrixOptions,
    DryRunOptions,
    epilog=examples(
        "wb imatrix ./my-model/ imatrix.gguf --text calibration.txt",
        "wb imatrix model-f16.gguf imatrix.gguf --text calibration.txt --chunks 100",
        "wb imatrix ./my-model/ imatrix.gguf --text corpus.jsonl --field text",
        "wb imatrix ./my-model/ imatrix.gguf --text chats.jsonl --chat",
        "wb imatrix ./my-model/ imatrix.gguf --text calibration.txt --resume --chunks 200",
        "wb imatrix ./my-model/ imatrix.gguf --text calibration.txt --engine transformers",
    ),
)
@click.argument("src", type=SOURCE)
@click.argument("dst", type=FILE)
def imatrix(src: str, dst: str, options: DryRunOptions) -> None:
    """Make the importance matrix DST (.gguf or .dat) of the model SRC: run it over a text and sum the squares of what
    enters each matrix, as llama-imatrix does.

    One layer is in memory at a time, so a model may be larger than the machine. SRC: a folder, a GGUF, or any other
    model with a config and a tokenizer; packed weights are decoded. --engine transformers runs a folder of any family
    that transformers has, on a GPU if torch has one, with the whole model in memory.
    """
    import weighbridge

    if options.dry_run:
        plan = weighbridge.plan_imatrix(src, dst, **options.keywords(weighbridge.plan_imatrix))
        if options.json:
            emit_json(plan)
        else:
            _show(plan)
        return
    with Progress(noun="layer") as progress:
        report = weighbridge.imatrix(src, dst, progress=progress, **options.keywords(weighbridge.imatrix))
    if options.json:
        emit_json(report)
        return
    _show(report)
    if report.unseen:
        names = sorted(report.unseen)
        listed = ", ".join(f"{name} ({report.unseen[name]})" for name in names[:_LISTED])
        more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
        warn(clean(f"experts without a token: {listed}{more}; llama-quantize weighs their columns equally"))
    if report.missing:
        more = f" and {len(report.missing) - 1:,} more" if len(report.missing) > 1 else ""
        warn(clean(f"no entry: the run didn't multiply with {report.missing[0]}{more}"))


def _show(plan: object) -> None:
    from weighbridge.forward.imatrix import CalibrationPlan, CalibrationReport

    assert isinstance(plan, CalibrationPlan)
    chunks = f"{plural(plan.chunks, 'chunk')} of {plural(plan.tokens, 'token')}"
    echo(clean(plan.target), "head")
    pairs([
        ("model", f"{clean(plan.source)}, {plan.family}, {plural(plan.layers, 'layer')}"),
        ("text", chunks + (f", from chunk {plan.first:,}" if plan.first else "")),
        *([("entries", f"{plan.entries:,}, {plural(plan.total_chunks, 'chunk')} in all")]
          if isinstance(plan, CalibrationReport) else []),
    ])  # fmt: skip
    if plan.dropped:
        note(f"{plural(plan.dropped, 'token')} at the end of the text fill no chunk")
