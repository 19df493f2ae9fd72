"""Nodes that compute each element on its own (`IntCast`, `AddPosition`, `Shift`, `Scaled`, `Pairwise`, `Elementwise`),
with a number of the whole tensor (`Centered`, `RoundTernary`, `SpreadTernary`), or each row (`NormalizeRows`,
`RescaleRows`, `DivideRows`)."""

from __future__ import annotations

from weighbridge.base.dtypes import F16
from weighbridge.base.errors import FormatError
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.tensors import functions, np
from weighbridge.tensors.nodes.base import Bytes, Node, RowRange, UnaryNode, borrow

_SHORTEST = 1e-12


@dataclass(frozen=True, eq=False)
class Shift(UnaryNode):
    """Each element of an F32 or F16 tensor plus `by`, rounded once to the tensor's type."""

    by: float = 0.0

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        kind = np.dtype(np.float16 if self.spec.dtype is F16 else np.float32)
        with borrow(RowRange(self.source, lo, hi)) as (values,):
            out[:] = np.add(values.view(kind), kind.type(self.by), dtype=kind).view(np.uint8)

    def _scratch(self, lo: int, hi: int) -> int:
        return 2 * (hi - lo) * self.spec.row_bytes + self.source.scratch(lo, hi)


@dataclass(frozen=True, eq=False)
class IntCast(UnaryNode):
    """Signed integers in a different width. FormatError for a number that doesn't fit."""

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        with borrow(RowRange(self.source, lo, hi)) as (data,):
            values, results = data.view(self._kind(self.source.spec)), out.view(self._kind(self.spec))
            for at in range(0, values.size, functions.PIECE):
                piece = values[at : at + functions.PIECE]
                results[at : at + piece.size] = piece
                if (results[at : at + piece.size] != piece).any():
                    rows = _rows(lo, at, at + piece.size, self.spec.row_atoms)
                    raise FormatError(f"{rows} a number is too large for {self.spec.dtype}")

    def _kind(self, spec: Spec) -> np.dtype[np.signedinteger]:
        return np.dtype(f"<i{spec.dtype.size}")


@dataclass(frozen=True, eq=False)
class AddPosition(UnaryNode):
    """Each element of an I64 vector plus its position, or minus it (`sign` -1)."""

    sign: int = 1

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        with borrow(RowRange(self.source, lo, hi)) as (values,):
            np.add(values.view("<i8"), self.sign * np.arange(lo, hi), out=out.view("<i8"))


@dataclass(frozen=True, eq=False)
class Scaled(UnaryNode):
    """Each element of an F32 or F16 tensor times `by` as an F32, or divided by it: computed in F32 and rounded to
    the tensor's type, like torch, a piece at a time. FormatError on overflow."""

    by: float
    over: bool = False

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        kind = np.dtype(np.float16 if self.spec.dtype is F16 else np.float32)
        change, by = np.divide if self.over else np.multiply, np.float32(self.by)
        with (
            borrow(RowRange(self.source, lo, hi)) as (data,),
            np.errstate(over="raise", under="ignore", invalid="ignore"),
        ):
            values, results = data.view(kind), out.view(kind)
            for at in range(0, values.size, functions.PIECE):
                piece = values[at : at + functions.PIECE]
                try:
                    results[at : at + piece.size] = change(piece.astype(np.float32, copy=False), by)
                except FloatingPointError:
                    raise self._refusal(lo, at, at + piece.size) from None

    def _refusal(self, lo: int, first: int, end: int) -> FormatError:
        rows = _rows(lo, first, end, self.spec.row_atoms)
        operation = "divided by" if self.over else "times"
        return FormatError(
            f"{rows} an element {operation} {self.by} is too large", expected=f"a finite {self.spec.dtype}"
        )

    def _scratch(self, lo: int, hi: int) -> int:
        size = (hi - lo) * self.spec.row_bytes
        return size + min(size, 4 * functions.PIECE) * 4 + self.source.scratch(lo, hi)


