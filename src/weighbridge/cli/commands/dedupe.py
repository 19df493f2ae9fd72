"""`wb dedupe`: lets identical files share their disk space."""

from __future__ import annotations

import click

from weighbridge.base.errors import UsageError
from weighbridge.base.options import option
from weighbridge.base.records import dataclass
from weighbridge.cli.options import DryRunOptions, command, examples


@dataclass(frozen=True, kw_only=True)
class DedupeCommand(DryRunOptions):
    hard_link: bool = option(
        "If the file system can't share blocks, make hard links: one file under several names. "
        "Changing one of them in place then changes all.", False,
    )  # fmt: skip
    yes: bool = option("Don't ask.", False, letter="y")


@command(DedupeCommand, epilog=examples("wb dedupe --dry-run", "wb dedupe --yes", "wb dedupe ~/models/ --hard-link"))
@click.argument("paths", nargs=-1, metavar="[FOLDER]...")
def dedupe(paths: tuple[str, ...], options: DedupeCommand) -> None:
    """Let identical files share their disk space, in the stores of this machine or in FOLDERs, after asking.

    On btrfs and XFS the kernel compares the files and shares their blocks, so they stay separate files. On other file
    systems --hard-link makes them one file, after comparing every byte. Nothing is deleted.
    """
    from weighbridge.cli.render import Progress, clean, echo, emit_json, human_bytes, is_terminal, warn
    from weighbridge.reports.stores import duplicates

    if not (options.dry_run or options.yes):
        import sys

        if options.json or not is_terminal(sys.stdin):
            raise UsageError("dedupe asks before it changes anything", hint="--yes, or --dry-run to see the changes")
        found = duplicates.usage(paths).duplicates
        if not found:
            return echo("nothing is stored twice")
        for duplicate in found:
            echo(human_bytes(duplicate.wasted))
            for path in duplicate.paths:
                echo(f"  {clean(path)}")
        click.confirm(f"share {human_bytes(sum(d.wasted for d in found))}?", abort=True)
    with Progress() as progress:
        report = duplicates.dedupe(paths, hard_link=options.hard_link, dry_run=options.dry_run, progress=progress)
    if options.json:
        return emit_json(report)
    for row in report.shared:
        why = f" ({row.why})" if row.why else ""
        echo(f"{row.how}{why}, {human_bytes(row.bytes)}")
        echo(f"  {clean(row.path)}\n  = {clean(row.same_as)}", "dim")
    for line in report.unreadable:
        warn(f"not compared: {clean(line)}")
    if not report.shared:
        return echo("nothing is stored twice")
    return echo(f"{human_bytes(report.freed)} {'would be shared' if options.dry_run else 'shared'}", "head")
