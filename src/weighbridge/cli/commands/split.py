"""`wb split`: one model, several files. A conversion to the same format with a bound on the size of a file, or with a
file for each rank of a tensor-parallel group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from weighbridge.cli.options import command, examples, option, shard_options, source_options, write_options
from weighbridge.cli.paths import OUTPUT, PATH
from weighbridge.cli.views.plan import planned, write


@command(
    epilog=examples(
        "wb split model.safetensors ./sharded/ --max-size 5GB",
        "wb split model.gguf ./sharded/ --max-size 2G",
        "wb split model.gguf ./sharded/ --max-tensors 128 --dry-run",
        "wb split ./model/ ./four-ranks/ --tp 4 --max-size 5GB",
    )
)
@click.argument("src", type=PATH)
@click.argument("dst", type=OUTPUT)
@shard_options(size=("--max-size", "--max-shard-size"), tensors=("--max-tensors", "--max-shard-tensors"))
@option("--tp", type=click.IntRange(2), metavar="N", help="Split each tensor among N tensor-parallel ranks.")
@source_options
@write_options
def split(src: Path | str, dst: str, dry_run: bool, as_json: bool, **options: Any) -> int:
    """Split the model SRC into shards in the folder DST.

    Safetensors shards get an index (`model.safetensors.index.json`), GGUF shards the names and keys of
    llama-gguf-split. Tensor bytes stay as they are; a tensor larger than the bound gets a shard of its own.

    With --tp each tensor is cut: linear layers by outputs or inputs as their place in the model demands, heads whole,
    norms on every rank. Quantized tensors are cut in their own codes, between words, blocks and groups. `wb merge`
    joins the ranks again.
    """
    import weighbridge

    plan = planned(weighbridge.plan_split, src, dst, options, dry_run=dry_run)
    return write(plan, dry_run=dry_run, as_json=as_json)
