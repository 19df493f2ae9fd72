"""The checks of `verify` on sets of tensor-parallel ranks: whether all are there, and whether they are of one model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from weighbridge.base.errors import FormatError
from weighbridge.base.spec import Spec
from weighbridge.containers.base import Severity
from weighbridge.models.tensor_parallel import rank_files as ranks
from weighbridge.models.tensor_parallel import rank_set
from weighbridge.models.tensor_parallel.packed_shards import Split
from weighbridge.models.tensor_parallel.rank_set import RankSet
from weighbridge.reports.verify.repo import Repo, RepoFile
from weighbridge.reports.verify.rules import Check, Flaw

_NAMED: Final = 8  # missing files that are named
_AGAIN: Final = "copy it from where the others are, or split the model again: wb split SRC DST --tp N"


def _sets(repo: Repo) -> Iterator[RankSet]:
    for folder, files in repo.folders.items() if not repo.single else ():
        yield from rank_set.rank_sets(repo.root / folder, [f.base for f in files])


def missing(repo: Repo) -> Iterator[Flaw]:
    for found in _sets(repo):
        if gone := found.missing:
            more = f" and {len(gone) - _NAMED:,} more" if len(gone) > _NAMED else ""
            words = f"{len(gone):,} of {found.size:,} ranks of one model are missing: {', '.join(gone[:_NAMED])}{more}"
            yield Flaw(words, str(found.folder), hint=_AGAIN)


def apart(repo: Repo) -> Iterator[Flaw]:
    """A rank whose metadata or tensors aren't those of the set that its name says."""
    for found in _sets(repo):
        if files := _files(repo, found):
            yield from _strangers(found, files)


def _files(repo: Repo, found: RankSet) -> dict[int, list[RepoFile]]:
    """The files with tensors of each rank of a set."""
    out: dict[int, list[RepoFile]] = {}
    for file in repo.weights:
        declared = rank_set.rank_of(file.base)
        ours = file.path.parent == found.folder and file.base.startswith(f"{found.stem}-rank-")
        if declared and ours and declared[1] == found.size and file.base.endswith(found.suffix):
            out.setdefault(declared[0], []).append(file)
    return dict(sorted(out.items()))


def _strangers(found: RankSet, files: Mapping[int, list[RepoFile]]) -> Iterator[Flaw]:
    first, *_ = next(iter(files.values()))
    declared = first.parsed[1].metadata
    try:
        shares = ranks.parse_splits(declared, str(first.path))
    except FormatError as error:
        yield Flaw(error.message, str(first.path), hint=_AGAIN)
        return
    specs = {rank: {e.name: e.spec for f in some for e in f.parsed[1]} for rank, some in files.items()}
    for rank, (file, *_) in files.items():
        reported = file.parsed[1].metadata
        declared_rank, declared_size = reported.get(rank_set.RANK), reported.get(rank_set.SIZE)
        if (declared_rank, declared_size) != (str(rank), str(found.size)):
            words = f"its metadata declare rank {declared_rank} of {declared_size}, its name another"
            yield Flaw(words, str(file.path), hint=_AGAIN)
        elif reported.get(rank_set.SPLIT) != declared.get(rank_set.SPLIT):
            yield Flaw(f"its split differs from that of {first.base}", str(file.path), hint=_AGAIN)
        else:
            yield from _misfits(file, specs[rank], next(iter(specs.values())), shares, found.size)


def _misfits(
    file: RepoFile, own: Mapping[str, Spec], first: Mapping[str, Spec], shares: Mapping[str, Split], size: int
) -> Iterator[Flaw]:
    for name in sorted(shares.keys() ^ own.keys()):
        yield Flaw("missing tensor" if name in shares else "unknown to the set", str(file.path), name, _AGAIN)
    for name, how in shares.items():
        if name in own and (expected := ranks.mismatch(how, own[name], first.get(name, own[name]), size)) is not None:
            words = f"it is {own[name]}, but the set's split gives {expected}"
            yield Flaw(words, str(file.path), name, _AGAIN)


def part(repo: Repo) -> Iterator[Flaw]:
    for file in repo.files if repo.single else ():
        if declared := rank_set.rank_of(file.base):
            words = f"rank {declared[0]} of {declared[1]} of one model, split for tensor parallelism"
            yield Flaw(words, str(file.path), hint="wb merge DIR DST puts the ranks together")


def whole(repo: Repo) -> Iterator[Flaw]:
    for found in _sets(repo):
        if not found.missing:
            words = f"{found.size} ranks of one model, split for tensor parallelism"
            yield Flaw(words, str(found.folder), hint="wb merge DIR DST puts them together")


RULES: Final = (
    Check("ranks/missing", Severity.ERROR, "every rank of a tensor-parallel set is there", missing),
    Check("ranks/apart", Severity.ERROR, "ranks are of one set: number, names and shapes", apart),
    Check("ranks/part", Severity.INFO, "a file is a model and no rank of one", part),
    Check("ranks/whole", Severity.INFO, "a folder is a model and no set of ranks", whole),
)
