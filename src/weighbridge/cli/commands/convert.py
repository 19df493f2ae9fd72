"""`wb convert` and `wb plan`: from one form of a model to another. The work is the library's; here are its options.

Spellings follow what people type already: `--outtype` and `--outfile` of llama.cpp's converter, `--dtype` of
transformers, `--max-shard-size 5GB` of the Hub, `--split-max-size`, `--split-max-tensors` of llama-gguf-split,
`--q-bits` of mlx_lm.convert.
"""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Any, Final

import click

from weighbridge.base.errors import UsageError
from weighbridge.cli.options import (
    Command,
    applied,
    command,
    examples,
    option,
    shard_options,
    source_options,
    to_option,
    write_options,
)
from weighbridge.cli.paths import OUTPUT, PATH, DTypeName
from weighbridge.cli.views.plan import planned, write
from weighbridge.cli.views.quantize import show_plan

_MLX: Final = "MLX folder, and --scheme"
_OPTIONS: Final = (
    click.argument("src", type=PATH),
    click.argument("dst", type=OUTPUT, required=False),
    option("-o", "--output", type=OUTPUT, aliases=("--outfile", "--mlx-path"), help="The target, instead of DST.",
           section="Target"),
    to_option("checkpoint"),
    option("--dtype", metavar="TYPE", type=DTypeName(quantized=True), aliases=("--outtype", "--quant"),
           section="Target", help="Type of the weights: f32, f16, bf16, q8_0, auto; GGUF: wb quantize's types, too."),
    shard_options(),
    option("--inexact", type=click.Choice(("float", "near", "refuse")), section="Target",
           help="Quantized tensors that fit no type exactly: floats [default], rounded scales, or an error."),
    option("--lossless", "inexact", flag_value="refuse", section="Target", help="Same as --inexact refuse."),
    option("--allow-requantize", is_flag=True, default=None, section="Target",
           help="Quantize tensors that are quantized already."),
    option("--lora", type=PATH, metavar="ADAPTER", section="Target", help="Merge this LoRA adapter into the weights."),
    option("--base", type=PATH, metavar="MODEL", section="Target",
           help="If SRC is a LoRA adapter: its base model [the one it names]."),
    option("--tokenizer/--no-tokenizer", default=None, section="Target",
           help="GGUF from a folder, or a folder from a GGUF: convert the tokenizer too [yes]."),
    option("--name", metavar="NAME", aliases=("--model-name",), section="GGUF", help="Model name [from the source]."),
    option("--pre", metavar="NAME", section="GGUF", help="Pre-tokenizer, if the source's isn't recognized."),
    option("--align", type=click.IntRange(1), metavar="N", section="GGUF",
           help="Alignment of the tensors in bytes (safetensors: of the data)."),
    option("--vocab-only", is_flag=True, default=None, section="GGUF",
           help="Write keys and tokenizer, and no tensors."),
    option("--rms-eps", type=float, metavar="X", section="GGUF", help="Epsilon of a LLaMA file from before GGUF."),
    option("--context-length", type=click.IntRange(1), metavar="N", section="GGUF",
           help="Context of such a file [2048]."),
    option("--scheme", metavar="NAME", section="Quantized Hugging Face folder",
           help="gptq, awq, fp8, w4a16 (w2 to w8), w8a8, fp8_dynamic, fp8_block, nvfp4a16, mxfp{4,6,8}a16."),
    option("--sym/--asym", default=None, section="Quantized Hugging Face folder",
           help="Without or with zero points (integer schemes)."),
    option("-q", "--quantize", is_flag=True, default=None, section="MLX folder",
           help="Quantize: 4 bits in groups of 64, if nothing else is given."),
    option("--q-bits", "--bits", type=click.IntRange(2, 8), metavar="N", section=_MLX, help="Bits per weight [4]."),
    option("--q-group-size", "--group-size", type=int, metavar="N", section=_MLX,
           help="Weights per scale. MLX: 32, 64 [default] or 128; integer schemes: any [128], -1 for a whole row."),
    option("--q-mode", type=click.Choice(("affine", "mxfp4", "mxfp8", "nvfp4")), section="MLX folder", help="Codes."),
    option("--recipe", metavar="NAME", aliases=("--quant-predicate",), section="MLX folder",
           help="mixed_2_6, mixed_3_4, mixed_3_6 or mixed_4_6."),
    source_options,
    write_options,
)  # fmt: skip


