"""The contents of an importance matrix, and whether it belongs to a model, as plain data for `wb inspect`.

    inspect_imatrix("imatrix.gguf") -> ImatrixReport                   either form
    inspect_imatrix("imatrix.dat", model="./my-model/") -> ImatrixReport     with `fit`: what doesn't go together

The JSON form of a report is documented in docs/schema.md.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.containers.ggml.imatrix import ImatrixForm
from weighbridge.conversion.quantize import ftypes
from weighbridge.conversion.quantize.imatrix import ImatrixSums, ImportanceMatrix, compare, read
from weighbridge.conversion.quantize.inputs import QuantizeOptions, prepare, specs
from weighbridge.io.location import open_source
from weighbridge.models.open import open_model

SCHEMA: Final = "weighbridge/importance/1"

# Roles that llama-imatrix leaves out by default, though llama-quantize quantizes them.
_SELDOM: Final = ("embedding", "output")


@dataclass(frozen=True, slots=True)
class EntryStats:
    """One entry. `seen_least`, `seen_most`: least and most tokens or calls (`ImatrixReport.unit`) of a matrix. Other
    numbers are of mean squares over the matrices that were used; `most_at`, `least_at`: [matrix, column]."""

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
    """`extra`: entries of no tensor. `missing`: tensors for which llama-quantize uses an entry; `seldom`: those of them
    (embeddings, output) that llama-imatrix measures only on request. Names are those of a GGUF."""

    model: str
    fits: bool
    extra: tuple[str, ...]
    missing: tuple[str, ...]
    seldom: tuple[str, ...]
    wrong_size: tuple[WrongSize, ...]


@dataclass(frozen=True, slots=True)
class ImatrixReport:
    """`chunks` of `chunk_size` tokens were read; 0 in a legacy file, which doesn't state the size."""

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
    """The report on a file of either format; with `model` (anything `wb quantize` reads) also how it fits. FormatError
    where the file isn't an importance matrix or has a value that isn't finite."""
    with open_source(resolve_path(path)) as source:
        matrix, size = read(source), source.size
    lines = tuple(_stats(name, entry) for name, entry in matrix.entries.items())
    return ImatrixReport(
        path=os.fspath(path),
        form="legacy" if matrix.legacy else "gguf",
        unit="calls" if matrix.legacy else "tokens",
        nbytes=size,
        datasets=matrix.datasets,
        chunks=matrix.chunks,
        chunk_size=matrix.chunk_size,
        values=sum(matrix.sizes().values()),
        unused=sum(line.unused for line in lines),
        entries=lines,
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
    means: NDArray[np.float64], used: NDArray[np.intp], where: Any
) -> tuple[float | None, tuple[int, int] | None]:
    """The value that `where` selects, and its [matrix, column]; the first of several."""
    if not means.size:
        return None, None
    row, column = divmod(int(where(means)), means.shape[1])
    return float(means[row, column]), (int(used[row]), column)


def fit(matrix: ImportanceMatrix, path: str | os.PathLike[str]) -> ModelFit:
    """How names and sizes match the model at `path`, whose tensors are named and shaped as `wb quantize` writes
    them."""
    with open_model(path) as model:
        made = prepare(model, None, QuantizeOptions())
        tensors, architecture = specs(made.tensors), made.facts.architecture
    found = compare(matrix, tensors)
    shapes = dict(tensors)
    absent = [n for n in found.missing if ftypes.quantizable(n, shapes[n], architecture)]
    seldom = tuple(n for n in absent if ftypes.role(n) in _SELDOM)
    missing = tuple(n for n in absent if n not in seldom)
    wrong = tuple(WrongSize(*row) for row in found.wrong_size)
    fits = not (found.unknown or missing or wrong)
    return ModelFit(os.fspath(path), fits, found.unknown, missing, seldom, wrong)
