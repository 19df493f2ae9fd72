"""`wb ls`: lists the models on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from weighbridge.base.options import option
from weighbridge.base.records import dataclass
from weighbridge.cli.options import CommandOptions, command, examples
from weighbridge.cli.values import SOURCE
from weighbridge.reports.options import LsOptions

if TYPE_CHECKING:
    from weighbridge.reports.stores.listing import StoreEntry


@dataclass(frozen=True, kw_only=True)
class LsCommand(LsOptions, CommandOptions):
    long: bool = option("Also show the address of each model.", False)


@command(
    LsCommand,
    epilog=examples(
        "wb ls",
        "wb ls --sort size:desc --include '*llama*'",
        "wb ls ~/models/ --json",
        "wb ls --long",
        "wb ls --lineage",
    ),
)
@click.argument("paths", nargs=-1, type=SOURCE, metavar="[FOLDER]...")
def ls(paths: tuple[str, ...], options: LsCommand) -> int:
    """List the models of this machine: the Hub's cache, Ollama, LM Studio, llama.cpp's cache; or those in FOLDERs,
    which may be s3://BUCKET/PREFIX or hf://ORG/NAME.

    Reads only headers. Data that several models share counts once in the sum. Commands open a model by its address:
    hf://org/name, ollama://name:tag, lmstudio://publisher/model, a path. Exit code 1 if no model is found.

    --lineage adds the families: a tree for models with a common origin, as `wb lineage` finds them. Only models that
    are alike are compared in pairs. Exit code 1 if the weights disprove a model's metadata.
    """
    import weighbridge
    from weighbridge.base.words import plural
    from weighbridge.cli.render import Progress, clean, echo, emit_json, human_bytes, note, warn

    if not options.lineage:
        report = weighbridge.ls(paths, **options.keywords(weighbridge.ls))
    else:
        with Progress(noun="comparison") as progress:
            report = weighbridge.ls(paths, progress=progress, **options.keywords(weighbridge.ls))
    if options.json:
        emit_json(report)
    else:
        _show(report.entries, options.long)
        troubles = [f"{e.name}: {e.trouble}" for e in report.entries if e.trouble]
        for line in (*troubles, *report.unreadable):
            warn(clean(line))
        if report.entries:
            echo(f"{plural(len(report.entries), 'model')}, {human_bytes(report.bytes)}", "head")
        else:
            matching = f" that match {' or '.join(options.include)}" if options.include else ""
            note(f"no models{matching} found; wb ls FOLDER lists those of a folder")
        if report.lineage is not None and report.entries:
            from weighbridge.cli.views.lineage import print_families

            print_families(report.lineage)
    return int(not report.entries or (report.lineage is not None and not report.lineage))


def _show(entries: tuple[StoreEntry, ...], long: bool) -> None:
    from weighbridge.cli.render import Column, clean, human_bytes, human_count, table

    def kind(e: StoreEntry) -> str:
        unreadable = "unreadable" if e.format == "unknown" else f"{e.format}, damaged"
        return e.format if e.trouble is None else unreadable

    columns = [Column("store"), Column("name"), Column("format"), Column("type"), Column("params", True),
               Column("size", True), Column("used")]  # fmt: skip
    rows = [
        [e.store, clean(e.name), kind(e), clean(e.quantization or ""),
         human_count(e.parameters) if e.parameters else "", human_bytes(e.bytes), (e.used or "")[:10],
         *([clean(e.address)] if long else [])]
        for e in entries
    ]  # fmt: skip
    if rows:
        table([*columns, *([Column("address")] if long else [])], rows)
