"""The memory of a projector, llama.cpp's mmproj file: its weights, the buffers of its graph, and the context that an
image or a sound takes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from msgspec import Struct, convert

from weighbridge.base.errors import FormatError, UsageError
from weighbridge.base.imports.tables import read_table
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.models.llamacpp.candidate import Candidate
from weighbridge.models.llamacpp.pair import check_pair
from weighbridge.models.llamacpp.projectors import modalities, type_of
from weighbridge.models.llamacpp.towers import is_mmproj
from weighbridge.models.open import open_headers


class GraphRow(Struct, frozen=True, forbid_unknown_fields=True):
    """projectors.toml documents the fields."""

    stages: list[list[int]]
    pixels: bool = False
    mask: bool = False
    reserved: int = 0
    most: int = 0
    merge: int = 1
    frames: int = 0
    pooled: int = 1
    stack: bool = False


#: Types without a row, by most transformers: reserved for a picture of `image_size`, or 30 seconds of sound.
_GENERAL = {"vision": GraphRow([[1, 3, 0], [0, 5, 0]]), "audio": GraphRow([[1, 3, 0]], frames=1500)}
#: A picture of any size (`image_size` = 0), as for most types that take one.
_ANY_SIZE = GraphRow([[1, 3, 0], [0, 5, 0]], pixels=True, reserved=2116, most=4096, merge=2)
_NUMBERS = ("feed_forward_length", "embedding_length", "projection_dim")


@cache
def table() -> Mapping[str, Mapping[str, GraphRow]]:
    """Returns the parsed projectors.toml."""
    rows: dict[str, dict[str, GraphRow]] = convert(
        read_table(__file__, "projectors.toml"), dict[str, dict[str, GraphRow]]
    )
    return rows


@dataclass(frozen=True, slots=True)
class TowerMemory:
    """One tower. `buffers`: bytes reserved for its graph; `certain`: the rule was measured. `tokens`: of the context,
    for an image or 30 seconds of sound, at most; 0 if the keys don't determine it."""

    modality: str
    type: str
    buffers: int
    certain: bool
    tokens: int


@dataclass(frozen=True, slots=True)
class ProjectorMemory:
    """`weights`: bytes of all tensors, aligned as llama.cpp allocates them."""

    weights: int
    towers: tuple[TowerMemory, ...]


def projector_memory(path: str | os.PathLike[str], language: Mapping[str, Any], fused: bool) -> ProjectorMemory:
    """Returns the memory of the mmproj file at `path`, for a language model's GGUF with these keys. `fused`: with flash
    attention. Raises UsageError if it isn't one or has another width, FormatError for a number that is missing."""
    with open_headers(path).model as model:
        if not is_mmproj(model):
            raise UsageError(f"{path} isn't an mmproj file", hint="wb convert DIR mmproj.gguf --mmproj makes one")
        towers = Candidate(model.metadata, {entry.name: entry.shape for entry in model.index})
        check_pair(language, towers)
        weights = sum(-(-entry.nbytes // _ALIGNED) * _ALIGNED for entry in model.index)
        return ProjectorMemory(
            weights, tuple(tower_memory(towers, name, str(path), fused) for name in modalities(towers))
        )


_ALIGNED = 32


def tower_memory(model: Candidate, modality: str, path: str, fused: bool) -> TowerMemory:
    """Returns the memory of one tower, by the keys of its file. Raises FormatError for a number that is missing."""
    named = str(type_of(model, modality))
    measured = table().get(modality, {}).get(named)
    certain = measured is not None
    general = _ANY_SIZE if model.get(f"{modality}.image_size") == 0 else _GENERAL.get(modality, _GENERAL["audio"])
    row = measured or general
    least = min(model.whole(f"{modality}.block_count"), 1)  # a projector without blocks has no heads
    sizes = [_count(model, f"{modality}.{name}", path, low) for name, low in zip(_NUMBERS, (least, 1, 1), strict=True)]
    patches, tokens = _sound(model, row) if row.frames else _picture(model, row, modality, path)
    each = max(sum(size * n for size, n in zip(sizes, stage, strict=True)) for stage in row.stages)
    if row.pixels:
        each += 3 * _count(model, f"{modality}.patch_size", path) ** 2 + 4
    buffers = 4 * patches * each + (2 * patches**2 if row.mask else 0)
    if not fused:
        buffers += 4 * patches**2 * _count(model, f"{modality}.attention.head_count", path, least)
    return TowerMemory(modality, named, buffers, certain and fused, tokens if certain else 0)


def _picture(model: Candidate, row: GraphRow, modality: str, path: str) -> tuple[int, int]:
    """Returns the patches of the reserved picture, and the tokens of the largest one."""
    merge = max(model.whole(f"{modality}.projector.scale_factor") or row.merge, 1)
    if row.reserved:
        return row.reserved * row.merge**2, row.most
    side = _count(model, f"{modality}.image_size", path) // _count(model, f"{modality}.patch_size", path)
    return side**2, side**2 // merge**2


def _sound(model: Candidate, row: GraphRow) -> tuple[int, int]:
    stack = max(model.whole("audio.projector.stack_factor"), 1) if row.stack else 1
    return row.frames, row.frames // (row.pooled * stack)


def _count(model: Candidate, name: str, path: str, least: int = 1) -> int:
    value = model.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MOST:
        raise FormatError("the memory depends on this number", path=path, field=model.key(name), found=value)
    return value


_MOST = 1 << 20


def notes(projector: ProjectorMemory) -> Sequence[str]:
    """Returns the tokens of the context that each kind of input takes, and the buffers that aren't counted."""
    words = {"vision": "an image", "audio": "30 seconds of sound"}
    tokens = [
        f"{words.get(tower.modality, tower.modality)} takes up to {plural(tower.tokens, 'token')} of the context"
        f" ({tower.type})"
        for tower in projector.towers
        if tower.tokens
    ]
    later = "llama.cpp allocates the buffers of {} when it first generates; they aren't counted"
    return [*tokens, *(later.format(tower.type) for tower in projector.towers if tower.modality == "gen.audio")]
