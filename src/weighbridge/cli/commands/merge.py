"""`wb merge`: several shards, one file. A conversion to the same format without shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from weighbridge.base.errors import UsageError
from weighbridge.cli.options import PATH, command, examples, source_options, write_options
from weighbridge.cli.views.plan import given, write


@command(
    epilog=examples(
        "wb merge ./sharded/ model.safetensors",
        "wb merge model-00001-of-00003.gguf model.gguf",
        "wb merge ./sharded/ model.safetensors --dry-run",
        "wb merge ./four-ranks/ ./model/",
    )
)
@click.argument("paths", nargs=-1, type=PATH, metavar="SRC... DST")
@source_options
@write_options
def merge(paths: tuple[Path, ...], dry_run: bool, as_json: bool, **options: Any) -> int:
    """Merge the shards of SRC (their folder, any one of them, or all of them) into the single file DST, or a folder's
    one file.

    Tensor bytes stay as they are; the files of a tensor-parallel set (`wb split SRC OUT --tp 4`) are joined. A missing
    shard is an error, and nothing is written.
    """
    import weighbridge

    if len(paths) < 2:
        raise UsageError("no target was given", hint="wb merge SRC DST")
    src, *others = paths[:-1]
    if others:
        _check_one_set(src, others)
    return write(weighbridge.plan_merge(src, paths[-1], **given(options)), dry_run=dry_run, as_json=as_json)


def _check_one_set(src: Path, others: list[Path]) -> None:
    """UsageError where a file isn't of the set that `src` is of."""
    from weighbridge.models.locate import locate

    known = {file.resolve() for file in locate(src).weights}
    for path in others:
        if path.resolve() not in known:
            raise UsageError(f"{path} is not a shard of the set of {src}", hint="wb merge takes the shards of one set")
