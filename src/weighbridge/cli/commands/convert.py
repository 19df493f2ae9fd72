"""`wb convert` and `wb plan`: from one form of a model to another. The work is the library's; here are its options.

Spellings follow what people type already: `--outtype` and `--outfile` of llama.cpp's converter, `--dtype` of
transformers, `--max-shard-size 5GB` of the Hub, `--split-max-size`, `--split-max-tensors` of llama-gguf-split.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from weighbridge.base.errors import UsageError
from weighbridge.cli.commands.plans import convert_and_tell, show_plan
from weighbridge.cli.options import arch_file_option, examples, jobs_option, json_option, resume_option, size_option
from weighbridge.cli.targets import TargetType

_OPTIONS: Final[tuple[Callable[[Any], Any], ...]] = (
    click.argument("src", type=click.Path(path_type=Path)),
    click.argument("dst", type=click.Path(path_type=Path), required=False),
    click.option(
        "-o", "--output", "--outfile", type=click.Path(path_type=Path), help="The target, where DST isn't given."
    ),
    click.option("--to", type=TargetType("checkpoint"), help="Format of the target [from DST's extension]."),
    click.option(
        "--dtype", "--outtype", metavar="TYPE", help="Number type of the weights: f32, f16, bf16, q8_0, auto, ..."
    ),
    size_option("--max-shard-size", "--split-max-size", help="Largest size of one file, such as 5GB."),
    click.option("--split-max-tensors", type=click.IntRange(1), metavar="N", help="Most tensors in one file."),
    click.option("--pre", metavar="NAME", help="Pre-tokenizer to write into a GGUF, where it isn't recognised."),
    click.option("--tokenizer/--no-tokenizer", default=True, help="Convert the tokenizer too [yes]."),
    click.option("--name", metavar="NAME", help="Model name to write into a GGUF [from the source]."),
    click.option("--align", type=click.IntRange(1), metavar="N", help="Alignment of the tensors in bytes."),
    click.option(
        "--scheme",
        metavar="NAME",
        help="A model folder quantized as: gptq, awq, fp8, w4a16 (2 to 8), w8a8, fp8_dynamic, fp8_block, nvfp4a16, "
        "mxfp4a16, mxfp6a16, mxfp8a16.",
    ),
    click.option(
        "--q-bits",
        "--bits",
        type=click.IntRange(2, 8),
        metavar="N",
        help="MLX, gptq: bits of a quantized weight [4].",
    ),
    click.option(
        "--q-group-size",
        "--group-size",
        type=int,
        metavar="N",
        help="Weights that share a scale. MLX: 32, 64 [this], 128. Schemes of integers: any [128]; -1: a row.",
    ),
    click.option("--sym/--asym", "symmetric", default=None, help="Schemes of integers: without or with zero points."),
    click.option("--q-mode", type=click.Choice(("affine", "mxfp4", "mxfp8", "nvfp4")), help="MLX: the kind of codes."),
    click.option(
        "--recipe",
        "--quant-predicate",
        "q_recipe",
        metavar="NAME",
        help="MLX: mixed_2_6, mixed_3_4, mixed_3_6, mixed_4_6.",
    ),
    click.option(
        "--inexact",
        type=click.Choice(("float", "near", "refuse")),
        help="A quantized tensor that fits no type exactly: as floats [this], with rounded scales, or not at all.",
    ),
    click.option("--lossless", "inexact", flag_value="refuse", help="The same as --inexact refuse."),
    click.option("--allow-requantize", is_flag=True, help="Quantize what is quantized already (loses more)."),
    click.option("--allow-expand", is_flag=True, help="Write expanded views of a pickle, however large they become."),
    click.option(
        "--rms-eps", type=float, metavar="X", help="Epsilon of a llama from before GGUF, which doesn't say it."
    ),
    click.option("--context-length", type=click.IntRange(1), metavar="N", help="Context of such a llama [2048]."),
    size_option("--max-memory", help="Most memory to hold beside the interpreter."),
    click.option(
        "--lora", type=click.Path(path_type=Path), metavar="ADAPTER", help="Merge this LoRA adapter into the weights."
    ),
    click.option(
        "--base",
        type=click.Path(path_type=Path),
        metavar="MODEL",
        help="Where SRC is a LoRA adapter: the model it is for [as it says].",
    ),
    arch_file_option,
    click.option("--overwrite", is_flag=True, help="Replace DST where it exists."),
    resume_option,
    jobs_option,
    json_option,
)


def conversion_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of `convert`, on another command too."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def target_of(dst: Path | None, output: Path | None) -> Path:
    """The target, however it was given."""
    if dst and output:
        raise UsageError(f"two targets were given: {dst} and {output}")
    if dst is None and output is None:
        raise UsageError("no target was given", hint="name it after the source: wb convert SRC DST")
    return dst or output  # type: ignore[return-value]  # one of them is there


@click.command(
    epilog=examples(
        "wb convert ./my-model/ my-model.gguf --dtype q8_0",
        "wb convert my-model.gguf ./my-model/ --to hf",
        "wb convert model.safetensors model.npz",
        "wb convert ./my-model/ ./my-model-W4A16/ --scheme w4a16",
        "wb convert ./my-model/ ./for-torch/ --to torch --max-shard-size 5GB",
        "wb convert ./big/ ./small-shards/ --max-shard-size 2GB",
        "wb convert training.ckpt ./training/ --to checkpoint",
        "wb convert ./adapter/ adapter.gguf --base ./my-model/",
        "wb convert ./my-model/ merged.gguf --lora ./adapter/",
        "wb convert ./my-model/ my-model.gguf --dtype f16 --dry-run",
    )
)
@conversion_options
@click.option("--dry-run", is_flag=True, help="Print the plan and write nothing.")
def command(src: Path, dst: Path | None, output: Path | None, dry_run: bool, as_json: bool, **options: Any) -> int:
    """Convert the model SRC to DST: another format, another number type, other shards.

    SRC is a file, a folder or one of a set of shards. What can't be kept is told; with --dry-run, before anything is
    written.
    """
    act = show_plan if dry_run else convert_and_tell
    return act(src, target_of(dst, output), as_json=as_json, **options)


@click.command(epilog=examples("wb plan ./my-model/ my-model.gguf --dtype q8_0", "wb plan a.safetensors b.npz --json"))
@conversion_options
def plan(src: Path, dst: Path | None, output: Path | None, as_json: bool, **options: Any) -> int:
    """Say what `wb convert` would do: files, sizes, memory, losses. Nothing is written."""
    return show_plan(src, target_of(dst, output), as_json=as_json, **options)
