"""The files of a tensor-parallel set: `model-rank-0-of-4.safetensors` ... (`.gguf` of a GGUF), each with all names, and
in its metadata which rank it is, of how many, and how the tensors were shared out:

    tensor_parallel.rank = "0"    tensor_parallel.size = "4"
    tensor_parallel.split = {"model.layers.0.self_attn.q_proj.weight": {"axis": 0, "parts": [[4096, 1]]},
                             "model.norm.weight": null, ...}

A part is its entries in the whole tensor and on how many ranks each of them is; null: whole on every rank. Numbers that
follow from a matrix's sizes say those: {"shape": [4096, 4096]}, {"turn": [4096, 128]} (columns and how many are a
group). The names are in the model's order. So a set is joined without a table of the model, to the file that it was.

A rank may be a set of files itself, as any model: `model-rank-0-of-4-00001-of-00003.safetensors` ..., and its index.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import SHARDS
from weighbridge.models.checkpoint import Checkpoint, SourceOptions, open_checkpoint
from weighbridge.models.jsonfile import decode
from weighbridge.models.locate import Place
from weighbridge.models.tensor_parallel.packed_shards import GroupIndex, MatrixShape, Split, gather_numbers
from weighbridge.models.tensor_parallel.partition import Partition, Segment, gather
from weighbridge.models.transform.base import with_nodes

if TYPE_CHECKING:
    from weighbridge.base.spec import Spec
    from weighbridge.tensors.nodes import Node

RANK, SIZE, SPLIT = "tensor_parallel.rank", "tensor_parallel.size", "tensor_parallel.split"
_NAME: Final = re.compile(
    r"(?P<stem>.+)-rank-(?P<rank>\d{1,5})-of-(?P<size>\d{1,5})(?P<shard>-\d{5}-of-\d{5})?"
    r"\.(?P<suffix>safetensors|gguf)(?P<index>\.index\.json)?",
    re.ASCII | re.DOTALL,
)
_AXES: Final = 8


@dataclass(frozen=True)
class RankSet:
    """A tensor-parallel set as its files' names tell it: `files` of the ranks that are there (a file, or a set's index
    or first shard)."""

    folder: Path
    stem: str
    size: int
    suffix: str
    files: Mapping[int, Path]

    @property
    def missing(self) -> tuple[str, ...]:
        """The files of the ranks that aren't there."""
        gone = (n for n in range(self.size) if n not in self.files)
        return tuple(f"{stem_of(n, self.size, self.stem)}.{self.suffix}" for n in gone)


def stem_of(rank: int, ranks: int, stem: str = "model") -> str:
    return f"{stem}-rank-{rank}-of-{ranks}"


def metadata(rank: int, ranks: int, shares: Mapping[str, Split]) -> dict[str, str]:
    """What a rank's file says of the set."""
    said = {name: _said(how) for name, how in shares.items()}
    return {RANK: str(rank), SIZE: str(ranks), SPLIT: json.dumps(said, separators=(",", ":"))}


def _said(how: Split) -> dict[str, Any] | None:
    if isinstance(how, MatrixShape):
        return {"shape": list(how.whole)}
    if isinstance(how, GroupIndex):
        return {"turn": [how.columns, how.group]}
    return None if how is None else {"axis": how.axis, "parts": [list(p) for p in how.parts]}


def rank_of(name: str) -> tuple[int, int] | None:
    """Which rank a file's name says it is, of how many; None where it is no such name."""
    match = _NAME.fullmatch(name)
    return (int(match["rank"]), int(match["size"])) if match else None


def rank_sets(folder: Path, names: Iterable[str]) -> list[RankSet]:
    """The sets that files of a folder are."""
    found = [match for match in map(_NAME.fullmatch, sorted(names)) if match]
    found.sort(key=lambda m: (m["index"] is None, m["shard"] or ""))  # an index before its files
    out: dict[tuple[str, int, str], dict[int, Path]] = {}
    for match in found:
        if (rank := int(match["rank"])) < (size := int(match["size"])):
            out.setdefault((match["stem"], size, match["suffix"]), {}).setdefault(rank, folder / match.string)
    return [RankSet(folder, *key, files) for key, files in sorted(out.items())]


