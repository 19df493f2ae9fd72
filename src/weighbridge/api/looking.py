"""Reads one tensor's values, computes statistics, lists the models of this machine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weighbridge.base.errors import UsageError
from weighbridge.base.options import accepting
from weighbridge.reports import tensor_path
from weighbridge.reports.get import Picked
from weighbridge.reports.options import GetOptions, LsOptions, Path, StatsOptions
from weighbridge.reports.stores.listing import StoreReport, list_models

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from weighbridge.reports.statistics.heat import HeatMap
    from weighbridge.reports.statistics.tensor import TensorStatistics


@accepting(GetOptions)
def get(path: Path, options: GetOptions) -> NDArray[Any]:
    """Returns the values of the tensor at `path` (`FILE::TENSOR`) as a numpy array of its shape. Of a slice only the
    rows are read. Without a dtype, numpy's types are kept and others decoded to F32. Raises UsageError for an unknown
    tensor."""
    with Picked(path, options.slice, options.dtype, step=options.step) as picked:
        return picked.array()


@accepting(StatsOptions)
def stats(path: Path, options: StatsOptions) -> TensorStatistics | HeatMap:
    """Statistics of every value at `path`. For a tensor (`FILE::TENSOR`, or `tensor`): moments, quantiles, a histogram
    of `bins`, the columns of outliers. For a model: one number for each role of each layer, the `statistic` (bytes,
    parameters, bits, mean, std, rms, kurtosis, absmax, zeros, nonfinite). Raises UsageError for an unknown one, and for
    an option of the other kind."""
    from weighbridge.models.open import WHOLE, open_model
    from weighbridge.reports.statistics.heat import heat_map
    from weighbridge.reports.statistics.tensor import BINS, describe_tensor

    tensor, bins, statistic, progress = options.tensor, options.bins, options.statistic, options.progress
    file, name = tensor_path.split(path)
    if name is not None and tensor is not None:
        raise UsageError(f"{path} names a tensor already", hint="omit --tensor")
    name = name or tensor
    if name is None and bins is not None:
        raise UsageError("--bins doesn't apply to a model", hint="name a tensor for a histogram")
    if name is not None and statistic is not None:
        raise UsageError("--statistic doesn't apply to one tensor", hint="all of them are shown")
    with open_model(file, replace(WHOLE, arch_file=options.arch_file, step=options.step)) as model:
        if name is None:
            return heat_map(model, statistic or "rms", progress=progress)
        return describe_tensor(model, name, bins=BINS if bins is None else bins, progress=progress)


@accepting(LsOptions)
def ls(options: LsOptions) -> StoreReport:
    """The models in the stores of this machine, or below the folders `paths`: names, addresses, sizes. With `lineage`
    also their families, by a few rows of their weights."""
    report = list_models(options.paths, filter=options.include, sort=options.sort)
    if not options.lineage:
        return report
    from weighbridge.reports.lineage.stores import relate_stored

    return replace(report, lineage=relate_stored(report.entries, options.progress))
