"""`wb stats`: the values of one tensor, or one number for every role of every layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from weighbridge.base.errors import UsageError
from weighbridge.cli.options import command, examples, json_option, option, refuse_others
from weighbridge.cli.paths import SOURCE_OR_TENSOR

if TYPE_CHECKING:
    from pathlib import Path


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
@option("--tensor", metavar="NAME", help="Statistics of this tensor, as PATH::NAME.")
@option("--bins", type=click.IntRange(1, 4096), metavar="N", help="Bins of a tensor's histogram [64].")
@option("--statistic", metavar="NAME", help="bytes, parameters, bits, mean, std, rms [default], kurtosis, absmax ...")
@json_option
def stats(path: str, tensor: str | None, bins: int | None, statistic: str | None, as_json: bool) -> None:
    """Compute statistics of the values in PATH from every value, decoded where they are quantized.

    For a model: one number for every role of every layer; experts of a layer count as one tensor. bytes, parameters and
    bits need headers alone, all others read every value. For a tensor (PATH::TENSOR): moments, quantiles, a histogram,
    and the columns of outliers.
    """
    from weighbridge.reports import tensor_path

    file, name = tensor_path.split(path)
    if name is not None and tensor is not None:
        raise UsageError(f"{path} names a tensor already", hint="omit --tensor")
    name = name or tensor
    if name is None:
        refuse_others("a model", {"--bins": bins is not None}, hint="name a tensor for a histogram")
        return _of_model(file, statistic or "rms", as_json)
    refuse_others("one tensor", {"--statistic": statistic is not None}, hint="all of them are shown")
    return _of_tensor(file, name, bins, as_json)


def _of_model(path: Path, statistic: str, as_json: bool) -> None:
    from weighbridge.cli.render import Progress, emit_json
    from weighbridge.cli.views import statistics as view
    from weighbridge.models.open import open_model
    from weighbridge.reports.statistics.heat import heat_map

    with open_model(path) as model, Progress() as progress:
        report = heat_map(model, statistic, progress=progress)
    emit_json(report) if as_json else view.heat(report)


def _of_tensor(path: Path, name: str, bins: int | None, as_json: bool) -> None:
    from weighbridge.cli.render import Progress, emit_json
    from weighbridge.cli.views import statistics as view
    from weighbridge.models.open import open_model
    from weighbridge.reports.statistics.tensor import BINS, describe_tensor

    with open_model(path) as model, Progress() as progress:
        report = describe_tensor(model, name, bins=BINS if bins is None else bins, progress=progress)
    emit_json(report) if as_json else view.tensor(report)
