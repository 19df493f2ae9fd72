"""GPTQ: rounds the columns of a matrix one after the other, and moves the error of each to those that follow.

The error that counts is that of the products with a text's inputs X, tr(D H D^T), with D the error of the weights and
H = X^T X. With U the upper factor of (H + damp I)^-1 = U^T U, the error of column i divided by U[i, i] times row i of U
is the change of the later columns that repairs most of it. Rows don't depend on each other, so each keeps its codes of
rounding to nearest if these have the smaller error. Source: E. Frantar et al., "GPTQ: Accurate Post-Training
Quantization for Generative Pre-trained Transformers", arXiv 2210.17323, with the factor computed as in its code.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import U8
from weighbridge.base.records import dataclass
from weighbridge.packings.write.packers import as_bytes
from weighbridge.packings.write.rounding import GroupRule, IntParameters
from weighbridge.tensors.nodes.base import Bytes

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
ActOrder = Literal["none", "static", "groups"]

#: Columns whose errors are moved together to all columns after them.
_BLOCK: Final = 128
#: Rows and columns of the matrices that LAPACK factors; larger ones are put together of them by products.
_SMALL: Final = 64
#: The damping is multiplied by this until a matrix can be factored, at most `_TRIES` times.
_MORE: Final = 10.0
_TRIES: Final = 6
_PANEL: Final = 1024


# ------------------------------------------------------------------------------------------------ the factor


def inverse_factor(matrix: Doubles) -> Doubles:
    """The lower L^-1 of matrix = L L^T, in its place. Raises LinAlgError if the matrix isn't positive definite. L is
    computed by blocks: LAPACK's own result depends on the number of threads."""
    for at in range(0, len(matrix), _SMALL):
        end = min(at + _SMALL, len(matrix))
        matrix[at:end, at:end] = corner = np.linalg.cholesky(matrix[at:end, at:end])
        if end < len(matrix):
            below = matrix[end:, at:end] @ np.tril(np.linalg.inv(corner)).T
            matrix[end:, at:end] = below
            for row in range(end, len(matrix), _PANEL):
                matrix[row : row + _PANEL, end:] -= below[row - end :][:_PANEL] @ below.T
    _invert(matrix)
    matrix[:] = np.tril(matrix)
    if not np.isfinite(matrix).all():
        raise np.linalg.LinAlgError
    return matrix


