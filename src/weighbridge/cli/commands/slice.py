"""`wb slice`: extracts layers, experts or tensors of a model."""

from __future__ import annotations

from pathlib import Path

import click

from weighbridge.api.keywords import SliceKeywords
from weighbridge.cli.options import command, examples
from weighbridge.cli.values import OUTPUT, PATH
from weighbridge.cli.views.plan import WriteCommand, planned
from weighbridge.cli.views.transform import write_transform


@command(
    SliceKeywords,
    WriteCommand,
    epilog=examples(
        "wb slice ./model/ ./half/ --layers 0-15",
        "wb slice model.gguf short.gguf --layers 0-3,28-31 --renumber",
        "wb slice ./model/ ./deeper/ --layers 0-23,8-31 --renumber",
        "wb slice ./t5/ ./small/ --layers encoder:0-5 --layers decoder:0-2",
        "wb slice mixtral.gguf four-experts.gguf --experts 0-3",
        "wb slice ./model/ ./text-only/ --drop 'vision_tower.*'",
    ),
)
@click.argument("src", type=PATH)
@click.argument("dst", type=OUTPUT)
def slice(src: Path | str, dst: str, options: WriteCommand) -> int:
    """Write a part of the model SRC to DST: layers, experts, tensors by name.

    config.json, a GGUF's keys and every list with an entry per layer are cut with the tensors, so the result is a
    model. Quantized tensors are unchanged. Without --renumber layers keep their numbers, and unless they are the first
    layers, the config remains the whole model's, for example for a pipeline stage.
    """
    import weighbridge

    plan = planned(weighbridge.plan_slice, src, dst, options)
    return write_transform(plan, options)
