"""Files that a store calls by their digest (the Hub's cache: SHA-256 or git's id; Ollama's blobs: SHA-256)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from weighbridge.base.errors import WeighbridgeError
from weighbridge.containers.base import Severity
from weighbridge.io.digest import digest_of
from weighbridge.io.location import RemotePath
from weighbridge.io.source import Source
from weighbridge.reports.hash.checksum_files import digest_in_name
from weighbridge.reports.verify.repo import Repo, RepoFile
from weighbridge.reports.verify.rules import Check, Flaw


def named(repo: Repo) -> dict[str, RepoFile]:
    """The blobs among the files of this machine, each once, by their real path."""
    blobs: dict[str, RepoFile] = {}
    for file in () if isinstance(repo.path, RemotePath) else repo.files:
        if file.source is None:  # a link that leads in a circle has no real path
            continue
        real = file.path.resolve()
        if real.parent.name == "blobs" and digest_in_name(real) is not None:
            blobs.setdefault(str(real), file)
    return blobs


def digest(repo: Repo) -> Iterator[Flaw]:
    blobs, done = named(repo), 0
    total = sum(file.size for file in blobs.values())
    for file in blobs.values():
        algo, expected = digest_in_name(file.path.resolve()) or ("", "")
        if repo.progress is not None:
            repo.progress(done, total, file.base)
        assert file.source is not None
        found = _digest(file.source, algo)
        if found != expected:
            words = f"the store calls it {algo} {expected}, its bytes have {found}"
            yield Flaw(words, str(file.path), hint="it is damaged: remove it and download the model again")
        done += file.size


def _digest(source: Source, algo: str) -> str:
    try:
        return digest_of(source, algo)
    except (OSError, WeighbridgeError) as error:
        return f"none: {error}"


RULES: Final = (Check("file/digest", Severity.ERROR, "a file that a store calls by its digest has it", digest),)
