"""Reads one tensor's values, computes statistics, lists the models of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from weighbridge.base.dtypes import DTypeLike
from weighbridge.base.errors import UsageError
from weighbridge.conversion.options import Path
from weighbridge.conversion.result import Progress
from weighbridge.reports import tensor_path
from weighbridge.reports.get import Picked
from weighbridge.reports.stores.listing import StoreReport, list_models

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from weighbridge.reports.statistics.heat import HeatMap
    from weighbridge.reports.statistics.tensor import TensorStatistics


def get(path: Path, *, slice: str | None = None, dtype: DTypeLike | None = None) -> NDArray[Any]:
    """Returns the values of the tensor at `path` (`FILE::TENSOR`) as a numpy array of its shape. `slice`: a part of it
    in numpy syntax ("[0:10, :]"); only its rows are read. `dtype`: None keeps numpy's types and decodes others to F32.
    UsageError for an unknown tensor."""
    with Picked(path, slice, dtype) as picked:
        return picked.array()


def stats(
    path: Path, *, tensor: str | None = None, bins: int | None = None, statistic: str | None = None,
    arch_file: Path | None = None, progress: Progress | None = None,
) -> TensorStatistics | HeatMap:  # fmt: skip
    """Statistics of every value at `path`. For a tensor (`FILE::TENSOR`, or `tensor`): moments, quantiles, a histogram
    of `bins`, the columns of outliers. For a model: one number for each role of each layer, the `statistic` (bytes,
    parameters, bits, mean, std, rms [default], kurtosis, absmax, zeros, nonfinite). UsageError for an unknown one, and
    for an option of the other kind."""
    from weighbridge.models.open import WHOLE, open_model
    from weighbridge.reports.statistics.heat import heat_map
    from weighbridge.reports.statistics.tensor import BINS, describe_tensor

    file, name = tensor_path.split(path)
    if name is not None and tensor is not None:
        raise UsageError(f"{path} names a tensor already", hint="omit --tensor")
    name = name or tensor
    if name is None and bins is not None:
        raise UsageError("--bins doesn't apply to a model", hint="name a tensor for a histogram")
    if name is not None and statistic is not None:
        raise UsageError("--statistic doesn't apply to one tensor", hint="all of them are shown")
    with open_model(file, replace(WHOLE, arch_file=arch_file)) as model:
        if name is None:
            return heat_map(model, statistic or "rms", progress=progress)
        return describe_tensor(model, name, bins=BINS if bins is None else bins, progress=progress)


def ls(paths: Sequence[Path] = (), *, include: Sequence[str] = (), sort: str | None = None) -> StoreReport:
    """The models in the stores of this machine, or below the folders `paths`: names, addresses, sizes. `include`:
    globs of names. `sort`: name, size, used, params, format or store, with `:desc` for the other order."""
    return list_models(paths, filter=include, sort=sort)
