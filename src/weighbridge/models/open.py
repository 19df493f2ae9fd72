"""Opens a model from a path: the one entry point of every command and function that reads one.

open_model(path, options)      the model, a tensor-parallel set put together; its tensors can be read
open_headers(path, options)    names, shapes and metadata, also of a set with missing ranks; no tensor data, no adapter
"""

from __future__ import annotations

import os
from functools import reduce
from typing import Final, NamedTuple

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import RefusedError
from weighbridge.models.checkpoint import Checkpoint, SourceOptions, open_alone, open_checkpoint
from weighbridge.models.tensor_parallel.rank_set import RankStatus, find_ranks, rank_set_of

__all__ = ["ALONE", "Headers", "SourceOptions", "open_headers", "open_model"]

#: A rank's file is opened by itself.
ALONE: Final = SourceOptions(join_ranks=False)


class Headers(NamedTuple):
    """A model known by its headers. `ranks`: which ranks of a tensor-parallel set are there; None for other models."""

    model: Checkpoint
    ranks: RankStatus | None


def open_model(path: str | os.PathLike[str], options: SourceOptions = SourceOptions()) -> Checkpoint:
    """The model at `path`: a file, a folder, an index, one file of a numbered set or of a tensor-parallel set, which is
    joined, or a Modelfile, whose adapters are merged. Reads headers only. Errors: OSError, FormatError, UsageError,
    UnsupportedError, RefusedError for an adapter to quantized weights."""
    path = resolve_path(path)
    if (alone := open_alone(path, options)) is not None:
        return alone
    files = find_ranks(path) if options.join_ranks else []
    if not files:
        return _with_adapters(open_checkpoint(path, options))
    from weighbridge.models.tensor_parallel.rank_files import gather_ranks  # late: inspect starts without it

    return gather_ranks(path, files, options)


def _with_adapters(model: Checkpoint) -> Checkpoint:
    """The model with the adapters of its Modelfile, or its store. RefusedError where its weights are quantized."""
    if not model.place.adapters:
        return model
    from weighbridge.models.lora.merge import merge_adapter  # late: inspect starts without it

    try:
        return reduce(merge_adapter, model.place.adapters, model)
    except RefusedError as error:
        model.close()
        (first, *_), (weights, *_) = model.place.adapters, model.place.weights
        keep = f"keep it beside: wb convert {weights} DST, and llama-server -m DST --lora {first}"
        raise RefusedError(error.message, hint=f"{error.hint}; or {keep}") from None
    except BaseException:
        model.close()
        raise


def open_headers(path: str | os.PathLike[str], options: SourceOptions = SourceOptions()) -> Headers:
    """What the headers at `path` declare. A folder of ranks gives the whole model's tensors, a rank's file its own."""
    path = resolve_path(path)
    if rank_set_of(path) is None:
        return Headers(open_checkpoint(path, options), None)
    from weighbridge.models.tensor_parallel.rank_files import open_ranks

    return Headers(*open_ranks(path, options))
