"""`wb explain`: what a pickle would make Python do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from weighbridge.cli.options import applied, command, examples, json_option, option, refuse_others
from weighbridge.cli.paths import SOURCE

if TYPE_CHECKING:
    from weighbridge.reports.explain import ExplainedPickle

_SHOWN: Final = 200  # steps of a pickle


_OPTIONS: Final = (
    click.argument("file", type=SOURCE),
    option("--member", metavar="NAME", help="Only this pickle of the file (data.pkl, object ...)."),
    option("--calls", "only_calls", is_flag=True, help="Only steps that import, call, or set a state."),
    option("--limit", type=click.IntRange(0), metavar="N", help=f"Steps of each pickle to tell [{_SHOWN}]."),
    option("--all", "everything", is_flag=True, help="Tell every step."),
    json_option,
)  # fmt: skip


@command(
    epilog=examples(
        "wb explain model.pt", "wb explain model.ckpt --calls --all", "wb explain model.pt --member data.pkl --json"
    )
)
@applied(_OPTIONS)
def explain(file: str, member: str | None, only_calls: bool, limit: int | None, everything: bool, as_json: bool) -> int:
    """Tell step by step what the pickles in FILE would make Python do. Nothing of it is done."""
    from weighbridge.cli.render import emit_json
    from weighbridge.reports.explain import explain

    if everything:
        refuse_others("--all", {"--limit": limit is not None}, hint="give one of them")
    steps = None if everything else _SHOWN if limit is None else limit
    report = explain(file, member=member, only_calls=only_calls, limit=steps)
    if as_json:
        emit_json(report)
    for pickle in () if as_json else report.pickles:
        _show(pickle, only_calls)
    return 0


def _show(pickle: ExplainedPickle, only_calls: bool) -> None:
    from weighbridge.cli.render import clean, echo, plural, styled

    place = f"from byte {pickle.start:,}" if pickle.start >= 0 else "deflated"
    words = f"protocol {pickle.protocol}, {plural(pickle.steps, 'step')}, {pickle.nbytes:,} bytes {place}"
    echo(f"{clean(pickle.name)}: {words}", "head")
    for line in pickle.lines:
        style = None if only_calls or line.op in _QUIET else "number"
        place, indent = styled(f"{line.at:>8}", "dim"), "  " * min(line.marks, 8)
        echo(f"{place}  {indent}{styled(line.op, style)}  {clean(line.words)}")
    if len(pickle.lines) < pickle.steps and not only_calls:
        echo(f"... {pickle.steps - len(pickle.lines):,} more steps (--all, --limit N)", "dim")
    if pickle.broken:
        echo(f"it is broken: {clean(pickle.broken)}", "error")
    echo("names that it asks Python for:" if pickle.names else "it asks Python for no name", "head")
    for named in pickle.names:
        done = [f"{verb} {count} times" if count > 1 else verb
                for verb, count in (("called", named.called), ("given a state", named.built)) if count]  # fmt: skip
        style = None if named.known else "error"
        actions = ", ".join(done) or "only named"
        echo(f"  {styled(clean(named.name), style)}  {actions}{'' if named.known else ' (not one of a checkpoint)'}")


#: Opcodes that only arrange what others made.
_QUIET = frozenset({"MARK", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "PROTO", "FRAME"})
