"""The files of a tensor-parallel set: `model-rank-0-of-4.safetensors` ..., each with all names, and in its metadata
which rank it is, of how many, and how the tensors were shared out:

    tensor_parallel.rank = "0"    tensor_parallel.size = "4"
    tensor_parallel.split = {"model.layers.0.self_attn.q_proj.weight": {"axis": 0, "parts": [[4096, 1]]},
                             "model.norm.weight": null, ...}

A part is its entries in the whole tensor and on how many ranks each of them is; null: whole on every rank. The names
are in the model's order. So a set is joined without a table of the model, to the file that it was.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import SHARDS
from weighbridge.models.checkpoint import Checkpoint, open_checkpoint
from weighbridge.models.jsonfile import decode
from weighbridge.models.locate import Place
from weighbridge.models.parallel.shares import Part, Share, joined
from weighbridge.models.surgery.base import with_nodes

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import Node

RANK, SIZE, SPLIT = "tensor_parallel.rank", "tensor_parallel.size", "tensor_parallel.split"
_NAME: Final = re.compile(
    r"(?P<stem>.+)-rank-(?P<rank>\d{1,5})-of-(?P<size>\d{1,5})\.safetensors", re.ASCII | re.DOTALL
)
_AXES: Final = 8


def file_name(rank: int, ranks: int, stem: str = "model") -> str:
    return f"{stem}-rank-{rank}-of-{ranks}.safetensors"


def metadata(rank: int, ranks: int, shares: Mapping[str, Share | None]) -> dict[str, str]:
    """What a rank's file says of the set."""
    said = {name: s and {"axis": s.axis, "parts": [list(p) for p in s.parts]} for name, s in shares.items()}
    return {RANK: str(rank), SIZE: str(ranks), SPLIT: json.dumps(said, separators=(",", ":"))}


def find(path: Path) -> list[Path]:
    """The files of the set that `path` is a folder or a file of, rank by rank; [] where it is none. FormatError where
    one is missing."""
    names = [p.name for p in path.iterdir()] if path.is_dir() else [path.name]
    found = sorted({(m["stem"], int(m["size"])) for name in names if (m := _NAME.fullmatch(name))})
    if not found:
        return []
    folder = path if path.is_dir() else path.parent
    if len(found) > 1:
        sets = ", ".join(f"{stem} of {size}" for stem, size in found[:4])
        raise FormatError("holds several sets of ranks", path=str(path), found=sets, hint="name a file of one of them")
    stem, size = found[0]
    if not 1 <= size <= SHARDS:
        raise FormatError("the name speaks of too many ranks", path=str(path), found=size)
    files = [folder / file_name(rank, size, stem) for rank in range(size)]
    if missing := next((f for f in files if not f.is_file()), None):
        raise FormatError(f"a rank of the set is missing: {missing.name}", path=str(folder))
    return files


def whole(path: Path, files: Sequence[Path]) -> Checkpoint:
    """The model of a set of ranks, put together. FormatError where they don't belong together."""
    opened: list[Checkpoint] = []
    try:
        opened = [open_checkpoint(file) for file in files]
        return _whole(path, opened)
    except BaseException:
        for model in opened:
            model.close()
        raise


def _whole(path: Path, ranks: Sequence[Checkpoint]) -> Checkpoint:
    first = ranks[0]
    shares = _shares(first)
    for number, model in enumerate(ranks):
        _check(model, first, number, len(ranks), set(shares))
    nodes = {name: _joined(name, ranks, shares[name]) for name in shares}
    place = Place(path, tuple(w for m in ranks for w in m.place.weights), first.place.folder)
    kept = {k: v for k, v in first.metadata.items() if k not in (RANK, SIZE, SPLIT)}
    files = tuple(source for m in ranks for source in m.index.files)
    return with_nodes(replace(first, place=place, index=replace(first.index, metadata=kept, files=files)), nodes)


def _joined(name: str, ranks: Sequence[Checkpoint], share: Share | None) -> Node:
    """A tensor out of all ranks' shares of it."""
    parts = [model.stored[name] for model in ranks]
    want = None if share is None else sum(share.local(len(ranks)))
    for model, part in zip(ranks, parts, strict=True):
        shape = part.spec.shape
        held = None if share is None or share.axis >= len(shape) else shape[share.axis]
        if part.spec != parts[0].spec or held != want:
            words = "isn't the share that the set speaks of"
            expected = str(parts[0].spec) if want is None else f"{want} entries on axis {share.axis if share else 0}"
            raise FormatError(words, path=_path(model), field=name, expected=expected, found=str(part.spec))
    return joined(parts, share)


def _path(model: Checkpoint) -> str:
    return str(model.place.path)


def _check(model: Checkpoint, first: Checkpoint, rank: int, ranks: int, names: set[str]) -> None:
    said = model.metadata.get(RANK), model.metadata.get(SIZE)
    if said != (str(rank), str(ranks)):
        found = " of ".join(map(str, said))
        words = "isn't the rank that its name says"
        raise FormatError(words, path=_path(model), field=RANK, expected=f"{rank} of {ranks}", found=found)
    if model.metadata.get(SPLIT) != first.metadata.get(SPLIT) or set(model.stored) != names:
        raise FormatError("isn't of one set with the first rank", path=_path(model), field=SPLIT)


def _shares(model: Checkpoint) -> dict[str, Share | None]:
    """What the first rank says of the split, checked."""
    path = f"{_path(model)} ({SPLIT})"
    said: dict[str, Any] = decode(str(model.metadata.get(SPLIT, "")).encode(), path, dict[str, Any])
    size = model.metadata.get(SIZE, "")
    ranks = int(size) if str(size).isdecimal() else 0
    out: dict[str, Share | None] = {}
    for name, one in said.items():
        if one is None:
            out[name] = None
            continue
        axis = one.get("axis") if isinstance(one, dict) else None
        parts = one.get("parts") if isinstance(one, dict) else None
        if type(axis) is not int or not 0 <= axis < _AXES or not isinstance(parts, list) or not parts:
            raise FormatError("says no share", path=path, field=name, found=repr(one)[:80])
        out[name] = Share(axis, tuple(_part(part, ranks, path, name) for part in parts))
    return out


def _part(part: Any, ranks: int, path: str, name: str) -> Part:
    """Entries that the ranks share evenly, every one on as many of them."""
    good = isinstance(part, list) and len(part) == 2 and all(type(n) is int and n > 0 for n in part)
    if not good or not ranks or ranks % part[1] or part[0] * part[1] % ranks:
        raise FormatError("says no share", path=path, field=name, found=repr(part)[:80])
    return Part(*part)
