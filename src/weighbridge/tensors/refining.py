"""Block types with less error than the reference's encoders, in valid blocks of the same type.

The reference chooses codes and scales of a block together. Given the codes, a decoded block is linear in its F16 scale
`d` and its minimum (`dmin` or `m`), so the scales of the least error follow from a linear system. Several weightings of
the columns give other codes; each block keeps the best.

The error of a value is squared, and weighted by the importance of its column and, as in ggml's encoders, by its own
magnitude: a plain weighted sum of squares is smaller for Q2_K and Q4_K, but the model's predictions then move further.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

from weighbridge.base.dtypes import DType
from weighbridge.tensors import kernels, np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Blocks: TypeAlias = "NDArray[np.uint8]"
Floats: TypeAlias = "NDArray[np.float32]"
Doubles: TypeAlias = "NDArray[np.float64]"

# Elements that are refined at once.
_SLAB: Final = 1 << 17
# The share of a block's mean square in the weight of a value (ggml: 2 for K types). The divergence of a small Llama's
# predictions was the lowest with 0.5, of 0.5, 2 and constant weights.
_POWER: Final = 0.5
_MINIMA: Final = ("dmin", "m")


def refines(dtype: DType) -> bool:
    """Whether a type has an F16 scale that can be refined."""
    return bool(_scales(dtype))


def _scales(dtype: DType) -> list[int]:
    """The offsets of the scale and, if there is one, of the minimum in a block."""
    found = {field.name: field.offset for field in dtype.fields if field.scalar == "f16" and field.count == 1}
    return [found["d"], *(found[name] for name in _MINIMA if name in found)] if "d" in found else []


def refine(dtype: DType, values: Floats, packed: Blocks, importance: Floats | None = None) -> None:
    """Improves the blocks `packed`, u8, which an encoder made of `values`, F32 [rows, columns]; `importance`: F32
    [columns]. A block changes only if its error becomes less."""
    rows = max(1, _SLAB // values.shape[1])
    width = values.shape[1] // dtype.block * dtype.size
    for start in range(0, len(values), rows):
        part = values[start : start + rows]
        _refine(dtype, part, packed[start * width : (start + len(part)) * width].reshape(-1, dtype.size), importance)


def _refine(dtype: DType, values: Floats, best: Blocks, importance: Floats | None) -> None:
    x = values.reshape(-1, dtype.block).astype(np.float64)
    weights = error_weights(values, dtype.block, importance)
    least = _error(dtype, best, x, weights)
    for blocks in (best.copy(), *_candidates(dtype, values, importance)):
        for candidate in (blocks, _refitted(dtype, blocks, x, weights)):
            error = _error(dtype, candidate, x, weights)
            better = error < least
            best[better], least[better] = candidate[better], error[better]


def error_weights(values: Floats, block: int, importance: Floats | None) -> Doubles:
    """The weights of the squared errors of values [rows, columns], by block: [blocks, block]."""
    columns = np.ones(values.shape[1], np.float32) if importance is None else importance
    x = values.reshape(-1, block).astype(np.float64)
    power = (x**2).mean(-1, keepdims=True)
    out: Doubles = np.broadcast_to(columns, values.shape).reshape(x.shape) * np.sqrt(_POWER * power + x**2)
    return out


def _candidates(dtype: DType, values: Floats, importance: Floats | None) -> Iterator[Blocks]:
    """The blocks that other weights of the columns give."""
    if dtype.importance == "ignored":
        return
    yield _encoded(dtype, values, np.ones(values.shape[1], np.float32))
    if importance is not None:
        yield _encoded(dtype, values, np.sqrt(importance))


def _encoded(dtype: DType, values: Floats, importance: Floats) -> Blocks:
    out = np.empty(values.size // dtype.block * dtype.size, np.uint8)
    kernels.encode(dtype, np.ascontiguousarray(values).reshape(-1), out, np.ascontiguousarray(importance))
    return out.reshape(-1, dtype.size)


def _decoded(dtype: DType, blocks: Blocks) -> Doubles:
    out = np.empty(len(blocks) * dtype.block, np.float32)
    kernels.decode(dtype, np.ascontiguousarray(blocks).reshape(-1), out)
    return out.reshape(len(blocks), -1).astype(np.float64)


def _error(dtype: DType, blocks: Blocks, x: Doubles, weights: Doubles) -> Doubles:
    """The error of each block; NaN for scales that aren't finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        out: Doubles = (weights * (_decoded(dtype, blocks) - x) ** 2).sum(-1)
    return out


def _refitted(dtype: DType, blocks: Blocks, x: Doubles, weights: Doubles) -> Blocks:
    """The blocks with the scales of the least error. Those without a solution have scales of 0 or NaN."""
    offsets = _scales(dtype)
    parts = [_decoded(dtype, _with_scales(blocks, {at: float(at == one) for at in offsets})) for one in offsets]
    with np.errstate(all="ignore"):
        moments = [[(weights * a * b).sum(-1) for b in (*parts, x)] for a in parts]
        if len(offsets) == 1:
            ((aa, ax),) = moments
            solution = [ax / aa]
        else:
            (aa, ab, ax), (_, bb, bx) = moments
            determinant = aa * bb - ab * ab
            solution = [(ax * bb - bx * ab) / determinant, (bx * aa - ax * ab) / determinant]
        scales = dict(zip(offsets, solution, strict=True))
        return _with_scales(blocks, scales)


def _with_scales(blocks: Blocks, scales: dict[int, float] | dict[int, Doubles]) -> Blocks:
    out = blocks.copy()
    for at, value in scales.items():
        halves = np.broadcast_to(np.asarray(value, np.float16), len(blocks))
        out[:, at : at + 2] = np.ascontiguousarray(halves).view(np.uint8).reshape(-1, 2)
    return out
