"""Statistics of all values of one tensor, without sampling: values are counted by bit pattern.

tensor_statistics(model, "blk.0.attn_q.weight") -> TensorStatistics
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.dtypes import F32, DType, Kind
from weighbridge.base.errors import UnsupportedError, WeighbridgeError
from weighbridge.base.records import dataclass
from weighbridge.models.model import OpenModel
from weighbridge.reports import tensor_path

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from weighbridge.tensors.counting import ValueCounts
    from weighbridge.tensors.nodes import LogicalTensor, Node

SCHEMA: Final = "weighbridge/tensor-statistics/1"
BINS: Final = 64
_QUANTILES: Final = (0.001, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999)
#: The ratio of its largest magnitude to the median column's from which a column is an outlier.
OUTLIER: Final = 6.0
_CHANNELS: Final = 10  # listed
_FIRST: Final = 8  # values listed
_RUN: Final = 1 << 18  # values at a time; decoded, they fit in the L2 cache

Progress = Callable[[int, int, str], None]
Cancelled = Callable[[], bool]


class CancelledError(WeighbridgeError):
    """The caller cancelled the work."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """`counts[i]` finite values are in [edges[i], edges[i + 1]), the last bin closed."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MagnitudeBin:
    """`count` finite values with 2^exponent <= |x| < 2^(exponent + 1)."""

    exponent: int
    count: int


@dataclass(frozen=True, slots=True)
class Channel:
    """A column (an index of the last axis), its largest magnitude, and the ratio of that to the median column's."""

    index: int
    absmax: float
    ratio: float | None


@dataclass(frozen=True, slots=True)
class TensorStatistics:
    """Statistics of all values; quantized tensors are decoded. `minimum` to `quantiles` cover the finite values and are
    None or empty if there are none. `std` divides by n. `quantiles`: value by share, like numpy's `inverted_cdf`. If
    `exact`, everything is exact up to the rounding of f64 sums; otherwise quantiles and bin edges are within 2^-8 of a
    value, kurtosis has five digits, and so do std and rms of decoded tensors. `first`: up to eight values. `channels`:
    of a matrix, if requested."""

    path: str
    tensor: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    count: int
    nan: int
    inf: int
    zeros: int
    negative_zeros: int
    subnormals: int
    minimum: float | None
    maximum: float | None
    absmax: float | None
    mean: float | None
    std: float | None
    rms: float | None
    kurtosis: float | None
    quantiles: dict[str, float]
    histogram: Histogram
    magnitudes: tuple[MagnitudeBin, ...]
    exact: bool
    first: tuple[float, ...] = ()
    channels: ChannelReport | None = None
    schema: str = SCHEMA


@dataclass(frozen=True, slots=True)
class ChannelReport:
    """The outlier columns of a tensor. `median`: of the columns' largest magnitudes. `outliers`: the number of columns
    above `OUTLIER` times the median. `largest`: the largest columns, in order."""

    tensor: str
    columns: int
    median: float | None
    outliers: int
    largest: tuple[Channel, ...]


def tensor_statistics(
    model: OpenModel,
    tensor: str,
    *,
    bins: int = BINS,
    cancelled: Cancelled = lambda: False,
    progress: Progress | None = None,
) -> TensorStatistics:
    """Computes the statistics of a tensor, named as stored or as a packed weight. Raises CancelledError soon after
    `cancelled` returns True, UnsupportedError for complex numbers, and UsageError for an unknown tensor."""
    step = step_of(cancelled, progress, tensor)
    return replace(node_statistics(_find(model, tensor), tensor, step, bins=bins), path=str(model.place.path))


