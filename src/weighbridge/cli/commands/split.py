"""`wb split`: splits a model into several files. It converts to the same format with a maximum file size, or with a
file for each rank of a tensor-parallel group."""

from __future__ import annotations

from pathlib import Path

import click

from weighbridge.api.keywords import SplitKeywords
from weighbridge.cli.options import command, examples
from weighbridge.cli.values import OUTPUT, PATH
from weighbridge.cli.views.plan import WriteCommand, planned, write


@command(
    SplitKeywords,
    WriteCommand,
    epilog=examples(
        "wb split model.safetensors ./sharded/ --max-shard-size 5GB",
        "wb split model.gguf ./sharded/ --max-shard-size 2G",
        "wb split model.gguf ./sharded/ --max-shard-tensors 128 --dry-run",
        "wb split ./model/ ./four-ranks/ --tp 4 --max-shard-size 5GB",
    ),
)
@click.argument("src", type=PATH)
@click.argument("dst", type=OUTPUT)
def split(src: Path | str, dst: str, options: WriteCommand) -> int:
    """Split the model SRC into shards in the folder DST.

    Safetensors shards get an index (`model.safetensors.index.json`), GGUF shards the names and keys of
    llama-gguf-split. Tensor bytes are unchanged; a tensor larger than the maximum gets a separate shard.

    With --tp each tensor is cut: linear layers by outputs or inputs, as the architecture requires; heads stay whole,
    and norms are on every rank. Quantized tensors are cut without decoding, between words, blocks and groups.
    `wb merge` joins the ranks again.
    """
    import weighbridge

    plan = planned(weighbridge.plan_split, src, dst, options)
    return write(plan, options)
