"""Statistics of one tensor from every value of it, none sampled: counts by bit pattern, and then arithmetic on these.

tensor_statistics(model, "blk.0.attn_q.weight") -> TensorStatistics
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.dtypes import F32, DType, Kind
from weighbridge.base.errors import UnsupportedError, WeighbridgeError
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.reports import tensor_path

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from weighbridge.tensors.counting import ValueCounts
    from weighbridge.tensors.nodes import LogicalTensor, Node

SCHEMA: Final = "weighbridge/tensor-statistics/1"
BINS: Final = 64
_QUANTILES: Final = (0.001, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999)
#: A column whose largest magnitude is so many times the median column's is an outlier.
OUTLIER: Final = 6.0
_CHANNELS: Final = 10  # listed
_FIRST: Final = 8  # values that are listed
_RUN: Final = 1 << 18  # values at a time: decoded, they stay in the second-level cache

Progress = Callable[[int, int, str], None]
Cancelled = Callable[[], bool]


class CancelledError(WeighbridgeError):
    """The caller asked to stop."""


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
    """A column (the last axis: an input of a matrix), its largest magnitude, and that over the median column's."""

    index: int
    absmax: float
    ratio: float | None


@dataclass(frozen=True, slots=True)
class TensorStatistics:
    """Of all values, decoded where the tensor is quantized. `minimum` to `quantiles` are of the finite ones; None, and
    empty, where there are none. `std` divides by n. `quantiles`: share -> value, as numpy's `inverted_cdf`; within 2^-8
    of a value unless `exact`: so are the edges at which values fall into bins. All else is exact, up to the rounding of
    f64 sums; kurtosis has five digits unless `exact`, and so have std and rms of what is decoded. `first`: the first
    values, at most eight. `channels`: of a matrix, where it was asked for."""

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
    """The columns of a tensor: the median of their largest magnitudes, how many are outliers (`OUTLIER` times the
    median), the largest columns first."""

    tensor: str
    columns: int
    median: float | None
    outliers: int
    largest: tuple[Channel, ...]


def tensor_statistics(
    model: Checkpoint,
    tensor: str,
    *,
    bins: int = BINS,
    cancelled: Cancelled = lambda: False,
    progress: Progress | None = None,
) -> TensorStatistics:
    """The statistics of a tensor, by its stored name or that of a packed weight. CancelledError soon after `cancelled`
    is true; UnsupportedError for complex numbers; UsageError where there is no such tensor."""
    step = step_of(cancelled, progress, tensor)
    return replace(node_statistics(find(model, tensor), tensor, step, bins=bins), path=str(model.place.path))


def node_statistics(node: LogicalTensor, tensor: str, step: Step, *, bins: int = BINS) -> TensorStatistics:
    """As `tensor_statistics`, of a tensor that is in no file. Its `path` is empty."""
    counts = count_values(node, step)
    low, high = counts.extremes or (None, None)
    moments = counts.moments()
    values = counts.quantiles(_QUANTILES)
    return TensorStatistics(
        path="",
        tensor=tensor,
        dtype=_type_of(node),
        shape=node.spec.shape,
        nbytes=_stored_bytes(node),
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
        histogram=_histogram(counts, low, high, bins),
        magnitudes=tuple(MagnitudeBin(e, n) for e, n in counts.magnitudes().items()),
        exact=counts.exact,
        first=_first(countable(node)),
    )


