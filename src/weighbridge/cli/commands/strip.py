"""`wb strip`: a training checkpoint's weights without what only training needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from weighbridge.cli.options import command, examples, option, shard_options, source_options, to_option, write_options
from weighbridge.cli.paths import OUTPUT, PATH, DTypeName
from weighbridge.cli.render import Progress, emit_json
from weighbridge.cli.views import transform as view
from weighbridge.cli.views.plan import planned


@command(
    epilog=examples(
        "wb strip checkpoint.pt model.safetensors",
        "wb strip last.ckpt model.pt --ema-as-weights",
        "wb strip ./checkpoint-500/ ./model/ --dry-run",
    )
)
@click.argument("src", type=PATH)
@click.argument("dst", type=OUTPUT)
@option("--keep-ema", is_flag=True, help="Keep averaged (EMA) weights beside the others.")
@option("--ema-as-weights", is_flag=True, help="Write averaged (EMA) weights in place of the others.")
@option("--dtype", metavar="TYPE", type=DTypeName(), help="Type of the weights: f32, f16, bf16.", section="Target")
@to_option()
@shard_options()
@source_options
@write_options
def strip(src: Path | str, dst: str, dry_run: bool, as_json: bool, **options: Any) -> int:
    """Write the model weights of the training checkpoint SRC to DST, and leave out the rest.

    Optimizer, averaged weights, random states, schedulers, loss scalers and histories are recognized by their keys and
    their structure; each part that is left out is listed with the reason.
    """
    import weighbridge

    with planned(weighbridge.plan_strip, src, dst, options, dry_run=dry_run) as plan:
        if not dry_run:
            with Progress() as progress:
                plan.run(progress)
    emit_json(plan.report) if as_json else view.print_strip(plan.report, dry_run)
    return 0
