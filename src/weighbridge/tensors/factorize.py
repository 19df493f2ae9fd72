"""The best approximation of a matrix by a product of two thin ones: a randomized SVD that reads the matrix by rows.

Halko, Martinsson, Tropp, "Finding structure with randomness" (2011), algorithms 4.4 and 5.1: a random sketch of the row
space, two power steps, then the SVD of a small matrix. Each pass reads bands of rows, so memory doesn't depend on the
matrix's size: it is (rows + columns) x (rank + 10) numbers.

Products are computed in F64 and in blocks that a BLAS multiplies on one thread, and sums over bands in order. So the
result doesn't depend on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from functools import partial
from typing import Any, Final, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.errors import FormatError
from weighbridge.base.records import dataclass
from weighbridge.io.workers import Workers

F32Array = NDArray[np.float32]
F64Array = NDArray[np.float64]
RankLimitation = Literal["rank", "energy", "rounding", "full"]

#: Columns of the sketch beyond the rank, and power steps: the paper's advice for slowly decaying singular values.
OVERSAMPLING: Final = 10
POWER_STEPS: Final = 2
#: How often the matrix is read: by each power step, by the sketch's columns and by its rows.
PASSES: Final = POWER_STEPS + 2
#: The largest singular value of rounding errors relative to that of independent ones, which fluctuates.
_NOISE: Final = 1.25
#: Multiplications up to which OpenBLAS uses one thread (interface/gemm.c: 65,536 times GEMM_MULTITHREAD_THRESHOLD = 4).
_ONE_THREAD: Final = 1 << 18
_BLOCK: Final = 64
#: Elements of a band: 4 MiB in F64.
_BAND: Final = 1 << 19
#: Squared singular values below this share of the largest are errors of F64.
_TINY: Final = 1e-26


class ChangedRows(NamedTuple):
    """Rows of a change, F32 [rows, columns]. `noise`: the sum of the squares of the rounding errors that they are
    expected to contain. `base`: the sum of the squares of the values that are changed."""

    change: F32Array
    noise: float = 0.0
    base: float = 0.0


#: Reads rows [lo, hi).
RowReader = Callable[[int, int], ChangedRows]


@dataclass(frozen=True)
class RankLimit:
    """`most`: the largest rank. `energy`: the share of the squared change that is enough; None for as much as the rank
    allows."""

    most: int
    energy: float | None = None


@dataclass(frozen=True)
class Factors:
    """A change as `up` [rows, rank] times `down` [rank, columns], both with the square roots of the singular values;
    rank 0 for no change. `limited_by`: what the rank ends at: the largest rank, the energy, the rounding of the changed
    values, or nothing ("full"). `energy`: the share of the squared change that is captured. `error`: the rest's length
    relative to the change's. `change`: the change's length relative to the changed matrix's."""

    up: F32Array
    down: F32Array
    singular_values: tuple[float, ...]
    limited_by: RankLimitation
    energy: float
    error: float
    change: float

    @property
    def rank(self) -> int:
        return len(self.singular_values)


def factorize(
    read: RowReader, shape: tuple[int, int], limit: RankLimit, key: bytes, jobs: int = 1, keep: int = 0
) -> Factors:
    """Returns the factors of a matrix [rows, columns]. `key`: of the random sketch. `keep`: bytes of a matrix that may
    stay in memory; a larger one is read `PASSES` times. Raises FormatError for values that aren't finite."""
    with Workers(jobs, "factorize") as pool:
        matrix = _Matrix(read, shape, partial(_in_order, pool, jobs), keep=shape[0] * shape[1] * 4 <= keep)
        width = min(limit.most + OVERSAMPLING, *shape)
        seed = np.frombuffer(key[:16], np.uint64)
        sketch = np.random.Generator(np.random.Philox(key=seed)).standard_normal((shape[1], width))
        basis = matrix.power_step(sketch)
        if not math.isfinite(matrix.squared):
            raise FormatError("values aren't finite", hint="wb verify --values names them")
        if not matrix.squared:
            empty = np.zeros((0, shape[1]), np.float32)
            return Factors(np.zeros((shape[0], 0), np.float32), empty, (), "full", 1.0, 0.0, 0.0)
        for _ in range(POWER_STEPS - 1):
            basis = matrix.power_step(_orthonormal(basis))
        left = _orthonormal(matrix.times(_orthonormal(basis)))
        return _factors(matrix, left, matrix.transposed_times(left), limit)


def _in_order(pool: Executor, ahead: int, run: Callable[[int], Any], count: int) -> Iterator[Any]:
    """Yields the results of run(0), run(1) ..., a few of them computed ahead."""
    for start in range(0, count, ahead):
        yield from pool.map(run, range(start, min(start + ahead, count)))


def _factors(matrix: _Matrix, left: F64Array, right: F64Array, limit: RankLimit) -> Factors:
    """The factors of left @ right.T, whose left matrix is orthonormal."""
    squares, vectors = _eigen(right)
    noise = matrix.noise_length**2
    squares = squares[squares > max(noise, squares[0] * _TINY)]
    rank, limited_by = _rank(squares, matrix, limit)
    values = np.sqrt(squares[:rank])
    # of a pair of singular vectors only the product is defined: the largest element of the right one is positive
    rotated = _product(right, vectors[:, :rank])
    signs = np.sign(rotated[np.abs(rotated).argmax(axis=0), np.arange(rank)])
    up = _product(left, vectors[:, :rank]) * (np.sqrt(values) * signs)
    down = (rotated * (signs / np.sqrt(values))).T
    captured = float(squares[:rank].sum())
    return Factors(
        up.astype(np.float32),
        np.ascontiguousarray(down, np.float32),
        tuple(map(float, values)),
        limited_by,
        min(captured / matrix.squared, 1.0),
        math.sqrt(max(matrix.squared - captured, 0.0) / matrix.squared),
        math.sqrt(matrix.squared / matrix.base) if matrix.base else math.inf,
    )


