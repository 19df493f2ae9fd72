"""`wb split`: one model, several files. A conversion to the same format with a bound on the size of a file, or with a
file for each rank of a tensor-parallel group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from weighbridge.base.errors import UsageError
from weighbridge.cli.commands.plans import convert_and_tell, own_format, show_plan
from weighbridge.cli.options import arch_file_option, examples, jobs_option, json_option, size_option


@click.command(
    epilog=examples(
        "wb split model.safetensors ./sharded/ --max-size 5GB",
        "wb split model.gguf ./sharded/ --max-size 2G",
        "wb split model.gguf ./sharded/ --max-tensors 128 --dry-run",
        "wb split ./model/ ./four-ranks/ --tp 4 --max-shard-size 5GB",
    )
)
@click.argument("src", type=click.Path(path_type=Path))
@click.argument("dst", type=click.Path(path_type=Path))
@size_option("--max-size", "--max-shard-size", "--split-max-size", help="Largest size of one shard, such as 5GB.")
@click.option(
    "--max-tensors", "--split-max-tensors", type=click.IntRange(1), metavar="N", help="Most tensors in a shard."
)
@click.option("--tp", type=click.IntRange(2), metavar="N", help="Share out each tensor among N tensor-parallel ranks.")
@arch_file_option
@click.option("--overwrite", is_flag=True, help="Replace DST where it exists.")
@click.option("--dry-run", is_flag=True, help="Print the plan and write nothing.")
@jobs_option
@json_option
def command(
    src: Path,
    dst: Path,
    max_size: int | None,
    max_tensors: int | None,
    tp: int | None,
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Split the model SRC into shards in the folder DST.

    Safetensors shards get an index (`model.safetensors.index.json`), GGUF shards the names and keys of
    llama-gguf-split. Tensor bytes stay as they are; a tensor larger than the bound gets a shard of its own.

    With --tp each tensor is cut: linear layers by outputs or inputs as their place in the model demands, heads whole,
    norms on every rank. Quantized tensors are cut in their own codes, between words, blocks and groups. `wb merge` puts
    the ranks together again.
    """
    if max_size is None and max_tensors is None and tp is None:
        raise UsageError("how large may a shard be?", hint="say --max-size 5GB or --max-tensors 128, or --tp 4")
    act = show_plan if dry_run else convert_and_tell
    return act(
        src,
        dst,
        to=None if tp else own_format(src, dst),
        tp=tp,
        as_json=as_json,
        max_shard_size=max_size,
        split_max_tensors=max_tensors,
        **options,
    )
