"""`wb merge`: several shards, one file. A conversion to the same format without shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from weighbridge.cli.commands.plans import convert_and_tell, own_format, show_plan
from weighbridge.cli.options import examples, jobs_option, json_option


@click.command(
    epilog=examples(
        "wb merge ./sharded/ model.safetensors",
        "wb merge model-00001-of-00003.gguf model.gguf",
        "wb merge ./sharded/ model.safetensors --dry-run",
        "wb merge ./four-ranks/ ./model/",
    )
)
@click.argument("src", type=click.Path(path_type=Path))
@click.argument("dst", type=click.Path(path_type=Path))
@click.option("--overwrite", is_flag=True, help="Replace DST where it exists.")
@click.option("--dry-run", is_flag=True, help="Print the plan and write nothing.")
@jobs_option
@json_option
def command(src: Path, dst: Path, dry_run: bool, as_json: bool, **options: Any) -> int:
    """Merge the shards of SRC (their folder, or any one of them) into the single file DST, or a folder's one file.

    Tensor bytes stay as they are; the shares of a tensor-parallel set (`wb split SRC OUT --tp 4`) are put side by
    side. A missing shard is an error, and nothing is written.
    """
    act = show_plan if dry_run else convert_and_tell
    return act(src, dst, to=own_format(src, dst), as_json=as_json, **options)