def _rank(squares: F64Array, matrix: _Matrix, limit: RankLimit) -> tuple[int, RankLimitation]:
    """The rank, and what it ends at. `squares`: squared singular values above the rounding."""
    rank, limited_by = len(squares), "rounding" if matrix.noise and len(squares) < min(matrix.shape) else "full"
    if limit.most < rank:
        rank, limited_by = limit.most, "rank"
    if limit.energy is not None:
        enough = int(np.searchsorted(np.cumsum(squares[:rank]), limit.energy * matrix.squared)) + 1
        if enough < rank or (enough == rank and limited_by == "rank"):
            rank, limited_by = enough, "energy"
    return rank, cast(RankLimitation, limited_by)


class _Matrix:
    """A matrix that is read by bands of rows. The first pass sums squares and, if `keep`, keeps the rows. `in_order`
    calls a function of a band's number for all of them."""

    def __init__(self, read: RowReader, shape: tuple[int, int], in_order: Callable[..., Iterator[Any]], *, keep: bool):
        self.shape, self.squared, self.noise, self.base = shape, 0.0, 0.0, 0.0
        step = max(1, _BAND // max(shape[1], 1) // _BLOCK) * _BLOCK
        self._bands = [(lo, min(lo + step, shape[0])) for lo in range(0, shape[0], step)]
        self._read, self._in_order, self._keep = read, in_order, keep
        self._kept: dict[int, F32Array] = {}
        self._summed = False

    @property
    def noise_length(self) -> float:
        """The largest singular value of a matrix of independent errors: their size times sqrt(rows) + sqrt(columns)."""
        rows, columns = self.shape
        return math.sqrt(self.noise / (rows * columns)) * (math.sqrt(rows) + math.sqrt(columns)) * _NOISE

    def _map(self, run: Callable[[F64Array, int, int], F64Array]) -> Iterator[F64Array]:
        """Yields the results of a function of each band, in order."""
        for number, (result, rows) in enumerate(self._in_order(partial(self._run, run), len(self._bands))):
            if not self._summed:
                self.squared += float(np.add.reduce(np.square(rows.change, dtype=np.float64), axis=None))
                self.noise, self.base = self.noise + rows.noise, self.base + rows.base
                if self._keep:
                    self._kept[number] = rows.change
            yield result
        self._summed = True

    def _run(self, run: Callable[[F64Array, int, int], F64Array], number: int) -> tuple[F64Array, ChangedRows]:
        lo, hi = self._bands[number]
        rows = ChangedRows(self._kept[number]) if number in self._kept else self._read(lo, hi)
        return run(rows.change.astype(np.float64), lo, hi), rows

    def power_step(self, basis: F64Array) -> F64Array:
        """M.T @ M @ basis."""
        return self._sum(lambda band, _, __: _product(band.T, _product(band, basis)), basis.shape)

    def transposed_times(self, left: F64Array) -> F64Array:
        """M.T @ left."""
        return self._sum(lambda band, lo, hi: _product(band.T, left[lo:hi]), (self.shape[1], left.shape[1]))

    def _sum(self, part: Callable[[F64Array, int, int], F64Array], shape: tuple[int, ...]) -> F64Array:
        out = np.zeros(shape)
        for values in self._map(part):
            out += values
        return out

    def times(self, right: F64Array) -> F64Array:
        """M @ right."""
        return np.concatenate(list(self._map(lambda band, _, __: _product(band, right))))


def _product(a: NDArray[Any], b: F64Array) -> F64Array:
    """a @ b [k, n], by blocks of few enough multiplications for one thread of a BLAS."""
    rows, inner = a.shape
    width = b.shape[1]
    out = np.zeros((rows, width))
    depth = max(1, min(_BLOCK, _ONE_THREAD // (_BLOCK * max(width, 1))))
    whole = rows - rows % _BLOCK
    if a.flags.c_contiguous:
        stacked = a[:whole].reshape(-1, _BLOCK, inner)
    else:  # a transposed matrix, without a copy
        stacked = a.T[:, :whole].reshape(inner, -1, _BLOCK).transpose(1, 2, 0)
    into = out[:whole].reshape(-1, _BLOCK, width)
    for lo in range(0, inner, depth):
        part = b[lo : lo + depth]
        into += np.matmul(stacked[:, :, lo : lo + depth], part)
        if whole < rows:
            out[whole:] += a[whole:, lo : lo + depth] @ part
    return out


def _eigen(matrix: F64Array) -> tuple[F64Array, F64Array]:
    """The squared singular values of a tall matrix, the largest first, and its right singular vectors."""
    gram = _product(matrix.T, matrix)
    squares, vectors = np.linalg.eigh((gram + gram.T) / 2)
    return np.maximum(squares[::-1], 0.0), vectors[:, ::-1]


def _orthonormal(matrix: F64Array) -> F64Array:
    """An orthonormal basis of a tall matrix's columns; twice, since the first is orthogonal only to within the square
    root of F64's precision. Directions without length are left out."""
    for _ in range(2):
        squares, vectors = _eigen(matrix)
        kept = squares > squares[0] * _TINY if len(squares) and squares[0] > 0 else np.zeros(len(squares), bool)
        matrix = _product(matrix, vectors[:, kept] / np.sqrt(squares[kept]))
    return matrix
