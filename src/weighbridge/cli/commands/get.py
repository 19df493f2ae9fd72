"""`wb get`: one tensor out of a model, or its statistics."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, Final

import click

from weighbridge.base.errors import UsageError
from weighbridge.cli.options import applied, command, examples, json_option, option, refuse_others
from weighbridge.cli.paths import SOURCE_OR_TENSOR, DTypeName, TensorName

_MODELS: Final = (".npz", ".safetensors", ".pt", ".pth")
_RAW: Final = (".bin", ".raw", ".dat")


_OPTIONS: Final = (
    click.argument("path", metavar="PATH::TENSOR", type=SOURCE_OR_TENSOR),
    click.argument("name", required=False, metavar="", type=TensorName()),
    option("-o", "--output", "out", metavar="FILE", type=click.Path(),
           help="Write it as .npy, .npz, .safetensors, .pt, or .bin (stored bytes); -: .npy to stdout."),
    option("--slice", "key", metavar="SLICE", help="Only a part, as numpy writes it: '[0:10, :]'."),
    option("--dtype", metavar="TYPE", type=DTypeName(),
           help="Write numbers of this type [as stored; F32 where numpy has no such type]."),
    option("--raw", is_flag=True, help="The bytes as they are stored: ggml blocks stay blocks."),
    option("--overwrite", is_flag=True, aliases=("-f", "--force", "-y", "--yes"), help="Replace FILE if it exists."),
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
def get(path: str, name: str | None, out: str | None, key: str | None, as_json: bool, **how: Any) -> None:
    """Take one tensor out of a file or a model, or (without -o) print its statistics.

    Quantized tensors come as numbers unless --raw is given. PATH TENSOR works too.
    """
    from weighbridge.cli.render import Progress, emit_json, human_bytes, note
    from weighbridge.cli.views import statistics
    from weighbridge.io.sink import check_target
    from weighbridge.reports import get

    tensor = path if name is None else f"{path}::{name}"
    if out is None:
        given = {f"--{option}": value for option, value in how.items()}
        refuse_others("statistics", given, hint="it says how a tensor is written: name a file with -o")
        with Progress() as progress:
            report = get.stats(tensor, key, progress)
        return emit_json(report) if as_json else statistics.tensor(report)
    if out == "-":
        refuse_others("standard output", {"--overwrite": how["overwrite"], "--json": as_json})
        return _pipe(tensor, key, how["dtype"], how["raw"])
    check_target(out, overwrite=how["overwrite"], folder=False)
    size = _write(tensor, out, key, **how)
    return emit_json({"path": out, "bytes": size}) if as_json else note(f"{out}: {human_bytes(size)}")


def _write(tensor: str, out: str, key: str | None, *, dtype: str | None, raw: bool, overwrite: bool) -> int:
    """Writes the tensor in the format of the suffix; the number of bytes."""
    from weighbridge.cli.render import Progress
    from weighbridge.reports import get

    suffix = PurePath(out).suffix.lower()
    if suffix in _MODELS and not raw:
        return _write_model(tensor, out, suffix, key, dtype, overwrite)
    if suffix not in ("", ".npy", *_RAW) and not raw:
        raise UsageError(
            f"{suffix!r} is not a format for a tensor", hint=f"name a file .npy, {', '.join(_MODELS)} or .bin; or --raw"
        )
    if raw or suffix != ".npy":
        refuse_others("stored bytes", {"--dtype": dtype}, hint="numbers go to .npy")
    with get.Picked(tensor, key, dtype, raw or suffix != ".npy") as picked, Progress() as progress:
        return get.save(picked, out, overwrite=overwrite, progress=progress)


def _write_model(path: str, out: str, suffix: str, key: str | None, dtype: str | None, overwrite: bool) -> int:
    """The tensor as a model of its own, in the format of the suffix."""
    from glob import escape

    import weighbridge
    from weighbridge.reports.tensor_path import split

    if key is not None:
        raise UsageError(f"--slice doesn't apply to {suffix}", hint="it applies to .npy and --raw")
    file, name = split(path)
    with weighbridge.plan_slice(file, out, keep=[escape(name or "")], dtype=dtype, overwrite=overwrite) as plan:
        return plan.run().bytes


def _pipe(tensor: str, key: str | None, dtype: str | None, raw: bool) -> None:
    from weighbridge.cli.render import write_bytes
    from weighbridge.reports.get import Picked, chunks

    with Picked(tensor, key, dtype, raw) as picked:
        for chunk in chunks(picked):
            write_bytes(chunk)
