"""`wb slice`: some layers, experts or tensors of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from weighbridge.cli.commands.surgery import tell, writing_options
from weighbridge.cli.options import examples
from weighbridge.cli.render import Progress


@click.command(
    epilog=examples(
        "wb slice ./model/ ./half/ --layers 0-15",
        "wb slice model.gguf short.gguf --layers 0-3,28-31 --renumber",
        "wb slice ./model/ ./deeper/ --layers 0-23,8-31 --renumber",
        "wb slice ./t5/ ./small/ --layers encoder:0-5 --layers decoder:0-2",
        "wb slice mixtral.gguf four-experts.gguf --experts 0-3",
        "wb slice ./model/ ./text-only/ --drop 'vision_tower.*'",
    )
)
@click.argument("src", type=click.Path(path_type=Path))
@click.argument("dst", type=click.Path(path_type=Path))
@click.option(
    "--layers", metavar="NUMBERS", multiple=True,
    help="Layers to take, in this order: 0-15, or 0,2,4-7, or 8-; of a model with two stacks encoder:0-3, decoder:0-1.",
)  # fmt: skip
@click.option("--renumber", is_flag=True, help="Count the layers anew from 0, and cut the config to them.")
@click.option("--experts", metavar="NUMBERS", help="Experts to take of every layer; routers are cut with them.")
@click.option("--keep", metavar="GLOB", multiple=True, help="Keep only tensors with names like this.")
@click.option("--drop", metavar="GLOB", multiple=True, help="Leave out tensors with names like this.")
@writing_options
def command(src: Path, dst: Path, dry_run: bool, as_json: bool, **options: Any) -> int:
    """Write a part of the model SRC to DST: some layers, some experts, tensors by name.

    config.json, a GGUF's keys and every list with an entry a layer are cut with the tensors, so that what is written is
    a model. Quantized tensors stay as they are. Layers other than the first ones keep their numbers without --renumber:
    that is a part of the model, for a pipeline say, and its config is the whole model's.
    """
    import weighbridge
    from weighbridge.cli.commands.plans import recipe

    options["layers"] = ",".join(options["layers"]) or None
    own = {key: options.pop(key) for key in ("layers", "renumber", "experts", "keep", "drop", "to")}
    with Progress() as progress:
        report = weighbridge.slice(src, dst, **own, dry_run=dry_run, progress=progress, options=recipe(options))
    return tell(report, dry_run=dry_run, as_json=as_json)
