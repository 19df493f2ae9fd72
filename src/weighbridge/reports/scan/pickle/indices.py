"""Checks the indices of sparse and nested tensors. torch doesn't compare them with the shape unless asked to, so an
index out of bounds accesses other memory when the tensor is used (CVE-2025-62164). The checks are those of
`torch.sparse.check_sparse_tensor_invariants`.

    COO     indices [sparse dimensions, n], values [n, dense sizes ...]
    CSR     starts [..., rows + 1], columns [..., n], values [..., n, dense sizes ...]; CSC: columns; BSR, BSC: blocks
    nested  buffer [n], sizes [k, dimensions], strides [k, dimensions], offsets [k]

Reference: aten/src/ATen/native/sparse/ValidateCompressedIndicesCommon.h, SparseTensor.cpp, NestedTensorImpl.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from weighbridge.unpickle.libraries.torch_calls import interpret
from weighbridge.unpickle.libraries.torch_types import SavedTensor, Storage, counts
from weighbridge.unpickle.values import Object, UnexpectedOpcode

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

SPARSE: Final = ("torch._utils", "_rebuild_sparse_tensor")
NESTED: Final = ("torch._utils", "_rebuild_nested_tensor")
#: Functions that create such tensors.
INDEXED: Final = frozenset({SPARSE, NESTED})
_MOST: Final = 1 << 24  # indices that are compared
_CODES: Final = MappingProxyType({"I64": "i8", "I32": "i4"})


class Unresolved(Exception):
    """The indices can't be read."""


class StorageBytes(NamedTuple):
    """The bytes of a storage, and their order: "<" or ">"."""

    data: bytes
    order: str


Fetch = Callable[[Storage], StorageBytes]


def fault(tensor: Object, fetch: Fetch) -> str:
    """The fault in the indices of the `tensor`, or "" if all are in bounds. `fetch` reads a storage, or raises
    Unresolved."""
    try:
        return _CHECKS[tensor.callee.path](tensor.args, fetch)
    except UnexpectedOpcode as error:
        raise Unresolved(str(error)) from error


def _tensor(value: Any) -> SavedTensor:
    tensor = interpret(value)
    if not isinstance(tensor, SavedTensor):
        raise Unresolved("a part of it is not a plain tensor")
    return tensor


