"""`wb pack`: packs weights without loss."""

from __future__ import annotations

import click

from weighbridge.cli.options import command, examples
from weighbridge.cli.values import OUTPUT, PATH
from weighbridge.cli.views.pack import write_packed
from weighbridge.cli.views.plan import WriteCommand, planned
from weighbridge.conversion.archive.options import PackOptions


@command(
    PackOptions,
    WriteCommand,
    epilog=examples(
        "wb pack ./model/ ./packed/",
        "wb pack model.safetensors model.packed.safetensors",
        "wb pack ./tuned/ ./packed/ --base ./base/",
        "wb pack ./model/ ./packed/ --dry-run",
    ),
)
@click.argument("src", type=PATH)
@click.argument("dst", type=OUTPUT)
def pack(src: str, dst: str, options: WriteCommand) -> int:
    """Pack the file SRC, or the weights of the folder SRC, to DST without loss.

    bf16 takes about 67 % of its bytes then, f32 83 %. Every command reads packed files like the originals. With --base
    a fine-tune is stored as the difference to its base, which takes 5 to 20 % after a short training.

    A packed file is a Safetensors file whose tensors have packed bytes, so its name ends in .safetensors; a folder's
    other files are copied. wb unpack restores the original bytes.
    """
    import weighbridge

    return write_packed(planned(weighbridge.plan_pack, src, dst, options), options)
