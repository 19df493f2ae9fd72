"""`wb arch`: the model families that are known, their tables, and how a model fits them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from weighbridge.cli.options import arch_file_option, examples, json_option
from weighbridge.cli.paths import SOURCE

if TYPE_CHECKING:
    from weighbridge.reports.arch import FamilyCheck

_SHOWN = 20  # names of a list on the screen; --json has them all


@click.group(epilog=examples("wb arch list", "wb arch show gemma2", "wb arch check ./my-model/"))
def arch() -> None:
    """Model families: which are known, what their tensors are called, how a model fits them."""


@arch.command("list", epilog=examples("wb arch list --json"))
@json_option
def list_families(as_json: bool) -> None:
    """List the families: GGUF's name, classes of transformers, whose names are known."""
    from weighbridge.cli.render import emit_json, table
    from weighbridge.reports.arch import listed

    lines = listed()
    if as_json:
        return emit_json(lines)
    rows = [(line.name, line.gguf, ", ".join(line.classes), ", ".join(line.dialects), line.roles) for line in lines]
    table(["family", "in GGUF", "classes", "names", "roles"], rows)


@arch.command(epilog=examples("wb arch show llama", "wb arch show Qwen3MoeForCausalLM --json"))
@click.argument("family")
@arch_file_option
@json_option
def show(family: str, arch_file: Path | None, as_json: bool) -> None:
    """Show the table of FAMILY: each role with its shape and its name in every dialect.

    FAMILY is a family, GGUF's name of an architecture, or a class of transformers.
    """
    from weighbridge.cli.render import echo, emit_json, pairs, table
    from weighbridge.reports.arch import shown

    found = shown(family, arch_file)
    if as_json:
        return emit_json(found)
    line = found.family
    pairs([("family", line.name), ("in GGUF", line.gguf), ("classes", ", ".join(line.classes))])
    echo()
    table(["size", "config.json", "GGUF"], [(s, ", ".join(hf), ", ".join(g)) for s, (hf, g) in found.sizes.items()])
    for dialect in line.dialects:
        echo()
        rows = []
        for row in found.rows:
            if dialect in row.names:
                notes = [row.when or "", f"layers {row.layers}" if row.layers else "", row.layouts.get(dialect, "")]
                notes += ["may be absent"] if row.optional else []
                rows.append((row.role, ",".join(row.shape), row.names[dialect], " ".join(filter(None, notes))))
        table(["role", "shape", dialect, ""], rows)
    return None


@arch.command(epilog=examples("wb arch check ./my-model/", "wb arch check model.gguf --arch-file mine.toml"))
@click.argument("path", type=SOURCE)
@arch_file_option
@json_option
def check(path: str, arch_file: Path | None, as_json: bool) -> int:
    """Check the tensors of PATH against its family's table, or against the nearest family where it has none.

    Reads headers only. Exit code 1 where a tensor is missing, has no row or has another shape.
    """
    from weighbridge.cli.render import emit_json
    from weighbridge.reports.arch import check

    found = check(path, arch_file)
    if as_json:
        emit_json(found)
    else:
        _print_check(found)
    return 0 if found.ok else 1


def _print_check(found: FamilyCheck) -> None:
    from weighbridge.cli.render import clean, echo, pairs, plural, styled

    declared = clean(found.stated or "nothing")
    if found.known:
        echo(f"{found.family}: {plural(found.tensors, 'tensor')} under {found.dialect} names")
    else:
        echo(f"No family has {declared}. The nearest is {found.family} ({found.architecture}, {found.dialect} names):")
    pairs([("sizes", ", ".join(f"{s} {n}" for s, n in found.sizes.items()))], indent=2)
    shapes = [f"{w.name}: {list(w.found)}, expected {list(w.expected)}" for w in found.misshapen]
    lists = (("missing", found.missing), ("without a row", found.unmapped), ("misshapen", shapes))
    for label, names in (*lists, ("dropped", found.dropped)):
        for name in names[:_SHOWN]:
            echo(f"  {styled(label, 'info' if label == 'dropped' else 'error')}  {clean(name)}")
        if len(names) > _SHOWN:
            echo(f"  {label}: {len(names) - _SHOWN:,} more; --json has them all")
    for start, count in found.apart.items():
        echo(f"  {styled('left out', 'info')}  {clean(start)}*: {plural(count, 'tensor')} of another part of the model")
    if found.ok:
        echo("  all fit")
    elif not found.known:
        echo("  next: a table of your own that says `like` and these differences (docs/guide-families.md), --arch-file")