def _integers(value: Any, fetch: Fetch) -> Integers:
    """The values of an I32 or I64 tensor, as int64 of its shape."""
    import numpy as np

    t = _tensor(value)
    code = _CODES.get(t.dtype.name)
    if code is None:
        raise Unresolved(f"its indices are {t.dtype}")
    if math.prod(t.shape) > _MOST:
        raise Unresolved(f"it has more than {_MOST} indices")
    if 0 in t.shape:
        return np.empty(t.shape, np.int64)
    stored = fetch(t.storage)
    width = t.dtype.size
    numbers = np.frombuffer(stored.data[: len(stored.data) // width * width], stored.order + code)
    first = t.offset + t.storage.start
    last = first + sum((n - 1) * s for n, s in zip(t.shape, t.strides, strict=True))
    if last >= len(numbers):
        raise Unresolved("a storage is too short")
    steps = [s * width for s in t.strides]
    return np.lib.stride_tricks.as_strided(numbers[first:], t.shape, steps, writeable=False).astype(np.int64)


# ---- sparse -----------------------------------------------------------------------------------------------------


def _sparse(args: tuple[Any, ...], fetch: Fetch) -> str:
    layout, data = args
    kind = layout.args[0].removeprefix("torch.sparse_") if isinstance(layout, Object) else ""
    if kind == "coo" and len(data) in (3, 4):
        return _coo(data, fetch)
    if kind in _COMPRESSED and len(data) == 4:
        return _compressed(_COMPRESSED[kind], data, fetch)
    raise Unresolved("its layout is unknown")


def _coo(data: tuple[Any, ...], fetch: Fetch) -> str:
    import numpy as np

    indices, values = _integers(data[0], fetch), _tensor(data[1]).shape
    size = counts(data[2], "its shape")
    if indices.ndim != 2 or not values or len(indices) + len(values) - 1 != len(size):
        return "its indices, values and shape do not match"
    dims, count = indices.shape
    if values != (count, *size[dims:]):
        return "its values do not match its indices and shape"
    limits = np.array(size[:dims], np.int64).reshape(dims, 1)
    if count and ((indices < 0) | (indices >= limits)).any():
        return "an index is out of bounds"
    if len(data) == 4 and data[3] is True and not _is_coalesced(indices):
        return "its indices are declared coalesced and are not"
    return ""


def _is_coalesced(indices: Integers) -> bool:
    """Whether the columns of [dimensions, n] are sorted and unique."""
    import numpy as np

    if indices.shape[1] < 2:
        return True
    if not len(indices):
        return False
    order = np.lexsort(indices[::-1])
    step = (np.diff(indices, axis=1) != 0).any(axis=0)
    return bool((order == np.arange(len(order))).all() and step.all())


class _Layout(NamedTuple):
    """`columns`: the starts are those of columns. `blocks`: the values are blocks."""

    columns: bool
    blocks: bool


_COMPRESSED: Final[Mapping[str, _Layout]] = MappingProxyType(
    {"csr": _Layout(False, False), "csc": _Layout(True, False), "bsr": _Layout(False, True), "bsc": _Layout(True, True)}
)


def _compressed(layout: _Layout, data: tuple[Any, ...], fetch: Fetch) -> str:
    starts, places = _integers(data[0], fetch), _integers(data[1], fetch)
    values, size = _tensor(data[2]).shape, counts(data[3], "its shape")
    batch = places.ndim - 1
    if batch < 0 or starts.ndim != places.ndim or len(size) < batch + 2:
        return "its indices and shape do not match"
    inner = (batch + 1, batch + 2) if layout.blocks else ()
    if values[: batch + 1] != places.shape or len(values) != len(size) - 1 + len(inner):
        return "its values do not match its indices and shape"
    block = [values[i] for i in inner] or [1, 1]
    if not all(block) or any(n % b for n, b in zip(size[batch : batch + 2], block, strict=True)):
        return "its blocks do not match its shape"
    rows, columns = (n // b for n, b in zip(size[batch : batch + 2], block, strict=True))
    outer, width = (columns, rows) if layout.columns else (rows, columns)
    dense = values[batch + 1 + len(inner) :]
    if starts.shape != (*size[:batch], outer + 1) or places.shape[:-1] != size[:batch] or dense != size[batch + 2 :]:
        return "its indices and shape do not match"
    starts = starts.reshape(-1, outer + 1)
    return _runs(starts, places.reshape(len(starts), -1), width)


def _runs(starts: Integers, places: Integers, width: int) -> str:
    """Checks each batch: `starts` [batches, runs + 1] of the runs, and `places` [batches, n] in them, below `width`."""
    import numpy as np

    lengths = np.diff(starts, axis=1)
    if (starts[:, 0] != 0).any() or (starts[:, -1] != places.shape[1]).any() or (lengths < 0).any():
        return "the starts of its rows do not match its values"
    if (lengths > width).any() or ((places < 0) | (places >= width)).any():
        return "an index is out of bounds"
    for start, place in zip(starts, places, strict=True):
        first = np.zeros(len(place) + 1, bool)
        first[start] = True
        if ((np.diff(place) <= 0) & ~first[1:-1]).any():
            return "the indices of a row are not in order"
    return ""


# ---- nested -----------------------------------------------------------------------------------------------------


def _nested(args: tuple[Any, ...], fetch: Fetch) -> str:
    buffer = _tensor(args[0]).shape
    sizes, strides, offsets = (_integers(part, fetch) for part in args[1:])
    if len(buffer) != 1 or sizes.ndim != 2 or strides.shape != sizes.shape or offsets.shape != (len(sizes),):
        return "its parts do not match"
    for size, stride, offset in zip(sizes.tolist(), strides.tolist(), offsets.tolist(), strict=True):
        if min([offset, *size, *stride]) < 0:
            return "a size, a stride or an offset is negative"
        last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
        if 0 not in size and last >= buffer[0]:
            return "a part is outside its buffer"
    return ""


_CHECKS: Final[Mapping[tuple[str, str], Callable[[tuple[Any, ...], Fetch], str]]] = MappingProxyType(
    {SPARSE: _sparse, NESTED: _nested}
)
