"""`wb rename`: renames a model's tensors."""

from __future__ import annotations

from pathlib import Path

import click

from weighbridge.api.keywords import RenameKeywords
from weighbridge.base.errors import UsageError
from weighbridge.base.words import plural
from weighbridge.cli.options import command, examples
from weighbridge.cli.render import Cell, Column, clean, emit_json, note, table
from weighbridge.cli.values import OUTPUT, PATH
from weighbridge.cli.views.plan import WriteCommand, planned
from weighbridge.cli.views.transform import write_transform


@command(
    RenameKeywords,
    WriteCommand,
    epilog=examples(
        "wb rename checkpoint.pt",
        "wb rename checkpoint.pt model.pt --strip-prefix module.",
        "wb rename model.safetensors named.safetensors --add-prefix model.",
        r"wb rename ./model/ ./renamed/ --replace '\.gamma$' '.weight' --replace '\.beta$' '.bias'",
        "wb rename ./model/ model.safetensors --to-names canonical --dry-run",
    ),
)
@click.argument("src", type=PATH)
@click.argument("dst", type=OUTPUT, required=False)
def rename(src: Path | str, dst: str | None, options: WriteCommand) -> int:
    """Write the model SRC to DST with its tensors renamed. Without DST, suggest changes.

    Removes prefixes first, then replaces patterns, then adds a prefix, then changes the dialect. Two tensors with the
    same name are an error. Bytes are unchanged unless the dialect has another layout for a tensor (stacked experts,
    rotary rows); the command lists these.
    """
    if dst is None:
        if {*options.given} - {"json"}:
            raise UsageError("no target was given", hint="wb rename SRC DST; wb rename SRC suggests changes")
        return _suggest(src, options.json)
    import weighbridge

    plan = planned(weighbridge.plan_rename, src, dst, options)
    return write_transform(plan, options)


def _suggest(src: Path | str, as_json: bool) -> int:
    import weighbridge
    from weighbridge.models.transform.rename import Suggestions, suggestions

    with weighbridge.open(src, names="stored") as model:
        report = Suggestions(str(src), len(model), suggestions(model))
    if as_json:
        emit_json(report)
    elif not report.suggestions:
        note(f"none of the {plural(report.tensors, 'tensor')} has a usual prefix")
    else:
        rows: list[tuple[Cell, ...]] = [(clean(s.part), s.tensors, s.origin, s.options) for s in report.suggestions]
        table(["part", Column("tensors", right=True), "from", "remove with"], rows)
    return 0
