"""Checks files against known digests: those in the names of the Hub's cache (SHA-256 or git's id) and of Ollama's blobs
(SHA-256), and those listed by the Hub and by registries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from weighbridge.base.errors import WeighbridgeError
from weighbridge.containers.base import Severity
from weighbridge.io.digest import digest_of
from weighbridge.io.location import RemotePath
from weighbridge.reports.hash.checksum_files import digest_in_name
from weighbridge.reports.verify.repo import Repo, RepoFile
from weighbridge.reports.verify.rules import Check, Flaw


class ListedDigest(NamedTuple):
    """A file and its expected digest: "sha256" or "git", and hex. `origin`: the source of the digest."""

    file: RepoFile
    algo: str
    expected: str
    origin: str


def listed(repo: Repo) -> tuple[ListedDigest, ...]:
    """The files with a known digest. Remote files are compared only if their values are read anyway."""
    digests: dict[str, ListedDigest] = {}
    for file in repo.files:
        if file.source is None:  # also a link that leads in a circle, which has no real path
            continue
        if isinstance(file.path, RemotePath):
            if repo.values and (listed := file.path.digest) is not None:
                digests[file.name] = ListedDigest(file, *listed, "the remote listing has")
        elif (real := file.path.resolve()).parent.name == "blobs" and (in_name := digest_in_name(real)) is not None:
            digests.setdefault(str(real), ListedDigest(file, *in_name, "its name in the store has"))
    return tuple(digests.values())


def digest(repo: Repo) -> Iterator[Flaw]:
    files, done = listed(repo), 0
    total = sum(f.file.size for f in files)
    for file, algo, expected, origin in files:
        if repo.progress is not None:
            repo.progress(done, total, file.base)
        assert file.source is not None
        try:
            actual = digest_of(file.source, algo)
        except (OSError, WeighbridgeError) as error:
            actual = f"none: {error}"
        if actual != expected:
            message = f"{origin} {algo} {expected}, its bytes have {actual}"
            yield Flaw(message, file.path, hint="it is damaged: remove it and download the model again")
        done += file.size


RULES: Final = (
    Check(
        "file/digest", Severity.ERROR, "a file has the digest in its store's name for it, or that the Hub lists", digest
    ),
)
