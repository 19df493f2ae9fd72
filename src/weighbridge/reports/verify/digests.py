"""Checks files against known digests: those in the names of the Hub's cache (SHA-256 or git's id) and of Ollama's blobs
(SHA-256), and those listed by the Hub, by registries and by the manifests of OCI layouts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from weighbridge.base.errors import WeighbridgeError
from weighbridge.containers.base import Severity
from weighbridge.io.digest import digest_of
from weighbridge.io.location import RemotePath, WrappedPath, open_source
from weighbridge.io.source import Source
from weighbridge.reports.hash.checksum_files import digest_in_name
from weighbridge.reports.verify.repo import Repo
from weighbridge.reports.verify.rules import Check, Flaw


class ListedDigest(NamedTuple):
    """A file and its expected digest: "sha256", "sha512" or "git", and hex. `origin`: the source of the digest.
    `source`: the open file; None if it is opened to be checked."""

    path: Path
    size: int
    algo: str
    expected: str
    origin: str
    source: Source | None = None


def listed(repo: Repo) -> tuple[ListedDigest, ...]:
    """The files with a known digest. Remote files are compared only if their values are read anyway."""
    digests: dict[str, ListedDigest] = {}
    for file in repo.files:
        if file.source is None:  # also a link that leads in a circle, which has no real path
            continue
        if isinstance(file.path, RemotePath):
            if repo.values and (listed := file.path.digest) is not None:
                digests[file.name] = ListedDigest(file.path, file.size, *listed, "the remote listing has", file.source)
        elif (real := file.path.resolve()).parent.name == "blobs" and (in_name := digest_in_name(real)) is not None:
            digests.setdefault(
                str(real), ListedDigest(file.path, file.size, *in_name, "its name in the store has", file.source)
            )
    for path, algo, expected in repo.path.blobs if isinstance(repo.path, WrappedPath) else ():
        if repo.values or not isinstance(path, RemotePath):
            size = path.stat().st_size
            digests[str(path)] = ListedDigest(path, size, algo, expected, "the manifest lists")
    return tuple(digests.values())


def digest(repo: Repo) -> Iterator[Flaw]:
    files, done = listed(repo), 0
    total = sum(file.size for file in files)
    for file in files:
        if repo.progress is not None:
            repo.progress(done, total, file.path.name)
        try:
            actual = _digest_of(file)
        except (OSError, WeighbridgeError) as error:
            actual = f"none: {error}"
        if actual != file.expected:
            message = f"{file.origin} {file.algo} {file.expected}, its bytes have {actual}"
            yield Flaw(message, file.path, hint="it is damaged: remove it and download the model again")
        done += file.size


def _digest_of(file: ListedDigest) -> str:
    if file.source is not None:
        return digest_of(file.source, file.algo)
    with open_source(file.path) as source:
        return digest_of(source, file.algo)


_TEXT: Final = "a file has the digest in its store's name for it, or that the Hub or a manifest lists"
RULES: Final = (Check("file/digest", Severity.ERROR, _TEXT, digest),)