def find_set(folder: Path, names: Iterable[str]) -> RankSet | None:
    """The set that these files of a folder are; None where there is none of ranks. FormatError where there are several
    sets, or one of more ranks than there can be."""
    found = rank_sets(folder, names)
    if len(found) > 1:
        told, hint = ", ".join(f"{s.stem} of {s.size}" for s in found[:4]), "name a file of one of them"
        raise FormatError("holds several sets of ranks", path=str(folder), found=told, hint=hint)
    if found and found[0].size > SHARDS:
        raise FormatError("the name speaks of too many ranks", path=str(folder), found=found[0].size)
    return found[0] if found else None


def rank_set_of(path: Path) -> RankSet | None:
    """The set that `path` is a folder or a file of. FormatError as of `find_set`."""
    if path.is_dir():
        return find_set(path, [p.name for p in path.iterdir()])
    match = _NAME.fullmatch(path.name)
    if match is None or not path.exists():
        return None
    start = f"{match['stem']}-rank-"
    beside = [p.name for p in path.parent.iterdir() if p.name.startswith(start)]
    alike = [n for n in beside if (m := _NAME.fullmatch(n)) and m.group("stem", "size") == match.group("stem", "size")]
    return find_set(path.parent, [n for n in alike if match["suffix"] in n])


def find_ranks(path: Path) -> list[Path]:
    """The files of the set that `path` is a folder or a file of, rank by rank; [] where it is none. FormatError where
    one is missing."""
    found = rank_set_of(path)
    if found is None:
        return []
    if found.missing:
        more = f" and {len(found.missing) - 1:,} more" if len(found.missing) > 1 else ""
        raise FormatError(
            f"a rank of the set is missing: {found.missing[0]}{more}", path=str(found.folder),
            expected=f"{found.size} ranks of one model", found=f"{len(found.files)} of them",
            hint="the others' shares are in no file here: copy it, or split the model again",
        )  # fmt: skip
    return [found.files[rank] for rank in range(found.size)]


def gather_ranks(path: Path, files: Sequence[Path], options: SourceOptions = SourceOptions()) -> Checkpoint:
    """The model of a set of ranks, put together. FormatError where they don't belong together."""
    opened: list[Checkpoint] = []
    try:
        for file in files:
            opened.append(open_checkpoint(file, options))  # those opened are closed where one can't be
        return _gather(path, opened)
    except BaseException:
        for model in opened:
            model.close()
        raise


def _gather(path: Path, ranks: Sequence[Checkpoint]) -> Checkpoint:
    first = ranks[0]
    shares = parse_splits(first.metadata, _path(first))
    for number, model in enumerate(ranks):
        _check(model, first, number, len(ranks), set(shares))
    nodes = {name: _joined(name, ranks, shares[name]) for name in shares}
    folder = first.place.path.parent if first.place.path.is_file() else first.place.path
    place = Place(path, tuple(w for m in ranks for w in m.place.weights), folder)
    kept = _without(first)
    files = tuple(source for m in ranks for source in m.index.files)
    return with_nodes(replace(first, place=place, index=replace(first.index, metadata=kept, files=files)), nodes)


def _without(model: Checkpoint) -> Any:
    """A rank's metadata without what it says of the set."""
    if model.format != "gguf":
        return {k: v for k, v in model.metadata.items() if k not in (RANK, SIZE, SPLIT)}
    from weighbridge.containers.gguf.values import Metadata, kvs

    return Metadata({k: kv for k, kv in kvs(model.metadata).items() if k not in (RANK, SIZE, SPLIT)})


def mismatch(how: Split, spec: Spec, first: Spec, ranks: int) -> str | None:
    """What a rank's tensor should be, where it isn't the share that the set speaks of; `first`: the first rank's."""
    if isinstance(how, Partition):
        want = sum(how.local(ranks))
        if how.axis >= len(spec.shape) or spec.shape[how.axis] != want:
            return f"{want} entries on axis {how.axis}"
    elif how is not None:
        want = 2 if isinstance(how, MatrixShape) else how.columns // ranks
        if spec.shape != (want,) or spec.dtype.name not in ("I32", "I64"):
            return f"{want} whole numbers"
    return None if spec == first else str(first)


def whole_shape(how: Split, spec: Spec) -> tuple[int, ...]:
    """The shape of the whole tensor whose share has this one."""
    if isinstance(how, GroupIndex):
        return (how.columns,)
    if not isinstance(how, Partition) or how.axis >= len(spec.shape):
        return spec.shape
    return (*spec.shape[: how.axis], sum(part.size for part in how.parts), *spec.shape[how.axis + 1 :])


