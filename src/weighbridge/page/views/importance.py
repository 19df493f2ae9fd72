"""An importance matrix by layer and role: how much of what enters each matrix, and in which columns."""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.errors import UnsupportedError
from weighbridge.base.records import dataclass
from weighbridge.containers.ggml.imatrix import recognised
from weighbridge.conversion.quantize.imatrix import ImatrixSums, read
from weighbridge.io.source import Source
from weighbridge.page.control import Control
from weighbridge.page.views.layer_role import layer_and_role

SCHEMA: Final = "weighbridge/importance-view/1"
_BINS: Final = 96  # columns of a drawn profile
_TOP: Final = 0.01  # share of the columns whose part of the sum is listed


@dataclass(frozen=True, slots=True)
class ImportanceEntry:
    """A tensor of the matrix. `seen`: the fewest and most tokens or calls (`ImportanceView.unit`) of one of its
    `matrices`; `unused`: those without any.
    `mean` and `most`: of the columns' mean squares; `at`: the matrix and the column of the largest. `top`: the share of
    the sum in the largest hundredth of the columns. `profile`: the largest mean square of each of up to 96 equal runs
    of columns, over all matrices."""

    name: str
    layer: int
    role: str
    matrices: int
    columns: int
    seen: tuple[int, int]
    unused: int
    mean: float
    most: float
    at: tuple[int, int]
    top: float
    profile: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ImportanceView:
    """`chunks` of `chunk_size` tokens (0: unknown) of `datasets` were read for it. `unit`: what `seen` counts, calls of
    the matrix in an older file."""

    datasets: tuple[str, ...]
    chunks: int
    chunk_size: int
    unit: Literal["tokens", "calls"]
    entries: tuple[ImportanceEntry, ...]
    schema: str = SCHEMA


def importance(source: Source, control: Control) -> ImportanceView:
    """Returns the entries of an importance matrix. Raises UnsupportedError for another file, FormatError for a value
    that isn't finite."""
    if not recognised(source):
        raise UnsupportedError("the file isn't an importance matrix")
    matrix = read(source)
    entries = []
    for done, (name, sums) in enumerate(matrix.entries.items()):
        control.progress(done, len(matrix.entries), name)
        entries.append(_entry(name, sums))
    unit: Literal["tokens", "calls"] = "calls" if matrix.legacy else "tokens"
    return ImportanceView(matrix.datasets, matrix.chunks, matrix.chunk_size, unit, tuple(entries))


def _entry(name: str, entry: ImatrixSums) -> ImportanceEntry:
    matrices, columns = entry.sums.shape
    used = np.flatnonzero(entry.counts > 0)
    means = entry.sums[used].astype(np.float64) / entry.counts[used, None]
    largest = means.max(axis=0, initial=0)
    row, column = divmod(int(np.argmax(means)), columns) if means.size else (0, 0)
    return ImportanceEntry(
        name, *layer_and_role(name), matrices, columns,
        (int(entry.counts.min()), int(entry.counts.max())), matrices - len(used),
        float(means.mean()) if means.size else 0.0, float(largest.max(initial=0)),
        (int(used[row]) if means.size else 0, column), _top(largest),
        tuple(float(part.max()) for part in np.array_split(largest, min(columns, _BINS) or 1) if part.size),
    )  # fmt: skip


def _top(largest: NDArray[np.float64]) -> float:
    """Returns the share of the sum that the largest hundredth of the columns has."""
    total = float(largest.sum())
    return float(np.sort(largest)[-max(1, round(largest.size * _TOP)) :].sum()) / total if total else 0.0
