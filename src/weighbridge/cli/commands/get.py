"""`wb get`: extracts one tensor of a model, or prints its statistics."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, Final

import click

from weighbridge.base.errors import UsageError
from weighbridge.cli.options import applied, command, dry_run_option, examples, json_option, option, refuse_others
from weighbridge.cli.values import SOURCE_OR_TENSOR, DTypeName, TensorName

_MODELS: Final = (".npz", ".safetensors", ".pt", ".pth")
_RAW: Final = (".bin", ".raw", ".dat")


_OPTIONS: Final = (
    click.argument("path", metavar="PATH::TENSOR", type=SOURCE_OR_TENSOR),
    click.argument("name", required=False, metavar="", type=TensorName()),
    option("-o", "--output", metavar="FILE", type=click.Path(),
           help="Write it as .npy, .npz, .safetensors, .pt, or .bin (stored bytes); -: .npy to stdout."),
    option("--slice", metavar="SLICE", help="Only a part, in numpy syntax: '[0:10, :]'."),
    option("--dtype", metavar="TYPE", type=DTypeName(),
           help="Write numbers of this type [as stored; F32 where numpy has no such type]."),
    option("--raw", is_flag=True, help="Write the stored bytes: ggml blocks stay blocks."),
    option("--overwrite", is_flag=True, aliases=("-f", "--force"), help="Replace FILE if it exists."),
    dry_run_option,
    json_option,
)  # fmt: skip


@command(
    epilog=examples(
        "wb get model.gguf::token_embd.weight",
        "wb get ./my-model/::lm_head.weight -o head.npy",
        "wb get model.safetensors::model.norm.weight --slice '[0:10]'",
        "wb get model.gguf::blk.0.attn_q.weight --raw -o - | xxd | head",
    )
)
@applied(_OPTIONS)
def get(path: str, name: str | None, output: str | None, slice: str | None, as_json: bool, **options: Any) -> None:
    """Extract one tensor of a file or a model, or without -o print its statistics.

    Quantized tensors are decoded unless --raw is given. PATH TENSOR works too.
    """
    from weighbridge.cli.render import Progress, emit_json, human_bytes, note, write_bytes
    from weighbridge.cli.views import statistics
    from weighbridge.io.sink import check_target
    from weighbridge.reports import get

    tensor = path if name is None else f"{path}::{name}"
    if output is None:
        writing = {f"--{option}": value for option, value in options.items()}
        refuse_others("statistics", writing, hint="it applies to writing: name a file with -o")
        with Progress() as progress:
            report = get.stats(tensor, slice, progress)
        return emit_json(report) if as_json else statistics.tensor(report)
    if output == "-":
        others = {"--overwrite": options["overwrite"], "--dry-run": options["dry_run"], "--json": as_json}
        refuse_others("standard output", others)
        with get.Picked(tensor, slice, options["dtype"], options["raw"]) as picked:
            for chunk in get.chunks(picked):
                write_bytes(chunk)
        return None
    check_target(output, overwrite=options["overwrite"], folder=False)
    size = _write(tensor, output, slice, **options)
    if as_json:
        return emit_json({"path": output, "bytes": size, "dry_run": options["dry_run"]})
    return note(f"{output}: {human_bytes(size)}{', not written' if options['dry_run'] else ''}")


def _write(
    tensor: str, out: str, key: str | None, *, dtype: str | None, raw: bool, overwrite: bool, dry_run: bool
) -> int:
    """Writes the tensor in the format of the suffix, unless `dry_run`. Returns the number of bytes."""
    from weighbridge.cli.render import Progress
    from weighbridge.reports import get

    suffix = PurePath(out).suffix.lower()
    if suffix in _MODELS and not raw:
        from glob import escape

        import weighbridge
        from weighbridge.reports.tensor_path import split

        if key is not None:
            raise UsageError(f"--slice doesn't apply to {suffix}", hint="it applies to .npy and --raw")
        file, name = split(tensor)
        with weighbridge.plan_slice(file, out, keep=[escape(name or "")], dtype=dtype, overwrite=overwrite) as plan:
            return plan.size if dry_run else plan.run().bytes
    if suffix not in ("", ".npy", *_RAW) and not raw:
        raise UsageError(
            f"{suffix!r} is not a format for a tensor", hint=f"name a file .npy, {', '.join(_MODELS)} or .bin; or --raw"
        )
    if raw or suffix != ".npy":
        refuse_others("stored bytes", {"--dtype": dtype}, hint="numbers go to .npy")
    with get.Picked(tensor, key, dtype, raw or suffix != ".npy") as picked, Progress() as progress:
        return get.size_of(picked) if dry_run else get.save(picked, out, overwrite=overwrite, progress=progress)
