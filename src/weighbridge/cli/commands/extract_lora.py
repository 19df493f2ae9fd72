"""`wb extract-lora`: extracts a LoRA adapter from two models."""

from __future__ import annotations

import click

from weighbridge.api.keywords import ExtractKeywords
from weighbridge.cli.options import command, examples
from weighbridge.cli.render import Progress
from weighbridge.cli.values import OUTPUT, PATH
from weighbridge.cli.views.extract import write_extraction
from weighbridge.cli.views.plan import WriteCommand, check_writable


@command(
    ExtractKeywords,
    WriteCommand,
    epilog=examples(
        "wb extract-lora ./base/ ./tuned/ ./adapter/",
        "wb extract-lora ./base/ ./tuned/ ./adapter/ --rank 128 --energy 0.95",
        "wb extract-lora ./base/ ./tuned/ adapter.gguf --rank 16 --dtype f16",
        "wb extract-lora ./base/ ./tuned/ ./adapter/ --modules-to-save lm_head --modules-to-save norm",
        "wb extract-lora ./base/ hf://OWNER/TUNED ./adapter/ --dry-run --json",
    ),
)
@click.argument("base", type=PATH)
@click.argument("tuned", type=PATH)
@click.argument("dst", type=OUTPUT)
def extract_lora(base: str, tuned: str, dst: str, options: WriteCommand) -> int:
    """Write the LoRA adapter that makes the model TUNED of BASE to DST: a folder of PEFT, or llama.cpp's GGUF.

    The difference of each matrix is decomposed (randomized SVD). Its rank is at most --rank, and lower if the rest is
    as large as the rounding of TUNED's weights: a merged LoRA comes back with its rank. Both models may be of any
    format. All values are read, also by --dry-run, which prints ranks and errors.
    """
    import weighbridge

    check_writable(dst, options)
    keywords = options.keywords(weighbridge.plan_extract_lora)
    with Progress(noun="tensor") as progress:
        plan = weighbridge.plan_extract_lora(base, tuned, dst, **keywords, progress=progress)
    return write_extraction(plan, options)
