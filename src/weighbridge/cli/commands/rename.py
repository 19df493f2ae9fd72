"""`wb rename`: other names for a model's tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from weighbridge.base.errors import UsageError
from weighbridge.cli.options import command, examples, option
from weighbridge.cli.paths import OUTPUT, PATH
from weighbridge.cli.render import Cell, Column, clean, emit_json, note, table
from weighbridge.cli.views.plan import given, planned
from weighbridge.cli.views.transform import transform_options, write_transform


@command(
    epilog=examples(
        "wb rename checkpoint.pt",
        "wb rename checkpoint.pt model.pt --strip-prefix module.",
        "wb rename model.safetensors named.safetensors --add-prefix model.",
        r"wb rename ./model/ ./renamed/ --replace '\.gamma$' '.weight' --replace '\.beta$' '.bias'",
        "wb rename ./model/ model.safetensors --to-names canonical --dry-run",
    )
)
@click.argument("src", type=PATH)
@click.argument("dst", type=OUTPUT, required=False)
@option("--strip-prefix", metavar="PREFIX", multiple=True, help="Remove PREFIX from names that begin with it.")
@option(
    "--replace", type=(str, str), metavar="PATTERN NEW", multiple=True,
    help=r"Replace what the regular expression PATTERN matches by NEW (\1: its first group).",
)  # fmt: skip
@option("--add-prefix", metavar="PREFIX", help="Put PREFIX before every name.")
@option("--to-names", metavar="DIALECT", help="Names and layout of hf, gguf, mlx or canonical.")
@transform_options
def rename(src: Path | str, dst: str | None, dry_run: bool, as_json: bool, **options: Any) -> int:
    """Write the model SRC to DST with its tensors under other names. Without DST, suggest what to change.

    Prefixes are removed first, then patterns replaced, then a prefix added, then names become another dialect's. Two
    tensors of one name are an error. Bytes stay as they are, except where a dialect lays a tensor out differently
    (stacked experts, rotary rows); the command says where.
    """
    if dst is None:
        chosen = {option for option, value in given(options).items() if value is not False}
        if chosen or dry_run:
            raise UsageError(
                "no target was given", hint="wb rename SRC DST; wb rename SRC alone suggests what to change"
            )
        return _suggest(src, as_json)
    import weighbridge

    plan = planned(weighbridge.plan_rename, src, dst, options, dry_run=dry_run)
    return write_transform(plan, dry_run=dry_run, as_json=as_json)


def _suggest(src: Path | str, as_json: bool) -> int:
    import weighbridge
    from weighbridge.models.transform.rename import Suggestions, suggestions

    with weighbridge.open(src, names="stored") as model:
        found = Suggestions(str(src), len(model), suggestions(model))
    if as_json:
        emit_json(found)
    elif not found.suggestions:
        note(f"none of the {found.tensors:,} tensors has a usual prefix")
    else:
        rows: list[tuple[Cell, ...]] = [(clean(s.part), s.tensors, s.origin, s.options) for s in found.suggestions]
        table(["part", Column("tensors", right=True), "from", "remove with"], rows)
    return 0
