"""`wb slice`: extracts layers, experts or tensors of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from weighbridge.api.keywords import SliceKeywords
from weighbridge.cli.options import command, examples, write_command
from weighbridge.cli.values import OUTPUT, PATH
from weighbridge.cli.views.plan import planned
from weighbridge.cli.views.transform import write_transform


@command(
    epilog=examples(
        "wb slice ./model/ ./half/ --layers 0-15",
        "wb slice model.gguf short.gguf --layers 0-3,28-31 --renumber",
        "wb slice ./model/ ./deeper/ --layers 0-23,8-31 --renumber",
        "wb slice ./t5/ ./small/ --layers encoder:0-5 --layers decoder:0-2",
        "wb slice mixtral.gguf four-experts.gguf --experts 0-3",
        "wb slice ./model/ ./text-only/ --drop 'vision_tower.*'",
    )
)
@click.argument("src", type=PATH)
@click.argument("dst", type=OUTPUT)
@write_command(SliceKeywords)
def slice(src: Path | str, dst: str, dry_run: bool, as_json: bool, **options: Any) -> int:
    """Write a part of the model SRC to DST: layers, experts, tensors by name.

    config.json, a GGUF's keys and every list with an entry per layer are cut with the tensors, so the result is a
    model. Quantized tensors are unchanged. Without --renumber layers keep their numbers, and unless they are the first
    layers, the config remains the whole model's, for example for a pipeline stage.
    """
    import weighbridge

    plan = planned(weighbridge.plan_slice, src, dst, options, dry_run=dry_run)
    return write_transform(plan, dry_run=dry_run, as_json=as_json)
