"""`wb merge`: several shards, one file. A conversion to the same format without shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import UsageError
from weighbridge.cli.options import command, examples, source_options, write_options
from weighbridge.cli.paths import ModelPath
from weighbridge.cli.views.plan import planned, write


@command(
    epilog=examples(
        "wb merge ./sharded/ model.safetensors",
        "wb merge model-00001-of-00003.gguf model.gguf",
        "wb merge ./sharded/ model.safetensors --dry-run",
        "wb merge ./four-ranks/ ./model/",
    )
)
@click.argument("paths", nargs=-1, type=ModelPath(), metavar="SRC... DST")
@source_options
@write_options
def merge(paths: tuple[str, ...], dry_run: bool, as_json: bool, **options: Any) -> int:
    """Merge the shards of SRC (their folder, any one of them, or all of them) into the single file DST, or a folder's
    one file.

    Tensor bytes stay as they are; the files of a tensor-parallel set (`wb split SRC OUT --tp 4`) are joined. A missing
    shard is an error, and nothing is written.
    """
    import weighbridge

    if paths and paths[-1] == "-":
        raise UsageError("a model can't be written to standard output", hint="wb merge SRC DST")
    if len(paths) < 2:
        raise UsageError("no target was given", hint="wb merge SRC DST")
    source = _set_of(tuple(map(resolve_path, paths[:-1])))
    plan = planned(weighbridge.plan_merge, source, paths[-1], options, dry_run=dry_run)
    return write(plan, dry_run=dry_run, as_json=as_json)


def _set_of(paths: tuple[Path, ...]) -> Path:
    """The path of the set that these are shards of: the first, or the folder. UsageError where they are of several."""
    from weighbridge.models.locate import locate

    if len(paths) == 1:
        return paths[0]
    given = {path.resolve() for path in paths}
    for place in (paths[0], paths[0].parent):
        if given <= {file.resolve() for file in locate(place).weights}:
            return place
    raise UsageError(
        f"{paths[-1]} is not a shard of the set of {paths[0]}", hint="wb merge takes the shards of one set"
    )