def _joined(name: str, ranks: Sequence[Checkpoint], how: Split) -> Node:
    """A tensor out of all ranks' shares of it."""
    parts = [model.stored[name] for model in ranks]
    for model, part in zip(ranks, parts, strict=True):
        if (expected := mismatch(how, part.spec, parts[0].spec, len(ranks))) is not None:
            words = "isn't the share that the set speaks of"
            raise FormatError(words, path=_path(model), field=name, expected=expected, found=str(part.spec))
    return gather_numbers(parts[0], how) if isinstance(how, MatrixShape | GroupIndex) else gather(parts, how)


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


def parse_splits(metadata: Mapping[str, Any], path: str) -> dict[str, Split]:
    """What a rank's metadata says of the split, checked."""
    path = f"{path} ({SPLIT})"
    said: dict[str, Any] = decode(str(metadata.get(SPLIT, "")).encode(), path, dict[str, Any])
    size = metadata.get(SIZE, "")
    ranks = int(size) if str(size).isdecimal() else 0
    return {name: None if one is None else _how(one, ranks, path, name) for name, one in said.items()}


def _how(one: Any, ranks: int, path: str, name: str) -> Split:
    if not isinstance(one, dict):
        raise FormatError("says no share", path=path, field=name, found=repr(one)[:80])
    pair = one.get("shape") or one.get("turn")
    if pair is not None:
        good = isinstance(pair, list) and len(pair) == 2 and all(type(n) is int and 0 < n < 1 << 31 for n in pair)
        if not good or len(one) != 1 or not ranks or ("turn" in one and pair[0] % ranks):
            raise FormatError("says no share", path=path, field=name, found=repr(one)[:80])
        numbers = pair[0], pair[1]
        return MatrixShape(numbers, numbers) if "shape" in one else GroupIndex(*numbers)
    axis, parts = one.get("axis"), one.get("parts")
    if type(axis) is not int or not 0 <= axis < _AXES or not isinstance(parts, list) or not parts:
        raise FormatError("says no share", path=path, field=name, found=repr(one)[:80])
    return Partition(axis, tuple(_part(part, ranks, path, name) for part in parts))


def _part(part: Any, ranks: int, path: str, name: str) -> Segment:
    """Entries that the ranks share evenly, every one on as many of them."""
    good = isinstance(part, list) and len(part) == 2 and all(type(n) is int and n > 0 for n in part)
    if not good or not ranks or ranks % part[1] or part[0] * part[1] % ranks:
        raise FormatError("says no share", path=path, field=name, found=repr(part)[:80])
    return Segment(*part)


# ------------------------------------------------------------------------------------------------ what a set is


@dataclass(frozen=True)
class RankStatus:
    """Which ranks of a tensor-parallel set a file (`rank`) or a folder is, and the files of those that are missing."""

    size: int
    rank: int | None = None
    missing: tuple[str, ...] = ()


def open_ranks(path: Path, options: SourceOptions = SourceOptions()) -> tuple[Checkpoint, RankStatus | None]:
    """What lies at `path` by its headers alone: of a folder of ranks the whole model's tensors, whether or not all of
    them are there (offsets are those in the first). Nothing of it can be read but headers and metadata."""
    found = rank_set_of(path)
    if found is None:
        return open_checkpoint(path, options), None
    if not path.is_dir():
        rank = rank_of(path.name)
        return open_checkpoint(path, options), RankStatus(found.size, rank and rank[0], found.missing)
    models: list[Checkpoint] = []
    try:
        for _, file in sorted(found.files.items()):
            models.append(open_checkpoint(file, options))
        return _seen(path, models), RankStatus(found.size, None, found.missing)
    except BaseException:
        for model in models:
            model.close()
        raise


def _seen(path: Path, models: Sequence[Checkpoint]) -> Checkpoint:
    first = models[0]
    shares = parse_splits(first.metadata, _path(first))
    entries = []
    for e in first.index:
        spec = e.spec.with_shape(*whole_shape(shares.get(e.name), e.spec))
        entries.append(msgspec.structs.replace(e, shape=spec.shape, nbytes=spec.nbytes))
    files = tuple(source for m in models for source in m.index.files)
    starts = tuple(start for m in models for start in m.index.data_start)
    index = replace(first.index, entries=tuple(entries), metadata=_without(first), files=files, data_start=starts)
    place = Place(path, tuple(w for m in models for w in m.place.weights), path)
    return replace(first, place=place, index=index)
