"""`wb stats`: statistics of one tensor's values, or one number for every role of every layer."""

from __future__ import annotations

from typing import Any

import click

from weighbridge.cli.options import arch_file_option, command, examples, json_option, option
from weighbridge.cli.values import SOURCE_OR_TENSOR


@command(
    epilog=examples(
        "wb stats ./my-model/",
        "wb stats model.gguf --statistic kurtosis",
        "wb stats model.gguf --statistic bits --json",
        "wb stats model.gguf::blk.0.attn_q.weight",
        "wb stats ./my-model/ --tensor model.layers.0.mlp.down_proj.weight --bins 20",
    )
)
@click.argument("path", type=SOURCE_OR_TENSOR)
@option("--tensor", metavar="NAME", help="Only this tensor; same as PATH::NAME.")
@option("--bins", type=click.IntRange(1, 4096), metavar="N", help="Bins of a tensor's histogram [64].")
@option("--statistic", metavar="NAME", help="bytes, parameters, bits, mean, std, rms [default], kurtosis, absmax ...")
@arch_file_option
@json_option
def stats(path: str, as_json: bool, **options: Any) -> None:
    """Compute statistics of all values in PATH; quantized values are decoded.

    For a model: one number for every role of every layer; experts of a layer count as one tensor. bytes, parameters and
    bits read only headers, all others read every value. For a tensor (PATH::TENSOR): moments, quantiles, a histogram,
    and the columns of outliers.
    """
    import weighbridge
    from weighbridge.cli.render import Progress, emit_json
    from weighbridge.cli.views import statistics as view
    from weighbridge.reports.statistics.heat import HeatMap

    with Progress() as progress:
        report = weighbridge.stats(path, progress=progress, **options)
    if as_json:
        emit_json(report)
    elif isinstance(report, HeatMap):
        view.heat(report)
    else:
        view.tensor(report)
