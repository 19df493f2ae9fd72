"""`wb verify`: checks a file or a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from weighbridge.base.options import option
from weighbridge.base.records import dataclass
from weighbridge.cli.options import CommandOptions, command, examples
from weighbridge.cli.values import SOURCE
from weighbridge.reports.options import VerifyOptions

if TYPE_CHECKING:
    from weighbridge.containers.base import Finding
    from weighbridge.reports.verify.report import VerifyReport

_SHOWN = 10  # findings of one rule, unless --verbose


@dataclass(frozen=True, kw_only=True)
class VerifyFailureOptions:
    """What counts as a failure, here and in `wb fleet verify`."""

    fail_on: str = option("Exit with 1 from this severity on [error].", "error", choices=("error", "warning", "info"))


@dataclass(frozen=True, kw_only=True)
class VerifyCommand(VerifyOptions, VerifyFailureOptions, CommandOptions):
    pass


@command(
    VerifyCommand,
    epilog=examples(
        "wb verify ./my-model/",
        "wb verify model.gguf --values",
        "wb verify model.gguf mmproj.gguf",
        "wb verify ./my-model/ --signature ./my-model/model.sig --key signer.pub",
        "wb verify ./downloads/ --fail-on warning --json",
    ),
)
@click.argument("paths", nargs=-1, required=True, type=SOURCE, metavar="PATH...")
def verify(paths: tuple[str, ...], options: VerifyCommand) -> int:
    """Check each PATH (a file, an index, a folder) for every known problem, and report all of them at once.

    For GGUF also reports whether llama.cpp would load the file, and whether an mmproj file among the PATHs or in a
    folder belongs to the language model. With --signature also checks who signed PATH, and every file. Exit code 1 if
    there is an error, 2 if nothing was checked because the format is unknown.
    """
    from weighbridge.cli.render import Progress, emit_json
    from weighbridge.containers.base import Severity
    from weighbridge.reports.verify import report as reports
    from weighbridge.reports.verify.pairs import projectors_for

    with Progress(computing=options.values) as progress:
        keywords = options.keywords(reports.verify)
        pairs = projectors_for(paths) if options.mmproj is None and len(paths) > 1 else {}
        given = [{**keywords, "mmproj": pairs.get(path, options.mmproj)} for path in paths]
        every = [reports.verify(path, progress=progress, **more) for path, more in zip(paths, given, strict=True)]
    if options.json:
        emit_json(every if len(every) > 1 else every[0])
    else:
        for report in every:
            _show(report)
    if any(reports.failed(report, Severity(options.fail_on)) for report in every):
        return 1
    return 2 if any(report.verdict == "not-checked" for report in every) else 0


def _show(report: VerifyReport) -> None:
    from weighbridge.base.words import plural
    from weighbridge.cli.render import SCREEN, clean, echo, human_bytes, shorten, styled

    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in report.findings:
        groups.setdefault((finding.severity.value, finding.rule), []).append(finding)
    for (severity, rule), findings in groups.items():
        shown = findings if SCREEN.verbose else findings[:_SHOWN]
        for finding in shown:
            place = [report.path if finding.path is None else finding.path]
            place += [f"byte {finding.offset:,}"] if finding.offset is not None else []
            place += [finding.tensor] if finding.tensor is not None else []
            echo(f"{styled(severity, severity)}: {clean(finding.message)}  {styled(f'({rule})', 'dim')}")
            echo(f"  {styled('in', 'dim')} {clean(', '.join(place))}")
        if len(findings) > len(shown):
            echo(f"  ... {len(findings) - len(shown):,} more of these (--verbose)", "dim")
        if findings[0].hint:
            echo(f"  hint: {clean(findings[0].hint)}", "info")
    size = f"{plural(report.files, 'file')}, {plural(report.tensors, 'tensor')}, {human_bytes(report.nbytes)}"
    for verdict in report.verdicts:
        taken = f" as {verdict.option}" if verdict.option else ""
        if verdict.accepts is False:
            what = f"load it{taken or ' as a model'}" if verdict.stage == "model" else f"read its {verdict.stage}"
            echo(f"{verdict.tool} would refuse {clean(verdict.path)}: it can't {what}", "warning")
        elif verdict.accepts is None:
            echo(f"{styled('not checked', 'warning')}: whether {verdict.tool} would load {clean(verdict.path)}{taken}")
    if report.signature is not None and report.signature.signer is not None:
        signed = report.signature
        echo(f"signed by {clean(signed.signer or '')}: {plural(signed.files, 'file')}")
        if signed.unsigned:
            echo(f"{styled('not signed', 'warning')}: {clean(shorten(signed.unsigned))}")
    if report.findings:
        kinds = (report.errors, "error"), (report.warnings, "warning"), (report.infos, "note")
        echo(f"{size}: {', '.join(plural(n, kind) for n, kind in kinds)}", "head")
    elif report.verdict == "ok":
        compared = f"; {plural(report.digests, 'digest')} compared" if report.digests else ""
        read = "" if report.values else "; values not read (--values)"
        echo(f"{styled('ok', 'ok')}: {size}{compared}{read}")
    if report.verdict == "not-checked":
        why = "verify doesn't check this format (wb identify)" if report.files else "the folder is empty"
        echo(f"{styled('not checked', 'warning')}: {clean(report.path)}: {why}")
    elif report.unchecked:
        echo(f"{styled('not checked', 'warning')}: {clean(shorten(report.unchecked))}")