@dataclass(frozen=True, eq=False)
class WithMean(UnaryNode):
    """A node that needs the mean of a whole tensor, F32 [1]."""

    mean: Node

    def _needs(self, lo: int, hi: int) -> list[RowRange]:
        return [RowRange(self.source, lo, hi), RowRange(self.mean, 0, 1)]

    @property
    def sources(self) -> tuple[Node, ...]:
        return (self.source, self.mean)


@dataclass(frozen=True, eq=False)
class Centered(WithMean):
    """Each element of an F32 tensor minus the mean."""

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        with borrow(*self._needs(lo, hi)) as (data, mean):
            np.subtract(data.view(np.float32), mean.view(np.float32), out=out.view(np.float32))


@dataclass(frozen=True, eq=False)
class RoundTernary(WithMean):
    """Each element of an F32 or F16 tensor rounded to -m, 0 or m, where m is `mean` (taken as at least 1e-5): computed
    in F32 and rounded to the tensor's type, like BitNet's classes."""

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        kind = np.dtype(np.float16 if self.spec.dtype is F16 else np.float32)
        with borrow(*self._needs(lo, hi)) as (data, mean), np.errstate(all="ignore"):
            inverse = np.float32(1) / np.maximum(mean.view(np.float32), np.float32(1e-5))
            values, results = data.view(kind), out.view(kind)
            for at in range(0, values.size, functions.PIECE):
                piece = values[at : at + functions.PIECE].astype(np.float32) * inverse
                results[at : at + piece.size] = np.clip(np.rint(piece), -1, 1) / inverse

    def _scratch(self, lo: int, hi: int) -> int:
        return super()._scratch(lo, hi) + 16 * min((hi - lo) * self.spec.row_atoms, functions.PIECE)


@dataclass(frozen=True, eq=False)
class SpreadTernary(WithMean):
    """The elements -m, 0 and m of an F32 or F16 tensor, whose largest magnitude is `peak`, made larger until their mean
    magnitude is m: `RoundTernary` returns them."""

    peak: Node

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        kind = np.dtype(np.float16 if self.spec.dtype is F16 else np.float32)
        with borrow(*self._needs(lo, hi)) as (data, mean, peak):
            ratio = peak.view(np.float32) / np.maximum(mean.view(np.float32), np.finfo(np.float32).tiny)
            np.multiply(data.view(kind), ratio, out=out.view(kind), dtype=np.float32, casting="same_kind")

    def _needs(self, lo: int, hi: int) -> list[RowRange]:
        return [*super()._needs(lo, hi), RowRange(self.peak, 0, 1)]

    @property
    def sources(self) -> tuple[Node, ...]:
        return (*super().sources, self.peak)


@dataclass(frozen=True, eq=False)
class Pairwise(UnaryNode):
    """An operation of `functions.PAIRS` on the elements of two F32 tensors of one shape; each of its steps is
    rounded."""

    other: Node
    operation: str

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        with borrow(*self._needs(lo, hi)) as (first, second), np.errstate(all="ignore"):
            out.view(np.float32)[:] = functions.PAIRS[self.operation](first.view(np.float32), second.view(np.float32))

    def _needs(self, lo: int, hi: int) -> list[RowRange]:
        return [RowRange(self.source, lo, hi), RowRange(self.other, lo, hi)]

    def _scratch(self, lo: int, hi: int) -> int:
        return super()._scratch(lo, hi) + 4 * (hi - lo) * self.spec.row_bytes + self.other.scratch(lo, hi)

    @property
    def sources(self) -> tuple[Node, ...]:
        return (self.source, self.other)


