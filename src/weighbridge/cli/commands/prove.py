"""`wb prove`: checks whether two models are the same in different forms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from weighbridge.cli.options import CommandOptions, command, examples
from weighbridge.cli.values import SOURCE
from weighbridge.reports.options import ProveOptions

if TYPE_CHECKING:
    from weighbridge.reports.prove.model import ProveReport

_SHOWN: Final = 8  # details of one check, unless --verbose
_STYLES: Final = {"same": "ok", "different": "error", "not-checked": "warning"}


@command(
    ProveOptions,
    CommandOptions,
    epilog=examples(
        "wb prove ./my-model/ my-model.gguf",
        "wb prove ./my-model/ ./my-model-mlx/ --no-run",
        "wb prove ./my-model/ my-model-Q4_K_M.gguf --text wiki.test.raw --json",
    ),
)
@click.argument("src", type=SOURCE)
@click.argument("dst", type=SOURCE)
def prove(src: str, dst: str, options: CommandOptions) -> int:
    """Check whether DST is the model SRC in another form: settings, tokenizer, tensors, and what both compute.

    Both models process the same tokens: a folder in transformers, a GGUF in llama.cpp, an MLX folder in mlx-lm
    (pip install "weighbridge[prove]"). The types of the tensors determine the tolerance. Exit code 1 if DST is a
    different model, 2 if a check couldn't run.
    """
    from weighbridge.cli.render import Progress, emit_json
    from weighbridge.reports.prove.report import prove

    with Progress() as progress:
        report = prove(src, dst, progress=progress, **options.keywords(prove))
    if options.json:
        emit_json(report)
    else:
        _show(report)
    return {"same": 0, "different": 1, "incomplete": 2}[report.verdict]


def _show(report: ProveReport) -> None:
    from weighbridge.cli.render import SCREEN, clean, echo, note, styled

    for check in report.checks:
        echo(f"{styled(check.verdict.replace('-', ' '), _STYLES[check.verdict])}: {check.name}: {clean(check.message)}")
        shown = check.details if SCREEN.verbose else check.details[:_SHOWN]
        for line in shown:
            echo(f"  {clean(line)}")
        if len(check.details) > len(shown):
            echo(f"  ... {len(check.details) - len(shown):,} more (--verbose)", "dim")
    for line in report.notes:
        note(clean(line))
    verdicts = {
        "same": "the same model",
        "different": "a different model",
        "incomplete": "not proved: a check didn't run",
    }
    echo(verdicts[report.verdict], "head")
