"""`wb get`: one tensor out of a model, or its statistics."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Final

import click

from weighbridge.cli.options import command, examples, json_option, option

if TYPE_CHECKING:
    from weighbridge.reports.get import Picked, Stats


_MODELS: Final = (".npz", ".safetensors", ".pt", ".pth")
_RAW: Final = (".bin", ".raw", ".dat")


@command(
    epilog=examples(
        "wb get model.gguf::token_embd.weight",
        "wb get ./my-model/::lm_head.weight -o head.npy",
        "wb get model.safetensors::model.norm.weight --slice '[0:10]'",
        "wb get model.gguf::blk.0.attn_q.weight --raw -o - | xxd | head",
    )
)
@click.argument("path", metavar="PATH::TENSOR")
@click.argument("name", required=False, metavar="")
@option(
    "-o",
    "--output",
    "out",
    metavar="FILE",
    help="Write it as .npy, .npz, .safetensors, .pt, or .bin (stored bytes); -: .npy to stdout.",
)
@option("--slice", "key", metavar="SLICE", help="Only a part, as numpy writes it: '[0:10, :]'.")
@option("--dtype", help="Write numbers of this type [as stored; F32 where numpy has no such type].")
@option("--raw", is_flag=True, help="The bytes as they are stored: ggml blocks stay blocks.")
@option("--overwrite", is_flag=True, help="Replace FILE where it exists.")
@json_option
def get(
    path: str, name: str | None, out: str | None, key: str | None, dtype: str | None, raw: bool, overwrite: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Take one tensor out of a file or a model, or (without -o) print its statistics.

    Quantized tensors come as numbers unless --raw is given. PATH TENSOR works too.
    """
    from weighbridge.cli.render import Progress, emit_json, human_bytes, note
    from weighbridge.reports import get

    tensor = path if name is None else f"{path}::{name}"
    if out is None:
        if raw or dtype or overwrite:
            raise click.UsageError("--raw, --dtype and --overwrite say how to write: give a file with -o.")
        with Progress() as progress:
            report = get.stats(tensor, key, progress)
        return emit_json(report) if as_json else _show(report)
    suffix = PurePath(out).suffix.lower()
    if suffix in _MODELS and not raw:
        return _write_model(tensor, out, suffix, key, dtype, overwrite)
    if suffix not in ("", ".npy", *_RAW) and not raw:
        raise click.UsageError(f"{suffix!r} is not a format for a tensor: .npy, .npz, .safetensors, .pt or .bin.")
    raw = raw or (out != "-" and suffix != ".npy")
    with get.Picked(tensor, key, dtype, raw) as picked:
        if out == "-":
            return _pipe(picked)
        with Progress() as progress:
            size = get.save(picked, out, overwrite=overwrite, progress=progress)
        note(f"{out}: {human_bytes(size)}")


def _write_model(path: str, out: str, suffix: str, key: str | None, dtype: str | None, overwrite: bool) -> None:
    """The tensor as a model of its own, in the format of the suffix."""
    from glob import escape

    import weighbridge
    from weighbridge.cli.render import human_bytes, note
    from weighbridge.reports.tensor_path import split

    if key is not None:
        raise click.UsageError(f"--slice writes .npy or --raw, not {suffix}.")
    file, name = split(path)
    with weighbridge.plan_slice(file, out, keep=[escape(name or "")], dtype=dtype, overwrite=overwrite) as plan:
        plan.run()
    note(f"{out}: {human_bytes(plan.size)}")


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
