"""`wb arch`: the known model families, their tables, and how a model fits them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from weighbridge.base.records import dataclass
from weighbridge.cli.options import CommandOptions, command, examples
from weighbridge.cli.values import SOURCE
from weighbridge.models.model import FamilyOptions

if TYPE_CHECKING:
    from weighbridge.reports.arch import FamilyCheck

_SHOWN = 20  # names of a list on the screen; --json has them all


@click.group(epilog=examples("wb arch list", "wb arch show gemma2", "wb arch check ./my-model/"))
def arch() -> None:
    """Model families: list them, show the names of their tensors, check how a model fits them."""


@dataclass(frozen=True, kw_only=True)
class FamilyCommand(FamilyOptions, CommandOptions):
    pass


@command(CommandOptions, group=arch, name="list", epilog=examples("wb arch list --json"))
def list_families(options: CommandOptions) -> None:
    """List the families: their name in GGUF, their transformers classes, the known dialects."""
    from weighbridge.cli.render import emit_json, table
    from weighbridge.reports.arch import list_families

    lines = list_families()
    if options.json:
        return emit_json(lines)
    rows = [(line.name, line.gguf, ", ".join(line.classes), ", ".join(line.dialects), line.roles) for line in lines]
    table(["family", "in GGUF", "classes", "names", "roles"], rows)


@command(
    FamilyCommand,
    group=arch,
    name="show",
    epilog=examples("wb arch show llama", "wb arch show Qwen3MoeForCausalLM --json"),
)
@click.argument("family")
def show(family: str, options: FamilyCommand) -> None:
    """Show the table of FAMILY: each role with its shape and its name in every dialect.

    FAMILY is a family, GGUF's name of an architecture, or a class of transformers.
    """
    from weighbridge.cli.render import echo, emit_json, pairs, table
    from weighbridge.reports.arch import family_table

    table_of = family_table(family, options.arch_file)
    if options.json:
        return emit_json(table_of)
    line = table_of.family
    pairs([("family", line.name), ("in GGUF", line.gguf), ("classes", ", ".join(line.classes))])
    echo()
    table(["size", "config.json", "GGUF"], [(s, ", ".join(hf), ", ".join(g)) for s, (hf, g) in table_of.sizes.items()])
    for dialect in line.dialects:
        echo()
        rows = []
        for row in table_of.rows:
            if dialect in row.names:
                notes = [row.when or "", f"layers {row.layers}" if row.layers else "", row.layouts.get(dialect, "")]
                notes += ["may be absent"] if row.optional else []
                rows.append((row.role, ",".join(row.shape), row.names[dialect], " ".join(filter(None, notes))))
        table(["role", "shape", dialect, ""], rows)
    return None


@command(
    FamilyCommand, group=arch, name="check",
    epilog=examples("wb arch check ./my-model/", "wb arch check model.gguf --arch-file mine.toml"),
)  # fmt: skip
@click.argument("path", type=SOURCE)
def check(path: str, options: FamilyCommand) -> int:
    """Check the tensors of PATH against its family's table, or against the nearest family if no table knows it.

    Reads headers only. Lists the settings of config.json that a GGUF can't hold or that the table doesn't read. Exit
    code 1 if a tensor is missing, has no row or has another shape.
    """
    from weighbridge.cli.render import emit_json
    from weighbridge.reports.arch import check

    fit = check(path, options.arch_file)
    if options.json:
        emit_json(fit)
    else:
        _print_check(fit)
    return 0 if fit.ok else 1


def _print_check(fit: FamilyCheck) -> None:
    from weighbridge.base.words import plural
    from weighbridge.cli.render import clean, echo, pairs, styled

    missing = f"No family has {clean(fit.stated)}" if fit.stated else "The model names no architecture"
    if fit.known:
        echo(f"{fit.family}: {plural(fit.tensors, 'tensor')} under {fit.dialect} names")
    else:
        nearest = f"{fit.family} ({fit.architecture}, {fit.dialect} names)"
        echo(f"{missing}. The nearest is {nearest}:")
    pairs([("sizes", ", ".join(f"{s} {n}" for s, n in fit.sizes.items()))], indent=2)
    shapes = [f"{w.name}: {list(w.found)}, expected {list(w.expected)}" for w in fit.misshapen]
    lists = (("missing", fit.missing), ("without a row", fit.unmapped), ("misshapen", shapes))
    for label, names in (*lists, ("dropped", fit.dropped)):
        for name in names[:_SHOWN]:
            echo(f"  {styled(label, 'info' if label == 'dropped' else 'error')}  {clean(name)}")
        if len(names) > _SHOWN:
            echo(f"  {label}: {len(names) - _SHOWN:,} more; --json has them all")
    for start, count in fit.apart.items():
        echo(f"  {styled('left out', 'info')}  {clean(start)}*: {plural(count, 'tensor')} of another part of the model")
    for setting in fit.settings:
        echo(f"  {styled('changes results', 'error')}  {clean(setting)}")
    if fit.ok:
        echo("  all fit")
    elif not fit.known:
        echo("  next: write a table with `like` and these differences for --arch-file: wb help guide-families")
