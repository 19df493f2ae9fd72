"""`wb ls`: the models on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from weighbridge.cli.options import command, examples, json_option, option

if TYPE_CHECKING:
    from weighbridge.reports.stores.listing import StoreEntry


@command(
    epilog=examples("wb ls", "wb ls --sort size:desc --filter '*llama*'", "wb ls ~/models/ --json", "wb ls --long")
)
@click.argument("paths", nargs=-1, metavar="[FOLDER]...")
@option("--filter", multiple=True, metavar="GLOB", help="Only models whose name matches.")
@option("--sort", metavar="FIELD[:desc]", help="name, size, used, params, format or store.")
@option("--long", is_flag=True, help="Show the address of each model too.")
@json_option
def ls(paths: tuple[str, ...], filter: tuple[str, ...], sort: str | None, long: bool, as_json: bool) -> int:
    """List the models of this machine: the Hub's cache, Ollama, LM Studio, llama.cpp's cache, or those in FOLDERs.

    Reads headers only. What several models share counts once in the sum. Each is opened by its address: hf://org/name,
    ollama://name:tag, lmstudio://publisher/model, a path. Exit code 1 where there is none.
    """
    from weighbridge.cli.render import clean, echo, emit_json, human_bytes, note, plural, warn
    from weighbridge.reports.stores.listing import list_models

    report = list_models(paths, filter=filter, sort=sort)
    if as_json:
        emit_json(report)
    else:
        _show(report.entries, long)
        troubles = [f"{e.name}: {e.trouble}" for e in report.entries if e.trouble]
        for words in (*troubles, *report.unreadable):
            warn(clean(words))
        if report.entries:
            echo(f"{plural(len(report.entries), 'model')}, {human_bytes(report.bytes)}", "head")
        else:
            note("no models found; wb ls FOLDER lists those of a folder")
    return int(not report.entries)


def _show(entries: tuple[StoreEntry, ...], long: bool) -> None:
    from weighbridge.cli.render import Column, clean, human_bytes, human_count, table

    columns = [Column("store"), Column("name"), Column("format"), Column("type"), Column("params", True),
               Column("size", True), Column("used")]  # fmt: skip
    rows = [
        [e.store, clean(e.name), _format(e), clean(e.quantization or ""),
         human_count(e.parameters) if e.parameters else "", human_bytes(e.bytes), (e.used or "")[:10],
         *([clean(e.address)] if long else [])]
        for e in entries
    ]  # fmt: skip
    if rows:
        table([*columns, *([Column("address")] if long else [])], rows)


def _format(entry: StoreEntry) -> str:
    if entry.trouble is None:
        return entry.format
    return "unreadable" if entry.format == "unknown" else f"{entry.format}, damaged"
