"""The contents of an importance matrix, and whether it fits a model, as plain data for `wb inspect`.

    inspect_imatrix("imatrix.gguf") -> ImatrixReport                         either format
    inspect_imatrix("imatrix.dat", model="./my-model/") -> ImatrixReport     with `fit`: the mismatches

The JSON form of a report is documented in docs/schema.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.records import dataclass
from weighbridge.containers.ggml.imatrix import ImatrixForm
from weighbridge.conversion.options import QuantizeOptions
from weighbridge.conversion.plan.writers import specs
from weighbridge.conversion.quantize import ftypes
from weighbridge.conversion.quantize.imatrix import ImatrixSums, ImportanceMatrix, compare, read
from weighbridge.conversion.quantize.inputs import prepare
from weighbridge.io.location import open_source
from weighbridge.models.open import open_model

SCHEMA: Final = "weighbridge/importance/1"

# Roles that llama-imatrix omits by default, though llama-quantize quantizes them.
_SELDOM: Final = ("embedding", "output")


@dataclass(frozen=True, slots=True)
class EntryStats:
    """One entry.

    `seen_least`, `seen_most`: the fewest and most tokens or calls (`ImatrixReport.unit`) of a matrix. The other numbers
    are of mean squares over the matrices that were used. `most_at`, `least_at`: [matrix, column].
    """

    name: str
    matrices: int
    columns: int
    seen_least: int
    seen_most: int
    unused: int
    sum: float
    most: float | None
    most_at: tuple[int, int] | None
    least: float | None
    least_at: tuple[int, int] | None
    zeros: float


@dataclass(frozen=True, slots=True)
class WrongSize:
    """An entry whose number of weights doesn't match the model's tensor."""

    name: str
    expected: int
    found: int


@dataclass(frozen=True, slots=True)
class ModelFit:
    """How a matrix fits a model, by the names of a GGUF.

    `extra`: entries without a tensor. `missing`: tensors without an entry that llama-quantize would use. `seldom`:
    the same for tensors that llama-imatrix measures only on request (embeddings, output).
    """

    model: str
    fits: bool
    extra: tuple[str, ...]
    missing: tuple[str, ...]
    seldom: tuple[str, ...]
    wrong_size: tuple[WrongSize, ...]


@dataclass(frozen=True, slots=True)
class ImatrixReport:
    """The contents of a file, measured over `chunks` of `chunk_size` tokens (0 in a legacy file, which lacks it)."""

    path: str
    form: ImatrixForm
    unit: str
    nbytes: int
    datasets: tuple[str, ...]
    chunks: int
    chunk_size: int
    values: int
    unused: int
    entries: tuple[EntryStats, ...]
    fit: ModelFit | None = None
    schema: str = SCHEMA


def inspect_imatrix(path: str | os.PathLike[str], *, model: str | os.PathLike[str] | None = None) -> ImatrixReport:
    """Reads a file of either format; with `model` (anything that `wb quantize` reads) also compares it with that.

    Raises FormatError if the file isn't an importance matrix or has a value that isn't finite.
    """
    with open_source(resolve_path(path)) as source:
        matrix, size = read(source), source.size
    entries = tuple(_stats(name, entry) for name, entry in matrix.entries.items())
    return ImatrixReport(
        path=os.fspath(path),
        form="legacy" if matrix.legacy else "gguf",
        unit="calls" if matrix.legacy else "tokens",
        nbytes=size,
        datasets=matrix.datasets,
        chunks=matrix.chunks,
        chunk_size=matrix.chunk_size,
        values=sum(matrix.sizes().values()),
        unused=sum(entry.unused for entry in entries),
        entries=entries,
        fit=None if model is None else fit(matrix, model),
    )


def _stats(name: str, entry: ImatrixSums) -> EntryStats:
    matrices, columns = entry.sums.shape
    used = np.flatnonzero(entry.counts > 0)
    means = entry.sums[used].astype(np.float64) / entry.counts[used, None]
    most, most_at = _extreme(means, used, np.argmax)
    least, least_at = _extreme(means, used, np.argmin)
    return EntryStats(
        name, matrices, columns, int(entry.counts.min()), int(entry.counts.max()), matrices - len(used),
        float(means.sum()), most, most_at, least, least_at,
        float((means == 0).mean()) if means.size else 0.0,
    )  # fmt: skip


def _extreme(
    means: NDArray[np.float64], used: NDArray[np.intp], argmost: Callable[[NDArray[np.float64]], np.intp]
) -> tuple[float | None, tuple[int, int] | None]:
    """The value at the flat index `argmost(means)`, and its [matrix, column]; means: f64[used matrices, columns]."""
    if not means.size:
        return None, None
    row, column = divmod(int(argmost(means)), means.shape[1])
    return float(means[row, column]), (int(used[row]), column)


def fit(matrix: ImportanceMatrix, path: str | os.PathLike[str]) -> ModelFit:
    """Compares names and sizes with the model at `path`, whose tensors are named and shaped as by `wb quantize`."""
    with open_model(path) as model:
        inputs = prepare(model, None, QuantizeOptions())
        tensors, architecture = specs(inputs.tensors), inputs.facts.architecture
    compared = compare(matrix, tensors)
    shapes = dict(tensors)
    absent = [n for n in compared.missing if ftypes.quantizable(n, shapes[n], architecture)]
    seldom = tuple(n for n in absent if ftypes.role(n) in _SELDOM)
    missing = tuple(n for n in absent if n not in seldom)
    wrong = tuple(WrongSize(*row) for row in compared.wrong_size)
    fits = not (compared.unknown or missing or wrong)
    return ModelFit(os.fspath(path), fits, compared.unknown, missing, seldom, wrong)
