"""Extracts one tensor: its statistics, its bytes as stored, or a `.npy`. Read slab by slab, so that a tensor
larger than memory is no trouble.

    stats("model.gguf::token_embd.weight")                   values as numbers, quantized ones decoded
    with Picked("model/::lm_head.weight") as head:
        save(head, "head.npy")                               an array
    Picked("model/::lm_head.weight", "[0:10, :]").array()    some rows
    Picked("model.gguf::blk.0.attn_q.weight", raw=True)      the stored bytes
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.closeable import Closing
from weighbridge.base.dtypes import F32, DType
from weighbridge.base.dtypes import dtype as named
from weighbridge.base.errors import UsageError
from weighbridge.base.limits import SLAB
from weighbridge.base.spec import Spec
from weighbridge.reports import tensor_path

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from weighbridge.models.checkpoint import Checkpoint
    from weighbridge.reports.statistics.tensor import TensorStatistics
    from weighbridge.tensors.nodes import LogicalTensor, Node

Progress = Callable[[int, int, str], None]


class Picked(Closing):
    """A tensor, or a slice of it, that a path names: `PATH::TENSOR`. Close it, or use it as a context manager."""

    def __init__(
        self, path: str | os.PathLike[str], key: str | None = None, dtype: str | None = None, raw: bool = False
    ) -> None:
        from weighbridge.models.open import ALONE, open_model
        from weighbridge.tensors.nodes import as_node

        file, name = tensor_path.split(path)
        if name is None:
            raise UsageError(
                f"{os.fspath(path)} names no tensor", hint="write PATH::TENSOR; wb inspect lists the names"
            )
        self.path, self.name, self.raw = os.fspath(file), name, raw
        self.checkpoint: Checkpoint = open_model(file, ALONE)
        try:
            self.node, self.rest = _narrowed(_find(self.checkpoint, name, self.path, raw), key)
            self.values = as_node(self.node) if raw else _values(self.node, named(dtype) if dtype else None)
        except BaseException:
            self.checkpoint.close()
            raise

    @property
    def whole(self) -> bool:
        """Whether the rows that are read are exactly the selection."""
        return all(
            isinstance(part, slice) and part.indices(n) == (0, n, 1)
            for part, n in zip(self.rest, self.node.spec.shape, strict=False)
        )

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.spec.shape if self.whole else self.array().shape

    def array(self) -> NDArray[Any]:
        """The values, in memory: decoded to F32 if numpy has no such type."""
        from weighbridge.adapters.numpy import to_numpy

        found: NDArray[Any] = to_numpy(self.values)[self.rest]
        return found

    def slabs(self, progress: Progress | None = None) -> Iterator[NDArray[np.uint8]]:
        """The bytes of the values, piece after piece."""
        import numpy as np

        if not self.whole:
            if self.raw:
                raise UsageError(
                    "the stored bytes can be cut at rows only", hint="leave --raw out, or slice the first axis"
                )
            yield np.ascontiguousarray(self.array()).reshape(-1).view("u1")
            return
        yield from _slabs(self.values, progress, self.name)

    def close(self) -> None:
        self.checkpoint.close()


def _find(model: Checkpoint, name: str, path: str, raw: bool) -> LogicalTensor:
    """The logical tensor of a name (MLX's three parts as one), else the stored one (`P.scales` by itself); `raw`: only
    stored ones."""
    if not raw and name in model.logical:
        return model.logical[name]
    tensor_path.entry(model.index, name, path)
    return model.stored[name]


def _values(node: LogicalTensor, dtype: DType | None) -> Node:
    """The node to write as numbers: the node itself if numpy has its type (a `.npy` can't name ml_dtypes'), F32
    otherwise, or the requested type."""
    from weighbridge.tensors import nodes

    own = node.spec.dtype.numpy
    if dtype is None and (own is None or own.startswith(("bfloat", "float8"))):
        dtype = F32
    return nodes.as_node(node, dtype)


_SLICE: Final = re.compile(r"\s*(-?\d+)?\s*(?:(:)\s*(-?\d+)?\s*(?::\s*(-?\d+)?)?)?\s*")


def parse_slice(text: str) -> tuple[Any, ...]:
    """`[0:10, :, 3]` as numpy writes it, the brackets optional. UsageError for anything else."""
    inner = text.strip().removeprefix("[").removesuffix("]")
    return tuple(_slice_part(part, text) for part in inner.split(","))


def _slice_part(part: str, text: str) -> Any:
    if part.strip() == "...":
        return ...
    match = _SLICE.fullmatch(part)
    if match is None or not part.strip():
        raise UsageError(f"{text!r} is not a slice", hint="write it like [0:10, :] or [5]")
    start, colon, stop, step = (int(g) if g and g != ":" else g for g in match.groups())
    if step == 0:
        raise UsageError("a slice's step can't be 0")
    return slice(start, stop, step) if colon else start


def _narrowed(node: LogicalTensor, key: str | None) -> tuple[LogicalTensor, tuple[Any, ...]]:
    from weighbridge.tensors.slicing import narrow

    if key is None:
        return node, ()
    try:
        return narrow(node, parse_slice(key))
    except IndexError as error:
        raise UsageError(str(error)) from None


def _slabs(node: Node, progress: Progress | None, label: str) -> Iterator[NDArray[np.uint8]]:
    spec = node.spec
    step = max(SLAB // max(spec.row_bytes, 1), 1)
    for lo in range(0, spec.rows, step):
        hi = min(lo + step, spec.rows)
        yield node.read(lo, hi)
        if progress:
            progress(hi * spec.row_bytes, spec.nbytes, label)


# ---- .npy ----


def _npy_header(picked: Picked) -> bytes:
    from weighbridge.containers.numpy import npy

    return npy.header_bytes(picked.name, Spec(picked.shape, picked.values.spec.dtype))


def chunks(picked: Picked, progress: Progress | None = None) -> Iterator[memoryview]:
    """The contents of a file with this tensor, piece by piece."""
    if not picked.raw:
        yield memoryview(_npy_header(picked))
    for slab in picked.slabs(progress):
        yield slab.data


def size_of(picked: Picked) -> int:
    """Bytes of all `chunks`."""
    if picked.raw:
        return picked.values.spec.nbytes
    return len(_npy_header(picked)) + math.prod(picked.shape) * picked.values.spec.dtype.size


def save(
    picked: Picked,
    out: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> int:
    """Write the tensor to a file; the number of bytes. RefusedError where the file exists."""
    from weighbridge.io.sink import Sink

    size, at = size_of(picked), 0
    with Sink(out, folder=False, size=size, overwrite=overwrite) as sink:
        file = sink.create("", size)
        for chunk in chunks(picked, progress):
            file.write(at, chunk)
            at += chunk.nbytes
    return at


# ---- statistics ----


def stats(path: str | os.PathLike[str], key: str | None = None, progress: Progress | None = None) -> TensorStatistics:
    """Statistics of a tensor, or of a slice of it."""
    from weighbridge.reports.statistics.tensor import node_statistics, step_of
    from weighbridge.tensors.nodes.moves import const

    with Picked(path, key) as picked:
        node = picked.node if picked.whole else const(picked.array(), picked.values.spec.dtype)
        found = node_statistics(node, picked.name, step_of(lambda: False, progress, picked.name))
        return replace(found, path=picked.path)
