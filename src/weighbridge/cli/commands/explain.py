"""`wb explain`: the effects of loading a pickle, without loading it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from weighbridge.base.records import dataclass
from weighbridge.cli.options import CommandOptions, command, examples, refuse_others
from weighbridge.cli.values import SOURCE
from weighbridge.reports.options import ExplainOptions

if TYPE_CHECKING:
    from weighbridge.reports.explain import ExplainedPickle


@dataclass(frozen=True, kw_only=True)
class ExplainCommand(ExplainOptions, CommandOptions):
    pass


@command(
    ExplainCommand,
    epilog=examples(
        "wb explain model.pt", "wb explain model.ckpt --calls --all", "wb explain model.pt --member data.pkl --json"
    ),
)
@click.argument("file", type=SOURCE)
def explain(file: str, options: ExplainCommand) -> int:
    """Show step by step what the pickles in FILE would make Python do. Nothing is run."""
    from weighbridge.cli.render import emit_json
    from weighbridge.reports.explain import explain

    if options.all:
        refuse_others("--all", options, ("limit",), hint="give one of them")
    report = explain(file, **options.keywords(explain))
    if options.json:
        emit_json(report)
    for pickle in () if options.json else report.pickles:
        _show(pickle, options.calls)
    return 0


def _show(pickle: ExplainedPickle, calls: bool) -> None:
    from weighbridge.base.words import plural
    from weighbridge.cli.render import clean, echo, styled

    place = f"from byte {pickle.start:,}" if pickle.start >= 0 else "deflated" if "!" not in pickle.name else "inside"
    facts = f"protocol {pickle.protocol}, {plural(pickle.steps, 'step')}, {pickle.nbytes:,} bytes {place}"
    echo(f"{clean(pickle.name)}: {facts}", "head")
    for line in pickle.lines:
        style = None if calls or line.op in _QUIET else "number"
        place, indent = styled(f"{line.at:>8}", "dim"), "  " * min(line.marks, 8)
        echo(f"{place}  {indent}{styled(line.op, style)}  {clean(line.words)}")
    if len(pickle.lines) < pickle.steps and not calls:
        echo(f"... {plural(pickle.steps - len(pickle.lines), 'more step')} (--all, --limit N)", "dim")
    if pickle.broken:
        echo(f"damaged: {clean(pickle.broken)}", "error")
    echo("imported names:" if pickle.names else "no names are imported", "head")
    for named in pickle.names:
        uses = [f"{verb} {count} times" if count > 1 else verb
                for verb, count in (("called", named.called), ("given a state", named.built)) if count]  # fmt: skip
        style = None if named.known else "error"
        actions = ", ".join(uses) or "only imported"
        echo(f"  {styled(clean(named.name), style)}  {actions}{'' if named.known else ' (not one of a checkpoint)'}")


#: Opcodes that only rearrange the stack.
_QUIET = frozenset({"MARK", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "PROTO", "FRAME"})
