"""The checks of `verify` on folders of distributed checkpoints: whether `.metadata` and the data files belong together,
and copies agree. The rules of `.metadata` and of items are the container's (`containers/torch/dcp.py`)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, cast

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.words import plural
from weighbridge.containers.base import Severity
from weighbridge.containers.formats import DISTRIBUTED
from weighbridge.models.locate import DCP_DATA, DCP_METADATA, distributed_shards
from weighbridge.reports.verify.repo import Repo, RepoFile
from weighbridge.reports.verify.rules import Check, Flaw

if TYPE_CHECKING:
    from weighbridge.containers.torch.dcp import DcpMetadata

# The list of one process (`use_collectives=False`).
_OF_PROCESS: Final = re.compile(r"__\d+\.metadata", re.ASCII)
_AGAIN: Final = "copy the whole folder again, or use another step"


def _folders(repo: Repo) -> Iterator[tuple[str, tuple[RepoFile, ...], RepoFile | None]]:
    """The folders with data files: the name, the files, `.metadata`."""
    for folder, files in repo.folders.items() if not repo.single else ():
        listed = next(
            (f for f in files if f.base == DCP_METADATA and f.index is not None and f.format == DISTRIBUTED), None
        )
        if listed is not None or any(f.base.endswith(DCP_DATA) for f in files):
            yield folder, files, listed


def _metadata(repo: Repo, file: RepoFile) -> DcpMetadata:
    from weighbridge.containers.torch import dcp  # late, as is every import here: few models are distributed

    key = f"dcp {file.name}"
    if key not in repo.memo:
        repo.memo[key] = dcp.inspect(file.parsed[0])
    return cast("DcpMetadata", repo.memo[key])


def missing(repo: Repo) -> Iterator[Flaw]:
    for _, files, listed in _folders(repo):
        present = {f.base for f in files}
        if listed is not None and (absent := [name for name in _metadata(repo, listed).files if name not in present]):
            message = f"{plural(len(absent), 'data file', 'are')} missing: {', '.join(absent[:8])}"
            yield Flaw(message, listed.path, hint=_AGAIN)


def stray(repo: Repo) -> Iterator[Flaw]:
    for _, files, listed in _folders(repo):
        if listed is None:
            continue
        named = set(_metadata(repo, listed).files)
        for file in files:
            if file.base.endswith(DCP_DATA) and file.base not in named:
                yield Flaw(".metadata doesn't name it: it belongs to another save", file.path, hint="delete it")


def unfinished(repo: Repo) -> Iterator[Flaw]:
    for folder, files, listed in _folders(repo):
        if listed is None and not any(f.base == DCP_METADATA or _OF_PROCESS.fullmatch(f.base) for f in files):
            message = f"{plural(sum(f.base.endswith(DCP_DATA) for f in files), 'data file')} without .metadata"
            yield Flaw(message, repo.root / folder, hint=".metadata is written last: the save didn't finish")


def second(repo: Repo) -> Iterator[Flaw]:
    for _, files, _ in _folders(repo):
        for file in files:
            if _OF_PROCESS.fullmatch(file.base):
                hint = "save with use_collectives=True, torch's default; it isn't read here"
                yield Flaw("a list of one process, which torch reads with use_collectives=False", file.path, hint=hint)


def parts(repo: Repo) -> Iterator[Flaw]:
    for folder, files in repo.folders.items() if not repo.single else ():
        names = set(distributed_shards([f.base for f in files]))
        indexes = [f.index for f in files if f.base in names and f.index is not None]
        if indexes and len(indexes) == len(names):
            from weighbridge.models.distributed import join_shards

            try:
                join_shards(indexes)
            except FormatError as error:
                yield Flaw(error.reason, error.path or repo.root / folder, error.field, _AGAIN)


def copies(repo: Repo) -> Iterator[Flaw]:
    """Compares elements that several chunks store."""
    for _, files, listed in _folders(repo):
        if listed is None:
            continue
        from weighbridge.models.distributed import chunked, different_copies

        sources = {f.base: f.source for f in files if f.source and f.index is not None}
        metadata = _metadata(repo, listed)
        for name, tensor in metadata.tensors.items():
            if not all(chunk.item.file in sources for chunk in tensor.chunks):
                continue
            try:
                region = different_copies(chunked(name, tensor, sources.__getitem__))
            except (FormatError, UnsupportedError):  # reported by the container's rules
                continue
            if region is not None:
                message = (
                    f"two chunks store different values for {list(region.shape)} elements at {list(region.starts)}"
                )
                yield Flaw(message, listed.path, name, "the processes' copies diverged, or steps are mixed")


RULES: Final = (
    Check("dcp/missing", Severity.ERROR, "every data file that `.metadata` names exists", missing),
    Check("dcp/stray", Severity.WARNING, "`.metadata` names every data file next to it", stray),
    Check("dcp/unfinished", Severity.ERROR, "data files have a `.metadata`", unfinished),
    Check("dcp/parts", Severity.ERROR, "safetensors with parts of tensors cover each of them, once", parts),
    Check("dcp/second", Severity.WARNING, "a folder has one `.metadata`, and no list of each process", second),
)
#: Checks that read data.
VALUE_RULES: Final = (Check("dcp/copies", Severity.ERROR, "chunks that overlap have the same values", copies),)