def _first(node: Node) -> tuple[float, ...]:
    """The first values."""
    width = max(node.spec.row_atoms * node.spec.dtype.block, 1)
    rows = min(-(-_FIRST // width), node.spec.rows)
    return tuple(_wide(node, node.read(0, rows))[:_FIRST].tolist())


def find(model: Checkpoint, tensor: str) -> LogicalTensor:
    """The packed weight of this name, else the stored tensor."""
    for group in model.packed_near([tensor]).values():
        if group.name == tensor:
            return group.node
    return model.stored[tensor_path.entry(model.index, tensor, model.place.path).name]


def _type_of(node: LogicalTensor) -> str:
    packing = getattr(node, "packing", None)
    return f"{packing.name}-{packing.bits}" if packing is not None else node.spec.dtype.name


def _stored_bytes(node: LogicalTensor) -> int:
    from weighbridge.tensors.nodes import stored_bytes

    return stored_bytes(node)


Step = Callable[[int, int], None]


def step_of(cancelled: Cancelled, progress: Progress | None, label: str) -> Step:
    """Reports progress, and raises CancelledError."""

    def step(done: int, total: int) -> None:
        if cancelled():
            raise CancelledError(f"{label}: cancelled")
        if progress is not None:
            progress(done, total, label)

    return step


#: Counters of the values of several tensors, by the type that is counted and whether they have `WideSums`.
Pool = dict[tuple[DType, bool], "ValueCounts"]


def count_values(node: LogicalTensor, step: Step, pool: Pool | None = None) -> ValueCounts:
    """All values of a tensor, counted; a quantized one decoded. `pool`: counts them together with those of the tensors
    before it. UnsupportedError for complex numbers, and for what can't be decoded."""
    from weighbridge.tensors import counting

    source, pool = countable(node), {} if pool is None else pool
    dtype = source.spec.dtype
    key = dtype if counting.is_half(dtype) else F32, _is_wide(dtype)
    counts = pool.get(key)
    if counts is None:
        counts = pool[key] = counting.ValueCounts(key[0])
        counts.wide = counting.WideSums() if key[1] else None
    for data in slabs(source, step):
        counts.add(data if counts.exact else floats(source, data))
        if counts.wide is not None:
            counts.wide.add(_wide(source, data))
    return counts


def _is_wide(dtype: DType) -> bool:
    """Whether f32 may round values of this type, or values of f32 themselves."""
    return dtype.kind is not Kind.BLOCK and dtype.size >= F32.size


def _wide(node: Node, data: NDArray[np.uint8]) -> NDArray[np.float64]:
    """The values of a node's bytes as f64; integers of more than 53 bits are rounded."""
    import numpy as np

    dtype = node.spec.dtype
    values: Any = data.view(np.dtype(dtype.numpy)) if _is_wide(dtype) else floats(node, data).view(np.float32)
    return values.astype(np.float64)  # type: ignore[no-any-return]


def countable(node: LogicalTensor) -> Node:
    """The node whose bytes are values of one number each, or blocks: a packed weight decoded."""
    from weighbridge.tensors.nodes import QuantizedTensor

    if isinstance(node, QuantizedTensor):
        return node.decode()
    if node.spec.dtype.kind is Kind.COMPLEX:
        raise UnsupportedError("complex values have no order, so they have no statistics")
    return node


def slabs(node: Node, step: Step) -> Iterator[NDArray[np.uint8]]:
    """The bytes of a node, some rows at a time, in one buffer."""
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


def floats(node: Node, data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The bytes of a node's values as f32. Integers of more than 24 bits are rounded."""
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


def _histogram(counts: ValueCounts, low: float | None, high: float | None, bins: int) -> Histogram:
    import numpy as np

    if low is None or high is None:
        return Histogram((), ())
    low, high = (low, high) if low < high else (low - 0.5, high + 0.5)
    edges = np.linspace(low, high, bins + 1)
    return Histogram(tuple(edges.tolist()), tuple(counts.histogram(edges).tolist()))


def channel_report(
    model: Checkpoint, tensor: str, *, cancelled: Cancelled = lambda: False, progress: Progress | None = None
) -> ChannelReport:
    """The outlier channels of a matrix. UnsupportedError for a vector."""
    import numpy as np

    node = find(model, tensor)
    if len(node.spec.shape) < 2 or node.spec.flat:
        raise UnsupportedError(f"{tensor} is no matrix, so it has no channels")
    source, columns = countable(node), node.spec.shape[-1]
    largest = np.zeros(columns, np.float32)
    for data in slabs(source, step_of(cancelled, progress, tensor)):
        values: Any = floats(source, data).view(np.float32).reshape(-1, columns)
        found = np.maximum(values.max(axis=0), -values.min(axis=0))
        if not np.isfinite(found).all():
            found = np.where(np.isfinite(values), np.abs(values), 0).max(axis=0)
        np.maximum(largest, found, out=largest)
    median = float(np.median(largest)) if columns else None
    order = np.argsort(-largest, kind="stable")[:_CHANNELS]
    rows = tuple(Channel(int(i), float(largest[i]), float(largest[i]) / median if median else None) for i in order)
    return ChannelReport(tensor, columns, median, int((largest > OUTLIER * median).sum()) if median else 0, rows)


def describe_tensor(
    model: Checkpoint, tensor: str, *, bins: int = BINS, cancelled: Cancelled = lambda: False,
    progress: Progress | None = None,
) -> TensorStatistics:  # fmt: skip
    """The statistics of a tensor, and of a matrix its outlier channels too."""
    found = tensor_statistics(model, tensor, bins=bins, cancelled=cancelled, progress=progress)
    if len(found.shape) < 2:
        return found
    return replace(found, channels=channel_report(model, tensor, cancelled=cancelled, progress=progress))
