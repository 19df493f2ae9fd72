"""`wb unpack`: restores packed weights."""

from __future__ import annotations

import click

from weighbridge.cli.options import command, examples
from weighbridge.cli.values import OUTPUT, PATH
from weighbridge.cli.views.plan import WriteCommand, planned, write
from weighbridge.conversion.archive.options import UnpackOptions


@command(
    UnpackOptions,
    WriteCommand,
    epilog=examples(
        "wb unpack ./packed/ ./model/",
        "wb unpack model.packed.safetensors model.safetensors",
        "wb unpack ./packed/ ./tuned/ --base ./base/",
        "wb unpack hf://OWNER/NAME ./model/",
        "wb unpack model.safetensors.znn model.safetensors",
    ),
)
@click.argument("src", type=PATH)
@click.argument("dst", type=OUTPUT)
def unpack(src: str, dst: str, options: WriteCommand) -> int:
    """Unpack the file SRC, or the packed files of the folder SRC, to DST: the original bytes.

    Each file is compared with the SHA-256 of the original before it gets its final name. ZipNN files (.znn) have none;
    they are decoded only.
    """
    import weighbridge

    return write(planned(weighbridge.plan_unpack, src, dst, options), options)
