"""Repositories of the Hugging Face Hub as targets. The files of a run are staged on this machine, uploaded by
huggingface_hub (Xet or LFS, which send no chunk that the Hub has already) and shown by one commit on top of the one
that was seen before: all or nothing, and never over another writer's commit."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from weighbridge import __version__
from weighbridge.adapters.remote.extra import check_online, package
from weighbridge.adapters.remote.hub import HubUri, parse_uri
from weighbridge.base.errors import RefusedError, RemoteError, UsageError
from weighbridge.io.location import RemotePath
from weighbridge.io.sink import CommitSink, listed
from weighbridge.io.source import Source

_MESSAGE = f"Upload with weighbridge {__version__}"


def staging_folder() -> Path:
    """Where files wait for their commit: XDG_CACHE_HOME/weighbridge/uploads."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "weighbridge" / "uploads"


class HubRepository:
    """A repository, or a name that has none yet: then it is made, private, by the first commit."""

    def __init__(self, uri: HubUri) -> None:
        self.uri, self.title = uri, uri.title
        self.hub = package("huggingface_hub", "writing to the Hub")
        self.api = self.hub.HfApi(library_name="weighbridge", library_version=__version__)

    def _info(self) -> Any:
        """Returns the repository at its current commit; None if it is missing."""
        uri = self.uri
        try:
            return self.api.repo_info(uri.repository, repo_type=uri.kind, revision=uri.revision)
        except self.hub.errors.RepositoryNotFoundError:
            return None
        except Exception as error:
            raise self._explained(error) from None

    def _explained(self, error: Exception) -> Exception:
        errors = self.hub.errors
        status = getattr(getattr(error, "response", None), "status_code", 0)
        if isinstance(error, errors.RevisionNotFoundError):
            return UsageError(f"{self.title}: the revision doesn't exist", hint="make the branch on the Hub first")
        if status == 412:
            return RefusedError(f"{self.title} has got another commit meanwhile", hint="run it again")
        if status in (401, 403):
            return RemoteError(
                f"{self.title}: you may not write there",
                hint="log in with `hf auth login` (a token \
with write access), or set HF_TOKEN",
            )
        if isinstance(error, OSError | errors.HfHubHTTPError | ValueError | RuntimeError):
            words = next(iter(str(error).splitlines()), type(error).__name__)
            return RemoteError(f"{self.title}: {words}", hint="try again")
        return error

    def taken(self, names: Collection[str]) -> list[str]:
        """Those of the names that the repository has."""
        info = self._info()
        there = {sibling.rfilename for sibling in info.siblings or []} if info else set()
        return sorted(there.intersection(names))

    def check(self, names: Collection[str]) -> None:
        """Raises RefusedError if one of the names is taken."""
        if found := self.taken(names):
            raise RefusedError(f"{self.title} has {listed(found)} already", option="--overwrite")

    def commit(
        self, files: Mapping[str, Path | bytes], *, replace: bool, private: bool = True, create_pr: bool = False,
        message: str = _MESSAGE,
    ) -> str:  # fmt: skip
        """Upload the files and show them by one commit, or with `create_pr` by a pull request; its URL. `private`: of a
        repository that isn't there yet."""
        uri, info = self.uri, self._info()
        if not (replace or create_pr):
            self.check(files)
        self.hub.utils.disable_progress_bars()
        adds = [self.hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=path) for name, path in files.items()]
        try:
            if info is None:
                self.api.create_repo(uri.repository, repo_type=uri.kind, private=private, exist_ok=True)
            done = self.api.create_commit(
                uri.repository, adds, commit_message=message, repo_type=uri.kind, revision=uri.revision,
                parent_commit=info.sha if info else None, create_pr=create_pr,
            )  # fmt: skip
        except Exception as error:
            raise self._explained(error) from error
        return str(done.pr_url or done.commit_url)


class HubTarget:
    """A repository to be written to, as the tree of its files."""

    def __init__(self, uri: HubUri) -> None:
        self.repository, self.title = HubRepository(uri), uri.title

    def size(self, name: str) -> int | None:
        return None

    def children(self, folder: str) -> Mapping[str, bool] | None:
        return None  # a commit doesn't touch a repository's other files

    def version(self, name: str) -> str:
        return ""

    def digest(self, name: str) -> tuple[str, str] | None:
        return None

    def open(self, name: str) -> Source:
        raise UsageError(f"{self.title}/{name} is a target", hint="name it as a source")

    def check(self, name: str, *, overwrite: bool, folder: bool | None) -> None:
        """Checks for obstacles to a write, before any work."""
        if not overwrite and name:
            self.repository.check([name])

    def sink(
        self, name: str, *, folder: bool, size: int, overwrite: bool, replace_folder: bool, names: Collection[str],
        key: Mapping[str, str] | None, memory: int,
    ) -> CommitSink:  # fmt: skip
        """Returns a sink for a name; `memory` isn't used, since files are staged on the disk."""
        if replace_folder:
            raise UsageError(f"--replace-folder doesn't apply to {self.title}", hint="delete files on the Hub itself")
        if not folder and not name:
            raise UsageError(f"{self.title} is a repository, and a file is written", hint="name the file, too")
        if not overwrite:
            self.repository.check([f"{name}/{n}".strip("/") for n in names] if folder else [name])
        slug = blake2b(f"{self.title}/{name}".encode(), digest_size=8).hexdigest()
        stage = staging_folder() / slug
        return CommitSink(self.repository, name, stage, folder=folder, size=size, overwrite=overwrite, key=key)

    def staged(self, size: int, late: int) -> int:
        """Bytes of this machine's disk that a write takes: all of them."""
        return size


def to_target(text: str) -> RemotePath:
    """The repository, folder or file of an `hf://` path, which needn't be there."""
    uri = parse_uri(text)
    check_online(text)
    whole = uri._replace(path="")
    root = RemotePath.root(f"target+{whole.title}", HubTarget(whole))
    path: RemotePath = root / uri.path if uri.path else root
    return path
