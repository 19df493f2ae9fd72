"""`wb identify`: identifies a file or a folder by its content."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from weighbridge.cli.options import CommandOptions, command, examples
from weighbridge.cli.values import SOURCE

if TYPE_CHECKING:
    from weighbridge.reports.identify import IdentifyReport


@command(
    CommandOptions,
    epilog=examples("wb identify model.bin", "wb identify ./downloads/*", "wb identify ./my-model/ --json"),
)
@click.argument("paths", nargs=-1, required=True, type=SOURCE, metavar="PATH...")
def identify(paths: tuple[str, ...], options: CommandOptions) -> int:
    """Identify each PATH by its content, never by its name, and list the evidence.

    Exit code 1 if a name is wrong or a file is visibly damaged, 2 if a path can't be read.
    """
    from weighbridge.cli.render import emit_json, os_words, print_error
    from weighbridge.reports.identify import identify

    reports, trouble = [], False
    for path in paths:
        try:
            reports.append(identify(path))
        except OSError as error:
            trouble = True
            print_error(f"{path}: {os_words(error)}")
    if options.json:
        emit_json(reports[0] if len(paths) == 1 and reports else reports)
    else:
        for report in reports:
            _show(report)
    return 2 if trouble else int(any(r.damage or r.name_lies for r in reports))


def _readable(value: object) -> object:
    """A value of the JSON as text for people."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_readable(inner)}" for key, inner in value.items())
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value


def _show(report: IdentifyReport) -> None:
    from weighbridge.cli.render import SCREEN, clean, echo, human_bytes, pairs, styled, table

    title = ", ".join(filter(None, (report.title, report.variant)))
    sure = "" if report.confidence == "certain" else f" ({report.confidence})"
    echo(f"{styled(clean(report.path), 'head')}: {clean(title)}{sure}, {human_bytes(report.bytes)}")
    pairs([("because", reason) for reason in report.evidence], indent=2)
    pairs(
        [
            (key.replace("_", " "), _readable(value))
            for key, value in report.detail.items()
            if value not in (None, [], {})
        ],
        indent=2,
    )
    for label, style, lines in (
        ("damaged", "error", report.damage),
        ("wrong name", "warning", [report.name_lies] if report.name_lies else []),
        ("next", "info", [report.advice] if report.advice else []),
    ):
        for line in lines:
            echo(f"  {styled(label, style)}  {clean(line)}")
    if report.files and SCREEN.verbose:
        table(["file", "format", "variant"], [(line.name, line.format, line.variant) for line in report.files])
    if not report.readable and report.kind == "file":
        echo(f"  {styled('this version has no reader for it', 'dim')}")