def node_statistics(node: LogicalTensor, tensor: str, step: Step, *, bins: int = BINS) -> TensorStatistics:
    """Computes the statistics of a tensor that need not be in a file; `path` is empty."""
    import numpy as np

    from weighbridge.tensors.nodes import stored_bytes

    counts = count_values(node, step)
    low, high = counts.extremes or (None, None)
    histogram = Histogram((), ())
    if low is not None and high is not None:
        edges = np.linspace(*((low, high) if low < high else (low - 0.5, high + 0.5)), bins + 1)
        histogram = Histogram(tuple(edges.tolist()), tuple(counts.histogram(edges).tolist()))
    moments = counts.moments()
    values = counts.quantiles(_QUANTILES)
    packing = getattr(node, "packing", None)
    source = _countable(node)
    width = max(source.spec.row_atoms * source.spec.dtype.block, 1)
    first = _wide(source, source.read(0, min(-(-_FIRST // width), source.spec.rows)))
    return TensorStatistics(
        path="",
        tensor=tensor,
        dtype=node.spec.dtype.name if packing is None else f"{packing.name}-{packing.code_bits}",
        shape=node.spec.shape,
        nbytes=stored_bytes(node),
        count=counts.total,
        nan=counts.nan,
        inf=counts.inf,
        zeros=counts.zeros,
        negative_zeros=counts.negative_zeros,
        subnormals=counts.subnormals,
        minimum=low,
        maximum=high,
        absmax=None if low is None or high is None else max(-low, high),
        mean=moments.mean,
        std=moments.std,
        rms=moments.rms,
        kurtosis=moments.kurtosis,
        quantiles={f"{share:g}": value for share, value in zip(_QUANTILES, values, strict=False)},
        histogram=histogram,
        magnitudes=tuple(MagnitudeBin(e, n) for e, n in counts.magnitudes().items()),
        exact=counts.exact,
        first=tuple(first[:_FIRST].tolist()),
    )


def _find(model: OpenModel, tensor: str) -> LogicalTensor:
    """Returns the packed weight with this name, else the stored tensor."""
    for group in model.packed_near([tensor]).values():
        if group.name == tensor:
            return group.node
    return model.stored[tensor_path.entry(model.index, tensor, model.place.path).name]


Step = Callable[[int, int], None]


def step_of(cancelled: Cancelled, progress: Progress | None, label: str) -> Step:
    """Returns a function that reports progress, and raises CancelledError."""

    def step(done: int, total: int) -> None:
        if cancelled():
            raise CancelledError(f"{label}: cancelled")
        if progress is not None:
            progress(done, total, label)

    return step


#: Value counts of several tensors, by the counted type and whether they have `WideSums`.
Pool = dict[tuple[DType, bool], "ValueCounts"]


def count_values(node: LogicalTensor, step: Step, pool: Pool | None = None) -> ValueCounts:
    """Counts all values of a tensor, decoded if quantized. `pool`: adds them to the counts of earlier tensors. Raises
    UnsupportedError for complex numbers and undecodable types."""
    from weighbridge.tensors import counting

    source, pool = _countable(node), {} if pool is None else pool
    dtype = source.spec.dtype
    key = dtype if counting.is_half(dtype) else F32, _is_wide(dtype)
    counts = pool.get(key)
    if counts is None:
        counts = pool[key] = counting.ValueCounts(key[0])
        counts.wide = counting.WideSums() if key[1] else None
    for data in _slabs(source, step):
        counts.add(data if counts.exact else _floats(source, data))
        if counts.wide is not None:
            counts.wide.add(_wide(source, data))
    return counts


def _is_wide(dtype: DType) -> bool:
    """Returns whether f32 may round values of this type. True for f32 too, whose sums need f64."""
    return dtype.kind is not Kind.BLOCK and dtype.size >= F32.size


def _wide(node: Node, data: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Returns the values in a node's bytes as f64; integers above 53 bits are rounded."""
    import numpy as np

    dtype = node.spec.dtype
    values: Any = data.view(np.dtype(dtype.numpy)) if _is_wide(dtype) else _floats(node, data).view(np.float32)
    return values.astype(np.float64)  # type: ignore[no-any-return]


def _countable(node: LogicalTensor) -> Node:
    """Returns the node whose bytes are plain values or blocks: a packed weight is decoded."""
    from weighbridge.tensors.nodes import QuantizedTensor

    if isinstance(node, QuantizedTensor):
        return node.decode()
    if node.spec.dtype.kind is Kind.COMPLEX:
        raise UnsupportedError("statistics of complex values are undefined")
    return node


def _slabs(node: Node, step: Step) -> Iterator[NDArray[np.uint8]]:
    """Yields the bytes of a node, a few rows at a time, in one reused buffer."""
    import numpy as np

    spec = node.spec
    width = max(spec.row_atoms * spec.dtype.block, 1)
    rows = max(_RUN // width, 1)
    buffer = np.empty(min(rows, spec.rows) * spec.row_bytes, np.uint8)
    for lo in range(0, spec.rows, rows):
        step(lo * spec.row_bytes, spec.nbytes)
        hi = min(lo + rows, spec.rows)
        yield node.read(lo, hi, buffer[: (hi - lo) * spec.row_bytes])
    step(spec.nbytes, spec.nbytes)


def _floats(node: Node, data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Returns a node's values as the bytes of f32. Integers above 24 bits are rounded."""
    import numpy as np

    from weighbridge.tensors import kernels
    from weighbridge.tensors.reference import legacy_blocks

    dtype = node.spec.dtype
    if dtype is F32:
        return data
    out = np.empty(data.nbytes // dtype.size * dtype.block, np.float32)
    if dtype in legacy_blocks.DECODED:
        legacy_blocks.decode(dtype, data, out)
    elif kernels.decodes(dtype):
        kernels.decode(dtype, data, out)
    elif dtype.numpy is not None:
        out[:] = data.view(np.dtype(dtype.numpy))
    else:
        raise UnsupportedError(f"{dtype} can't be decoded by this version")
    return out.view(np.uint8)


def channel_report(
    model: OpenModel, tensor: str, *, cancelled: Cancelled = lambda: False, progress: Progress | None = None
) -> ChannelReport:
    """Finds the outlier channels of a matrix. Raises UnsupportedError for a vector."""
    import numpy as np

    node = _find(model, tensor)
    if len(node.spec.shape) < 2 or node.spec.flat:
        raise UnsupportedError(f"{tensor} isn't a matrix, so it has no channels")
    source, columns = _countable(node), node.spec.shape[-1]
    largest = np.zeros(columns, np.float32)
    for data in _slabs(source, step_of(cancelled, progress, tensor)):
        values: Any = _floats(source, data).view(np.float32).reshape(-1, columns)
        absmax = np.maximum(values.max(axis=0), -values.min(axis=0))
        if not np.isfinite(absmax).all():
            absmax = np.where(np.isfinite(values), np.abs(values), 0).max(axis=0)
        np.maximum(largest, absmax, out=largest)
    median = float(np.median(largest)) if columns else None
    order = np.argsort(-largest, kind="stable")[:_CHANNELS]
    rows = tuple(Channel(int(i), float(largest[i]), float(largest[i]) / median if median else None) for i in order)
    return ChannelReport(tensor, columns, median, int((largest > OUTLIER * median).sum()) if median else 0, rows)


def describe_tensor(
    model: OpenModel, tensor: str, *, bins: int = BINS, cancelled: Cancelled = lambda: False,
    progress: Progress | None = None,
) -> TensorStatistics:  # fmt: skip
    """Computes the statistics of a tensor, with the outlier channels of a matrix."""
    statistics = tensor_statistics(model, tensor, bins=bins, cancelled=cancelled, progress=progress)
    if len(statistics.shape) < 2:
        return statistics
    return replace(statistics, channels=channel_report(model, tensor, cancelled=cancelled, progress=progress))
