"""`wb fit`: checks whether a model fits on a device, and which type to choose."""

from __future__ import annotations

import click

from weighbridge.base.options import option
from weighbridge.base.records import dataclass
from weighbridge.cli.options import CommandOptions, command, examples
from weighbridge.cli.values import SOURCE
from weighbridge.fitting.options import FitOptions


@dataclass(frozen=True, kw_only=True)
class FitCommand(FitOptions, CommandOptions):
    explain: bool = option("Show the arithmetic line by line.", False)


@command(
    FitCommand,
    epilog=examples(
        "wb fit ./my-model/ --device rtx4090",
        "wb fit model.gguf --device m3-max-36gb --context 32k",
        "wb fit ./my-model/ --device 8GB --type Q4_K_M --explain",
        "wb fit text.gguf --mmproj mmproj.gguf --device 8GB",
        "wb fit ./my-model/ --runtime mlx --cache-type q8_0 --json",
    ),
)
@click.argument("model", type=SOURCE)
def fit(model: str, options: FitCommand) -> int:
    """Check whether MODEL fits on a device [this one]: weights, KV cache, buffers, the longest context, every type.

    Reads headers and config.json only. For llama.cpp and Ollama, weights and caches are exact to the byte; compute
    buffers are within 3 % for most architectures. Speeds are upper bounds: bandwidth over the bytes that a token reads.
    Exit code 1 if MODEL doesn't fit on the device as a whole.
    """
    from weighbridge.cli.render import emit_json
    from weighbridge.cli.views import fit as view
    from weighbridge.fitting.report import fit

    report = fit(model, **options.keywords(fit))
    if options.json:
        emit_json(report)
    elif options.explain:
        view.explanation(report)
    else:
        view.show(report)
    return int(not report)