def _invert(lower: Doubles) -> None:
    """Inverts a lower triangular matrix, whose upper half isn't read."""
    size = len(lower)
    if size <= _SMALL:
        lower[:] = np.tril(np.linalg.inv(np.tril(lower)))
        return
    half = max(size // 2 // _SMALL, 1) * _SMALL
    _invert(lower[:half, :half])
    _invert(lower[half:, half:])
    lower[half:, :half] = -(np.tril(lower[half:, half:]) @ lower[half:, :half]) @ np.tril(lower[:half, :half])


# ------------------------------------------------------------------------------------------------ columns


class Order(NamedTuple):
    """`columns`: in which columns are rounded; `is_static`: parameters are those of the original weights."""

    columns: NDArray[np.int64]
    is_static: bool


def order_of(kind: ActOrder, importance: Doubles, group: int) -> Order:
    """The order for the diagonal of H [columns]. `static`: important columns first; `groups`: groups with important
    columns first, and within a group its important columns. Both leave each column in its group."""
    columns = np.arange(len(importance))
    if kind == "none":
        return Order(columns, False)
    if kind == "static":
        return Order(np.argsort(-importance, kind="stable"), True)
    parts = importance.reshape(-1, group)
    inner = np.argsort(-parts, axis=1, kind="stable")
    outer = np.argsort(-parts.max(1), kind="stable")
    return Order(columns.reshape(-1, group)[outer[:, None], inner[outer]].reshape(-1), False)


class RoundedMatrix(NamedTuple):
    """codes U8 [rows, columns]; scales and zero points [rows, groups] in their own types; `error` of the products,
    and `nearest`, that of rounding to nearest; both relative to the products' squares. `damp`: relative damping."""

    codes: Bytes
    scales: Bytes
    zeros: Bytes
    error: float
    nearest: float
    damp: float


@dataclass(frozen=True)
class Gptq:
    """`rule`: how groups are rounded. `damp`: damping, relative to the mean of H's diagonal."""

    rule: GroupRule
    order: ActOrder = "none"
    damp: float = 0.01

    def round(self, weights: Floats, hessian: Doubles) -> RoundedMatrix:
        """Rounds weights [rows, columns] for H = X^T X [columns, columns]. Raises LinAlgError if H isn't finite."""
        nearest = self._nearest(weights)
        order = order_of(self.order, np.diag(hessian), self.rule.group)
        factor, damp = self._factor(hessian, order.columns)
        moved = self._columns(weights, factor, order)
        total = self.errors(weights, hessian).sum()
        plain, after = (self.errors(weights - self.values(part), hessian) for part in (nearest, moved))
        worse = after > plain
        for new, old in ((moved.codes, nearest.codes), (moved.scales, nearest.scales), (moved.zeros, nearest.zeros)):
            new[worse] = old[worse]
        scale = 1 / total if total > 0 else 0.0
        error = float(np.where(worse, plain, after).sum() * scale)
        return self._stored(moved, error, float(plain.sum() * scale), damp)

    def nearest(self, weights: Floats) -> RoundedMatrix:
        """Rounds weights [rows, columns] to nearest; errors are 0."""
        return self._stored(self._nearest(weights), 0.0, 0.0, self.damp)

    def decoded_nearest(self, weights: Floats) -> Floats:
        """The values of weights that are rounded to nearest."""
        return self.values(self._nearest(weights))

    @staticmethod
    def errors(difference: Floats, hessian: Doubles) -> Doubles:
        """d H d^T of each row d."""
        squares: Doubles = np.einsum("ij,ij->i", difference @ hessian, difference)
        return squares

    def values(self, part: _Codes) -> Floats:
        """The values that a reader decodes."""
        group = self.rule.group
        return self.rule.values(part.codes, np.repeat(part.scales, group, 1), np.repeat(part.zeros, group, 1))

    def _stored(self, part: _Codes, error: float, nearest: float, damp: float) -> RoundedMatrix:
        scales, zero = as_bytes(self.rule.scale_dtype, part.scales), self.rule.zero_dtype
        zeros = part.zeros.astype(np.uint8) if zero in (None, U8) else as_bytes(zero, part.zeros)
        return RoundedMatrix(part.codes, scales, zeros, error, nearest, damp)

    def _nearest(self, weights: Floats) -> _Codes:
        rows = len(weights)
        groups = self.rule.parameters(weights.reshape(-1))
        codes = self.rule.codes(weights.reshape(-1), groups, self.rule.group)
        return _Codes(codes.reshape(rows, -1), groups.scales.reshape(rows, -1), groups.zeros.reshape(rows, -1))

    def _factor(self, hessian: Doubles, columns: NDArray[np.int64]) -> tuple[Floats, float]:
        """The factor of the damped inverse in an order of columns, and the damping that it took."""
        backwards, at = np.ix_(columns[::-1], columns[::-1]), np.arange(len(columns))
        diagonal = np.diag(hessian)[columns[::-1]]
        mean = float(diagonal.mean()) or 1.0
        for attempt in range(_TRIES):
            damp = self.damp * _MORE**attempt
            damped = hessian[backwards]
            damped[at, at] = np.where(diagonal == 0, mean, diagonal) + damp * mean
            with suppress(np.linalg.LinAlgError):
                return inverse_factor(damped)[::-1, ::-1].astype(np.float32), damp
        raise np.linalg.LinAlgError

    def _columns(self, weights: Floats, factor: Floats, order: Order) -> _Codes:
        group, (rows, count) = self.rule.group, weights.shape
        left = np.ascontiguousarray(weights.T[order.columns])  # [columns, rows]
        groups = order.columns // group
        places = np.argsort(order.columns)  # of the columns in the order
        codes = np.empty((rows, count), np.uint8)
        parameters: dict[int, IntParameters] = {}
        scales, zeros = (np.empty((rows, count // group), np.float32) for _ in range(2))
        if order.is_static:
            for g in range(count // group):
                parameters[g] = self.rule.parameters(
                    np.ascontiguousarray(weights[:, g * group : (g + 1) * group]).reshape(-1)
                )
        for at, end in _blocks(count, group, order.is_static):
            errors = np.empty((end - at, rows), np.float32)
            for i in range(at, end):
                g, column = int(groups[i]), left[i]
                if g not in parameters:
                    members = left[places[g * group : (g + 1) * group]].T
                    parameters[g] = self.rule.parameters(np.ascontiguousarray(members).reshape(-1))
                shared = parameters[g]
                code = self.rule.codes(column, shared, 1)
                codes[:, order.columns[i]] = code
                value = self.rule.values(code, shared.scales, shared.zeros)
                errors[i - at] = (column - value) / factor[i, i]
                left[i + 1 : end] -= np.multiply.outer(factor[i, i + 1 : end], errors[i - at])
            if end < count:
                left[end:] -= factor[at:end, end:].T @ errors
        for g, shared in parameters.items():
            scales[:, g], zeros[:, g] = shared.scales, shared.zeros
        return _Codes(codes, scales, zeros)


class _Codes(NamedTuple):
    """codes U8 [rows, columns], scales and zero points F32 [rows, groups]."""

    codes: Bytes
    scales: Floats
    zeros: Floats


def _blocks(count: int, group: int, is_static: bool) -> Iterator[tuple[int, int]]:
    """Ranges of columns; none begins a group of columns that an earlier range still has to change."""
    step = _BLOCK if is_static or group > _BLOCK else _BLOCK // group * group
    whole = group if not is_static and group > _BLOCK else count
    for start in range(0, count, whole):
        end = min(start + whole, count)
        yield from ((at, min(at + step, end)) for at in range(start, end, step))
