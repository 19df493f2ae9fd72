"""A model's tensors shared out among the ranks of a tensor-parallel group, a file a rank."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.limits import SHARDS
from weighbridge.containers import safetensors
from weighbridge.conversion.build import check_target
from weighbridge.conversion.draft import side_files
from weighbridge.conversion.fingerprint import state_of
from weighbridge.conversion.plan import Plan
from weighbridge.conversion.recipe import ConvertOptions
from weighbridge.conversion.targets import planned, raw, specs
from weighbridge.io.source import FileSource
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.models.parallel.ranks import file_name, metadata
from weighbridge.models.parallel.shares import cut, shares
from weighbridge.tensors.nodes import Packed

_HF: Final = "wb convert SRC DST --to hf"


def plan_ranks(model: Checkpoint, target: Path, ranks: int, options: ConvertOptions) -> Plan:
    """The plan that writes a folder with a file for each of `ranks`, and what lies beside the model's weights."""
    if not 2 <= ranks <= SHARDS:
        raise UsageError(f"a tensor-parallel group has 2 ranks or more, not {ranks}")
    if model.format == "gguf":
        raise UnsupportedError("a GGUF isn't shared out among ranks: llama.cpp does so while it loads", hint=_HF)
    if packed := next((name for name, node in model.logical.items() if isinstance(node, Packed)), None):
        raise UnsupportedError(
            f"{packed} is quantized in parts, which ranks can't share", hint=f"decode it: {_HF} --dtype bf16"
        )
    check_target(target, model, folder=True)
    family, sizes = model.family, model.sizes
    report = family.check(model.dialect, sizes, {name: node.spec.shape for name, node in model.logical.items()})
    if not report.ok:
        raise UnsupportedError(f"the tensors don't fit a {family.name} model: {report}", hint="wb arch check SRC")
    held = {name: node for name, node in model.stored.items() if name not in report.dropped}
    how = shares(family, model.dialect, sizes, held, ranks)
    files = []
    for rank in range(ranks):
        tensors = {name: cut(node, how[name], rank, ranks) for name, node in held.items()}
        said = {**{k: str(v) for k, v in model.metadata.items()}, **metadata(rank, ranks, how)}
        layout = safetensors.layout(specs(tensors), said, align=options.align or 4096)
        files.append(planned(file_name(rank, ranks), layout, tensors))
    beside = [raw(p.relative_to(model.place.folder).as_posix(), FileSource(p)) for p in side_files(model.place.folder)]
    whole = sum(share is None for share in how.values())
    return Plan(
        source=str(model.place.path),
        target=target,
        format="tensor-parallel",
        folder=True,
        files=(*files, *beside),
        notes=(f"{len(how) - whole:,} tensors are shared out, {whole:,} are whole on every rank",),
        jobs=options.workers,
        budget=options.memory,
        sources=tuple(map(state_of, model.place.weights)),
    )
