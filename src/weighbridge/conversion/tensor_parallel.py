"""Plans the files of a tensor-parallel group: a model's tensors divided among ranks, one file or set of shards each."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from weighbridge.base.errors import UsageError
from weighbridge.base.limits import SHARDS
from weighbridge.base.words import plural
from weighbridge.containers.gguf.values import KV, Metadata, kvs
from weighbridge.conversion.options import RankOptions, WriteOptions
from weighbridge.conversion.plan import writers
from weighbridge.conversion.plan.builder import left_out
from weighbridge.conversion.plan.fingerprint import state_of
from weighbridge.conversion.plan.losses.ties import copied
from weighbridge.conversion.plan.model import Plan
from weighbridge.conversion.plan.side_files import copied as copied_files
from weighbridge.conversion.plan.side_files import side_files
from weighbridge.conversion.plan.target import check_target
from weighbridge.io.sink import link_notes
from weighbridge.models.model import OpenModel
from weighbridge.models.tensor_parallel.packed_shards import rank_part
from weighbridge.models.tensor_parallel.rank_files import metadata
from weighbridge.models.tensor_parallel.rank_set import stem_of
from weighbridge.models.tensor_parallel.rank_view import splits_of

_GGUF_NOTE: Final = "llama.cpp splits a whole GGUF itself while loading; these files are for other programs"


def plan_ranks(model: OpenModel, target: Path, options: RankOptions, write: WriteOptions = WriteOptions()) -> Plan:
    """Plans a folder with a file or shard set for each rank, and the small files of the model's folder."""
    ranks = options.tp
    if not 2 <= ranks <= SHARDS:
        raise UsageError(f"a tensor-parallel group has 2 to {SHARDS:,} ranks, not {ranks}")
    check_target(target, model.place.files, folder=True)
    splits = splits_of(model, ranks)
    is_gguf, folder = model.format == "gguf", model.place.folder
    parts = [
        {name: rank_part(model.stored[name], split, rank, ranks) for name, split in splits.items()}
        for rank in range(ranks)
    ]
    written = []
    for rank, part in enumerate(parts):
        keys, stem = metadata(rank, ranks, splits), stem_of(rank, ranks)
        if is_gguf:
            typed = Metadata(kvs(model.metadata) | {key: KV("str", value) for key, value in keys.items()})
            written.append(writers.write_gguf(stem, part, typed, options))
        else:
            written.append(writers.write_safetensors(stem, part, {**model.metadata, **keys}, options))
    extra = [] if is_gguf else copied_files(side_files(folder), folder)
    whole = sum(split is None for split in splits.values())
    summary = f"{plural(len(splits) - whole, 'tensor', 'are')} split, {whole:,} are whole on every rank"
    return Plan(
        source=str(model.place.path),
        target=target,
        format="tensor-parallel",
        folder=True,
        files=(*(f for w in written for f in w.files), *extra),
        texts={name: text for w in written for name, text in w.texts.items()},
        losses=(*left_out(model), *copied(model, parts[0])),
        notes=(*link_notes(target), summary, *([_GGUF_NOTE] if is_gguf else [])),
        write=write,
        sources=tuple(map(state_of, model.place.weights)),
        model=model,
    )  # fmt: skip
