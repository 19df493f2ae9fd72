"""`wb lineage`: where models come from, by a few rows of their weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from weighbridge.base.errors import UsageError
from weighbridge.base.options import option
from weighbridge.base.records import dataclass
from weighbridge.cli.options import CommandOptions, command, examples
from weighbridge.cli.values import SOURCE
from weighbridge.io.options import OverwriteOptions
from weighbridge.reports.options import LineageOptions

if TYPE_CHECKING:
    from weighbridge.reports.lineage.model import LineageReport


@dataclass(frozen=True, kw_only=True)
class LineageCommand(LineageOptions, OverwriteOptions, CommandOptions):
    svg: str | None = option("Write the family tree as a picture.", metavar="FILE", kind="file")


@command(
    LineageCommand,
    epilog=examples(
        "wb lineage ./base/ ./tuned/",
        "wb lineage ./base/ ./tuned/ ./merged/ tuned-Q4_K_M.gguf --svg family.svg",
        "wb lineage hf://org/base hf://org/tuned --json",
    ),
)
@click.argument("models", nargs=-1, type=SOURCE, metavar="MODEL...")
def lineage(models: tuple[str, ...], options: LineageCommand) -> int:
    """Find out how MODELs are related: quantized, fine-tuned, LoRA merged, merged, pruned, repeated, or unrelated.

    Reads about a megabyte of each, in any format, also from servers. A parent is named only if the weights prove it, or
    if metadata names it and the weights agree; a ~ marks the nearest relative of a model whose parent is unknown. With
    -v prints every pair. Exit code 1 if the weights disprove a model's metadata.
    """
    import weighbridge
    from weighbridge.cli.render import Progress, emit_json
    from weighbridge.io.sink import check_target, write_file
    from weighbridge.reports.lineage.picture import svg

    if options.svg is not None:
        check_target(options.svg, overwrite=options.overwrite, folder=False)
    elif options.overwrite:
        raise UsageError("--overwrite replaces a picture", hint="write one with --svg FILE")
    with Progress() as progress:
        report = weighbridge.lineage(models, progress=progress, **options.keywords(weighbridge.lineage))
    if options.svg is not None:
        write_file(options.svg, svg(report).encode(), overwrite=options.overwrite)
    if options.json:
        emit_json(report)
    else:
        _show(report)
    return int(not report)


def _show(report: LineageReport) -> None:
    from weighbridge.cli.render import SCREEN, Column, clean, echo, human_bytes, note, table, warn
    from weighbridge.cli.views.lineage import print_tree
    from weighbridge.reports.lineage.words import describe, sentence

    if len(report.models) == 2:
        echo(clean(sentence(report.pairs[0])), "head")
    else:
        print_tree(report)
    if SCREEN.verbose and len(report.models) > 2:
        rows = [(clean(p.a), clean(p.b), clean(p.parent or ""), clean(describe(p))) for p in report.pairs]
        table([Column("a"), Column("b"), Column("parent"), Column("relation")], rows)
    for line in report.contradictions:
        warn(clean(line))
    for line in report.notes:
        note(clean(line))
    note(f"by {human_bytes(report.bytes_read)} of weights")
