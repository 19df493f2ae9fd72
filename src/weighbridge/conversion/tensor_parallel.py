"""Plans the files of a tensor-parallel group: a model's tensors divided among ranks, one file or set of shards each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from weighbridge.base.errors import UsageError
from weighbridge.base.limits import SHARDS
from weighbridge.containers.gguf.values import KV, Metadata, kvs
from weighbridge.conversion.options import RankOptions, WriteOptions
from weighbridge.conversion.plan import writers
from weighbridge.conversion.plan.builder import sidecar_files
from weighbridge.conversion.plan.fingerprint import state_of
from weighbridge.conversion.plan.losses.ties import copied
from weighbridge.conversion.plan.model import Plan
from weighbridge.conversion.plan.target import check_target
from weighbridge.io.location import open_source
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.models.tensor_parallel.packed_shards import rank_part
from weighbridge.models.tensor_parallel.rank_files import metadata
from weighbridge.models.tensor_parallel.rank_set import stem_of
from weighbridge.models.tensor_parallel.rank_view import splits_of

_GGUF: Final = "gguf"
_WHOLE_GGUF: Final = "llama.cpp splits a whole GGUF itself while loading; these files are for other programs"


def plan_ranks(model: Checkpoint, target: Path, options: RankOptions, write: WriteOptions = WriteOptions()) -> Plan:
    """Plans to write a folder with a file for each rank, and with what lies beside the model's weights."""
    ranks = options.tp
    if not 2 <= ranks <= SHARDS:
        raise UsageError(f"a tensor-parallel group has 2 to {SHARDS:,} ranks, not {ranks}")
    check_target(target, model, folder=True)
    splits = splits_of(model, ranks)
    container = _GGUF if model.format == _GGUF else "safetensors"
    parts = [
        {name: rank_part(model.stored[name], split, rank, ranks) for name, split in splits.items()}
        for rank in range(ranks)
    ]
    written = [
        writers.writer(container)(stem_of(rank, ranks), part, _metadata(model, metadata(rank, ranks, splits)), options)
        for rank, part in enumerate(parts)
    ]
    folder = model.place.folder
    sidecars = [] if container == _GGUF else sidecar_files(folder)
    whole = sum(split is None for split in splits.values())
    summary = f"{len(splits) - whole:,} tensors are split, {whole:,} are whole on every rank"
    return Plan(
        source=str(model.place.path),
        target=target,
        format="tensor-parallel",
        folder=True,
        files=(*(f for w in written for f in w.files),
               *(writers.raw(p.relative_to(folder).as_posix(), open_source(p)) for p in sidecars)),
        texts={name: text for w in written for name, text in w.texts.items()},
        losses=tuple(copied(model, parts[0])),
        notes=(summary, *([_WHOLE_GGUF] if container == _GGUF else [])),
        write=write,
        sources=tuple(map(state_of, model.place.weights)),
        model=model,
    )  # fmt: skip


def _metadata(model: Checkpoint, own: Mapping[str, str]) -> Mapping[str, Any]:
    if model.format == _GGUF:
        return Metadata(kvs(model.metadata) | {key: KV("str", value) for key, value in own.items()})
    return {**{k: str(v) for k, v in model.metadata.items()}, **own}
