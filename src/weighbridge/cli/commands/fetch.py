"""`wb fetch`: fetches remote files into a folder."""

from __future__ import annotations

from pathlib import Path

import click

from weighbridge.cli.options import command, examples
from weighbridge.cli.values import OUTPUT, PATH
from weighbridge.cli.views.plan import WriteCommand, planned, write
from weighbridge.conversion.archive.options import FetchOptions


@command(
    FetchOptions,
    WriteCommand,
    epilog=examples(
        "wb fetch hf://org/model ./model/",
        "wb fetch hf://org/model@v1.0 ./model/ --include '*.json' --include '*Q4_K_M*'",
        "wb fetch s3://bucket/model ./model/ --exclude '*.bin'",
        "wb fetch hf://org/model ./model/ --dry-run",
    ),
)
@click.argument("src", type=PATH)
@click.argument("dst", type=OUTPUT, metavar="DIR")
def fetch(src: Path | str, dst: str, options: WriteCommand) -> int:
    """Fetch the files of SRC (hf://, https://, s3://, ollama:// ...) into the folder DIR.

    An index of shards, or a part of a split GGUF, fetches the whole set. A single file is written to the path DIR if
    that has its suffix, as in wb fetch https://.../model.gguf model.gguf.

    Each file is compared with the digest that the Hub or the registry lists before the folder gets its final name.
    After an interruption, the same command continues.
    """
    import weighbridge

    plan = planned(weighbridge.plan_fetch, src, dst, options)
    return write(plan, options)
