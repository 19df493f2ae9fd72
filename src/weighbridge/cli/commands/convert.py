"""`wb convert` and `wb plan`: convert a model to another form.

Spellings follow other tools: `--outtype` and `--outfile` of llama.cpp's converter, `--dtype` of
transformers, `--max-shard-size 5GB` of the Hub, `--split-max-size`, `--split-max-tensors` of llama-gguf-split,
`--q-bits` of mlx_lm.convert.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePath
from typing import Any, Final, cast

import click

from weighbridge.api.keywords import ConvertKeywords
from weighbridge.base.dtypes import DTypeLike
from weighbridge.base.errors import UsageError
from weighbridge.base.records import dataclass
from weighbridge.cli.options import Command, command, examples
from weighbridge.cli.render import SCREEN
from weighbridge.cli.values import OUTPUT, PATH
from weighbridge.cli.views.plan import TargetCommand, planned, write
from weighbridge.cli.views.quantize import show_plan
from weighbridge.conversion.options import TargetOptions


@dataclass(frozen=True, kw_only=True)
class ConvertCommand(ConvertKeywords, TargetCommand):
    pass


_QUANTIZING: Final = ("quantize", "q_bits", "q_group_size", "q_mode", "recipe")
# Names of other tools for types that aren't a cast of float weights -> bits.
_INTEGERS: Final = {"int8": 8, "int4": 4, "8bit": 8, "4bit": 4, "q8": 8, "q4": 4}


def _is_quantized(src: Path | str, target: str, dtype: DTypeLike | None, to: str | TargetOptions | None) -> bool:
    """Whether --dtype names a type of `wb quantize`, which then does the work. Raises UsageError for a bare `int8` and
    for a type that no GGUF has."""
    from weighbridge.conversion.dtype_policy import is_cast

    if not isinstance(dtype, str) or is_cast(dtype):
        return False
    gguf = (to or PurePath(target).suffix[1:].lower()) == "gguf"
    if bits := _INTEGERS.get(dtype.lower()):
        ways = {"mlx": f"--to mlx --q-bits {bits}"}
        way = f"--dtype q{bits}_0" if gguf else ways.get(str(to), f"--to hf --scheme w{bits}a16")
        raise UsageError(f"{dtype} is not a dtype that weights are cast to", hint=f"wb convert {src} {target} {way}")
    from weighbridge.conversion.quantize.ftypes import parse_ftype

    return gguf and (parse_ftype(dtype) is not None or dtype.lower() == "copy")


@command(
    ConvertCommand,
    epilog=examples(
        "wb convert ./my-model/ my-model.gguf --dtype q8_0",
        "wb convert my-model.gguf ./my-model/ --to hf",
        "wb convert model.safetensors model.npz",
        "wb convert ./my-model/ ./my-model-W4A16/ --scheme w4a16",
        "wb convert ./my-model/ ./for-torch/ --to torch --max-shard-size 5GB",
        "wb convert training.ckpt ./training/ --to checkpoint",
        "wb convert ./adapter/ adapter.gguf --base ./my-model/",
        "wb convert model.safetensors new.onnx --graph model.onnx",
        "wb convert weights.pt out.gguf --arch my-model --kv my-model.layers=12",
        "wb convert ./whisper-base.en/ ggml-base.en.bin",
        "wb convert ./my-model/ merged.gguf --lora ./adapter/ --dtype q4_k_m",
        "wb convert ./my-model/ my-model.gguf --dtype f16 --dry-run",
    ),
)
@click.argument("src", type=PATH)
@click.argument("dst", type=OUTPUT, required=False)
@click.option("-q", "short_quiet", is_flag=True, hidden=True)
def convert(src: Path | str, dst: str | None, short_quiet: bool, options: ConvertCommand) -> int:
    """Convert the model SRC to DST: another format, other dtypes, other shards.

    SRC is a file, a folder or one file of a sharded set. Reports everything that the target can't hold; with --dry-run,
    before anything is written. An option that doesn't apply to the target is an error. A TYPE such as Q4_K_M quantizes
    like `wb quantize`.
    """
    import weighbridge

    if dst and options.output:
        raise UsageError(f"two targets were given: {dst} and {options.output}", hint="wb convert SRC DST")
    if (target := dst or options.output) is None:
        raise UsageError("no target was given", hint="wb convert SRC DST")
    if short_quiet and options.to == "mlx" and not {*_QUANTIZING} & {*options.given}:
        raise UsageError("-q means quiet and doesn't quantize", hint="--q-bits 4 quantizes; --quiet is quiet")
    SCREEN.quiet = SCREEN.quiet or short_quiet
    to = "gguf" if options.with_mmproj and options.to is None else options.to
    if not options.arch and _is_quantized(src, target, options.dtype, to):
        given = options.keywords(weighbridge.plan_convert)
        keywords = {name: value for name, value in given.items() if name not in ("dtype", "to")}
        keywords["ftype"] = options.dtype
        quantized = planned(weighbridge.plan_quantize, src, target, options, keywords)
        return show_plan(quantized, options) if options.dry_run else write(quantized, options)
    return write(planned(weighbridge.plan_convert, src, target, options), options)


plan: Final = Command(
    "plan",
    params=[param for param in convert.params if param.name != "dry_run"],
    callback=partial(cast(Callable[..., Any], convert.callback), dry_run=True),
    help="Same as `wb convert` with --dry-run: files, sizes, memory and losses of a conversion. Writes nothing.",
    epilog=examples("wb plan ./my-model/ my-model.gguf --dtype q8_0", "wb plan a.safetensors b.npz --json"),
)