@dataclass(frozen=True, eq=False)
class Elementwise(UnaryNode):
    """A function of `tensors/functions.py` applied to each element of an F32 tensor, a piece at a time. FormatError
    for an element outside the function's domain."""

    function: str

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        apply, step = functions.FUNCTIONS[self.function][0], functions.PIECE
        with borrow(RowRange(self.source, lo, hi)) as (data,):
            values = data.view(np.float32)
            for at in range(0, values.size, step):
                piece = values[at : at + step]
                try:
                    out[4 * at : 4 * (at + piece.size)] = apply(piece).view(np.uint8)
                except FloatingPointError:
                    raise self._refusal(lo, at, at + piece.size) from None

    def _refusal(self, lo: int, first: int, end: int) -> FormatError:
        rows = _rows(lo, first, end, self.spec.row_atoms)
        return FormatError(f"{rows} an element has no {self.function}", expected="a finite number")

    def _scratch(self, lo: int, hi: int) -> int:
        size = (hi - lo) * self.spec.row_bytes
        return size + min(size // 4, functions.PIECE) * functions.SCRATCH + self.source.scratch(lo, hi)


@dataclass(frozen=True, eq=False)
class NormalizeRows(UnaryNode):
    """Each row of an F32 matrix divided by its length (the root of the sum of squares, in F64; at least 1e-12), like
    torch.nn.functional.normalize."""

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        width = max(self.spec.shape[-1], 1)
        step = max(functions.PIECE // width, 1)
        with borrow(RowRange(self.source, lo, hi)) as (data,), np.errstate(over="ignore", invalid="ignore"):
            values, results = (bytes_.view(np.float32).reshape(-1, width) for bytes_ in (data, out))
            for at in range(0, len(values), step):
                piece = values[at : at + step]
                lengths = np.sqrt(np.square(piece, dtype=np.float64).sum(axis=1, keepdims=True))
                results[at : at + step] = piece / np.maximum(lengths, _SHORTEST).astype(np.float32)

    def _scratch(self, lo: int, hi: int) -> int:
        width = self.spec.shape[-1]
        piece = min(hi - lo, max(functions.PIECE // max(width, 1), 1)) * width
        return (hi - lo) * self.spec.row_bytes + 16 * piece + self.source.scratch(lo, hi)


@dataclass(frozen=True, eq=False)
class WithRowNumbers(UnaryNode):
    """A node that needs a number for each row, F32 [rows, 1]."""

    numbers: Node

    def _needs(self, lo: int, hi: int) -> list[RowRange]:
        return [RowRange(self.source, lo, hi), RowRange(self.numbers, lo, hi)]

    def _scratch(self, lo: int, hi: int) -> int:
        return super()._scratch(lo, hi) + 4 * (hi - lo) * self.spec.row_bytes

    @property
    def sources(self) -> tuple[Node, ...]:
        return (self.source, self.numbers)


@dataclass(frozen=True, eq=False)
class DivideRows(WithRowNumbers):
    """Each row of an F32 matrix divided by its number, which counts as at least `least`."""

    least: float

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        with borrow(*self._needs(lo, hi)) as (data, numbers), np.errstate(all="ignore"):
            by = np.maximum(numbers.view(np.float32), np.float32(self.least))
            rows = data.view(np.float32).reshape(hi - lo, -1)
            np.divide(rows, by[:, None], out=out.view(np.float32).reshape(rows.shape))


@dataclass(frozen=True, eq=False)
class RescaleRows(WithRowNumbers):
    """Each row of an F32 matrix scaled to the length in `numbers`: times length / (Euclidean length of the row), the
    latter from a sum in F64. FormatError for a row of zeros, which can't be scaled."""

    def _read(self, lo: int, hi: int, out: Bytes) -> None:
        with borrow(*self._needs(lo, hi)) as (data, lengths):
            rows = data.view(np.float32).reshape(hi - lo, -1)
            current = np.sqrt(np.square(rows, dtype=np.float64).sum(axis=1)).astype(np.float32)
            if not current.all():
                raise FormatError(f"row {lo + int(current.argmin())} is all zeros", expected="a row that has a length")
            factors = lengths.view(np.float32) / current
            out[:] = (rows * factors[:, None]).reshape(-1).view(np.uint8)


def _rows(lo: int, first: int, end: int, width: int) -> str:
    """The place of elements [first, end), counted from the start of row `lo`."""
    return f"in rows {lo + first // width} to {lo + (end - 1) // width}"
