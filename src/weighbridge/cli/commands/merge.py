"""`wb merge`: merges shards into one file: a conversion to the same format without shards."""

from __future__ import annotations

from pathlib import Path

import click

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.api.keywords import WriteKeywords
from weighbridge.base.errors import UsageError
from weighbridge.cli.options import command, examples
from weighbridge.cli.values import NamedPath
from weighbridge.cli.views.plan import WriteCommand, planned, write


@command(
    WriteKeywords,
    WriteCommand,
    epilog=examples(
        "wb merge ./sharded/ model.safetensors",
        "wb merge model-00001-of-00003.gguf model.gguf",
        "wb merge ./sharded/ model.safetensors --dry-run",
        "wb merge ./four-ranks/ ./model/",
    ),
)
@click.argument("paths", nargs=-1, type=NamedPath(), metavar="SRC... DST")
def merge(paths: tuple[str, ...], options: WriteCommand) -> int:
    """Merge the shards of SRC (their folder, any one of them, or all of them) into the single file DST, or into a
    folder with one file.

    Tensor bytes are unchanged; the files of a tensor-parallel set (`wb split SRC OUT --tp 4`) are joined. If a shard is
    missing, nothing is written.
    """
    import weighbridge
    from weighbridge.models.lora.forms import looks_like_adapter

    if paths and paths[-1] == "-":
        raise UsageError("a model can't be written to standard output", hint="wb merge SRC DST")
    if len(paths) < 2:
        raise UsageError("no target was given", hint="wb merge SRC DST")
    if looks_like_adapter(Path(paths[-1])):
        raise UsageError(
            f"{paths[-1]} is a LoRA adapter; wb merge joins the shards of one model",
            hint=f"wb convert {paths[0]} DST --lora {paths[-1]} merges it into the weights",
        )
    source = _set_of(tuple(map(resolve_path, paths[:-1])))
    plan = planned(weighbridge.plan_merge, source, paths[-1], options)
    return write(plan, options)


def _set_of(paths: tuple[Path, ...]) -> Path:
    """The path of the set with these shards: the first, or its folder. Raises UsageError for shards of several sets."""
    from weighbridge.models.locate import locate

    if len(paths) == 1:
        return paths[0]
    shards = {path.resolve() for path in paths}
    for place in (paths[0], paths[0].parent):
        if shards <= {file.resolve() for file in locate(place).weights}:
            return place
    raise UsageError(
        f"{paths[-1]} is not a shard of the set of {paths[0]}", hint="wb merge takes the shards of one set"
    )
