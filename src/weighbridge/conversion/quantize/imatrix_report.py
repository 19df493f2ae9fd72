"""What an importance matrix says and whether it is a model's, as plain data: what `wb inspect` shows of one.

    about("imatrix.gguf") -> Report                          either form
    about("imatrix.dat", model="./my-model/") -> Report      with `fit`: what doesn't go together

The JSON form of a report is documented in docs/schema.md.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weighbridge.containers.ggml.imatrix import ImatrixForm
from weighbridge.conversion.quantize import ftypes as mixtures
from weighbridge.conversion.quantize.imatrix import Entry, Importance, compare, read
from weighbridge.conversion.quantize.inputs import QuantizeOptions, prepare, specs
from weighbridge.io.source import FileSource
from weighbridge.models.open import open_model

SCHEMA: Final = "weighbridge/importance/1"

# What llama-imatrix leaves out unless it is told otherwise, though llama-quantize quantizes it.
_SELDOM: Final = ("embedding", "output")


@dataclass(frozen=True, slots=True)
class Line:
    """One entry. `seen_least`, `seen_most`: how often a matrix of it was used (`Report.unit`). All other numbers are of
    mean squares, over the matrices that were used; `most` and `least` lie at [matrix, column]."""

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
    """An entry of another number of weights than the model's tensor asks for."""

    name: str
    expected: int
    found: int


@dataclass(frozen=True, slots=True)
class ModelFit:
    """`extra`: entries of no tensor. `missing`: tensors that llama-quantize would want an entry of; `seldom`: those of
    them (embeddings, output) that llama-imatrix measures only if told to. Names are the GGUF's."""

    model: str
    fits: bool
    extra: tuple[str, ...]
    missing: tuple[str, ...]
    seldom: tuple[str, ...]
    wrong_size: tuple[WrongSize, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """`chunks` of `chunk_size` tokens were read; a legacy file doesn't say how large they were (0)."""

    path: str
    form: ImatrixForm
    unit: str
    nbytes: int
    datasets: tuple[str, ...]
    chunks: int
    chunk_size: int
    values: int
    unused: int
    entries: tuple[Line, ...]
    fit: ModelFit | None = None
    schema: str = SCHEMA


def about(path: str | os.PathLike[str], *, model: str | os.PathLike[str] | None = None) -> Report:
    """All of a file of either form, and with `model` (whatever `wb quantize` reads) what doesn't fit. FormatError where
    it is no importance matrix, or holds a value that isn't finite."""
    with FileSource(path) as source:
        matrix, size = read(source), source.size
    lines = tuple(_line(name, entry) for name, entry in matrix.entries.items())
    return Report(
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


def _line(name: str, entry: Entry) -> Line:
    matrices, columns = entry.sums.shape
    used = np.flatnonzero(entry.counts > 0)
    means = entry.sums[used].astype(np.float64) / entry.counts[used, None]
    most, most_at = _extreme(means, used, np.argmax)
    least, least_at = _extreme(means, used, np.argmin)
    return Line(
        name, matrices, columns, int(entry.counts.min()), int(entry.counts.max()), matrices - len(used),
        float(means.sum()), most, most_at, least, least_at,
        float((means == 0).mean()) if means.size else 0.0,
    )  # fmt: skip


def _extreme(
    means: NDArray[np.float64], used: NDArray[np.intp], where: Any
) -> tuple[float | None, tuple[int, int] | None]:
    """The value that `where` points at, and its matrix (of all) and column; the first of several."""
    if not means.size:
        return None, None
    row, column = divmod(int(where(means)), means.shape[1])
    return float(means[row, column]), (int(used[row]), column)


def fit(matrix: Importance, path: str | os.PathLike[str]) -> ModelFit:
    """Names and sizes against the model at `path`, its tensors called and shaped as `wb quantize` would write them."""
    with open_model(path) as model:
        made = prepare(model, None, QuantizeOptions())
        tensors, architecture = specs(made.tensors), made.facts.architecture
    found = compare(matrix, tensors)
    shapes = dict(tensors)
    absent = [n for n in found.missing if mixtures.quantizable(n, shapes[n], architecture)]
    seldom = tuple(n for n in absent if mixtures.role(n) in _SELDOM)
    missing = tuple(n for n in absent if n not in seldom)
    wrong = tuple(WrongSize(*row) for row in found.misshapen)
    fits = not (found.unknown or missing or wrong)
    return ModelFit(os.fspath(path), fits, found.unknown, missing, seldom, wrong)
