"""Distributed checkpoints of any layout, written here: an array, the boxes that its chunks have, and a fault."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import BY_NUMPY
from weighbridge.base.spec import Spec
from weighbridge.containers.boxes import Box
from weighbridge.containers.torch import dcp, dcp_write
from weighbridge.containers.torch.dcp import Chunk

Array = NDArray[Any]
Metadata = dict[str, tuple[Spec, list[Chunk]]]


def spec_of(array: Array) -> Spec:
    return Spec(array.shape, BY_NUMPY[array.dtype.name])


def rows(array: Array, parts: int) -> list[Box]:
    """Boxes of as many rows as torch.chunk gives each of `parts` processes."""
    step = -(-len(array) // parts)
    starts = range(0, len(array), step)
    return [Box((at, *(0,) * (array.ndim - 1)), (min(step, len(array) - at), *array.shape[1:])) for at in starts]


def columns(array: Array, parts: int) -> list[Box]:
    return [Box((b.starts[0], 0)[::-1], b.shape[::-1]) for b in rows(array.T, parts)]


def cut(array: Array, box: Box) -> Array:
    return np.ascontiguousarray(array[tuple(slice(a, a + n) for a, n in zip(box.starts, box.shape, strict=True))])


def write(
    folder: Path,
    tensors: Mapping[str, tuple[Array, Sequence[Box]]],
    *,
    copies: Mapping[tuple[str, int], Array] | None = None,
    edit: Callable[[Metadata], Any] = lambda metadata: None,
) -> Path:
    """Writes a folder in which process number i has the chunks number i. `copies`: other data of a chunk; `edit`:
    changes the list before it is written."""
    folder.mkdir(parents=True, exist_ok=True)
    ranks = max(len(boxes) for _, boxes in tensors.values())
    listed: Metadata = {name: (spec_of(array), []) for name, (array, _) in tensors.items()}
    for rank in range(ranks):
        file = f"__{rank}_0.distcp"
        mine = {name: (array, boxes[rank]) for name, (array, boxes) in tensors.items() if rank < len(boxes)}
        parts = {name: (copies or {}).get((name, rank), cut(array, box)) for name, (array, box) in mine.items()}
        layout, items = dcp_write.data_file(file, [(name, spec_of(part)) for name, part in parts.items()])
        data = {name: part.tobytes() for name, part in parts.items()}
        out = bytearray(layout.size)
        pieces = [*layout.pieces, *((s.offset, data[s.name]) for s in layout.slots)]
        assert layout.fixups is not None
        for at, piece in (*pieces, *layout.fixups({name: zlib.crc32(raw) for name, raw in data.items()})):
            out[at : at + len(piece)] = piece
        (folder / file).write_bytes(out)
        for name, (_, box) in mine.items():
            listed[name][1].append(Chunk(box, items[name]))
    edit(listed)
    (folder / dcp.METADATA).write_bytes(dcp_write.metadata_file(listed))
    return folder
