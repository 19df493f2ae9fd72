"""`wb get`: one tensor out of a model, or its statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from weighbridge.cli.options import command, examples, json_option, option

if TYPE_CHECKING:
    from weighbridge.reports.get import Picked, Stats


@command(
    epilog=examples(
        "wb get model.gguf::token_embd.weight",
        "wb get ./my-model/::lm_head.weight -o head.npy",
        "wb get model.safetensors::model.norm.weight --slice '[0:10]'",
        "wb get model.gguf::blk.0.attn_q.weight --raw -o - | xxd | head",
    )
)
@click.argument("tensor", metavar="PATH::TENSOR")
@option("-o", "--output", "out", metavar="FILE", help="Write it: FILE.npy an array, other names raw, - to stdout.")
@option("--slice", "key", metavar="SLICE", help="Only a part, as numpy writes it: '[0:10, :]'.")
@option("--dtype", help="Write numbers of this type [as stored; F32 where numpy has no such type].")
@option("--raw", is_flag=True, help="The bytes as they are stored: ggml blocks stay blocks.")
@option("--overwrite", is_flag=True, help="Replace FILE where it exists.")
@json_option
def get(
    tensor: str, out: str | None, key: str | None, dtype: str | None, raw: bool, overwrite: bool, as_json: bool
) -> None:
    """Take one tensor out of a file or a model, or (without -o) print its statistics.

    Quantized tensors come as numbers unless --raw is given.
    """
    from weighbridge.cli.render import Progress, emit_json, human_bytes, note
    from weighbridge.reports import get

    if out is None:
        if raw or dtype or overwrite:
            raise click.UsageError("--raw, --dtype and --overwrite say how to write: give a file with -o.")
        with Progress() as progress:
            report = get.stats(tensor, key, progress)
        return emit_json(report) if as_json else _show(report)
    raw = raw or not out.endswith((".npy", "-"))
    with get.Picked(tensor, key, dtype, raw) as picked:
        if out == "-":
            return _pipe(picked)
        with Progress() as progress:
            size = get.save(picked, out, overwrite=overwrite, progress=progress)
        note(f"{out}: {human_bytes(size)}")


def _pipe(picked: Picked) -> None:
    from weighbridge.cli.render import write_bytes
    from weighbridge.reports.get import chunks

    for chunk in chunks(picked):
        write_bytes(chunk)


def _show(s: Stats) -> None:
    from weighbridge.cli.render import clean, echo, human_bytes, pairs

    echo(clean(s.tensor), "head")
    bad = [f"{n:,} {word}" for n, word in ((s.nan, "NaN"), (s.inf, "Inf")) if n]
    pairs(
        [
            ("type", f"{s.dtype}[{', '.join(map(str, s.shape))}], {human_bytes(s.nbytes)}"),
            ("values", f"{s.count:,}, {s.zeros:,} zeros" + "".join(f", {words}" for words in bad)),
            ("range", None if s.minimum is None else f"{s.minimum:.6g} to {s.maximum:.6g}"),
            ("mean, std", None if s.mean is None else f"{s.mean:.6g}, {s.std:.6g}"),
            ("first", ", ".join(f"{v:.6g}" for v in s.preview) + (" ..." if s.count > len(s.preview) else "")),
        ],
        indent=2,
    )
    most = max(s.histogram, default=0)
    for n, lo in zip(s.histogram, s.edges, strict=False):
        echo(f"  {lo:>12.5g}  {'#' * -(-n * 50 // max(most, 1))} {n:,}")
