"""`wb du`: the disk usage of models."""

from __future__ import annotations

import click

from weighbridge.cli.options import CommandOptions, command, examples


@command(CommandOptions, epilog=examples("wb du", "wb du ~/models/ ~/.cache/huggingface/hub/", "wb du --json"))
@click.argument("paths", nargs=-1, metavar="[FOLDER]...")
def du(paths: tuple[str, ...], options: CommandOptions) -> None:
    """Show the disk usage of the models of this machine or in FOLDERs: by store, duplicates, leftovers, several forms.

    Files of the same size are read to compare them, unless their store names them by their digest; so are models of the
    same architecture, number of parameters and type. F32 values are sampled for those that a 16-bit type holds.
    Changes nothing; wb dedupe shares files that are stored twice.
    """
    from weighbridge.base.words import plural
    from weighbridge.cli.render import Column, Progress, clean, echo, emit_json, human_bytes, human_count, table, warn
    from weighbridge.reports.stores.duplicates import usage

    with Progress() as progress:
        report = usage(paths, progress=progress)
    if options.json:
        return emit_json(report)
    rows = [[row.store, clean(row.path), f"{row.files:,}", human_bytes(row.bytes)] for row in report.usage]
    if rows:
        table([Column("store"), Column("folder"), Column("files", True), Column("size", True)], rows)
    echo(f"{human_bytes(report.bytes)} in all", "head")
    wasted = sum(d.wasted for d in report.duplicates)
    if report.duplicates:
        echo(f"\nstored several times: {human_bytes(wasted)} could be shared (wb dedupe)", "head")
        for duplicate in report.duplicates:
            echo(f"  {human_bytes(duplicate.bytes)}, {len(duplicate.paths)} times")
            for path in duplicate.paths:
                echo(f"    {clean(path)}", "dim")
    if report.leftovers:
        total = sum(leftover.bytes for leftover in report.leftovers)
        echo(f"\nused by no model: {plural(len(report.leftovers), 'file')}, {human_bytes(total)}", "head")
        for leftover in report.leftovers:
            echo(f"  {human_bytes(leftover.bytes)}  {leftover.kind}  {clean(leftover.path)}")
    if report.forms:
        echo("\nthe same architecture and number of parameters, in several forms", "head")
        for forms in report.forms:
            echo(f"  {clean(forms.architecture)} {human_count(forms.parameters)}, {human_bytes(forms.bytes)}")
            width = max(map(len, forms.types))
            for name, kind in zip(forms.names, forms.types, strict=True):
                echo(f"    {clean(kind.ljust(width))}  {clean(name)}")
            for group in forms.same:
                same = f": {clean(', '.join(group))}" if len(group) < len(forms.names) else ""
                echo(f"    the same tensors{same or (' in both' if len(group) == 2 else ' in all')}", "dim")
    if report.wider:
        spare = human_bytes(sum(entry.spare for entry in report.wider))
        echo(f"\nwider than their values, by samples: {spare} less as a 16-bit type", "head")
        for entry in report.wider:
            echo(f"  {human_bytes(entry.spare)} of {human_bytes(entry.bytes)}  {clean(entry.name)}")
            echo(f"    {entry.wider}", "dim")
    if report.uncompared:
        echo("\nnot compared with the others", "head")
        for line in report.uncompared:
            echo(f"  {clean(line)}")
    for line in report.unreadable:
        warn(clean(line))
    return None
