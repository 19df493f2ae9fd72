"""`wb merge`: merges models into one, adapters into a model, or shards into one file."""

from __future__ import annotations

from pathlib import Path

import click

from weighbridge.api.keywords import MergeKeywords
from weighbridge.base.errors import UsageError
from weighbridge.cli.options import command, examples
from weighbridge.cli.values import NamedPath
from weighbridge.cli.views.plan import WriteCommand, planned, write


@command(
    MergeKeywords,
    WriteCommand,
    epilog=examples(
        "wb merge ./model-a/ ./model-b/ ./merged/ --method slerp --t 0.4",
        "wb merge ./math/ ./code/ merged.gguf --method ties --merge-base ./base/ --density 0.5 --dtype q8_0",
        "wb merge recipe.yaml ./merged/",
        "wb merge ./model/ ./adapter/ ./merged/",
        "wb merge ./sharded/ model.safetensors",
        "wb merge model-00001-of-00003.gguf model.gguf",
    ),
)
@click.argument("paths", nargs=-1, type=NamedPath(), metavar="SRC... DST")
def merge(paths: tuple[str, ...], options: WriteCommand) -> int:
    """Merge models, by a method or by a recipe in mergekit's YAML; LoRA adapters into their model; or the shards of one
    model into the single file DST, or into a folder with one file.

    Models of any formats mix: their tensors meet under the same names, in F32, and are rounded once. Config and
    tokenizer are the base's, else the first model's. Shards are copied unchanged; if one is missing, nothing is
    written.
    """
    import weighbridge
    from weighbridge.models.lora.forms import looks_like_adapter

    if paths and paths[-1] == "-":
        raise UsageError("a model can't be written to standard output", hint="wb merge SRC DST")
    if len(paths) < 2:
        raise UsageError("no target was given", hint="wb merge SRC DST")
    if looks_like_adapter(Path(paths[-1])):
        hint = f"wb merge {paths[0]} {paths[-1]} DST merges it into the weights"
        raise UsageError(f"{paths[-1]} is a LoRA adapter, and DST would replace it", hint=hint)
    plan = planned(weighbridge.plan_merge, paths[:-1], paths[-1], options)
    return write(plan, options)
