"""`wb stats`: statistics of one tensor's values, or one number for every role of every layer."""

from __future__ import annotations

import click

from weighbridge.cli.options import CommandOptions, command, examples
from weighbridge.cli.values import SOURCE_OR_TENSOR
from weighbridge.reports.options import StatsOptions


@command(
    StatsOptions,
    CommandOptions,
    epilog=examples(
        "wb stats ./my-model/",
        "wb stats model.gguf --statistic kurtosis",
        "wb stats model.gguf --statistic bits --json",
        "wb stats model.gguf::blk.0.attn_q.weight",
        "wb stats ./my-model/ --tensor model.layers.0.mlp.down_proj.weight --bins 20",
    ),
)
@click.argument("path", type=SOURCE_OR_TENSOR)
def stats(path: str, options: CommandOptions) -> None:
    """Compute statistics of all values in PATH; quantized values are decoded.

    For a model: one number for every role of every layer; experts of a layer count as one tensor. bytes, parameters and
    bits read only headers, all others read every value. For a tensor (PATH::TENSOR): moments, quantiles, a histogram,
    and the columns of outliers.
    """
    import weighbridge
    from weighbridge.cli.render import Progress, emit_json
    from weighbridge.cli.views import statistics as view
    from weighbridge.reports.statistics.heat import HeatMap

    with Progress(computing=True) as progress:
        report = weighbridge.stats(path, progress=progress, **options.keywords(weighbridge.stats))
    if options.json:
        emit_json(report)
    elif isinstance(report, HeatMap):
        view.heat(report)
    else:
        view.tensor(report)
