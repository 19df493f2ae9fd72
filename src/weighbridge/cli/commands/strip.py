"""`wb strip`: extracts the weights of a training checkpoint."""

from __future__ import annotations

from pathlib import Path

import click

from weighbridge.api.keywords import StripKeywords
from weighbridge.cli.options import command, examples
from weighbridge.cli.render import Progress, emit_json
from weighbridge.cli.values import OUTPUT, PATH
from weighbridge.cli.views import transform as view
from weighbridge.cli.views.plan import WriteCommand, planned


@command(
    StripKeywords,
    WriteCommand,
    epilog=examples(
        "wb strip checkpoint.pt model.safetensors",
        "wb strip last.ckpt model.pt --ema-as-weights",
        "wb strip ./checkpoint-500/ ./model/ --dry-run",
    ),
)
@click.argument("src", type=PATH)
@click.argument("dst", type=OUTPUT)
def strip(src: Path | str, dst: str, options: WriteCommand) -> int:
    """Write only the model weights of the training checkpoint SRC to DST.

    Optimizer, averaged weights, random states, schedulers, loss scalers and histories are recognized by their keys and
    their structure. Lists each part that is left out, with the reason.
    """
    import weighbridge

    with planned(weighbridge.plan_strip, src, dst, options) as plan:
        if not options.dry_run:
            with Progress() as progress:
                plan.run(progress)
    emit_json(plan.report) if options.json else view.print_strip(plan.report, options.dry_run)
    return 0
