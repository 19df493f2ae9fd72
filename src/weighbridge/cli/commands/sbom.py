"""`wb sbom`: writes a model's bill of materials."""

from __future__ import annotations

import click

from weighbridge.base.errors import UsageError
from weighbridge.base.options import option
from weighbridge.base.records import dataclass
from weighbridge.cli.options import CommandOptions, command, examples
from weighbridge.cli.values import SOURCE
from weighbridge.io.options import OverwriteOptions
from weighbridge.reports.sbom.report import SbomOptions


@dataclass(frozen=True, kw_only=True)
class SbomCommand(SbomOptions, OverwriteOptions, CommandOptions):
    output: str | None = option("Write it there [standard output].", letter="o", metavar="FILE", kind="file")


@command(
    SbomCommand,
    epilog=examples(
        "wb sbom ./my-model/ -o my-model.cdx.json",
        "wb sbom model.gguf --format spdx -o model.spdx.json",
        "wb sbom ./my-model/ --base-card ./base/README.md",
        "wb sbom hf://ORG/NAME",
    ),
)
@click.argument("path", type=SOURCE)
def sbom(path: str, options: SbomCommand) -> int:
    """Write the bill of materials of the model at PATH: architecture, licences, base models, and the SHA-256 of every
    file, as CycloneDX or SPDX.

    Licences that contradict each other are reported on standard error. The same model gives the same bytes: there is a
    time only with --timestamp or SOURCE_DATE_EPOCH.
    """
    from weighbridge.cli.render import Progress, clean, echo, emit_json, note, shorten
    from weighbridge.cli.views.plan import print_findings
    from weighbridge.io.sink import check_target, write_file
    from weighbridge.reports.sbom import report as reports

    if options.output is not None:
        check_target(options.output, overwrite=options.overwrite, folder=False)
    elif options.overwrite:
        raise UsageError("--overwrite replaces a file", hint="write one with --output FILE")
    with Progress() as progress:
        report = reports.sbom(path, progress=progress, **options.keywords(reports.sbom))
    if options.output is not None:
        write_file(options.output, report.text().encode(), overwrite=options.overwrite)
    if options.json:
        emit_json(report)
        return 0
    print_findings(report.findings)
    if report.unhashed:
        note(f"not hashed: {clean(shorten(report.unhashed))}")
    if options.output is None:
        echo(report.text().rstrip("\n"))
    return 0
