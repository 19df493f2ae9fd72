"""`wb slice`: some layers, experts or tensors of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from weighbridge.cli.options import command, examples, option
from weighbridge.cli.paths import OUTPUT, PATH
from weighbridge.cli.views.plan import planned
from weighbridge.cli.views.transform import transform_options, write_transform


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
@option(
    "--layers", metavar="NUMBERS", multiple=True,
    help="Layers to keep, in this order: 0-15, or 0,2,4-7, or 8-; of two stacks encoder:0-3, decoder:0-1.",
)  # fmt: skip
@option("--renumber", is_flag=True, help="Number the layers from 0, and cut the config to them.")
@option("--experts", metavar="NUMBERS", help="Experts to keep in every layer; routers are cut with them.")
@option("--keep", metavar="GLOB", multiple=True, help="Keep only tensors whose name matches.")
@option("--drop", metavar="GLOB", multiple=True, help="Leave out tensors whose name matches.")
@transform_options
def slice(src: Path | str, dst: str, dry_run: bool, as_json: bool, **options: Any) -> int:
    """Write a part of the model SRC to DST: some layers, some experts, tensors by name.

    config.json, a GGUF's keys and every list with an entry per layer are cut with the tensors, so the result is a
    model. Quantized tensors stay as they are. Without --renumber layers keep their numbers and the config is the whole
    model's: a part for a pipeline, say.
    """
    import weighbridge

    plan = planned(weighbridge.plan_slice, src, dst, options, dry_run=dry_run)
    return write_transform(plan, dry_run=dry_run, as_json=as_json)
