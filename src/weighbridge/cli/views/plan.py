"""Plans and results of the commands that write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from weighbridge.cli.render import (
    SCREEN,
    Cell,
    Column,
    Progress,
    clean,
    echo,
    emit_json,
    human_bytes,
    human_time,
    note,
    pairs,
    table,
    warn,
)

if TYPE_CHECKING:
    from weighbridge.conversion.plan.model import Loss, Move, Plan
    from weighbridge.conversion.result import Result

P = TypeVar("P")
_NOTES = 4  # lines
_NAMED = 3  # tensors in a line


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given; the others are None or empty."""
    return {name: value for name, value in options.items() if value is not None and value != ()}


def planned(
    plan: Callable[..., P], src: Path | str, dst: str | Path, options: Mapping[str, Any], *, dry_run: bool, **more: Any
) -> P:
    """The plan of a command. A target that can't be written is an error before the source is read, unless dry."""
    from weighbridge.adapters.remote.schemes import resolve_target
    from weighbridge.io.sink import check_target

    if not dry_run:
        overwrite = options["overwrite"] or options["replace_folder"]
        check_target(
            resolve_target(dst), overwrite=overwrite, parents=options["parents"], resume=bool(options.get("resume"))
        )
    return plan(src, dst, **more, **given(options))


def write(plan: Plan, *, dry_run: bool, as_json: bool) -> int:
    """Prints the plan, or carries it out with a line of progress and says what was written and what was lost."""
    with plan:
        if dry_run:
            emit_json(plan.describe()) if as_json else _print_plan(plan)
            return 0
        with Progress() as progress:
            result = plan.run(progress)
        if as_json:
            emit_json(result)
            return 0
        print_result(result)
        _say_how_to_run(plan)
    return 0


def _say_how_to_run(plan: Plan) -> None:
    """One line with the command that uses what was written, where something does."""
    if SCREEN.quiet:
        return
    from weighbridge.shipping.run import how_to_run

    if (line := how_to_run(plan)) is not None:
        note(clean(f"run it: {line}"))


def _print_plan(plan: Plan) -> None:
    data = plan.describe()
    pairs(
        [
            ("source", data["source"]),
            ("target", data["target"]),
            ("format", data["format"]),
            ("size", human_bytes(data["bytes"], exact=True)),
            ("memory", f"{human_bytes(data['memory'])} at most, beside the interpreter"),
            ("passes", data["passes"] if data["passes"] > 1 else None),
        ]
    )
    echo()
    files: list[tuple[Cell, ...]] = [(f["name"], len(f["tensors"]), human_bytes(f["bytes"])) for f in data["files"]]
    files += [(name, None, human_bytes(size)) for name, size in data["texts"].items()]
    table(["file", Column("tensors", right=True), Column("size", right=True)], files)
    echo()
    work = Counter((t["dtype"], t["how"]) for f in data["files"] for t in f["tensors"])
    table(["type", "how", Column("tensors", right=True)], [(*key, count) for key, count in work.most_common()])
    _moves(plan.moves)
    print_losses(plan.losses)
    print_notes(data["notes"])


def _moves(moves: Sequence[Move]) -> None:
    """How the quantized tensors fared: a line for each way, the reason where it isn't exact."""
    ways = Counter((m.source, m.target, m.kind, m.why) for m in moves)
    worst: dict[tuple[str, str, str, str], float] = {}
    for m in moves:
        key = (m.source, m.target, m.kind, m.why)
        worst[key] = max(worst.get(key, 0.0), m.relative or 0.0)
    for (source, target, kind, why), count in ways.most_common():
        many = f"{count:,} tensors" if count > 1 else "1 tensor"
        rounded = f" by at most {worst[source, target, kind, why]:.1e}" if kind == "near" else ""
        line = f"{many} from {source} to {target}: {kind}{rounded}{f' ({why})' if why else ''}"
        (note if kind == "exact" else warn)(clean(line))


def print_losses(losses: Sequence[Loss]) -> None:
    """One line for each kind of loss, however many tensors have it; all of them with --verbose."""
    kinds: dict[str, list[str]] = {}
    for loss in losses:
        kinds.setdefault(loss.message, []).extend([loss.tensor] if loss.tensor else [])
    for what, tensors in kinds.items():
        shown = tensors if SCREEN.verbose else tensors[:_NAMED]
        more = f" and {len(tensors) - len(shown):,} more" if len(shown) < len(tensors) else ""
        warn(clean(f"{', '.join(shown)}{more}: {what}" if tensors else what))


def _counted(what: str, counts: Mapping[str, int]) -> None:
    """How many values a cast lost, and in which tensor most of them were."""
    if counts:
        total, worst = sum(counts.values()), max(counts, key=counts.__getitem__)
        most = f"most in {clean(worst)} ({counts[worst]:,})" if len(counts) > 1 else f"in {clean(worst)}"
        warn(f"{total:,} {'values were' if total > 1 else 'value was'} {what}, {most}")


def print_notes(lines: Sequence[str]) -> None:
    """A few of them; a set of a hundred shards has hundreds."""
    shown = lines if SCREEN.verbose or len(lines) <= _NOTES else lines[: _NOTES - 1]
    for line in shown:
        note(f"note: {clean(line)}")
    if len(shown) < len(lines):
        note(f"note: {len(lines) - len(shown)} more, shown with -v")


def print_result(result: Result) -> None:
    """What was written, and what was lost on the way."""
    _moves(result.moves)
    print_losses(result.losses)
    _counted("too large for the type and became infinity", result.overflow)
    _counted("too small for the type and became zero", result.underflow)
    print_notes(result.notes)
    rate = f", {human_bytes(int(result.bytes / result.seconds))}/s" if result.seconds > 0.1 else ""
    count = f"{len(result.files)} files, " if len(result.files) > 1 else ""
    echo(clean(f"{result.target}: {count}{human_bytes(result.bytes)} in {human_time(result.seconds)}{rate}"))
