"""The checks of `verify` on sets of tensor-parallel ranks: whether the set is complete, and its files match."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from weighbridge.base.errors import FormatError
from weighbridge.base.words import plural
from weighbridge.containers.base import Severity
from weighbridge.models.tensor_parallel import rank_files as ranks
from weighbridge.models.tensor_parallel import rank_set
from weighbridge.models.tensor_parallel.rank_set import RankSet
from weighbridge.reports.verify.repo import Repo, RepoFile
from weighbridge.reports.verify.rules import Check, Flaw

_NAMED: Final = 8  # missing files that are named
_AGAIN: Final = "copy it from the source of the others, or split the model again: wb split SRC DST --tp N"


def _sets(repo: Repo) -> Iterator[RankSet]:
    for folder, files in repo.folders.items() if not repo.single else ():
        yield from rank_set.rank_sets(repo.root / folder, [f.base for f in files])


def missing(repo: Repo) -> Iterator[Flaw]:
    for rank_files in _sets(repo):
        if absent := rank_files.missing:
            more = f" and {len(absent) - _NAMED:,} more" if len(absent) > _NAMED else ""
            names = f"{', '.join(absent[:_NAMED])}{more}"
            message = f"{len(absent):,} of {plural(rank_files.size, 'rank')} of one model are missing: {names}"
            yield Flaw(message, rank_files.folder, hint=_AGAIN)


def mismatched(repo: Repo) -> Iterator[Flaw]:
    """A rank whose metadata or tensors don't belong to the set that its name declares."""
    for rank_files in _sets(repo):
        by_rank: dict[int, list[RepoFile]] = {}
        for file in repo.weights:
            declared = rank_set.rank_of(file.base)
            inside = file.path.parent == rank_files.folder and file.base.startswith(f"{rank_files.stem}-rank-")
            if declared and inside and declared[1] == rank_files.size and file.base.endswith(rank_files.suffix):
                by_rank.setdefault(declared[0], []).append(file)
        if by_rank:
            yield from _check_set(rank_files, dict(sorted(by_rank.items())))


def _check_set(rank_files: RankSet, files: dict[int, list[RepoFile]]) -> Iterator[Flaw]:
    first, *_ = next(iter(files.values()))
    first_metadata = first.parsed[1].metadata
    try:
        shares = ranks.parse_splits(first_metadata, str(first.path))
    except FormatError as error:
        yield Flaw(error.message, first.path, hint=_AGAIN)
        return
    specs = {rank: {e.name: e.spec for f in some for e in f.parsed[1]} for rank, some in files.items()}
    first_specs = next(iter(specs.values()))
    for rank, (file, *_) in files.items():
        metadata = file.parsed[1].metadata
        declared = metadata.get(rank_set.RANK), metadata.get(rank_set.SIZE)
        if declared != (str(rank), str(rank_files.size)):
            message = f"its metadata declares rank {declared[0]} of {declared[1]}, unlike its name"
            yield Flaw(message, file.path, hint=_AGAIN)
        elif metadata.get(rank_set.SPLIT) != first_metadata.get(rank_set.SPLIT):
            yield Flaw(f"its split differs from that of {first.base}", file.path, hint=_AGAIN)
        else:
            for name in sorted(shares.keys() ^ specs[rank].keys()):
                yield Flaw("missing tensor" if name in shares else "unknown to the set", file.path, name, _AGAIN)
            for name, split in shares.items():
                if (spec := specs[rank].get(name)) is None:
                    continue
                expected = ranks.mismatch(split, spec, first_specs.get(name, spec), rank_files.size)
                if expected is not None:
                    yield Flaw(f"it is {spec}, but the set's split gives {expected}", file.path, name, _AGAIN)


def part(repo: Repo) -> Iterator[Flaw]:
    for file in repo.files if repo.single else ():
        if declared := rank_set.rank_of(file.base):
            message = f"rank {declared[0]} of {declared[1]} of one model, split for tensor parallelism"
            yield Flaw(message, file.path, hint="wb merge DIR DST puts the ranks together")


def whole(repo: Repo) -> Iterator[Flaw]:
    for rank_files in _sets(repo):
        if not rank_files.missing:
            message = f"{plural(rank_files.size, 'rank')} of one model, split for tensor parallelism"
            yield Flaw(message, rank_files.folder, hint="wb merge DIR DST puts them together")


RULES: Final = (
    Check("ranks/missing", Severity.ERROR, "a tensor-parallel set has all its ranks", missing),
    Check("ranks/apart", Severity.ERROR, "the ranks of a set match in number, names and shapes", mismatched),
    Check("ranks/part", Severity.INFO, "a file is a model, not one rank of a model", part),
    Check("ranks/whole", Severity.INFO, "a folder is a model, not a set of ranks", whole),
)
