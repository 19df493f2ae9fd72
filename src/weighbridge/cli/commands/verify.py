"""`wb verify`: everything that is wrong with a file or a model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import click

from weighbridge.cli.options import applied, command, examples, json_option, option
from weighbridge.cli.paths import SOURCE

if TYPE_CHECKING:
    from weighbridge.containers.base import Finding
    from weighbridge.reports.verify.report import VerifyReport

_SHOWN = 10  # findings of one rule, unless --verbose
#: What is checked and what counts as a failure, here and in `wb fleet verify`.
CHECKING: Final = (
    option("--values", is_flag=True, help="Read every number too: NaN, Inf, broken block scales, zeros."),
    option("--fail-on", type=click.Choice(["error", "warning", "info"]), default="error",
           help="Exit with 1 from this severity on [error]."),
)  # fmt: skip


@command(
    epilog=examples(
        "wb verify ./my-model/",
        "wb verify model.gguf --values",
        "wb verify ./downloads/ --fail-on warning --json",
    )
)
@click.argument("paths", nargs=-1, required=True, type=SOURCE, metavar="PATH...")
@applied(CHECKING)
@json_option
def verify(paths: tuple[str, ...], values: bool, fail_on: str, as_json: bool) -> int:
    """Check each PATH (a file, an index, a folder) for everything that can be wrong, and report all of it at once.

    For GGUF also says whether llama.cpp would load the file. Exit code 1 where there is an error, 2 where nothing was
    checked: verify doesn't know the format.
    """
    from weighbridge.cli.render import Progress, emit_json
    from weighbridge.containers.base import Severity
    from weighbridge.reports.verify import report as reports

    with Progress() as progress:
        found = [reports.verify(path, values=values, progress=progress) for path in paths]
    if as_json:
        emit_json(found if len(found) > 1 else found[0])
    else:
        for report in found:
            _show(report)
    if any(reports.failed(report, Severity(fail_on)) for report in found):
        return 1
    return 2 if any(report.verdict == "not-checked" for report in found) else 0


def _show(report: VerifyReport) -> None:
    from weighbridge.cli.render import SCREEN, clean, echo, human_bytes, plural, shorten, styled

    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in report.findings:
        groups.setdefault((finding.severity.value, finding.rule), []).append(finding)
    for (severity, rule), found in groups.items():
        shown = found if SCREEN.verbose else found[:_SHOWN]
        for finding in shown:
            place = [report.path if finding.path is None else finding.path]
            place += [f"byte {finding.offset:,}"] if finding.offset is not None else []
            place += [finding.tensor] if finding.tensor is not None else []
            echo(f"{styled(severity, severity)}: {clean(finding.message)}  {styled(f'({rule})', 'dim')}")
            echo(f"  {styled('in', 'dim')} {clean(', '.join(place))}")
        _more(found, len(shown))
    words = f"{plural(report.files, 'file')}, {plural(report.tensors, 'tensor')}, {human_bytes(report.nbytes)}"
    for verdict in report.verdicts:
        if verdict.accepts is False:
            what = "load it as a model" if verdict.stage == "model" else f"read its {verdict.stage}"
            echo(f"llama.cpp would refuse {clean(verdict.path)}: it can't {what}", "warning")
        elif verdict.accepts is None:
            echo(f"{styled('not checked', 'warning')}: whether llama.cpp would load {clean(verdict.path)}")
    if report.findings:
        kinds = (report.errors, "error"), (report.warnings, "warning"), (report.infos, "note")
        echo(f"{words}: {', '.join(plural(n, kind) for n, kind in kinds)}", "head")
    elif report.verdict == "ok":
        compared = f"; {plural(report.digests, 'digest')} compared" if report.digests else ""
        read = "" if report.values else "; values not read (--values)"
        echo(f"{styled('ok', 'ok')}: {words}{compared}{read}")
    if report.verdict == "not-checked":
        why = "verify doesn't check this format (wb identify)" if report.files else "the folder is empty"
        echo(f"{styled('not checked', 'warning')}: {clean(report.path)}: {why}")
    elif report.unchecked:
        echo(f"{styled('not checked', 'warning')}: {clean(shorten(report.unchecked))}")


def _more(found: Iterable[Finding], shown: int) -> None:
    """The hint of a rule's findings, once, and how many more there are."""
    from weighbridge.cli.render import clean, echo

    found = list(found)
    if len(found) > shown:
        echo(f"  ... {len(found) - shown:,} more of these (--verbose)", "dim")
    if found[0].hint:
        echo(f"  hint: {clean(found[0].hint)}", "info")
