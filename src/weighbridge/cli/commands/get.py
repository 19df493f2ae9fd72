"""`wb get`: extracts one tensor of a model, or prints its statistics."""

from __future__ import annotations

from pathlib import PurePath
from typing import Final

import click

from weighbridge.base.errors import UsageError
from weighbridge.base.options import option
from weighbridge.base.records import dataclass
from weighbridge.cli.options import DryRunOptions, command, examples, refuse_others
from weighbridge.cli.values import SOURCE_OR_TENSOR, TensorName
from weighbridge.io.options import OverwriteOptions
from weighbridge.reports.options import GetOptions

_MODELS: Final = (".npz", ".safetensors", ".pt", ".pth")
_RAW: Final = (".bin", ".raw", ".dat")


@dataclass(frozen=True, kw_only=True)
class GetCommand(GetOptions, OverwriteOptions, DryRunOptions):
    output: str | None = option(
        "Write it as .npy, .npz, .safetensors, .pt, or .bin (stored bytes); -: .npy to stdout.", metavar="FILE",
        kind="file or stdout", letter="o",
    )  # fmt: skip
    raw: bool = option("Write the stored bytes: ggml blocks stay blocks.", False)


@command(
    GetCommand,
    epilog=examples(
        "wb get model.gguf::token_embd.weight",
        "wb get ./my-model/::lm_head.weight -o head.npy",
        "wb get model.safetensors::model.norm.weight --slice '[0:10]'",
        "wb get model.gguf::blk.0.attn_q.weight --raw -o - | xxd | head",
    ),
)
@click.argument("path", metavar="PATH::TENSOR", type=SOURCE_OR_TENSOR)
@click.argument("name", required=False, metavar="", type=TensorName())
def get(path: str, name: str | None, options: GetCommand) -> None:
    """Extract one tensor of a file or a model, or without -o print its statistics.

    Quantized tensors are decoded unless --raw is given. PATH TENSOR works too.
    """
    from weighbridge.cli.render import Progress, emit_json, human_bytes, note, write_bytes
    from weighbridge.cli.views import statistics
    from weighbridge.io.sink import check_target
    from weighbridge.reports import get

    tensor, output = path if name is None else f"{path}::{name}", options.output
    if output is None:
        writing = ("dtype", "raw", "overwrite", "dry_run")
        refuse_others("statistics", options, writing, hint="it applies to writing: name a file with -o")
        with Progress() as progress:
            report = get.stats(tensor, options.slice, progress, options.step)
        return emit_json(report) if options.json else statistics.tensor(report)
    if output == "-":
        refuse_others("standard output", options, ("overwrite", "dry_run", "json"))
        with get.Picked(tensor, options.slice, options.dtype, options.raw, options.step) as picked:
            for chunk in get.chunks(picked):
                write_bytes(chunk)
        return None
    check_target(output, overwrite=options.overwrite, folder=False)
    size = _write(tensor, output, options)
    if options.json:
        return emit_json({"path": output, "bytes": size, "dry_run": options.dry_run})
    return note(f"{output}: {human_bytes(size)}{', not written' if options.dry_run else ''}")


def _write(tensor: str, out: str, options: GetCommand) -> int:
    """Writes the tensor in the format of the suffix, unless it is a dry run. Returns the number of bytes."""
    from weighbridge.cli.render import Progress
    from weighbridge.reports import get

    suffix, raw, dtype = PurePath(out).suffix.lower(), options.raw, options.dtype
    if suffix in _MODELS and not raw:
        from glob import escape

        import weighbridge
        from weighbridge.reports.tensor_path import split

        if options.slice is not None:
            raise UsageError(f"--slice doesn't apply to {suffix}", hint="it applies to .npy and --raw")
        file, name = split(tensor)
        with weighbridge.plan_slice(
            file, out, keep=[escape(name or "")], dtype=dtype, overwrite=options.overwrite, step=options.step
        ) as plan:
            return plan.size if options.dry_run else plan.run().bytes
    if suffix not in ("", ".npy", *_RAW) and not raw:
        raise UsageError(
            f"{suffix!r} is not a format for a tensor", hint=f"name a file .npy, {', '.join(_MODELS)} or .bin; or --raw"
        )
    if raw or suffix != ".npy":
        refuse_others("stored bytes", options, ("dtype",), hint="numbers go to .npy")
    with (
        get.Picked(tensor, options.slice, dtype, raw or suffix != ".npy", options.step) as picked,
        Progress() as progress,
    ):
        if options.dry_run:
            return get.size_of(picked)
        return get.save(picked, out, overwrite=options.overwrite, progress=progress)