def target_of(dst: str | None, output: str | None) -> str:
    """The target, however it was given."""
    if (dst is None) == (output is None):
        both = f"two targets were given: {dst} and {output}" if dst else "no target was given"
        raise UsageError(both, hint="wb convert SRC DST")
    return dst or output  # type: ignore[return-value]  # one of them is there


# What other tools call types that no float weight is cast to -> their bits.
_INTEGERS: Final = {"int8": 8, "int4": 4, "8bit": 8, "4bit": 4, "q8": 8, "q4": 4}


def _is_quantized(src: Path | str, target: str, dtype: str | None, to: str | None) -> bool:
    """Whether --dtype names a type of `wb quantize`: then that is what is done. UsageError for a mere `int8`."""
    if dtype is None or dtype.lower() in ("auto", "f32", "f16", "bf16", "q8_0"):
        return False
    gguf = (to or PurePath(target).suffix[1:]) == "gguf"
    if bits := _INTEGERS.get(dtype.lower()):
        ways = {"mlx": f"--to mlx --q-bits {bits}"}
        way = f"--dtype q{bits}_0" if gguf else ways.get(to or "", f"--to hf --scheme w{bits}a16")
        raise UsageError(f"{dtype} is not a dtype that weights are cast to", hint=f"wb convert {src} {target} {way}")
    from weighbridge.conversion.quantize.ftypes import parse_ftype

    if not gguf:
        return False
    try:
        return parse_ftype(dtype) is not None or dtype.lower() == "copy"
    except UsageError:
        return False


@command(
    epilog=examples(
        "wb convert ./my-model/ my-model.gguf --dtype q8_0",
        "wb convert my-model.gguf ./my-model/ --to hf",
        "wb convert model.safetensors model.npz",
        "wb convert ./my-model/ ./my-model-W4A16/ --scheme w4a16",
        "wb convert ./my-model/ ./for-torch/ --to torch --max-shard-size 5GB",
        "wb convert training.ckpt ./training/ --to checkpoint",
        "wb convert ./adapter/ adapter.gguf --base ./my-model/",
        "wb convert ./my-model/ merged.gguf --lora ./adapter/",
        "wb convert ./my-model/ my-model.gguf --dtype f16 --dry-run",
    )
)
@applied(_OPTIONS)
def convert(src: Path | str, dst: str | None, output: str | None, dry_run: bool, as_json: bool, **options: Any) -> int:
    """Convert the model SRC to DST: another format, other dtypes, other shards.

    SRC is a file, a folder or one file of a sharded set. Reports everything that the target can't hold; with --dry-run
    before anything is written. An option that doesn't apply to the target is an error. A TYPE such as Q4_K_M quantizes
    as `wb quantize` does.
    """
    import weighbridge

    target = target_of(dst, output)
    if _is_quantized(src, target, options["dtype"], options["to"]):
        types = {**options, "dtype": None, "to": None}
        quantized = planned(weighbridge.plan_quantize, src, target, types, dry_run=dry_run, ftype=options["dtype"])
        return show_plan(quantized, as_json=as_json) if dry_run else write(quantized, dry_run=False, as_json=as_json)
    plan = planned(weighbridge.plan_convert, src, target, options, dry_run=dry_run)
    return write(plan, dry_run=dry_run, as_json=as_json)


def _dry_run(**options: Any) -> int:
    return int(convert.callback(dry_run=True, **options)) if convert.callback else 0


plan: Final = Command(
    "plan",
    params=[param for param in convert.params if param.name != "dry_run"],
    callback=_dry_run,
    help="Same as `wb convert` with --dry-run: files, sizes, memory and losses of a conversion. Nothing is written.",
    epilog=examples("wb plan ./my-model/ my-model.gguf --dtype q8_0", "wb plan a.safetensors b.npz --json"),
)
