"""`wb strip`: a training checkpoint's weights without what only training needs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weighbridge.cli.options import examples, jobs_option, json_option, size_option
from weighbridge.cli.render import Cell, Column, Progress, clean, echo, emit_json, human_bytes, note, table

if TYPE_CHECKING:
    from weighbridge.conversion.checkpoint.strip import StripReport


@click.command(
    epilog=examples(
        "wb strip checkpoint.pt model.safetensors",
        "wb strip last.ckpt model.pt --ema-as-weights",
        "wb strip ./checkpoint-500/ ./model/ --dry-run",
    )
)
@click.argument("src", type=click.Path(path_type=Path))
@click.argument("dst", type=click.Path(path_type=Path))
@click.option("--keep-ema", is_flag=True, help="Keep averaged (EMA) weights beside the others.")
@click.option("--ema-as-weights", is_flag=True, help="Write averaged (EMA) weights in the others' place.")
@click.option("--dtype", metavar="TYPE", help="Number type of the weights: f32, f16, bf16.")
@size_option("--max-shard-size", help="Largest size of one file, such as 5GB.")
@click.option("--allow-expand", is_flag=True, help="Write expanded views of a pickle, however large they become.")
@click.option("--overwrite", is_flag=True, help="Replace DST where it exists.")
@click.option("--dry-run", is_flag=True, help="Say what would be left out and write nothing.")
@jobs_option
@json_option
def command(
    src: Path, dst: Path, keep_ema: bool, ema_as_weights: bool, dry_run: bool, as_json: bool, **options: Any
) -> int:
    """Write the model weights of the training checkpoint SRC to DST, and leave out the rest.

    Optimizer, averaged weights, random states, schedulers, loss scalers and histories are known by their keys and their
    structure; each part that is left out is told, with the reason. DST's extension says the format.
    """
    import weighbridge
    from weighbridge.cli.commands.plans import recipe

    with Progress() as progress:
        report = weighbridge.strip(
            src, dst, keep_ema=keep_ema, ema_as_weights=ema_as_weights, dry_run=dry_run, progress=progress,
            options=recipe(options),
        )  # fmt: skip
    if as_json:
        emit_json(report)
    else:
        _print(report, dry_run)
    return 0


def _print(report: StripReport, dry_run: bool) -> None:
    if report.dropped:
        rows: list[tuple[Cell, ...]] = [
            (clean(d.name), d.part, d.tensors or None, human_bytes(d.bytes), clean(d.why)) for d in report.dropped
        ]
        table(["left out", "what", Column("tensors", right=True), Column("size", right=True), "known by"], rows)
        echo()
    if report.wrapper:
        note(clean(f"note: the weights were in {report.wrapper!r}; that is no part of their names any more"))
    if report.ema_used:
        note(f"note: {report.ema_used:,} of {report.tensors:,} tensors are averaged ones")
    for line in report.notes:
        note(f"note: {line}")
    will = "would have" if dry_run else "has"
    echo(
        clean(
            f"{report.target} {will} {report.tensors:,} tensors, {human_bytes(report.bytes)}: "
            f"{human_bytes(abs(report.saved))} {'less' if report.saved >= 0 else 'more'} than {report.source}"
        )
    )
