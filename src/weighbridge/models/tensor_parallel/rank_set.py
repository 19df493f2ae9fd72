"""Finds the files of a tensor-parallel set by name: `model-rank-0-of-4.safetensors` ..., which `rank_files` reads, and
those of a model with divided experts: `model-00001-TP-000.safetensors` ..., which `presharded` reads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import SHARDS
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural

#: Metadata keys of a rank's file.
RANK, SIZE, SPLIT = "tensor_parallel.rank", "tensor_parallel.size", "tensor_parallel.split"
_NAME: Final = re.compile(
    r"(?P<stem>.+)-rank-(?P<rank>\d{1,5})-of-(?P<size>\d{1,5})(?P<shard>-\d{5}-of-\d{5})?"
    r"\.(?P<suffix>safetensors|gguf)(?P<index>\.index\.json)?",
    re.ASCII | re.DOTALL,
)
#: The end of the name of a file with whole tensors, where others have ranks' shares.
WHOLE: Final = "-TP-common.safetensors"
_SHARE: Final = re.compile(r".+-TP-(common|\d{3})\.safetensors", re.ASCII | re.DOTALL)


@dataclass(frozen=True)
class RankStatus:
    """A file of a tensor-parallel set (`rank`: its number), or a folder of one. `missing`: absent ranks' files."""

    size: int
    rank: int | None = None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class RankSet:
    """A tensor-parallel set, from its file names. `files`: of each rank present, its file, index or first shard."""

    folder: Path
    stem: str
    size: int
    suffix: str
    files: Mapping[int, Path]

    @property
    def missing(self) -> tuple[str, ...]:
        """The file names of the missing ranks."""
        gone = (n for n in range(self.size) if n not in self.files)
        return tuple(f"{stem_of(n, self.size, self.stem)}.{self.suffix}" for n in gone)


def stem_of(rank: int, ranks: int, stem: str = "model") -> str:
    """A rank's file name without its suffix."""
    return f"{stem}-rank-{rank}-of-{ranks}"


def rank_of(name: str) -> tuple[int, int] | None:
    """(rank, ranks) from a file name; None for other names."""
    match = _NAME.fullmatch(name)
    return (int(match["rank"]), int(match["size"])) if match else None


def share_of(name: str) -> str | None:
    """The rank of a file with shares of tensors, or "common" for whole ones; None for other names."""
    return match[1] if (match := _SHARE.fullmatch(name)) else None


def share_files(names: Iterable[str]) -> list[str]:
    """The files with shares of tensors, and with whole ones, by rank."""
    return [name for rank, name in sorted((share_of(name) or "", name) for name in names) if rank]


def is_rank_set(names: Iterable[str]) -> bool:
    """Whether all these files are of one tensor-parallel set."""
    sets = {match and (match["stem"], match["size"], match["suffix"]) for match in map(_NAME.fullmatch, names)}
    return len(sets) == 1 and None not in sets


def rank_sets(folder: Path, names: Iterable[str]) -> list[RankSet]:
    """The tensor-parallel sets among the file names of a folder."""
    found = [match for match in map(_NAME.fullmatch, sorted(names)) if match]
    found.sort(key=lambda m: (m["index"] is None, m["shard"] or ""))  # an index before its files
    out: dict[tuple[str, int, str], dict[int, Path]] = {}
    for match in found:
        if (rank := int(match["rank"])) < (size := int(match["size"])):
            out.setdefault((match["stem"], size, match["suffix"]), {}).setdefault(rank, folder / match.string)
    return [RankSet(folder, *key, files) for key, files in sorted(out.items())]


def find_set(folder: Path, names: Iterable[str]) -> RankSet | None:
    """The one set among a folder's file names, or None. FormatError for several sets, or an implausible number of
    ranks."""
    found = rank_sets(folder, names)
    if len(found) > 1:
        listed = ", ".join(f"{s.stem} of {s.size}" for s in found[:4])
        hint = "name a file of one of them"
        raise FormatError("several sets of ranks in one folder", path=str(folder), found=listed, hint=hint)
    if found and found[0].size > SHARDS:
        raise FormatError("implausible number of ranks in a file name", path=str(folder), found=found[0].size)
    return found[0] if found else None


def rank_set_of(path: Path) -> RankSet | None:
    """The set in the folder `path`, or of the file `path`; None if there is none. Errors as `find_set`."""
    if path.is_dir():
        return find_set(path, [p.name for p in path.iterdir()])
    match = _NAME.fullmatch(path.name) if "-rank-" in path.name else None
    if match is None or not path.exists():
        return None
    siblings = (m for p in path.parent.iterdir() if (m := _NAME.fullmatch(p.name)))
    same = [m for m in siblings if m.group("stem", "size") == match.group("stem", "size")]
    return find_set(path.parent, [m.string for m in same if match["suffix"] in m.string])


def find_ranks(path: Path) -> list[Path]:
    """One file per rank of the set at `path` (see `rank_set_of`), in rank order; [] if there is none. FormatError for a
    missing rank."""
    found = rank_set_of(path)
    if found is None:
        return []
    if found.missing:
        more = f" and {len(found.missing) - 1:,} more" if len(found.missing) > 1 else ""
        raise FormatError(
            f"missing rank: {found.missing[0]}{more}", path=str(found.folder),
            expected=f"{plural(found.size, 'rank')} of one model", found=f"{len(found.files)} of them",
            hint="copy the missing files, or split the model again",
        )  # fmt: skip
    return [found.files[rank] for rank in range(found.size)]
