"""Extracts one tensor: its statistics, its stored bytes, or a `.npy`. Reads slab by slab, so tensors may be larger than
memory.

    stats("model.gguf::token_embd.weight")                   all values, decoded if quantized
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
from weighbridge.base.dtypes import F32, NUMPY_OWN, DTypeLike, requested_dtype
from weighbridge.base.errors import UsageError
from weighbridge.base.limits import SLAB
from weighbridge.base.spec import Spec
from weighbridge.reports import tensor_path

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from weighbridge.models.model import OpenModel
    from weighbridge.reports.statistics.tensor import TensorStatistics
    from weighbridge.tensors.nodes import LogicalTensor

Progress = Callable[[int, int, str], None]


class Picked(Closing):
    """A tensor, or a slice of it, that a path names: `PATH::TENSOR`. Close it, or use it as a context manager."""

    def __init__(
        self, path: str | os.PathLike[str], key: str | None = None, dtype: DTypeLike | None = None, raw: bool = False,
        step: int | None = None,
    ) -> None:  # fmt: skip
        from weighbridge.models.open import ALONE, open_model
        from weighbridge.tensors.nodes import as_node
        from weighbridge.tensors.slicing import narrow

        file, name = tensor_path.split(path)
        if name is None:
            raise UsageError(
                f"{os.fspath(path)} names no tensor", hint="write PATH::TENSOR; wb inspect lists the names"
            )
        self.path, self.name, self.raw = os.fspath(file), name, raw
        self.source: OpenModel = open_model(file, replace(ALONE, step=step))
        try:
            # The logical tensor (MLX's three parts as one), else the stored one (such as `P.scales`).
            groups = {} if raw else {g.name: g.node for g in self.source.packed_near([name]).values()}
            if name not in groups:
                tensor_path.entry(self.source.index, name, self.path)
            self.node: LogicalTensor = groups[name] if name in groups else self.source.stored[name]
            self.rest: tuple[Any, ...] = ()
            if key is not None:
                try:
                    self.node, self.rest = narrow(self.node, parse_slice(key))
                except IndexError as error:
                    raise UsageError(str(error)) from None
            number_type = None if raw else requested_dtype(dtype)
            if not raw and number_type is None and self.node.spec.dtype.name not in NUMPY_OWN:
                number_type = F32  # a `.npy` can't name the types of ml_dtypes
            self.values = as_node(self.node, number_type)
        except BaseException:
            self.source.close()
            raise

    @property
    def whole(self) -> bool:
        """Whether the selection consists of complete rows."""
        return all(
            isinstance(part, slice) and part.indices(n) == (0, n, 1)
            for part, n in zip(self.rest, self.node.spec.shape, strict=False)
        )

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.spec.shape if self.whole else self.array().shape

    def array(self) -> NDArray[Any]:
        """Returns the selected values in memory, decoded to F32 if numpy lacks their type."""
        from weighbridge.adapters.numpy import to_numpy

        selected: NDArray[Any] = to_numpy(self.values)[self.rest]
        return selected

    def slabs(self, progress: Progress | None = None) -> Iterator[NDArray[np.uint8]]:
        """Yields the bytes of the values, in pieces."""
        import numpy as np

        if not self.whole:
            if self.raw:
                raise UsageError(
                    "stored bytes can be sliced along the first axis only", hint="omit --raw, or slice only that axis"
                )
            yield np.ascontiguousarray(self.array()).reshape(-1).view("u1")
            return
        spec = self.values.spec
        step = max(SLAB // max(spec.row_bytes, 1), 1)
        for lo in range(0, spec.rows, step):
            hi = min(lo + step, spec.rows)
            yield self.values.read(lo, hi)
            if progress:
                progress(hi * spec.row_bytes, spec.nbytes, self.name)

    def close(self) -> None:
        self.source.close()


_SLICE: Final = re.compile(r"\s*(-?\d+)?\s*(?:(:)\s*(-?\d+)?\s*(?::\s*(-?\d+)?)?)?\s*")


def parse_slice(text: str) -> tuple[Any, ...]:
    """Parses a slice such as `[0:10, :, 3]`, with optional brackets. Raises UsageError if it is invalid."""
    parts: list[Any] = []
    for part in text.strip().removeprefix("[").removesuffix("]").split(","):
        match = _SLICE.fullmatch(part)
        if part.strip() == "...":
            parts.append(...)
            continue
        if match is None or not part.strip():
            raise UsageError(f"{text!r} is not a slice", hint="write it like [0:10, :] or [5]")
        start, colon, stop, step = (int(g) if g and g != ":" else g for g in match.groups())
        if step == 0:
            raise UsageError("a slice's step can't be 0")
        parts.append(slice(start, stop, step) if colon else start)
    return tuple(parts)


# ---- .npy ----


def _npy_header(picked: Picked) -> bytes:
    from weighbridge.containers.numpy import npy

    return npy.header_bytes(picked.name, Spec(picked.shape, picked.values.spec.dtype))


def chunks(picked: Picked, progress: Progress | None = None) -> Iterator[memoryview]:
    """Yields the contents of a file with this tensor, in pieces."""
    if not picked.raw:
        yield memoryview(_npy_header(picked))
    for slab in picked.slabs(progress):
        yield slab.data


def size_of(picked: Picked) -> int:
    """Returns the size of all `chunks`."""
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
    """Writes the tensor to a file, and returns its size. Raises RefusedError if the file exists."""
    from weighbridge.io.sink import Sink

    size, at = size_of(picked), 0
    with Sink(out, folder=False, size=size, overwrite=overwrite) as sink:
        file = sink.create("", size)
        for chunk in chunks(picked, progress):
            file.write(at, chunk)
            at += chunk.nbytes
    return at


# ---- statistics ----


def stats(
    path: str | os.PathLike[str], key: str | None = None, progress: Progress | None = None, step: int | None = None
) -> TensorStatistics:
    """Computes the statistics of a tensor, or of a slice."""
    from weighbridge.reports.statistics.tensor import node_statistics, step_of
    from weighbridge.tensors.nodes.moves import const

    with Picked(path, key, step=step) as picked:
        node = picked.node if picked.whole else const(picked.array(), picked.values.spec.dtype)
        statistics = node_statistics(node, picked.name, step_of(lambda: False, progress, picked.name))
        return replace(statistics, path=picked.path)
