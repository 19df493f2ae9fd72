"""`wb rename`: other names for a model's tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from weighbridge.cli.commands.surgery import tell, writing_options
from weighbridge.cli.options import examples
from weighbridge.cli.render import Cell, Column, Progress, clean, emit_json, note, table


@click.command(
    epilog=examples(
        "wb rename checkpoint.pt",
        "wb rename checkpoint.pt model.pt --strip-prefix module.",
        "wb rename model.safetensors named.safetensors --add-prefix model.",
        r"wb rename ./model/ ./renamed/ --replace '\.gamma$' '.weight' --replace '\.beta$' '.bias'",
        "wb rename ./model/ model.safetensors --to-names canonical --dry-run",
    )
)
@click.argument("src", type=click.Path(path_type=Path))
@click.argument("dst", type=click.Path(path_type=Path), required=False)
@click.option("--strip-prefix", "strip", metavar="PREFIX", multiple=True, help="Take PREFIX off names that have it.")
@click.option(
    "--replace", "replacing", type=(str, str), metavar="PATTERN NEW", multiple=True,
    help=r"Replace what the regular expression PATTERN finds by NEW (\1: its first group).",
)  # fmt: skip
@click.option("--add-prefix", "add", default="", metavar="PREFIX", help="Put PREFIX before every name.")
@click.option("--to-names", "names", metavar="DIALECT", help="Names and layout of hf, gguf, mlx or canonical.")
@writing_options
def command(src: Path, dst: Path | None, dry_run: bool, as_json: bool, **options: Any) -> int:
    """Write the model SRC to DST with its tensors under other names; without DST, say what is usual to change.

    Prefixes go first, then patterns are replaced, then a prefix comes, then names become another dialect's. Two tensors
    of one name are refused. Bytes stay as they are, but where a dialect has tensors lie otherwise (stacked experts,
    rotary rows): the command tells which.
    """
    if dst is None:
        return _suggest(src, as_json)
    import weighbridge
    from weighbridge.cli.commands.plans import recipe

    own = {key: options.pop(key) for key in ("strip", "replacing", "add", "names", "to")}
    with Progress() as progress:
        report = weighbridge.rename(src, dst, **own, dry_run=dry_run, progress=progress, options=recipe(options))
    return tell(report, dry_run=dry_run, as_json=as_json)


def _suggest(src: Path, as_json: bool) -> int:
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
        table(["part", Column("tensors", right=True), "from", "take it away with"], rows)
    return 0
