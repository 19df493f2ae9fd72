"""`wb scan`: reports what loading a file would or could do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import click

from weighbridge.base.options import option
from weighbridge.base.records import dataclass
from weighbridge.cli.options import CommandOptions, command, examples, refuse_others
from weighbridge.cli.values import SOURCE
from weighbridge.io.options import OverwriteOptions
from weighbridge.reports.options import ScanOptions

if TYPE_CHECKING:
    from weighbridge.reports.scan.model import FileReport, ScanFinding, ScanVerdict

_SHOWN: Final = 10  # findings of one file, unless --verbose
_LIBRARIES: Final = 4  # libraries that the hint names
# Verdict -> its text, and the style.
_WORDS: Final = {
    "data-only": ("data only", "ok"),
    "unproven": ("unproven", "warning"),
    "unknown-code": ("unknown code", "warning"),
    "malformed": ("malformed or ambiguous", "error"),
    "dangerous": ("dangerous", "error"),
    "not-scanned": ("not scanned", "warning"),
}


@dataclass(frozen=True, kw_only=True)
class ScanFailureOptions(ScanOptions):
    """What counts as a failure, here and in `wb fleet scan`."""

    fail_on: str = option(
        "Exit with 1 from this verdict on [unknown-code].", "unknown-code",
        choices=("dangerous", "malformed", "unknown-code", "never"),
    )  # fmt: skip
    allow_unproven: bool = option("Don't fail if something couldn't be analyzed.", False)
    allow_unscanned: bool = option("Don't fail if something wasn't scanned.", False)


@dataclass(frozen=True, kw_only=True)
class ScanCommand(ScanFailureOptions, OverwriteOptions, CommandOptions):
    recursive: bool = option("Scan folders, which it always does.", False, letter="r", hidden=True)
    sarif: str | None = option(
        "Also write the findings as SARIF 2.1.0; - for stdout.", metavar="FILE", kind="file or stdout"
    )


@command(
    ScanCommand,
    epilog=examples(
        "wb scan pytorch_model.bin",
        "wb scan ./downloads/ --fail-on dangerous",
        "wb scan ./my-model/ --sarif scan.sarif",
    ),
)
@click.argument("paths", nargs=-1, required=True, type=SOURCE, metavar="PATH...")
def scan(paths: tuple[str, ...], options: ScanCommand) -> int:
    """Report what loading each file under PATH would do besides returning numbers. Nothing in it is run.

    Pickles are interpreted, not unpickled: a call outside an exact table of harmless calls is unknown code. Archives
    are scanned, and refused if programs would read different contents from them.

    Exit code 1 from the verdict of --fail-on on, and if something couldn't be analyzed (unproven) or wasn't scanned,
    unless that is allowed; 2 if a file can't be read.
    """
    from weighbridge.cli.render import Progress, emit_json
    from weighbridge.io.sink import check_target, write_file
    from weighbridge.reports.scan.engine import failed, fold, reports
    from weighbridge.reports.scan.model import ScanVerdict

    sarif, quiet = options.sarif, options.json or options.sarif == "-"
    if sarif not in (None, "-"):
        check_target(str(sarif), overwrite=options.overwrite, folder=False)
    else:
        others = ("overwrite", "json") if sarif else ("overwrite",)
        refuse_others("standard output", options, others, "name a file: --sarif FILE")
    with Progress() as progress:
        every = reports(paths, lambda done, _, name: progress.count(done, "file", name), options.allow_library)
        report = fold(paths, every if quiet else _shown(every, paths, progress.clear))
    if options.json:
        emit_json(report)
    elif not quiet:
        from weighbridge.base.words import plural
        from weighbridge.cli.render import echo, human_bytes, styled
        from weighbridge.reports.scan.engine import unknown_libraries

        some = {verdict: n for verdict, n in report.counts.items() if n}
        counts = ", ".join(f"{n:,} {_WORDS[verdict][0]}" for verdict, n in reversed(some.items()))
        seen = f"{plural(report.scanned, 'file')}, {human_bytes(report.nbytes)}: {counts}" if some else "no files"
        echo(f"{styled('overall', 'head')}: {_verdict(report.verdict)} ({seen})")
        if libraries := unknown_libraries(report):
            few = " ".join(f"--allow-library {name}" for name in libraries[:_LIBRARIES])
            echo(f"if you trust these libraries, accept their classes: {few}", "dim")
        if some and not report.complete:
            unread = f"; {plural(report.unreadable, 'file')} can't be read" if report.unreadable else ""
            echo(f"not everything was scanned{unread}", "warning")
    if sarif:
        import json

        from weighbridge.reports.scan.sarif import sarif as sarif_of

        if sarif == "-":
            emit_json(sarif_of(report))
        else:
            write_file(sarif, json.dumps(sarif_of(report), indent=1).encode() + b"\n", overwrite=options.overwrite)
    least = None if options.fail_on == "never" else ScanVerdict(options.fail_on)
    unscanned = options.allow_unscanned or bool(report.unreadable)
    if failed(report, least, allow_unproven=options.allow_unproven, allow_unscanned=unscanned):
        return 1
    return 2 if report.unreadable else 0


# ---- for people ----


def _shown(every: Iterable[FileReport], named: tuple[str, ...], before: object) -> Iterator[FileReport]:
    """Yields each report and prints it. Files of a folder that contain only data are only counted."""
    from weighbridge.cli.render import SCREEN

    for report in every:
        plain = report.verdict.value == "data-only" and report.complete and not report.findings
        if not plain or report.path in named or SCREEN.verbose:
            if callable(before):
                before()
            _show(report)
        yield report


def _verdict(verdict: ScanVerdict) -> str:
    from weighbridge.cli.render import styled

    return styled(*_WORDS[verdict.value])


def _show(report: FileReport) -> None:
    from weighbridge.base.words import plural
    from weighbridge.cli.render import SCREEN, clean, echo, styled

    partly = "" if report.complete or report.verdict.value == "not-scanned" else ", as far as it was scanned"
    echo(f"{styled(clean(report.path), 'head')}: {_verdict(report.verdict)}{partly}")
    findings = report.findings if SCREEN.verbose else report.findings[:_SHOWN]
    for finding in findings:
        _show_finding(finding)
    rest = len(report.findings) - len(findings) + report.more
    if rest:
        echo(f"  ... {plural(rest, 'more finding')}" + ("" if SCREEN.verbose else " (--verbose, --json)"), "dim")
    missed = report.skipped if SCREEN.verbose else report.skipped[:_SHOWN]
    for part in missed:
        inside = f"{'!'.join(part.members)}: " if part.members else ""
        echo(f"  {styled('not scanned', 'warning')}: {clean(f'{inside}{part.what}: {part.why}')}")
    if len(report.skipped) > len(missed):
        echo(f"  ... {plural(len(report.skipped) - len(missed), 'more part')} not scanned", "dim")


def _show_finding(f: ScanFinding) -> None:
    from weighbridge.cli.render import clean, echo, styled

    style = {"data-only": "info", "unknown-code": "warning"}.get(f.verdict.value, "error")
    label = "note" if f.verdict.value == "data-only" else _WORDS[f.verdict.value][0].partition(",")[0]
    arguments = f" with {', '.join(f.arguments)}" if f.arguments and f.use and f.use.value == "called" else ""
    echo(f"  {styled(label, style)}: {clean(f.message + arguments)}  {styled(f'({f.rule})', 'dim')}")
    place = ["!".join(f.members)] if f.members else []
    place += [f"byte {f.offset:,}"] if f.offset is not None else []
    place += [f"byte {f.file_offset:,} of the file"] if f.file_offset not in (None, f.offset) else []
    place += [f.opcode] if f.opcode else []
    if place:
        echo(f"    {styled('at', 'dim')} {clean(', '.join(place))}")
    if f.consequence:
        echo(f"    {clean(f.consequence)}")
