"""Opens NeMo's archives: one file of weights, those of all ranks, which are joined, or a distributed checkpoint.

    open_nemo(place, sources)    the index, the tensors as nodes, and the parts left out

`containers/torch/nemo.py` describes the archives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from weighbridge.base.errors import UnsupportedError
from weighbridge.base.words import plural
from weighbridge.containers import opening
from weighbridge.containers.base import Index
from weighbridge.containers.torch import nemo
from weighbridge.io.source import Source
from weighbridge.models.distributed import open_chunks
from weighbridge.models.locate import Place
from weighbridge.models.megatron import join_ranks
from weighbridge.models.stored_tensors import JoinedModel, StoredTensors

if TYPE_CHECKING:
    pass


def open_nemo(place: Place, sources: Sequence[Source]) -> JoinedModel:
    """The whole tensors of an archive. `sources`: the archive. FormatError if its files aren't one model."""
    source, *others = sources
    if others:
        raise UnsupportedError(f"{place.path}: {plural(len(sources), 'archive')} of one set", hint="name one of them")
    if opening.format_of(source).name != nemo.NAME:
        index = opening.parse(source)
        return JoinedModel(index, StoredTensors(index))
    archive = nemo.read(source)
    if (chunks := archive.chunks) is not None:
        files = (archive.window(nemo.FOLDER + name) for name in (".metadata", *chunks.files))
        index, whole = open_chunks(chunks, list(files))
        return JoinedModel(_closing(index, source), whole)
    if any(name != nemo.WEIGHTS for name in archive.weights):
        joined = join_ranks(place, [*archive.indexes().values()], archive.config)
        return replace(joined, index=_closing(joined.index, source))
    index = nemo.parse(source)
    return JoinedModel(index, StoredTensors(index))


def _closing(index: Index, source: Source) -> Index:
    """The index of windows of a file, which it closes."""
    return replace(index, files=(*index.files, source), data_start=(0,) * (len(index.files) + 1))
